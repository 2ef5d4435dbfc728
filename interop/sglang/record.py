"""Record what a running SGLang pair answers, for the dialect's golden tests.

usage: record.py PREFILL_URL DECODE_URL BOOTSTRAP_PORT OUT

Bodies are saved as they came; .json is one answer, .sse a stream. What names
this machine or a key is taken out. Both legs of a request are sent at once, as
the engine demands, with the room, the ids and the salt that a gateway mints.
requests.json says what was sent and which status came back.
"""

import json
import os
import re
import sys
import threading
import urllib.error
import urllib.request

PREFILL, DECODE, PORT, OUT = (sys.argv + ["", "", "0", ""])[1:5]
BOOTSTRAP = {"bootstrap_host": "127.0.0.1", "bootstrap_port": int(PORT)}
# Keys of /server_info that an adapter reads or a person may ask about.
KEEP = """version context_length page_size kv_cache_dtype dtype quantization tp_size dp_size pp_size ep_size attn_cp_size
max_total_tokens max_total_num_tokens max_req_input_len max_running_requests max_prefill_tokens chunked_prefill_size
allow_auto_truncate disable_radix_cache enable_hierarchical_cache enable_cache_report enable_priority_scheduling
disaggregation_mode disaggregation_transfer_backend disaggregation_bootstrap_port disaggregation_decode_enable_radix_cache
disaggregation_decode_retraction_backup disaggregation_enable_kv_checksum num_reserved_decode_tokens
optimistic_prefill_attempts weight_version revision model_checksum load_balance_method enable_dp_attention device
attention_backend served_model_name model_path tokenizer_path speculative_algorithm lora_paths max_loaded_loras
enable_lora enable_custom_logit_processor enable_metrics log_requests skip_server_warmup status api_key admin_api_key
internal_states""".split()

log = []


def clean(text: str) -> str:
    text = re.sub(r"/[A-Za-z0-9_./-]*/(sglang/srt/)", r"/engine/\1", text)
    text = re.sub(r'"(api_key|admin_api_key|ssl_keyfile_password)": ?"[^"]*"', r'"\1":"redacted"', text)
    return re.sub(r"/[A-Za-z0-9_./-]*/sglang/model\b", "/models/smollm2", text)


def short(body):
    """What requests.json keeps of a body: no prompt of hundreds of words."""
    if not isinstance(body, dict):
        return None
    text = json.dumps(body)
    return body if len(text) < 900 else {k: v for k, v in body.items() if k not in ("messages", "prompt")}


def call(name, url, path, body=None, method=None, timeout=60):
    data = None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode())
    request = urllib.request.Request(
        url + path, data=data, headers={"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            status, kind, text = answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
    except urllib.error.HTTPError as err:
        status, kind, text = err.code, err.headers.get("Content-Type", ""), err.read().decode()
    except Exception as err:  # a time-out is an observation too
        status, kind, text = 0, "", f"{type(err).__name__}: {err}"
    log.append({"file": name, "path": path, "status": status, "type": kind, "body": short(body)})
    if name and status:
        with open(os.path.join(OUT, name), "w") as f:
            f.write(clean(text))
    return status, text


def both(path, prefill, decode, names, timeout=60):
    """Send the two legs at once; returns ((status, text), (status, text))."""
    got = {}

    def leg(role, url, body):
        got[role] = call(names[role], url, path, body, timeout=timeout)

    threads = [
        threading.Thread(target=leg, args=("prefill", PREFILL, prefill)),
        threading.Thread(target=leg, args=("decode", DECODE, decode)),
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got["prefill"], got["decode"]


def legs(body, room, limit=None, **more):
    """The two bodies that a gateway makes of one request."""
    control = dict(BOOTSTRAP, bootstrap_room=room, cache_salt="salt-1")
    prefill = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
    prefill.update(control, rid=f"bh-p-{room}", stream=False, max_tokens=1)
    decode = dict(body, **control, rid=f"bh-d-{room}", **more)
    return prefill, decode


def main() -> int:
    os.makedirs(OUT, exist_ok=True)
    for role, url in (("prefill", PREFILL), ("decode", DECODE)):
        _, text = call("", url, "/server_info")
        info = {k: v for k, v in json.loads(text).items() if k in KEEP}
        for state in info.get("internal_states", []):
            for key in [k for k in state if k not in ("memory_usage", "effective_max_running_requests_per_dp")]:
                del state[key]
        with open(os.path.join(OUT, f"server_info-{role}.json"), "w") as f:
            f.write(clean(json.dumps(info, indent=1, sort_keys=True)) + "\n")
        call(f"loads-{role}.json", url, "/v1/loads?include=all")
    call("models.json", DECODE, "/v1/models")
    call("model_info.json", DECODE, "/model_info")
    call("route.json", f"http://127.0.0.1:{PORT}", "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1")
    paris = {"model": "smol", "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    text = {"model": "smol", "temperature": 0, "prompt": "The capital of France is"}
    usage = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    run = [
        ("/v1/chat/completions", dict(paris, max_tokens=8), "prefill.json", "chat.json"),
        ("/v1/chat/completions", dict(paris, max_tokens=8, stream=True), "", "chat.sse"),
        ("/v1/chat/completions", dict(paris, max_tokens=8, **usage), "", "chat-usage.sse"),
        ("/v1/chat/completions", dict(paris, max_tokens=4, logprobs=True, top_logprobs=2), "prefill-logprobs.json", "chat-logprobs.json"),
        ("/v1/completions", dict(text, max_tokens=8), "prefill-completions.json", "completions.json"),
        ("/v1/completions", dict(text, max_tokens=8, **usage), "", "completions.sse"),
    ]
    for i, (path, body, p, d) in enumerate(run):
        both(path, *legs(body, 1000 + i), {"prefill": p, "decode": d})
    native = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    prefill, decode = legs(native, 1100)
    del prefill["max_tokens"]
    both("/generate", prefill, decode, {"prefill": "prefill-generate.json", "decode": "generate.json"})
    for name, body in (("tokenize-chat.json", {"model": "smol", "messages": paris["messages"]}), ("tokenize-prompt.json", {"model": "smol", "prompt": text["prompt"]})):
        call(name, DECODE, "/tokenize", body)
    call("error-json.json", DECODE, "/v1/chat/completions", b"{")
    call("error-field.json", DECODE, "/v1/chat/completions", dict(paris, temperature="hot"))
    call("error-room.json", DECODE, "/v1/chat/completions", dict(paris, bootstrap_room="x"))
    call("error-noroom.json", DECODE, "/v1/chat/completions", dict(paris))
    for i, (name, body) in enumerate((("model", dict(paris, model="other", max_tokens=4)), ("max_tokens", dict(paris, max_tokens=5000)))):
        both("/v1/chat/completions", *legs(body, 1150 + i), {"prefill": f"error-{name}-prefill.json", "decode": f"error-{name}.json"}, timeout=15)
    call("error-path.json", DECODE, "/v1/nothing")
    # Ended by its id while decode is at it.
    for i, stream in enumerate((False, True)):
        prefill, decode = legs(dict(paris, max_tokens=2000, ignore_eos=True, stream=stream), 1160 + i)
        killer = threading.Timer(3, lambda: call("abort.txt", DECODE, "/abort_request", {"rid": decode["rid"]}))
        killer.start()
        both("/v1/chat/completions", prefill, decode, {"prefill": "", "decode": "aborted" + (".sse" if stream else ".json")})
        killer.join()
    # Longer than prefill's pool, shorter than the context: the two engines differ here.
    long = dict(paris, max_tokens=8, messages=[{"role": "user", "content": "one two three four " * 160}])
    for i, stream in enumerate((False, True)):
        prefill, decode = legs(dict(long, stream=stream), 1200 + i)
        prefill["stream"] = stream
        suffix = ".sse" if stream else ".json"
        done = threading.Event()
        killer = threading.Thread(target=lambda: done.wait(6) or call("abort.txt", DECODE, "/abort_request", {"rid": decode["rid"]}))
        killer.start()
        both("/v1/chat/completions", prefill, decode, {"prefill": "overlong-prefill" + suffix, "decode": "overlong-decode" + suffix})
        done.set()
        killer.join()
    both("/v1/completions", *legs(dict(text, prompt="one two three four " * 160, max_tokens=8, stream=False), 1210),
         {"prefill": "overlong-prefill-completions.json", "decode": "overlong-decode-completions.json"}, timeout=8)
    call("overcontext.json", PREFILL, "/v1/chat/completions", dict(long, messages=[{"role": "user", "content": "one two three four " * 1200}], bootstrap_room=1300, **BOOTSTRAP))
    call("overcontext.sse", PREFILL, "/v1/chat/completions", dict(long, stream=True, messages=[{"role": "user", "content": "one two three four " * 1200}], bootstrap_room=1301, **BOOTSTRAP))
    for role, url in (("prefill", PREFILL), ("decode", DECODE)):
        call(f"loads-after-{role}.json", url, "/v1/loads?include=all")
        _, text = call("", url, "/metrics")
        lines = sorted(l for l in text.splitlines() if l.startswith("sglang:") and "_bucket" not in l and "_created" not in l)
        with open(os.path.join(OUT, f"metrics-{role}.txt"), "w") as f:
            f.write("\n".join(lines) + "\n")
    call("health.txt", DECODE, "/health", timeout=60)
    with open(os.path.join(OUT, "requests.json"), "w") as f:
        f.write("[\n" + ",\n".join(clean(json.dumps(r)) for r in log if r["file"]) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

package upstream

import (
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

// TestFailures normalises what engines say when they refuse or break. No text of theirs
// gets through, numbers only where they are certain.
func TestFailures(t *testing.T) {
	const secret = "sk-planted 10.9.8.7 /root/model"
	vllm := func(message, kind string) string {
		return `{"error":{"message":"` + message + `. ` + secret + `","type":"` + kind + `","param":"` + secret + `","code":400}}`
	}
	sglang := func(message string) string {
		return `{"object":"error","message":"` + message + ` ` + secret + `","type":"BadRequestError","param":null,"code":400}`
	}
	for _, tc := range []struct {
		d       Dialect
		status  int
		body    string
		code    fault.Code
		message string // a part of ours
	}{
		{SGLang, 400, sglang("Input length (3031 tokens) exceeds the maximum allowed length (2042 tokens)."), fault.PromptOverPool, "3031 tokens; the workers of this model take at most 2042."},
		{SGLangPD, 400, sglang("The input (4831 tokens) is longer than the model's context length (4096 tokens)."), fault.PromptOverWindow, "4831 tokens; this model's maximum context length is 4096"},
		{SGLang, 400, sglang("Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens: 4000 tokens from the input messages and 1000 tokens for the completion."), fault.OutputOverWindow, "has 4000 tokens and 1000 more were asked for; this model's maximum context length is 4096"},
		{SGLang, 0, `{"error":{"message":"Input length (3 tokens) exceeds the maximum allowed length (2 tokens)","code":400}}`, fault.PromptOverPool, "3 tokens"},
		{SGLang, 500, sglang("Decode transfer failed: Lost connection with prefill instance"), fault.PeerGone, ""},
		{SGLang, 500, sglang("timed out after 300.0s in KVPoll.WaitingForInput"), fault.PeerGone, ""},
		{SGLang, 500, sglang("Metadata corruption detected - bootstrap_room mismatch"), fault.Integrity, ""},
		{SGLang, 500, sglang("Aborted by AbortReq."), fault.Cancelled, ""},
		{SGLang, 503, sglang("The request queue is full."), fault.Busy, ""},
		{SGLang, 400, sglang("Disaggregated request received without bootstrap room id."), fault.UpstreamRefused, ""},
		{SGLang, 500, sglang("Grammar accept_token failed"), fault.EngineFailed, ""},
		{VLLM, 400, vllm("This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens, which", "BadRequestError"), fault.PromptOverWindow, "at least 8193 tokens; this model's maximum context length is 8192"},
		{VLLM, 400, vllm("This model's maximum context length is 8192 tokens. However, your prompt contains 9000 input tokens, which", "BadRequestError"), fault.PromptOverWindow, "has 9000 tokens"},
		{VLLM, 400, vllm("This model's maximum context length is 8192 tokens. However, your prompt contains 99000 characters (more", "BadRequestError"), fault.PromptOverWindow, "has (unknown) tokens; this model's maximum context length is 8192"},
		{VLLM, 400, vllm("This model's maximum context length is 8192 tokens. However, you requested 100 output tokens and your prompt contains at least 8093 input tokens, for", "BadRequestError"), fault.OutputOverWindow, "at least 8093 tokens and 100 more"},
		{VLLM, 400, vllm("max_tokens=9000 cannot be greater than max_model_len=8192", "BadRequestError"), fault.OutputOverWindow, "9000 more were asked for; this model's maximum context length is 8192"},
		{VLLM, 400, vllm("You passed 100 input tokens and requested 50 output tokens. However, the model's context length is only 120 tokens, so", "BadRequestError"), fault.OutputOverWindow, "has 100 tokens and 50 more"},
		{VLLM, 400, vllm("max_tokens must be at least 1, got 0", "BadRequestError"), fault.PromptOverWindow, "(unknown)"},
		{VLLM, 400, vllm("1 validation error", "Bad Request"), fault.BadInput, ""},
		{VLLM, 400, `{"error":{"message":"` + secret + `","param":"temperature"}}`, fault.BadInput, ""},
		{VLLM, 400, `{"error":{"message":"` + secret + `","param":"cache_salt"}}`, fault.UpstreamRefused, ""}, // we wrote that
		{VLLM, 404, vllm("The model `x` does not exist", "NotFoundError"), fault.UpstreamRefused, ""},
		{VLLM, 500, vllm("", "InternalServerError"), fault.EngineFailed, ""},
		{LlamaCPP, 400, `{"error":{"code":400,"message":"` + secret + `","type":"exceed_context_size_error","n_prompt_tokens":6031,"n_ctx":2048}}`, fault.PromptOverWindow, "6031 tokens; this model's maximum context length is 2048"},
		{LlamaCPP, 400, `{"error":{"code":400,"message":"` + secret + `","type":"exceed_context_size_error"}}`, fault.PromptOverWindow, "(unknown)"},
		{LlamaCPP, 500, `{"error":{"code":500,"message":"[json.exception.parse_error.101] ` + secret + `","type":"server_error"}}`, fault.BadInput, ""},
		{LlamaCPP, 500, `{"error":{"code":500,"message":"Context size has been exceeded. ` + secret + `","type":"server_error"}}`, fault.EngineFailed, ""},
		{LlamaCPP, 501, `{"error":{"code":501,"message":"This server does not support embeddings ` + secret + `","type":"not_supported_error"}}`, fault.UpstreamRefused, ""},
		{OpenAI, 400, `{"error":{"message":"This model's maximum context length is 4097 tokens. However, your messages resulted in 5000 tokens. ` + secret + `","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`, fault.PromptOverWindow, "5000 tokens"},
		{OpenAI, 400, `{"error":{"message":"` + secret + `","type":"invalid_request_error","code":"context_length_exceeded"}}`, fault.PromptOverWindow, "(unknown)"},
		{OpenAI, 400, `{"error":{"message":"prompt is too long: 200100 tokens > 200000 maximum ` + secret + `"}}`, fault.PromptOverWindow, "200100"},
		{OpenAI, 401, `{"error":{"message":"Incorrect API key provided: ` + secret + `","code":"invalid_api_key"}}`, fault.UpstreamRefused, ""},
		{OpenAI, 402, secret, fault.UpstreamRefused, ""},
		{OpenAI, 403, `{"error":"` + secret + `"}`, fault.UpstreamRefused, ""},
		{OpenAI, 429, `{"error":{"message":"Rate limit reached ` + secret + `"}}`, fault.Busy, ""},
		{OpenAI, 529, ``, fault.Busy, ""},
		{VLLM, 529, ``, fault.EngineFailed, ""},
		{VLLM, 503, ``, fault.Busy, ""},
		{VLLM, 408, ``, fault.Deadline, ""},
		{VLLM, 504, `<html>` + secret, fault.Deadline, ""},
		{VLLM, 302, ``, fault.UpstreamVoid, ""},
		{VLLM, 204, ``, fault.UpstreamVoid, ""},
		{VLLM, 0, ``, fault.EngineFailed, ""},
		{VLLM, 0, `{"error":{"message":"` + secret + `","code":400}}`, fault.BadInput, ""},
		{VLLM, 0, `{"error":{"message":"` + secret + `","code":200}}`, fault.EngineFailed, ""},
		{OpenAI, 0, `{"error":{"message":"` + secret + `","type":"invalid_request_error","code":null}}`, fault.BadInput, ""},
		{VLLM, 422, `{"detail":[{"loc":["body"],"msg":"` + secret + `"}]}`, fault.BadInput, ""},
		{VLLM, 500, strings.Repeat(" ", maxFailure) + vllm("max_tokens=9000 cannot be greater than max_model_len=8192", "x"), fault.EngineFailed, ""},
		{VLLM, 200, vllm("max_tokens=9000 cannot be greater than max_model_len=8192", "x"), fault.UpstreamVoid, ""},
		{Bulkhead, 400, string(fault.New(fault.TooLong, fault.Int(9), fault.Int(8)).Body()), fault.TooLong, "9 tokens; this worker takes at most 8"},
		{Bulkhead, 403, `{"error":{"code":"bad_pass","message":"` + secret + `"}}`, fault.BadPass, ""},
	} {
		f := ParseFailure(tc.d, tc.status, []byte(tc.body))
		if f.Param != "" && f.Param != "temperature" {
			t.Errorf("%v: the field %q is blamed", tc.d, f.Param)
		}
		if f.Code != tc.code || !strings.Contains(f.Message, tc.message) {
			t.Errorf("%v %d %.120s: %v", tc.d, tc.status, tc.body, f)
		}
		for _, word := range strings.Fields(secret) {
			if strings.Contains(string(f.Body()), word) {
				t.Errorf("%v %d: %s gets through: %s", tc.d, tc.status, word, f.Body())
			}
		}
	}
}

// TestFailureParam names the field that the client can correct, and no other.
func TestFailureParam(t *testing.T) {
	for param, want := range map[string]string{
		`"temperature"`: "temperature", `"body.temperature"`: "temperature", `"body.messages.0.content"`: "", `"planted"`: "", `null`: "", `7`: "", `"rid"`: "",
	} {
		if f := ParseFailure(VLLM, 400, []byte(`{"error":{"message":"x","param":`+param+`}}`)); f.Param != want {
			t.Errorf("%s: the field %q is blamed", param, f.Param)
		}
	}
}

func TestMatchNumbers(t *testing.T) {
	for _, tc := range []struct {
		message, sentence string
		want              []int64
		ok                bool
	}{
		{"x a 1 b 22 c y", "a # b # c", []int64{1, 22}, true},
		{"a 1 b", "a # b # c", nil, false},
		{"a  b", "a # b", nil, false},
		{"a -1 b", "a # b", nil, false},
		{"a 99999999999999999999 b", "a # b", nil, false},
		{"a 7", "a #", []int64{7}, true},
		{"ends", "ends", nil, true},
		{"", "a #", nil, false},
	} {
		n, ok := match(tc.message, tc.sentence)
		if ok != tc.ok || ok && len(n) != len(tc.want) {
			t.Errorf("%q in %q: %v, %v", tc.sentence, tc.message, n, ok)
		}
		for i := range tc.want {
			if n[i] != tc.want[i] {
				t.Errorf("%q in %q: %v", tc.sentence, tc.message, n)
			}
		}
	}
	for _, l := range lengths {
		n := strings.Count(l.text, "#")
		for _, a := range l.args {
			if a > n || -a > n {
				t.Errorf("%q has %d numbers, %d is asked for", l.text, n, a)
			}
		}
	}
}

const handlePrefill = `{"id":"chatcmpl-bh-1","choices":[{"index":0,"message":{"role":"assistant","content":"L"},"finish_reason":"length"}],"usage":{"prompt_tokens":543,"completion_tokens":1,"total_tokens":544},"kv_transfer_params":HANDLE}`

const handleText = `{ "do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5]],"remote_engine_id":"12a10c2e","remote_request_id":"chatcmpl-bh-1-7c0d","remote_host":"127.0.0.1","remote_port":5701,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":543,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0 }`

// TestReadHandle takes handles apart (G-11): whatever is not exactly what prefill sends for
// this prompt is no handle.
func TestReadHandle(t *testing.T) {
	swap := func(from, to string) string {
		t.Helper()
		if !strings.Contains(handleText, from) {
			t.Fatalf("nothing to swap: %s", from)
		}
		return strings.Replace(handleText, from, to, 1)
	}
	for _, tc := range []struct {
		name, handle string
		block        int64
		want         Agreement
		extent       Extent
	}{
		{"sound", handleText, 128, Agreed, ExtentExact},
		{"size of a block unknown", handleText, 0, Agreed, ExtentUnknown},
		{"another block size", handleText, 64, CountsDiffer, 0},
		{"a block more", swap(`4,5]`, `4,5,6]`), 128, CountsDiffer, 0},
		{"a block less", swap(`4,5]`, `4]`), 128, CountsDiffer, 0},
		{"a block less, size unknown", swap(`4,5]`, `4]`), 0, Agreed, ExtentUnknown},
		{"two groups", swap(`4,5]]`, `4,5],[9,10,11,12,13]]`), 128, Agreed, ExtentExact},
		{"a sliding window", swap(`4,5]]`, `4,5],[9]]`), 128, Agreed, ExtentUnknown},
		{"a group with more than the prompt", swap(`4,5]]`, `4,5],[9,1,1,1,1,1]]`), 128, CountsDiffer, 0},
		{"a group without blocks", swap(`4,5]]`, `4,5],[]]`), 128, Unproved, 0},
		{"no group", swap(`[[1,2,3,4,5]]`, `[]`), 128, Unproved, 0},
		{"a flat list", swap(`[[1,2,3,4,5]]`, `[1,2,3]`), 128, Unproved, 0},
		{"no blocks", swap(`"remote_block_ids":[[1,2,3,4,5]],`, ``), 128, Unproved, 0},
		{"a block that is none", swap(`[[1,`, `[[-1,`), 128, Unproved, 0},
		{"a block that is a text", swap(`[[1,`, `[["1",`), 128, Unproved, 0},
		{"tokens of another prompt", swap(`543`, `542`), 128, CountsDiffer, 0},
		{"no tokens", swap(`"remote_num_tokens":543,`, ``), 128, Unproved, 0},
		{"null tokens", swap(`543`, `null`), 128, Unproved, 0},
		{"to be pushed", swap(`"pull"`, `"push"`), 128, Unproved, 0},
		{"an older engine tells no mode", swap(`"transfer_mode":"pull",`, ``), 128, Agreed, ExtentExact},
		{"for prefill", swap(`"do_remote_prefill":true`, `"do_remote_prefill":false`), 128, Unproved, 0},
		{"for both", swap(`"do_remote_decode":false`, `"do_remote_decode":true`), 128, Unproved, 0},
		{"no engine", swap(`"remote_engine_id":"12a10c2e",`, ``), 128, Unproved, 0},
		{"empty engine", swap(`12a10c2e`, ``), 128, Unproved, 0},
		{"an older engine adds nothing to the id", swap(`bh-1-7c0d`, `bh-1`), 128, Agreed, ExtentExact},
		{"a later sequence of a completion adds its number too", swap(`bh-1-7c0d`, `bh-1-0-7c0d`), 128, Agreed, ExtentExact},
		{"of another request", swap(`bh-1-7c0d`, `bh-2-7c0d`), 128, Foreign, 0},
		{"of a request whose id begins with ours", swap(`bh-1-7c0d`, `bh-12-7c0d`), 128, Foreign, 0},
		{"of no request", swap(`"remote_request_id":"chatcmpl-bh-1-7c0d",`, ``), 128, Unproved, 0},
		{"no host", swap(`"remote_host":"127.0.0.1",`, ``), 128, Unproved, 0},
		{"port 0", swap(`5701`, `0`), 128, Unproved, 0},
		{"port as a text", swap(`5701`, `"5701"`), 128, Unproved, 0},
		{"the prompt again", swap(`"tp_size":1`, `"tp_size":1,"prompt_token_ids":[1,2]`), 128, Unproved, 0},
		{"a member by another spelling", swap(`"tp_size":1`, `"tp\u005fsize":1`), 128, Unproved, 0},
		{"a member twice", swap(`"remote_port":5701`, `"remote_port":5701,"remote_port":5702`), 128, Unproved, 0},
		{"null", `null`, 128, Unproved, 0},
		{"a text", `"x"`, 128, Unproved, 0},
		{"empty", `{}`, 128, Unproved, 0},
		{"too large", swap(`4,5]]`, `4,5`+strings.Repeat(",6", maxHandle/2)+`]]`), 0, Unproved, 0},
	} {
		body := strings.Replace(handlePrefill, "HANDLE", tc.handle, 1)
		r := answer(t, VLLMNixl, body)
		if got := Prefilled(VLLMNixl, "bh-1", &r); got != Agreed {
			t.Fatalf("%s: %v", tc.name, got)
		}
		h, got := ReadHandle(&r, tc.block)
		if got != tc.want || (h != nil) != (tc.want == Agreed) {
			t.Errorf("%s: %v, %+v", tc.name, got, h)
			continue
		}
		if h == nil {
			continue
		}
		if h.Extent != tc.extent || h.Tokens != 543 || h.Host != "127.0.0.1" || h.Port != 5701 || h.Engine != "12a10c2e" || !strings.HasPrefix(h.Request, "chatcmpl-bh-1") || h.Blocks[0] < 4 {
			t.Errorf("%s: %+v", tc.name, h)
		}
		if out := string(h.AppendTo([]byte("x"))); out != "x"+tc.handle || h.Size() != len(tc.handle) {
			t.Errorf("%s: the handle became %s", tc.name, out)
		}
		if out := string(r.Rewrite(nil, Public{Usage: KeepUsage})); strings.Contains(out, "remote") {
			t.Errorf("%s: a client sees the handle: %s", tc.name, out)
		}
		copy(r.body, strings.Repeat(" ", len(r.body)))
		if string(h.AppendTo(nil)) != tc.handle {
			t.Errorf("%s: the handle lives in the body", tc.name)
		}
	}
	missing := answer(t, VLLMNixl, strings.Replace(handlePrefill, `,"kv_transfer_params":HANDLE`, ``, 1))
	if h, got := ReadHandle(&missing, 128); h != nil || got != Unproved {
		t.Errorf("no handle: %v, %v", h, got)
	}
	uncounted := answer(t, VLLMNixl, strings.Replace(strings.Replace(handlePrefill, "HANDLE", handleText, 1), `"prompt_tokens":543,`, ``, 1))
	if h, got := ReadHandle(&uncounted, 128); h != nil || got != CountsDiffer {
		t.Errorf("a prompt that was not counted: %v, %v", h, got)
	}
}

func FuzzFailure(f *testing.F) {
	f.Add(uint8(1), 400, []byte(`{"error":{"message":"Input length (3 tokens) exceeds the maximum allowed length (2 tokens)","code":400}}`))
	f.Add(uint8(6), 0, []byte(`{"error":{"type":"exceed_context_size_error","n_prompt_tokens":1}}`))
	f.Fuzz(func(t *testing.T, dialect uint8, status int, body []byte) {
		d := Dialect(dialect) % dialects
		e := ParseFailure(d, status%600, body)
		if e == nil || e.Status < 400 || e.Status > 599 || fault.New(e.Code).Code != e.Code {
			t.Fatalf("%q became %v", body, e)
		}
		_, _ = ReadCount(d, 200, body)
	})
}

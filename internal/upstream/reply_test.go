package upstream

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

const prefillAnswer = `{"id":"bh-1","object":"chat.completion","created":1,"model":"served","choices":[{"index":0,"message":{"role":"assistant","content":"T\u0068"},"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}`

func tokens(n int64) Count { return Count{n, true} }

func answer(t testing.TB, d Dialect, text string) Reply {
	t.Helper()
	r, err := ParseAnswer(d, Chat, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

func chunk(t testing.TB, d Dialect, e Endpoint, text string) Reply {
	t.Helper()
	r, err := ParseChunk(d, e, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

func TestParse(t *testing.T) {
	for _, d := range Dialects() {
		r := answer(t, d, prefillAnswer)
		if r.ID != "bh-1" || r.Prompt != tokens(7) || r.Completion != tokens(1) || r.Total != tokens(8) || r.Cached.Known || r.Created != tokens(1) ||
			r.Choices != 1 || r.Finish(0) != "length" || string(r.Text(0)) != "Th" || !r.HasText(0) || !r.Moves(0) || r.Failure != nil || r.Index(0) != tokens(0) {
			t.Errorf("%v: read %+v", d, r)
		}
	}
	r := answer(t, SGLang, `{}`)
	if r.ID != "" || r.Prompt.Known || r.Completion.Known || r.Created.Known || r.Listed || r.HasText(0) || r.Finish(0) != "" || r.Text(0) != nil || r.Index(0).Known || r.Moves(0) {
		t.Errorf("what is not said must be unknown: %+v", r)
	}
	r = answer(t, SGLang, `{"usage":{"prompt_tokens":0,"completion_tokens":null},"choices":[],"created":1.5}`)
	if r.Prompt != tokens(0) || r.Completion.Known || !r.IsUsageChunk() || r.Created.Known {
		t.Errorf("zero is not unknown: %+v", r)
	}
	r = chunk(t, SGLang, Chat, `{"id":"a","choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`)
	if r.Finish(0) != "" || !r.HasText(0) || len(r.Text(0)) != 0 || r.Prompt.Known || r.IsUsageChunk() || r.Moves(0) {
		t.Errorf("role chunk: %+v", r)
	}
	r = chunk(t, OpenAI, Chat, `{"id":"","choices":[],"prompt_filter_results":[{}]}`)
	if r.IsUsageChunk() {
		t.Errorf("a chunk without choices and usage is no usage chunk: %+v", r)
	}
	r = chunk(t, SGLang, Completions, `{"id":"a","choices":[{"text":"x","index":1}]}`)
	if string(r.Text(0)) != "x" || r.Index(0) != tokens(1) || !r.Moves(0) {
		t.Errorf("completion chunk: %+v", r)
	}
	r = chunk(t, SGLang, Chat, `{"id":"a","choices":[{"text":"not a chat","message":{"content":"not a chunk"},"delta":{"content":null}}]}`)
	if r.HasText(0) || r.Moves(0) {
		t.Errorf("a chat's chunk has neither text nor message: %+v", r)
	}
}

// TestParseChoices reads several choices, and every part of an answer that moves.
func TestParseChoices(t *testing.T) {
	r := chunk(t, VLLM, Chat, `{"id":"a","choices":[{"index":2,"delta":{"content":"b"}},{"index":0,"delta":{"content":"a\n"},"finish_reason":"stop"},`+
		`{"index":1,"delta":{"reasoning":"r","content":null},"finish_reason":"weird\u0021"},{"delta":{}}]}`)
	if r.Choices != 4 || string(r.Text(0)) != "b" || string(r.Text(1)) != "a\n" || string(r.Reasoning(2)) != "r" ||
		r.Index(0) != tokens(2) || r.Index(1) != tokens(0) || r.Index(2) != tokens(1) || r.Index(3).Known || r.Finish(1) != "stop" || r.Finish(2) != "weird!" || r.Finish(4) != "" {
		t.Errorf("read %+v", r)
	}
	for delta, want := range map[string][2]bool{ // moves, calls
		`{"content":"x"}`: {true, false}, `{"content":""}`: {}, `{"content":null}`: {}, `{"role":"assistant"}`: {},
		`{"reasoning_content":"x"}`: {true, false}, `{"reasoning_content":""}`: {}, `{"reasoning":"x"}`: {true, false},
		`{"refusal":"no"}`: {true, false}, `{"refusal":null}`: {},
		`{"tool_calls":[{"index":0}]}`: {true, true}, `{"tool_calls":[ ]}`: {}, `{"tool_calls":null}`: {},
		`{"function_call":{"name":"f"}}`: {true, true}, `{"function_call":null}`: {},
		`{"audio":{"id":"a"}}`: {true, false}, `{"reasoning_details":[{}]}`: {true, false}, `{"x":"y"}`: {},
		`{"content":[{"type":"thinking"}]}`: {true, false},
	} {
		r := chunk(t, OpenAI, Chat, `{"choices":[{"index":0,"delta":`+delta+`}]}`)
		if r.Moves(0) != want[0] || r.Calls(0) != want[1] {
			t.Errorf("%s: moves %v, calls %v", delta, r.Moves(0), r.Calls(0))
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, d := range Dialects() {
		for _, text := range []string{
			``, `[]`, `"a"`, `{"id":1}`, `{"id":"a","id":"b"}`, `{"id":"a","\u0069d":"b"}`, `{"id":"a"} x`, `{"id":"a"`, "{\"id\":\"\xff\"}",
			`{"usage":[]}`, `{"usage":{"prompt_tokens":-1}}`, `{"usage":{"prompt_tokens":1.5}}`, `{"usage":{"prompt_tokens":"7"}}`, `{"usage":{"prompt_tokens":NaN}}`,
			`{"usage":{"prompt_tokens":7,"prompt_tokens":8}}`, `{"usage":{},"usage":{}}`, `{"usage":{"prompt_tokens":9223372036854775808}}`,
			`{"usage":{"prompt_tokens_details":{"cached_tokens":1,"cached_tokens":1}}}`, `{"usage":{"cached_tokens":1,"cached_tokens":null}}`, `{"usage":{"prompt_tokens_details":7}}`,
			`{"choices":{}}`, `{"choices":["a"]}`, `{"choices":[],"choices":[]}`, `{"choices":[{"finish_reason":1}]}`,
			`{"choices":[{"message":"x"}]}`, `{"choices":[{"message":{"content":1}}]}`, `{"choices":[{"message":{"content":"a","content":"b"}}]}`,
			`{"choices":[{},{"message":{"content":"a","content":"b"}}]}`, `{"choices":[{"message":{"role":"a","role":"b"}}]}`,
			`{"choices":[{"message":{},"message":{}}]}`, `{"choices":[{"index":"0"}]}`, `{"choices":[{"finish_reason":"stop","finish_reason":"length"}]}`,
			`{"error":1,"error":null}`, `{"model":5}`, `{"created":1,"created":2}`, `{"x":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`,
		} {
			if r, err := ParseAnswer(d, Chat, []byte(text)); !errors.Is(err, ErrMalformed) {
				t.Errorf("%v: %s: read %+v, %v", d, text, r, err)
			}
		}
	}
	if _, err := ParseChunk(SGLang, Chat, []byte(`{"choices":[{"delta":{"content":[]}}]}`)); err == nil {
		t.Error("only a hosted API has content in parts")
	}
}

// TestUsage is recipe R9 as far as one reply shows it: what cannot be true is unknown, and
// what is not there is not zero.
func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		name, usage                       string
		d                                 Dialect
		prompt, completion, total, cached Count
		contradictory                     bool
	}{
		{"adds up", `{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}`, SGLang, tokens(7), tokens(2), tokens(9), Count{}, false},
		{"zeros", `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`, SGLang, tokens(0), tokens(0), tokens(0), Count{}, false},
		{"no total", `{"prompt_tokens":7,"completion_tokens":2}`, SGLang, tokens(7), tokens(2), Count{}, Count{}, false},
		{"completion null", `{"prompt_tokens":7,"completion_tokens":null,"total_tokens":7}`, SGLang, tokens(7), Count{}, tokens(7), Count{}, false},
		{"total too large", `{"prompt_tokens":7,"completion_tokens":2,"total_tokens":10}`, SGLang, Count{}, Count{}, Count{}, Count{}, true},
		{"total too small", `{"prompt_tokens":7,"completion_tokens":2,"total_tokens":8}`, VLLM, Count{}, Count{}, Count{}, Count{}, true},
		{"hosted counts thoughts", `{"prompt_tokens":7,"completion_tokens":2,"total_tokens":50}`, OpenAI, tokens(7), tokens(2), tokens(50), Count{}, false},
		{"hosted, too small", `{"prompt_tokens":7,"completion_tokens":2,"total_tokens":8}`, OpenAI, Count{}, Count{}, Count{}, Count{}, true},
		{"sum overflows", `{"prompt_tokens":9223372036854775807,"completion_tokens":9223372036854775807,"total_tokens":1}`, SGLang, Count{}, Count{}, Count{}, Count{}, true},
		{"cached", `{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":6}}`, SGLang, tokens(7), tokens(2), tokens(9), tokens(6), false},
		{"more cached than there is", `{"prompt_tokens":2023,"completion_tokens":2,"total_tokens":2025,"prompt_tokens_details":{"cached_tokens":3968}}`, VLLM, tokens(2023), tokens(2), tokens(2025), Count{}, false},
		{"cached, twice", `{"prompt_tokens":7,"prompt_cache_hit_tokens":6,"prompt_tokens_details":{"cached_tokens":6}}`, OpenAI, tokens(7), Count{}, Count{}, tokens(6), false},
		{"cached, but how much", `{"prompt_tokens":7,"prompt_cache_hit_tokens":6,"prompt_tokens_details":{"cached_tokens":5}}`, OpenAI, tokens(7), Count{}, Count{}, Count{}, false},
		{"cached, in another place", `{"prompt_tokens":7,"prompt_cache_hit_tokens":6,"prompt_cache_miss_tokens":1}`, OpenAI, tokens(7), Count{}, Count{}, tokens(6), false},
	} {
		for _, d := range []string{`{"choices":[],"usage":` + tc.usage + `}`, `{"usage":` + tc.usage + `,"choices":[]}`} {
			r := chunk(t, tc.d, Chat, d)
			if r.Prompt != tc.prompt || r.Completion != tc.completion || r.Total != tc.total || r.Cached != tc.cached || r.Contradictory != tc.contradictory {
				t.Errorf("%s: read %+v", tc.name, r)
			}
			if many := tc.name == "more cached than there is"; r.CachedTooMany != many {
				t.Errorf("%s: too many cached tokens: %v", tc.name, r.CachedTooMany)
			}
			if shown := strings.Contains(string(r.Rewrite(nil, Public{Usage: KeepUsage})), "prompt_tokens"); shown == tc.contradictory {
				t.Errorf("%s: the client sees the usage: %v", tc.name, shown)
			}
		}
	}
	two := `{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":"b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}`
	if r := answer(t, LlamaCPP, two); r.Completion.Known {
		t.Errorf("llama.cpp counts one choice of two: %+v", r)
	}
	if r := answer(t, VLLM, two); !r.Completion.Known {
		t.Errorf("vLLM counts both: %+v", r)
	}
}

// TestReadAgain reads one stream into one Reply: nothing of an earlier event stays.
func TestReadAgain(t *testing.T) {
	var r Reply
	texts := []string{
		`{"id":"a","model":"m","created":5,"choices":[{"index":0,"delta":{"content":"x","reasoning_content":"y"},"finish_reason":"stop"},{"index":1,"delta":{}},{"index":2,"delta":{"content":"z"}}],"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":3}},"kv_transfer_params":{"a":1}}`,
		`{"usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":8}}}`,
		`{}`, `{"error":"x"}`, `{`, `{"choices":[{"delta":{}}]}`, `{"id":"b","choices":[]}`,
	}
	for range 2 {
		for _, text := range texts {
			fresh, want := ParseChunk(VLLM, Chat, []byte(text))
			got := ReadChunk(&r, VLLM, Chat, []byte(text))
			if (got == nil) != (want == nil) {
				t.Fatalf("%s: %v, %v", text, got, want)
			}
			if got != nil {
				continue
			}
			p := Public{ID: "p", Model: "m", Usage: KeepUsage}
			if a, b := string(r.Rewrite(nil, p)), string(fresh.Rewrite(nil, p)); a != b || r.ID != fresh.ID || r.Finish(0) != fresh.Finish(0) ||
				r.Prompt != fresh.Prompt || r.Cached != fresh.Cached || r.CachedTooMany != fresh.CachedTooMany || r.handle != fresh.handle || (r.Failure == nil) != (fresh.Failure == nil) || string(r.Reasoning(0)) != string(fresh.Reasoning(0)) {
				t.Errorf("%s: read again %s, fresh %s", text, a, b)
			}
		}
	}
}

func TestFailureInside(t *testing.T) {
	for _, tc := range []struct {
		d    Dialect
		text string
		want fault.Code
	}{
		{Bulkhead, `{"id":"bh-1","error":{"message":"secret","code":"integrity"}}`, fault.Integrity},
		{Bulkhead, `{"error":"secret"}`, fault.EngineFailed},
		{Bulkhead, `{"error":{}}`, fault.EngineFailed},
		{Bulkhead, `{"error":{"code":400,"message":"secret"},"object":"error"}`, fault.EngineFailed},
		{Bulkhead, `{"object":"error","message":"secret","code":400}`, fault.EngineFailed},
		{Bulkhead, `{"object":"error","error":{"code":"busy","message":""}}`, fault.Busy},
		{SGLang, `{"object":"error","message":"secret","type":"BadRequest","param":null,"code":400}`, fault.BadInput},
		{SGLang, `{"error":{"object":"error","message":"Input length (3031 tokens) exceeds the maximum allowed length (2042 tokens). secret","type":"BAD_REQUEST","param":null,"code":400}}`, fault.PromptOverPool},
		{SGLang, `{"error":{"message":"The request queue is full. secret","code":503}}`, fault.Busy},
		{VLLM, `{"error":{"message":"EngineCore encountered an issue. secret","type":"InternalServerError","param":null,"code":500}}`, fault.EngineFailed},
		{OpenAI, `{"error":{"message":"secret","type":"server_error","code":null}}`, fault.EngineFailed},
		{LlamaCPP, `{"error":"secret"}`, fault.EngineFailed},
	} {
		r := answer(t, tc.d, tc.text)
		if r.Failure == nil || r.Failure.Code != tc.want || strings.Contains(string(r.Failure.Body()), "secret") {
			t.Errorf("%v: %s: %v", tc.d, tc.text, r.Failure)
		}
		if out := string(r.Rewrite(nil, Public{ID: "p", Model: "m", Usage: KeepUsage})); strings.Contains(out, "secret") {
			t.Errorf("%v: %s: a client would see %s", tc.d, tc.text, out)
		}
	}
	if r := answer(t, SGLang, `{"error":null,"object":"chat.completion"}`); r.Failure != nil {
		t.Errorf("null is no error: %v", r.Failure)
	}
}

func TestRewrite(t *testing.T) {
	alias := Public{ID: "pub", Model: `al"ias`, Usage: KeepUsage}
	strip := Public{ID: "pub", Model: "m"}
	own := Public{ID: "pub", Model: "m", Usage: KeepUsage, Cached: ShowCached}
	moved := Public{ID: "pub", Model: "m", Shift: 3}
	for _, tc := range []struct {
		name, text, want string
		d                Dialect
		p                Public
	}{
		{"kept", `{ "id" : "bh-1","object":"x","model":"served","choices":[{"index":0,"delta":{"content":"\u0061 é"}}], "usage":{"prompt_tokens":7} }`,
			`{ "id" : "pub","object":"x","model":"al\"ias","choices":[{"index":0,"delta":{"content":"\u0061 é"}}], "usage":{"prompt_tokens":7} }`, Bulkhead, alias},
		{"usage cut", `{"usage":{"prompt_tokens":7},"id":"bh-1","model":"s","choices":[]}`, `{"id":"pub","model":"m","choices":[]}`, Bulkhead, strip},
		{"usage cut at the end", `{"id":"bh-1","model":"s","choices":[] , "usage":null}`, `{"id":"pub","model":"m","choices":[]}`, Bulkhead, strip},
		{"usage and its neighbours", `{"timings":{},"usage":null,"x":1,"id":"a","y":2,"model":"b","z":3}`, `{"id":"pub","model":"m"}`, LlamaCPP, strip},
		{"what is on no list", `{"kv_transfer_params":{"host":"10.0.0.1"},"id":"bh-1","ID":"bh-1","choices":[{"worker":"w","index":0,"delta":{"content":"a","reasoning_content":"r"},"matched":1}],"error":null,"model":"s"}`,
			`{"id":"pub","choices":[{"index":0,"delta":{"content":"a"}}],"model":"al\"ias"}`, Bulkhead, alias},
		{"a reasoning engine", `{"id":"1","model":"s","choices":[{"index":0,"delta":{"reasoning_content":"r","tool_calls":[{"index":0,"function":{"arguments":"{\"rid\":1}"}}],"hidden_states":[1]},"matched_stop":"x","stop_reason":2}],"sglext":{}}`,
			`{"id":"pub","model":"m","choices":[{"index":0,"delta":{"reasoning_content":"r","tool_calls":[{"index":0,"function":{"arguments":"{\"rid\":1}"}}]},"matched_stop":"x"}]}`, SGLangPD, strip},
		{"nothing there", `{}`, `{"id":"pub","model":"m"}`, SGLang, strip},
		{"nothing kept", `{"a":1,"b":2}`, `{"id":"pub","model":"m"}`, SGLang, strip},
		{"id and model added", ` {"a":1, "choices":[]}`, ` {"id":"pub","model":"m","choices":[]}`, SGLang, strip},
		{"id null, model missing", `{"id":null}`, `{"model":"m","id":"pub"}`, SGLang, strip},
		{"cached hidden", `{"id":"a","model":"s","usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":6,"audio_tokens":0},"prompt_cache_hit_tokens":6,"cost":3},"choices":[]}`,
			`{"id":"pub","model":"al\"ias","usage":{"prompt_tokens":7,"prompt_tokens_details":{"audio_tokens":0}},"choices":[]}`, OpenAI,
			Public{ID: "pub", Model: `al"ias`, Usage: KeepUsage}},
		{"cached alone hidden", `{"id":"a","model":"s","usage":{"prompt_tokens_details":{"cached_tokens":6},"prompt_tokens":7},"choices":[]}`,
			`{"id":"pub","model":"al\"ias","usage":{"prompt_tokens":7},"choices":[]}`, VLLM, alias},
		{"nothing cached looks the same", `{"id":"a","model":"s","usage":{"prompt_tokens_details":null,"prompt_tokens":7},"choices":[]}`,
			`{"id":"pub","model":"al\"ias","usage":{"prompt_tokens":7},"choices":[]}`, VLLM, alias},
		{"and so does an engine that leaves it out", `{"id":"a","model":"s","usage":{"prompt_tokens":7},"choices":[]}`,
			`{"id":"pub","model":"al\"ias","usage":{"prompt_tokens":7},"choices":[]}`, VLLM, alias},
		{"the last member", `{"id":"a","model":"s","choices":[],"usage":{"prompt_tokens":7,"prompt_tokens_details":{"x":[{}],"cached_tokens":0}}}`,
			`{"id":"pub","model":"al\"ias","choices":[],"usage":{"prompt_tokens":7}}`, VLLM, alias},
		{"cached shown", `{"id":"a","model":"s","usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":6,"made_by":1}},"choices":[]}`,
			`{"id":"pub","model":"m","usage":{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":6}},"choices":[]}`, VLLM, own},
		{"index shifted", `{"id":"a","model":"s","choices":[{"x":1,"index":0,"delta":{}},{"y":1, "delta":{}},{"delta":{},"index":null},{"index":2},{},{"q":1}]}`,
			`{"id":"pub","model":"m","choices":[{"index":3,"delta":{}},{"index":3,"delta":{}},{"delta":{},"index":3},{"index":5},{"index":3},{"index":3}]}`, VLLM, moved},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := chunk(t, tc.d, Chat, tc.text)
			for range 2 {
				if got := string(r.Rewrite([]byte("x"), tc.p)); got != "x"+tc.want {
					t.Errorf("got %s\nwant %s", got, tc.want)
				}
			}
		})
	}
}

// TestLists holds the lists against what engines are known to put beside an answer.
func TestLists(t *testing.T) {
	const secret = `"10.9.8.7"`
	for _, d := range Dialects() {
		for _, where := range []string{
			`{"id":"a","choices":[],%s}`, `{"id":"a","choices":[{"index":0,%s}]}`, `{"id":"a","choices":[{"index":0,"delta":{%s}}]}`,
			`{"id":"a","usage":{"prompt_tokens":1,%s}}`, `{"id":"a","usage":{"prompt_tokens_details":{%s}}}`,
		} {
			for _, name := range []string{
				"timings", "__verbose", "kv_transfer_params", "ec_transfer_params", "prompt_token_ids", "token_ids", "prompt_text", "metrics", "meta_info", "sglext",
				"metadata", "hidden_states", "routed_experts", "bootstrap_room", "disaggregated_params", "remote_host", "worker_id", "rid", "Id", "id_slot", "prompt",
				"generation_settings", "output_ids", "nvext", "provider", "x_groq", "warning", "message", "detail", "param",
			} {
				text := strings.Replace(where, "%s", `"`+name+`":`+secret, 1)
				if strings.Contains(text, `"delta":{"message`) || strings.Contains(text, `0,"message`) {
					continue
				}
				r := chunk(t, d, Chat, text)
				out := r.Rewrite(nil, Public{ID: "p", Model: "m", Usage: KeepUsage, Cached: ShowCached})
				if strings.Contains(string(out), secret) || !json.Valid(out) {
					t.Errorf("%v: %s became %s", d, text, out)
				}
			}
		}
		control := chunk(t, d, Chat, `{"id":"a","choices":[{"index":0,"delta":{"content":`+secret+`}}]}`)
		if out := control.Rewrite(nil, Public{}); !strings.Contains(string(out), secret) {
			t.Errorf("%v: the content is lost: %s", d, out)
		}
	}
}

func TestMerge(t *testing.T) {
	one := func(text, index, usage string) Reply {
		return answer(t, LlamaCPP, `{"id":"x","created":9,"model":"s","choices":[{`+index+`"message":{"role":"assistant","content":"`+text+`"},"finish_reason":"stop","k":1}],"usage":`+usage+`,"timings":{}}`)
	}
	p := Public{ID: "pub", Model: "m", Usage: KeepUsage}
	use := `{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}`
	choice := func(i, text string) string {
		return `{"index":` + i + `,"message":{"role":"assistant","content":"` + text + `"},"finish_reason":"stop"}`
	}
	head := `{"id":"pub","object":"chat.completion","created":9,"model":"m","choices":[`
	for _, tc := range []struct {
		name    string
		replies []Reply
		prompts int
		cached  CachedTokens
		want    string
	}{
		{"n of one prompt", []Reply{one("a", `"index":0,`, use), one("b", `"index":0,`, use), one("c", ``, use)}, 0, HideCached,
			head + choice("0", "a") + `,` + choice("1", "b") + `,` + choice("2", "c") + `],"usage":{"prompt_tokens":7,"completion_tokens":6,"total_tokens":13}}`},
		{"two prompts, two each", []Reply{one("a", `"index":0,`, use), one("b", `"index":0,`, use),
			one("c", `"index":0,`, `{"prompt_tokens":5,"completion_tokens":1}`), one("d", `"index":0,`, `{"prompt_tokens":5,"completion_tokens":1}`)}, 2, HideCached,
			head + choice("0", "a") + `,` + choice("1", "b") + `,` + choice("2", "c") + `,` + choice("3", "d") + `],"usage":{"prompt_tokens":12,"completion_tokens":6,"total_tokens":18}}`},
		{"cached of one's own", []Reply{one("a", `"index":0,`, use), one("b", `"index":0,`, use)}, 2, ShowCached,
			head + choice("0", "a") + `,` + choice("1", "b") + `],"usage":{"prompt_tokens":14,"completion_tokens":4,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":6}}}`},
		{"one does not tell", []Reply{one("a", `"index":0,`, use), one("b", `"index":0,`, `null`)}, 1, HideCached,
			head + choice("0", "a") + `,` + choice("1", "b") + `]}`},
		{"one prompt, two counts", []Reply{one("a", `"index":0,`, use), one("b", `"index":0,`, `{"prompt_tokens":5,"completion_tokens":1}`)}, 1, HideCached,
			head + choice("0", "a") + `,` + choice("1", "b") + `]}`},
		{"index last", []Reply{answer(t, SGLang, `{"created":9,"choices":[{"x":1,"index":4}]}`)}, 1, HideCached, head + `{"index":0}]}`},
		{"none", nil, 1, HideCached, `{"id":"pub","object":"chat.completion","model":"m","choices":[]}`},
	} {
		q := p
		q.Prompts, q.Cached = tc.prompts, tc.cached
		if got := string(Merge(nil, Chat, tc.replies, q)); got != tc.want || !json.Valid([]byte(got)) {
			t.Errorf("%s: got  %s\nwant %s", tc.name, got, tc.want)
		}
	}
	p.Created = 12
	if got, want := string(AppendUsage(nil, Chat, p, 7, 2)), `{"id":"pub","object":"chat.completion.chunk","created":12,"model":"m","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}`; got != want {
		t.Errorf("usage chunk %s", got)
	}
	u := chunk(t, OpenAI, Completions, string(AppendUsage(nil, Completions, p, 7, 2)))
	if !u.IsUsageChunk() || u.Total != tokens(9) {
		t.Errorf("our own usage chunk reads %+v", u)
	}
}

// FuzzReply holds that a reply that is taken stays one JSON text when it is rewritten,
// carries our id and model exactly once, and nothing that is on no list.
func FuzzReply(f *testing.F) {
	f.Add(uint8(0), true, int64(0), []byte(prefillAnswer))
	f.Add(uint8(1), true, int64(2), []byte(`{"x":1,"id":"a","choices":[{"y":2,"delta":{"z":3}}],"usage":{}}`))
	f.Add(uint8(5), false, int64(1), []byte(`{"choices":[{"text":"a","k":1},{"index":null},{}],"error":{"code":"busy"}}`))
	f.Add(uint8(7), true, int64(0), []byte(`{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":1,"q":2},"cached_tokens":1},"\u0069d":null}`))
	f.Add(uint8(6), true, int64(0), []byte(`{"choices":[{"index":0,"delta":{"tool_calls":[{}],"reasoning_content":"r"},"finish_reason":"tool_calls"}],"timings":{}}`))
	f.Fuzz(func(t *testing.T, dialect uint8, isChat bool, shift int64, body []byte) {
		e, d := Completions, Dialect(dialect)%dialects
		if isChat {
			e = Chat
		}
		for _, read := range []func(Dialect, Endpoint, []byte) (Reply, error){ParseChunk, ParseAnswer} {
			r, err := read(d, e, body)
			if err != nil {
				continue
			}
			_, _, _ = Prefilled(d, "a", &r), Sound(d, "a", &r), Agree(d, &r, Decoded{Prompt: r.Prompt}, nil)
			_, _ = ReadHandle(&r, 16)
			for _, p := range []Public{{Shift: shift % 100}, {Usage: KeepUsage}, {Usage: KeepUsage, Cached: ShowCached}} {
				p.ID, p.Model = "pub", "alias"
				checkRewritten(t, d, p, body, r.Rewrite(nil, p))
			}
			var a Assembly
			if a.Add(&r) == nil {
				if out := a.Answer(nil, e, Public{ID: "pub", Usage: KeepUsage}); !json.Valid(out) {
					t.Fatalf("%s assembled to %s", body, out)
				}
			}
			if merged := Merge(nil, e, []Reply{r, r}, Public{ID: "pub", Usage: KeepUsage}); !json.Valid(merged) {
				t.Fatalf("%s merged to %s", body, merged)
			}
		}
		n := CutEvent(AppendEvent(nil, body))
		if data, ok := EventData(AppendEvent(nil, body)[:n]); !ok || len(data) != len(body) {
			t.Fatalf("event of %d bytes", n)
		}
	})
}

// checkRewritten reads what a client would read.
func checkRewritten(t *testing.T, d Dialect, p Public, body, out []byte) {
	t.Helper()
	names := map[string]int{}
	if !json.Valid(out) {
		t.Fatalf("%s became %s", body, out)
	}
	s := lexer{b: out}
	var id, model string
	s.object(0, func(key str) bool {
		name := string(decode(out, key))
		names[name]++
		v, ok := s.value(1)
		switch name {
		case "id":
			id = string(out[v.from:v.to])
		case "model":
			model = string(out[v.from:v.to])
		}
		if topName([]byte(name))&replyLists[d].top == 0 {
			t.Fatalf("%s shows %s", out, name)
		}
		return ok
	})
	if names["id"] != 1 || names["model"] != 1 || id != `"pub"` || model != `"alias"` {
		t.Fatalf("%s became %s", body, out)
	}
	if names["usage"] > 0 && p.Usage == StripUsage {
		t.Fatalf("usage in %s", out)
	}
	if p.Cached == HideCached && strings.Contains(string(out), `"cached_tokens":`) && !strings.Contains(string(body), `\"cached_tokens`) {
		var v struct {
			Usage struct {
				Cached  *int `json:"cached_tokens"`
				Details struct {
					Cached *int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if json.Unmarshal(out, &v) == nil && (v.Usage.Cached != nil || v.Usage.Details.Cached != nil) {
			t.Fatalf("cached tokens in %s", out)
		}
	}
}

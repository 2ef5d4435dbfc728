package upstream

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recordedFile reads a recording.
func recordedFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRecordedPairs judges both legs of requests that real pairs answered, the incident of
// SGLang 0.5.19 among them: both legs 200, prefill counts one token.
func TestRecordedPairs(t *testing.T) {
	for _, tc := range []struct {
		d               Dialect
		prefill, decode string
		e               Endpoint
		want            Agreement
	}{
		{SGLangPD, "sglang/0.5.19/prefill.json", "sglang/0.5.19/chat.json", Chat, Agreed},
		{SGLangPD, "sglang/0.5.20/prefill.json", "sglang/0.5.20/chat.json", Chat, Agreed},
		{SGLangPD, "sglang/0.5.20/prefill.json", "sglang/0.5.20/chat-usage.sse", Chat, Agreed},
		{SGLangPD, "sglang/0.5.20/prefill-completions.json", "sglang/0.5.20/completions.json", Completions, Agreed},
		{SGLangPD, "sglang/0.5.20/prefill-completions.json", "sglang/0.5.20/completions.sse", Completions, Agreed},
		{SGLangPD, "sglang/0.5.19/overlong-prefill.json", "sglang/0.5.19/overlong-decode.json", Chat, CountsDiffer},
		{SGLangPD, "sglang/0.5.19/overlong-prefill-completions.json", "sglang/0.5.19/overlong-decode-completions.json", Completions, CountsDiffer},
		{SGLangPD, "sglang/0.5.20/prefill.json", "sglang/0.5.19/overlong-decode.json", Chat, CountsDiffer},
		{SGLangPD, "sglang/0.5.20/prefill-completions.json", "vllm/0.32.0/completion-logprobs.json", Completions, Agreed}, // the control of the next: the same token
		{SGLangPD, "sglang/0.5.20/prefill-completions.json", "vllm/0.32.0/completion-echo.json", Completions, TokensDiffer},
		{VLLMNixl, "vllm/0.32.0/nixl-prefill-chat.json", "vllm/0.32.0/nixl-decode-chat.json", Chat, Agreed},
		{VLLMNixl, "vllm/0.32.0/nixl-prefill-chat.json", "vllm/0.32.0/nixl-decode-chat.sse", Chat, Agreed},
		{VLLMNixl, "vllm/0.32.0/nixl-prefill-completion.json", "vllm/0.32.0/nixl-decode-completion.sse", Completions, Agreed},
		{VLLMNixl, "vllm/0.32.0/nixl-prefill-completion.json", "vllm/0.32.0/nixl-decode-chat.json", Completions, CountsDiffer},
		{VLLMMooncake, "vllm/0.32.0/nixl-prefill-chat.json", "vllm/0.32.0/chat-usage.sse", Chat, Agreed}, // counts come at the end: it stays open till then
	} {
		name := tc.prefill + " with " + tc.decode
		p, err := ParseAnswer(tc.d, tc.e, recordedFile(t, tc.prefill))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got Decoded
		last := Open
		text := recordedFile(t, tc.decode)
		if strings.HasSuffix(tc.decode, ".json") {
			d, err := ParseAnswer(tc.d, tc.e, text)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got.Add(&d)
			last = Agree(tc.d, &p, got, nil)
		} else {
			for n := CutEvent(text); n > 0; n = CutEvent(text) {
				data, _ := EventData(text[:n])
				text = text[n:]
				if string(data) == Done {
					break
				}
				d := chunk(t, tc.d, tc.e, string(data))
				got.Add(&d)
				a := Agree(tc.d, &p, got, nil)
				if last != Open && a != last && last != Unproved {
					t.Errorf("%s: %v became %v", name, last, a)
				}
				last = a
			}
		}
		if last != tc.want {
			t.Errorf("%s: %v, want %v", name, last, tc.want)
		}
	}
}

// TestAssemble puts recorded streams together, and holds them against the answers that the
// same engine gave whole to the same request.
func TestAssemble(t *testing.T) {
	for _, tc := range []struct {
		stream, whole string
		e             Endpoint
	}{
		{"chat-continuous.sse", "chat.json", Chat},
		{"chat-logprobs.sse", "chat-logprobs.json", Chat},
		{"chat-n2.sse", "chat-n2.json", Chat},
		{"completion-continuous.sse", "completion.json", Completions},
		{"completion-list.sse", "completion-list.json", Completions},
		{"completion-logprobs.sse", "completion-logprobs.json", Completions},
		{"tools-required.sse", "tools-required.json", Chat},
		{"tools-named.sse", "tools-named.json", Chat},
	} {
		var a Assembly
		text := recordedFile(t, "vllm/0.32.0/"+tc.stream)
		for n := CutEvent(text); n > 0; n = CutEvent(text) {
			data, _ := EventData(text[:n])
			text = text[n:]
			if string(data) == Done {
				break
			}
			r := chunk(t, VLLM, tc.e, string(data))
			if err := a.Add(&r); err != nil {
				t.Fatal(err)
			}
		}
		p := Public{ID: "cmpl-pub", Model: "m", Usage: KeepUsage}
		if tc.e == Chat {
			p.ID = "chatcmpl-pub"
		}
		got := a.Answer(nil, tc.e, p)
		r, err := ParseAnswer(VLLM, tc.e, got)
		if err != nil || Sound(VLLM, "pub", &r) != Agreed {
			t.Fatalf("%s: %v: %s", tc.stream, err, got)
		}
		want, err := ParseAnswer(VLLM, tc.e, recordedFile(t, "vllm/0.32.0/"+tc.whole))
		if err != nil {
			t.Fatal(err)
		}
		if x, y := plainly(t, got), plainly(t, want.Rewrite(nil, p)); x != y {
			t.Errorf("%s: assembled\n%s\nwhole\n%s", tc.stream, x, y)
		}
	}
}

// plainly writes an answer without what differs between two calls and without nulls.
func plainly(t *testing.T, text []byte) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	delete(v, "created")
	bare(v)
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// bare takes nulls, empty objects and the ids of calls away.
func bare(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, call := v["function"]; call {
			delete(v, "id")
		}
		for name, x := range v {
			bare(x)
			if m, is := x.(map[string]any); x == nil || is && len(m) == 0 || is && name == "prompt_tokens_details" {
				delete(v, name)
			}
		}
	case []any:
		for _, x := range v {
			bare(x)
		}
	}
}

func TestAssembleRefuses(t *testing.T) {
	var a Assembly
	for _, text := range []string{
		`{"choices":[{"index":999999}]}`, `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":-1}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":100000}]}}]}`, `{"choices":[{"index":0,"logprobs":{"content":{}}}]}`,
		`{"choices":[{"index":0,"logprobs":7}]}`,
	} {
		r := chunk(t, VLLM, Chat, text)
		if a.Add(&r) == nil {
			t.Errorf("%s is a part of an answer", text)
		}
	}
	for _, text := range []string{
		`{"choices":[{"index":0,"delta":{"role":"assistant","reasoning":"th"}}],"usage":null}`,
		`{"choices":[{"index":0,"delta":{"reasoning":"ink"}}],"x":"secret"}`,
		`{"choices":[{"index":0,"delta":{"refusal":"n"}}]}`, `{"choices":[{"index":0,"delta":{"refusal":"o\"<"},"finish_reason":"stop"}]}`,
	} {
		r := chunk(t, VLLM, Chat, text)
		if err := a.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"id":"p","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"reasoning":"think","refusal":"no\"<"},"logprobs":null,"finish_reason":"stop"}]}`
	if got := string(a.Answer(nil, Chat, Public{ID: "p", Model: "m", Usage: KeepUsage})); got != want {
		t.Errorf("got %s", got)
	}
}

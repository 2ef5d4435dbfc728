package upstream

import (
	"strings"
	"testing"
)

// swapped replaces a part of prefillAnswer that must be there.
func swapped(t *testing.T, from, to string) string {
	t.Helper()
	if !strings.Contains(prefillAnswer, from) {
		t.Fatalf("nothing to swap: %s", from)
	}
	return strings.Replace(prefillAnswer, from, to, 1)
}

func TestPrefilled(t *testing.T) {
	swap := func(from, to string) string { return swapped(t, from, to) }
	ours := func(text string) string { return strings.Replace(text, `"bh-1"`, `"chatcmpl-bh-1"`, 1) }
	for _, tc := range []struct {
		name, text string
		want       Agreement
	}{
		{"sound", prefillAnswer, Agreed},
		{"empty text", swap(`"T\u0068"`, `""`), Agreed},
		{"error inside", swap(`"created":1`, `"error":{"message":"x"}`), LegFailed},
		{"finish abort", swap(`"length"`, `"abort"`), LegFailed},
		{"finish error", swap(`"length"`, `"error"`), LegFailed},
		{"no finish", swap(`"length"`, `null`), LegFailed},
		{"tool calls", swap(`"length"`, `"tool_calls"`), LegFailed},
		{"another id", swap(`bh-1`, `bh-2`), Foreign},
		{"id with more behind it", swap(`bh-1`, `bh-12`), Foreign},
		{"no id", swap(`"id":"bh-1",`, ``), Foreign},
		{"id null", swap(`"id":"bh-1",`, `"id":null,`), Foreign},
		{"no choice", swap(`[{"index":0,"message":{"role":"assistant","content":"T\u0068"},"finish_reason":"length"}]`, `[]`), Unproved},
		{"two choices", swap(`"length"}]`, `"length"},{}]`), Unproved},
		{"choice of another index", swap(`"index":0`, `"index":1`), Unproved},
		{"no count", swap(`"prompt_tokens":7,`, ``), Unproved},
		{"count zero", swap(`"prompt_tokens":7,"completion_tokens":1,"total_tokens":8`, `"prompt_tokens":0`), Unproved},
		{"counts that do not add up", swap(`"total_tokens":8`, `"total_tokens":9`), Unproved},
		{"two tokens", swap(`"completion_tokens":1,"total_tokens":8`, `"completion_tokens":2,"total_tokens":9`), Unproved},
		{"no message", swap(`"message":{"role":"assistant","content":"T\u0068"},`, ``), Unproved},
	} {
		for _, d := range []Dialect{Bulkhead, SGLangPD} {
			r := answer(t, d, tc.text)
			if got := Prefilled(d, "bh-1", &r); got != tc.want {
				t.Errorf("%v: %s: %v, want %v", d, tc.name, got, tc.want)
			}
		}
		for _, d := range []Dialect{VLLMNixl, VLLMMooncake} {
			r := answer(t, d, ours(tc.text))
			if got := Prefilled(d, "bh-1", &r); got != tc.want {
				t.Errorf("%v: %s: %v, want %v", d, tc.name, got, tc.want)
			}
			r = answer(t, d, tc.text)
			if got := Prefilled(d, "bh-1", &r); tc.want == Agreed && got != Foreign {
				t.Errorf("%v: %s: an id without its prefix: %v", d, tc.name, got)
			}
		}
		for _, d := range []Dialect{SGLang, VLLM, LlamaCPP, OpenAI} {
			r := answer(t, d, tc.text)
			if got := Prefilled(d, "bh-1", &r); got != Unproved {
				t.Errorf("%v has no prefill leg: %v", d, got)
			}
		}
	}
	// What the dialects differ in.
	for _, tc := range []struct {
		d    Dialect
		text string
		want Agreement
	}{
		{Bulkhead, swap(`"length"`, `"stop"`), LegFailed},
		{SGLangPD, swap(`"length"`, `"stop"`), LegFailed},
		{VLLMMooncake, ours(swap(`"length"`, `"stop"`)), LegFailed},
		{VLLMNixl, ours(swap(`"length"`, `"stop"`)), Agreed},
		{Bulkhead, swap(`"T\u0068"`, `null`), Unproved},
		{SGLangPD, swap(`"T\u0068"`, `null`), Agreed}, // a token of a reasoning parser's own
		{VLLMNixl, ours(swap(`"T\u0068"`, `null`)), Agreed},
	} {
		r := answer(t, tc.d, tc.text)
		if got := Prefilled(tc.d, "bh-1", &r); got != tc.want {
			t.Errorf("%v: %s: %v, want %v", tc.d, tc.text, got, tc.want)
		}
	}
	r := answer(t, SGLangPD, swap(`"id":"bh-1",`, `"id":"",`))
	if got := Prefilled(SGLangPD, "", &r); got != Foreign {
		t.Errorf("no id minted and none told: %v", got)
	}
}

func TestSound(t *testing.T) {
	split := []Dialect{Bulkhead, SGLangPD, SGLang, VLLMNixl, VLLMMooncake, LlamaCPP}
	native := []Dialect{VLLM, OpenAI}
	both := append(append([]Dialect{}, split...), native...)
	minted := []Dialect{Bulkhead, SGLangPD, SGLang, VLLMNixl, VLLMMooncake, VLLM}
	for _, tc := range []struct {
		name, text string
		in         []Dialect
		want       Agreement
	}{
		{"chunk", `{"id":"ID","choices":[{"index":0,"delta":{}}]}`, both, Agreed},
		{"stop", `{"id":"ID","choices":[{"index":0,"finish_reason":"stop"}]}`, both, Agreed},
		{"length", `{"id":"ID","choices":[{"index":0,"finish_reason":"length"}]}`, both, Agreed},
		{"tool calls", `{"id":"ID","choices":[{"index":0,"finish_reason":"tool_calls"}]}`, both, Agreed},
		{"function call", `{"id":"ID","choices":[{"index":0,"finish_reason":"function_call"}]}`, both, Agreed},
		{"empty finish", `{"id":"ID","choices":[{"index":0,"finish_reason":""}]}`, both, Agreed},
		{"usage chunk", `{"id":"ID","choices":[]}`, both, Agreed},
		{"error", `{"id":"ID","choices":[],"error":"x"}`, both, LegFailed},
		{"error alone", `{"error":{"message":"x","code":500}}`, both, LegFailed},
		{"abort", `{"id":"ID","choices":[{"index":0,"finish_reason":"abort"}]}`, both, LegFailed},
		{"finish error", `{"id":"ID","choices":[{"index":0,"finish_reason":"error"}]}`, both, LegFailed},
		{"finish unheard of", `{"id":"ID","choices":[{"index":0,"finish_reason":"repetition"}]}`, both, LegFailed},
		{"filtered", `{"id":"ID","choices":[{"index":0,"finish_reason":"content_filter"}]}`, []Dialect{OpenAI}, Agreed},
		{"filtered, by nobody", `{"id":"ID","choices":[{"index":0,"finish_reason":"content_filter"}]}`, split, LegFailed},
		{"no id", `{"choices":[]}`, minted, Foreign},
		{"another id", `{"id":"bh-2","choices":[]}`, both, Foreign},
		{"no choices", `{"id":"ID"}`, both, Unproved},
		{"two choices", `{"id":"ID","choices":[{"index":0},{"index":1}]}`, split, Unproved},
		{"two choices", `{"id":"ID","choices":[{"index":0},{"index":1}]}`, native, Agreed},
		{"two choices without numbers", `{"id":"ID","choices":[{},{}]}`, native, Unproved},
		{"second of two aborted", `{"id":"ID","choices":[{"index":0},{"index":1,"finish_reason":"abort"}]}`, native, LegFailed},
		{"second choice", `{"id":"ID","choices":[{"index":1}]}`, split, Unproved},
		{"second choice", `{"id":"ID","choices":[{"index":1}]}`, native, Agreed},
	} {
		for _, d := range tc.in {
			r := chunk(t, d, Chat, strings.Replace(tc.text, "ID", ownID(d, Chat), 1))
			if got := Sound(d, "bh-1", &r); got != tc.want {
				t.Errorf("%v: %s: %v, want %v", d, tc.name, got, tc.want)
			}
		}
	}
	for _, d := range []Dialect{LlamaCPP, OpenAI} {
		if r := chunk(t, d, Chat, `{"id":"whatever","choices":[]}`); Sound(d, "", &r) != Agreed {
			t.Errorf("%v: its own first id must pass", d)
		}
	}
	if r := chunk(t, VLLM, Completions, `{"id":"cmpl-bh-1","choices":[]}`); Sound(VLLM, "bh-1", &r) != Agreed {
		t.Error("vLLM names completions with another prefix")
	}
	if r := chunk(t, VLLM, Completions, `{"id":"chatcmpl-bh-1","choices":[]}`); Sound(VLLM, "bh-1", &r) != Foreign {
		t.Error("a chat's id on a completion is foreign")
	}
}

// ownID is what an answer of the dialect to attempt bh-1 carries.
func ownID(d Dialect, e Endpoint) string {
	switch {
	case (d == VLLM || d == VLLMNixl || d == VLLMMooncake) && e == Chat:
		return "chatcmpl-bh-1"
	case d == VLLM || d == VLLMNixl || d == VLLMMooncake:
		return "cmpl-bh-1"
	}
	return "bh-1"
}

// TestSoundWhole is recipe R10, ending 10: a 200 without an answer in it is none.
func TestSoundWhole(t *testing.T) {
	for _, tc := range []struct {
		name, message, finish string
		want                  Agreement
	}{
		{"text", `"message":{"content":"a"},`, `"stop"`, Agreed},
		{"empty text", `"message":{"content":""},`, `"stop"`, Agreed},
		{"null beside a call", `"message":{"content":null,"tool_calls":[{"id":"c"}]},`, `"tool_calls"`, Agreed},
		{"a call alone", `"message":{"tool_calls":[{"id":"c"}]},`, `"tool_calls"`, Agreed},
		{"reasoning alone", `"message":{"reasoning_content":"r"},`, `"length"`, Agreed},
		{"no finish", `"message":{"content":"a"},`, `null`, Unproved},
		{"finish error", `"message":{"content":"a"},`, `"error"`, LegFailed},
		{"no content", `"message":{"role":"assistant"},`, `"stop"`, Unproved},
		{"no message", ``, `"stop"`, Unproved},
		{"a delta", `"delta":{"content":"a"},`, `"stop"`, Unproved},
	} {
		for _, d := range []Dialect{SGLang, VLLM, LlamaCPP, OpenAI, VLLMNixl} {
			r := answer(t, d, `{"id":"`+ownID(d, Chat)+`","choices":[{"index":0,`+tc.message+`"finish_reason":`+tc.finish+`}]}`)
			if got := Sound(d, "bh-1", &r); got != tc.want {
				t.Errorf("%v: %s: %v, want %v", d, tc.name, got, tc.want)
			}
		}
	}
	if r := answer(t, VLLM, `{"id":"chatcmpl-bh-1","choices":[]}`); Sound(VLLM, "bh-1", &r) != Unproved {
		t.Error("an answer without choices passed")
	}
	if r := answer(t, Bulkhead, `{"id":"bh-1","choices":[{"index":0,"message":{"content":null},"finish_reason":"stop"}]}`); Sound(Bulkhead, "bh-1", &r) != Unproved {
		t.Error("our own worker always gives a text")
	}
}

func TestAgree(t *testing.T) {
	seven := tokens(7)
	for _, tc := range []struct {
		name  string
		first string
		d     Decoded
		stops []string
		want  Agreement
	}{
		{"equal", "Th", Decoded{Prompt: seven, Text: []byte("The")}, nil, Agreed},
		{"just the token", "Th", Decoded{Prompt: seven, Text: []byte("Th")}, nil, Agreed},
		{"decode held text back", "Th", Decoded{Prompt: seven, Text: []byte("T")}, nil, Open},
		{"no text yet", "Th", Decoded{Prompt: seven}, nil, Open},
		{"no count yet", "Th", Decoded{Text: []byte("The")}, nil, Open},
		{"never a count", "Th", Decoded{Text: []byte("The"), Progress: Ended}, nil, Unproved},
		{"counts differ by one", "Th", Decoded{Prompt: tokens(8), Text: []byte("The")}, nil, CountsDiffer},
		{"the incident: one against many", "Th", Decoded{Prompt: tokens(4096), Text: []byte("The"), Progress: Ended}, nil, CountsDiffer},
		{"tokens differ", "Th", Decoded{Prompt: seven, Text: []byte("Ah")}, nil, TokensDiffer},
		{"tokens differ in their second byte", "Th", Decoded{Prompt: seven, Text: []byte("To")}, nil, TokensDiffer},
		{"ended without the token", "Th", Decoded{Prompt: seven, Progress: Ended}, nil, TokensDiffer},
		{"a stop string is the token", "\n", Decoded{Prompt: seven, Progress: Ended}, []string{"x", "\n"}, Agreed},
		{"a stop string begins with the token", "\n", Decoded{Prompt: seven, Progress: Ended}, []string{"\n\n"}, Agreed},
		{"a stop string inside the token", "Th", Decoded{Prompt: seven, Text: []byte("T"), Progress: Ended}, []string{"h"}, Agreed},
		{"a stop string that is no reason", "Th", Decoded{Prompt: seven, Progress: Ended}, []string{"x", "h"}, TokensDiffer},
		{"a stop string is no reason while it goes on", "Th", Decoded{Prompt: seven, Text: []byte("x")}, []string{"Th"}, TokensDiffer},
		{"a token without text", "", Decoded{Prompt: seven, Text: []byte("x")}, nil, Agreed},
		{"a token that ends inside a character", "a\uFFFD", Decoded{Prompt: seven, Text: []byte("aé")}, nil, Agreed},
		{"the whole characters still count", "a\uFFFD", Decoded{Prompt: seven, Text: []byte("bé")}, nil, TokensDiffer},
		{"a call in place of its marks", "<tool", Decoded{Prompt: seven, Called: true}, nil, Agreed},
		{"a call does not excuse the counts", "<tool", Decoded{Prompt: tokens(8), Called: true}, nil, CountsDiffer},
	} {
		r := answer(t, SGLangPD, `{"usage":{"prompt_tokens":7},"choices":[{"message":{"content":`+string(appendString(nil, tc.first))+`}}]}`)
		for _, d := range []Dialect{Bulkhead, SGLangPD} {
			// Only SGLang has a parser that trims; the rest is the same.
			if d == SGLangPD && strings.TrimSpace(tc.first) == "" {
				continue
			}
			if got := Agree(d, &r, tc.d, tc.stops); got != tc.want {
				t.Errorf("%v: %s: %v, want %v", d, tc.name, got, tc.want)
			}
		}
		want := tc.want
		if want == TokensDiffer || want == Open && tc.d.Prompt.Known {
			want = Agreed // counts are all that vLLM's legs have in common
		}
		if got := Agree(VLLMNixl, &r, tc.d, tc.stops); got != want {
			t.Errorf("vllm-nixl: %s: %v, want %v", tc.name, got, want)
		}
		if got := Agree(VLLM, nil, tc.d, tc.stops); got != Agreed {
			t.Errorf("one leg has nothing to compare: %v", got)
		}
	}
	whole := Decoded{Prompt: seven, Text: []byte("x"), Progress: Ended}
	if got := Agree(Bulkhead, &Reply{}, whole, nil); got != CountsDiffer {
		t.Errorf("a prefill without a count: %v", got)
	}
	if got := Agree(VLLMNixl, nil, whole, nil); got != CountsDiffer {
		t.Errorf("no prefill: %v", got)
	}
}

// TestAgreeReasoning compares what a reasoning parser makes of one token with what it makes
// of a stream.
func TestAgreeReasoning(t *testing.T) {
	for _, tc := range []struct {
		name, message string
		chunks        []string
		want          Agreement
	}{
		{"reasoning on both", `{"content":"","reasoning_content":"Okay"}`, []string{`{"reasoning_content":"Okay"}`, `{"reasoning_content":", so"}`}, Agreed},
		{"reasoning differs", `{"content":"","reasoning_content":"Okay"}`, []string{`{"reasoning_content":"Hm"}`}, TokensDiffer},
		{"the mark of a thought", `{"content":null}`, []string{`{"reasoning_content":"\nOkay"}`}, Agreed},
		{"trimmed", `{"content":"","reasoning_content":"Okay"}`, []string{`{"reasoning_content":"\n"}`, `{"reasoning_content":"Okay"}`}, Agreed},
		{"a call", `{"content":"<tool_call>"}`, []string{`{"role":"assistant"}`, `{"tool_calls":[{"index":0}]}`}, Agreed},
		{"not yet", `{"content":"<tool_call>"}`, []string{`{"role":"assistant","content":null}`}, Open},
	} {
		p := answer(t, SGLangPD, `{"usage":{"prompt_tokens":7},"choices":[{"message":`+tc.message+`}]}`)
		var d Decoded
		for _, c := range tc.chunks {
			r := chunk(t, SGLangPD, Chat, `{"choices":[{"index":0,"delta":`+c+`}],"usage":{"prompt_tokens":7}}`)
			d.Add(&r)
		}
		if got := Agree(SGLangPD, &p, d, nil); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	var d Decoded
	long := chunk(t, SGLangPD, Chat, `{"choices":[{"index":0,"delta":{"content":"`+strings.Repeat("x", 3000)+`"},"finish_reason":"stop"}]}`)
	for range 100 {
		d.Add(&long)
	}
	if len(d.Text) > 2*maxFirst || d.Progress != Ended {
		t.Errorf("%d bytes kept, %v", len(d.Text), d.Progress)
	}
}

func TestAgreementNames(t *testing.T) {
	seen := map[string]bool{}
	for a := Open; a <= Unproved+1; a++ {
		if s := a.String(); s == "" || seen[s] {
			t.Errorf("agreement %d has no name of its own: %q", a, s)
		} else {
			seen[s] = true
		}
	}
}

func TestDialects(t *testing.T) {
	for i, d := range Dialects() {
		got, err := ParseDialect(d.String())
		if err != nil || got != d || int(d) != i {
			t.Errorf("%v reads as %v, %v", d, got, err)
		}
		if tr := d.Traits(); tr.Leased != (d == VLLMNixl) || tr.FirstToken && tr.Legs == One || tr.Legs != One && tr.Lists == Native {
			t.Errorf("%v: %+v", d, tr)
		}
	}
	for _, bad := range []string{"", "SGLang", "vllm-"} {
		if _, err := ParseDialect(bad); err == nil {
			t.Errorf("%q is a dialect", bad)
		}
	}
	if s := Dialect(200).String(); s != "no dialect" || !Dialect(200).Traits().Hosted {
		t.Errorf("a dialect that is none: %s", s)
	}
}

package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/fault"
)

const prefillAnswer = `{"id":"bh-1","object":"chat.completion","created":1,"model":"served","choices":[{"index":0,"message":{"role":"assistant","content":"T\u0068"},"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}`

func answer(t *testing.T, text string) Reply {
	t.Helper()
	r, err := ParseAnswer(Chat, []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r
}

func TestParse(t *testing.T) {
	known := func(n int64) Count { return Count{n, true} }
	r := answer(t, prefillAnswer)
	if r.ID != "bh-1" || r.Prompt != known(7) || r.Completion != known(1) || r.Total != known(8) || r.Choices != 1 ||
		r.Finish != "length" || string(r.Text()) != "Th" || !r.HasText || r.Failure != nil || r.Index != known(0) {
		t.Errorf("read %+v", r)
	}
	r = answer(t, `{}`)
	if r.ID != "" || r.Prompt.Known || r.Completion.Known || r.Listed || r.HasText || r.Finish != "" || r.Text() != nil {
		t.Errorf("what is not said must be unknown: %+v", r)
	}
	r = answer(t, `{"usage":{"prompt_tokens":0,"completion_tokens":null},"choices":[]}`)
	if r.Prompt != known(0) || r.Completion.Known || !r.IsUsageChunk() {
		t.Errorf("zero is not unknown: %+v", r)
	}
	r, err := ParseChunk(Chat, []byte(`{"id":"a","choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`))
	if err != nil || r.Finish != "" || !r.HasText || len(r.Text()) != 0 || r.Prompt.Known || r.IsUsageChunk() {
		t.Errorf("role chunk: %+v, %v", r, err)
	}
	r, err = ParseChunk(Completions, []byte(`{"id":"a","choices":[{"text":"x","index":1}]}`))
	if err != nil || string(r.Text()) != "x" || r.Index != known(1) {
		t.Errorf("completion chunk: %+v, %v", r, err)
	}
	r, err = ParseChunk(Chat, []byte(`{"id":"a","choices":[{"text":"not a chat","delta":{"content":null}}]}`))
	if err != nil || r.HasText {
		t.Errorf("a chat has no text member: %+v, %v", r, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		``, `[]`, `"a"`, `{"id":1}`, `{"id":"a","id":"b"}`, `{"id":"a","\u0069d":"b"}`, `{"id":"a"} x`, `{"id":"a"`, "{\"id\":\"\xff\"}",
		`{"usage":[]}`, `{"usage":{"prompt_tokens":-1}}`, `{"usage":{"prompt_tokens":1.5}}`, `{"usage":{"prompt_tokens":"7"}}`,
		`{"usage":{"prompt_tokens":7,"prompt_tokens":8}}`, `{"usage":{},"usage":{}}`, `{"usage":{"prompt_tokens":9223372036854775808}}`,
		`{"choices":{}}`, `{"choices":["a"]}`, `{"choices":[],"choices":[]}`, `{"choices":[{"finish_reason":1}]}`,
		`{"choices":[{"message":"x"}]}`, `{"choices":[{"message":{"content":1}}]}`, `{"choices":[{"message":{"content":"a","content":"b"}}]}`,
		`{"choices":[{"message":{},"message":{}}]}`, `{"choices":[{"index":"0"}]}`, `{"choices":[{"finish_reason":"stop","finish_reason":"length"}]}`,
		`{"error":1,"error":null}`, `{"model":5}`,
	} {
		if r, err := ParseAnswer(Chat, []byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: read %+v, %v", text, r, err)
		}
	}
}

func TestFailureInside(t *testing.T) {
	for _, tc := range []struct {
		text string
		want fault.Code
	}{
		{`{"id":"bh-1","error":{"message":"secret","code":"integrity"}}`, fault.Integrity},
		{`{"error":"secret"}`, fault.EngineFailed},
		{`{"error":{}}`, fault.EngineFailed},
		{`{"error":{"code":400,"message":"secret"},"object":"error"}`, fault.EngineFailed},
		{`{"object":"error","message":"secret","code":400}`, fault.EngineFailed},
		{`{"object":"error","error":{"code":"busy","message":""}}`, fault.Busy},
		{`{"error":{"code":"busy","message":""},"object":"error"}`, fault.Busy},
	} {
		r := answer(t, tc.text)
		if r.Failure == nil || r.Failure.Code != tc.want || strings.Contains(string(r.Failure.Body()), "secret") {
			t.Errorf("%s: %v", tc.text, r.Failure)
		}
	}
	if r := answer(t, `{"error":null,"object":"chat.completion"}`); r.Failure != nil {
		t.Errorf("null is no error: %v", r.Failure)
	}
}

func TestRewrite(t *testing.T) {
	for _, tc := range []struct {
		name, text, want string
		u                Usage
	}{
		{"kept", `{ "id" : "bh-1","object":"x","model":"served","choices":[{"index":0,"delta":{"content":"\u0061 é"}}], "usage":{"prompt_tokens":7} }`,
			`{ "id" : "pub","object":"x","model":"al\"ias","choices":[{"index":0,"delta":{"content":"\u0061 é"}}], "usage":{"prompt_tokens":7} }`, KeepUsage},
		{"usage cut", `{"usage":{"prompt_tokens":7},"id":"bh-1","choices":[]}`, `{"id":"pub","choices":[]}`, StripUsage},
		{"usage cut at the end", `{"id":"bh-1","choices":[] , "usage":null}`, `{"id":"pub","choices":[]}`, StripUsage},
		{"what is on no list", `{"kv_transfer_params":{"host":"10.0.0.1"},"id":"bh-1","ID":"bh-1","choices":[{"worker":"w","index":0,"delta":{"content":"a","reasoning":"r"},"matched":1}],"error":null}`,
			`{"id":"pub","choices":[{"index":0,"delta":{"content":"a"}}]}`, KeepUsage},
		{"nothing to rewrite", `{"choices":[]}`, `{"choices":[]}`, KeepUsage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := ParseChunk(Chat, []byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got := string(r.Rewrite([]byte("x"), "pub", `al"ias`, tc.u)); got != "x"+tc.want {
					t.Errorf("got %s\nwant %s", got, tc.want)
				}
			}
		})
	}
}

func TestPrefilled(t *testing.T) {
	swap := func(from, to string) string {
		if !strings.Contains(prefillAnswer, from) {
			t.Fatalf("nothing to swap: %s", from)
		}
		return strings.Replace(prefillAnswer, from, to, 1)
	}
	for _, tc := range []struct {
		name, text string
		want       Agreement
	}{
		{"sound", prefillAnswer, Agreed},
		{"empty text", swap(`"T\u0068"`, `""`), Agreed},
		{"error inside", swap(`"created":1`, `"error":{"message":"x"}`), LegFailed},
		{"finish abort", swap(`"length"`, `"abort"`), LegFailed},
		{"finish stop", swap(`"length"`, `"stop"`), LegFailed},
		{"no finish", swap(`"length"`, `null`), LegFailed},
		{"another id", swap(`bh-1`, `bh-2`), Foreign},
		{"id with more behind it", swap(`bh-1`, `bh-12`), Foreign},
		{"no id", swap(`"id":"bh-1",`, ``), Foreign},
		{"no choice", swap(`[{"index":0,"message":{"role":"assistant","content":"T\u0068"},"finish_reason":"length"}]`, `[]`), Unproved},
		{"two choices", swap(`"length"}]`, `"length"},{}]`), Unproved},
		{"choice of another index", swap(`"index":0`, `"index":1`), Unproved},
		{"no text", swap(`"T\u0068"`, `null`), Unproved},
		{"no count", swap(`"prompt_tokens":7,`, ``), Unproved},
		{"count zero", swap(`"prompt_tokens":7,`, `"prompt_tokens":0,`), Unproved},
		{"two tokens", swap(`"completion_tokens":1`, `"completion_tokens":2`), Unproved},
	} {
		r := answer(t, tc.text)
		if got := Prefilled("bh-1", &r); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestSound(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       Agreement
	}{
		{"chunk", `{"id":"bh-1","choices":[{"index":0,"delta":{}}]}`, Agreed},
		{"stop", `{"id":"bh-1","choices":[{"index":0,"finish_reason":"stop"}]}`, Agreed},
		{"length", `{"id":"bh-1","choices":[{"index":0,"finish_reason":"length"}]}`, Agreed},
		{"usage chunk", `{"id":"bh-1","choices":[]}`, Agreed},
		{"error", `{"id":"bh-1","choices":[],"error":"x"}`, LegFailed},
		{"abort", `{"id":"bh-1","choices":[{"finish_reason":"abort"}]}`, LegFailed},
		{"no id", `{"choices":[]}`, Foreign},
		{"another id", `{"id":"bh-2","choices":[]}`, Foreign},
		{"no choices", `{"id":"bh-1"}`, Unproved},
		{"two choices", `{"id":"bh-1","choices":[{},{}]}`, Unproved},
		{"second choice", `{"id":"bh-1","choices":[{"index":1}]}`, Unproved},
	} {
		r, err := ParseChunk(Chat, []byte(tc.text))
		if err != nil {
			t.Fatal(err)
		}
		if got := Sound("bh-1", &r); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestAgree(t *testing.T) {
	known := Count{7, true}
	for _, tc := range []struct {
		name  string
		first string
		d     Decoded
		stops []string
		want  Agreement
	}{
		{"equal", "Th", Decoded{known, []byte("The"), Ongoing}, nil, Agreed},
		{"just the token", "Th", Decoded{known, []byte("Th"), Ongoing}, nil, Agreed},
		{"decode held text back", "Th", Decoded{known, []byte("T"), Ongoing}, nil, Open},
		{"no text yet", "Th", Decoded{known, nil, Ongoing}, nil, Open},
		{"no count yet", "Th", Decoded{Count{}, []byte("The"), Ongoing}, nil, Open},
		{"never a count", "Th", Decoded{Count{}, []byte("The"), Ended}, nil, Unproved},
		{"counts differ by one", "Th", Decoded{Count{8, true}, []byte("The"), Ongoing}, nil, CountsDiffer},
		{"the incident: one against many", "Th", Decoded{Count{4096, true}, []byte("The"), Ended}, nil, CountsDiffer},
		{"tokens differ", "Th", Decoded{known, []byte("Ah"), Ongoing}, nil, TokensDiffer},
		{"tokens differ in their second byte", "Th", Decoded{known, []byte("To"), Ongoing}, nil, TokensDiffer},
		{"ended without the token", "Th", Decoded{known, nil, Ended}, nil, TokensDiffer},
		{"a stop string is the token", "\n", Decoded{known, nil, Ended}, []string{"x", "\n"}, Agreed},
		{"a stop string begins with the token", "\n", Decoded{known, nil, Ended}, []string{"\n\n"}, Agreed},
		{"a stop string inside the token", "Th", Decoded{known, []byte("T"), Ended}, []string{"h"}, Agreed},
		{"a stop string that is no reason", "Th", Decoded{known, nil, Ended}, []string{"x", "h"}, TokensDiffer},
		{"a stop string is no reason while it goes on", "Th", Decoded{known, []byte("x"), Ongoing}, []string{"Th"}, TokensDiffer},
		{"a token without text", "", Decoded{known, []byte("x"), Ongoing}, nil, Agreed},
		{"a token that ends inside a character", "a\uFFFD", Decoded{known, []byte("aé"), Ongoing}, nil, Agreed},
		{"the whole characters still count", "a\uFFFD", Decoded{known, []byte("bé"), Ongoing}, nil, TokensDiffer},
	} {
		p := Reply{Prompt: known, HasText: true, body: []byte(tc.first), text: str{raw: span{0, len(tc.first)}, plain: true}}
		if got := Agree(&p, tc.d, tc.stops); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	if got := Agree(&Reply{HasText: true}, Decoded{known, []byte("x"), Ended}, nil); got != CountsDiffer {
		t.Errorf("a prefill without a count: %v", got)
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

// events cuts a stream up as a reader does that gets it in the given pieces.
func events(pieces ...[]byte) (out []string, rest string) {
	var buf []byte
	for _, p := range pieces {
		buf = append(buf, p...)
		for n := CutEvent(buf); n > 0; n = CutEvent(buf) {
			if data, ok := EventData(buf[:n]); ok {
				out = append(out, string(data))
			}
			buf = buf[n:]
		}
	}
	return out, string(buf)
}

func TestEvents(t *testing.T) {
	stream := "data: {\"a\":\"é😀 usage\"}\n\n" + ": comment\n\n" + "event: x\r\ndata:{\"b\":1}\r\nid: 7\r\n\r\n" +
		"data: {\"c\":\ndata:  2}\n\n" + "\n" + "data\n\n" + "datax: no\n\n" + "data: " + strings.Repeat("z", 700) + "\n\n" + "data: [DONE]\n\n" + "data: half\n"
	want := []string{"{\"a\":\"é😀 usage\"}", "{\"b\":1}", "{\"c\":\n 2}", "", strings.Repeat("z", 700), Done}
	whole, rest := events([]byte(stream))
	if strings.Join(whole, "|") != strings.Join(want, "|") || rest != "data: half\n" {
		t.Fatalf("whole: %d events, rest %q", len(whole), rest)
	}
	var single [][]byte
	for i := range len(stream) {
		single = append(single, []byte(stream[i:i+1]))
	}
	if got, _ := events(single[:200]...); strings.Join(got, "|") != strings.Join(want[:4], "|") {
		t.Errorf("byte by byte: %q", got)
	}
	for cut := range len(stream) {
		got, _ := events([]byte(stream[:cut]), []byte(stream[cut:]))
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Fatalf("cut at %d gives other events", cut)
		}
		if early, _ := events([]byte(stream[:cut])); len(early) > len(want) {
			t.Fatalf("cut at %d gives more events", cut)
		}
	}
	again, _ := events(AppendEvent(nil, []byte("{\"c\":\n 2}")))
	if len(again) != 1 || again[0] != "{\"c\":  2}" {
		t.Errorf("written again: %q", again)
	}
}

func TestInfo(t *testing.T) {
	const text = `{"disaggregation_mode":"prefill","served_model_name":"recall","context_length":32768,"page_size":64,"max_total_num_tokens":16384,"max_req_input_len":16000,"version":"1","incarnation":"ab","pages_free":3}`
	p, err := ParseInfo([]byte(text))
	if err != nil || p.Role != PrefillRole || p.Pool != (Count{16384, true}) || p.MaxInput != (Count{16000, true}) || p.Window != (Count{32768, true}) || p.PageSize.N != 64 || p.Incarnation != "ab" {
		t.Fatalf("%+v, %v", p, err)
	}
	if i, err := ParseInfo([]byte(`{"context_length":null}`)); err != nil || i.Window.Known || i.Pool.Known {
		t.Errorf("null and absent are unknown: %+v, %v", i, err)
	}
	for _, bad := range []string{``, `[]`, `{"page_size":"x"}`, `{"max_total_num_tokens":-1}`, `{"page_size":1.5}`} {
		if _, err := ParseInfo([]byte(bad)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	d := p
	d.Role = DecodeRole
	if err := Match("recall", p, d); err != nil {
		t.Fatalf("a sound pair: %v", err)
	}
	for name, change := range map[string]func(p, d *Info){
		"swapped roles":     func(p, d *Info) { p.Role, d.Role = d.Role, p.Role },
		"two prefills":      func(p, d *Info) { d.Role = PrefillRole },
		"prefill's model":   func(p, d *Info) { p.Model = "other" },
		"decode's model":    func(p, d *Info) { d.Model = "" },
		"page sizes":        func(p, d *Info) { d.PageSize.N = 16 },
		"unknown page size": func(p, d *Info) { p.PageSize = Count{}; d.PageSize = Count{} },
		"versions":          func(p, d *Info) { d.Version = "2" },
	} {
		p, d := p, d
		change(&p, &d)
		if Match("recall", p, d) == nil {
			t.Errorf("%s: matched", name)
		}
	}
}

// FuzzReply holds that a reply that is taken stays one JSON text when it is rewritten,
// and carries no id but the public one.
func FuzzReply(f *testing.F) {
	f.Add(true, []byte(prefillAnswer))
	f.Add(true, []byte(`{"x":1,"id":"a","choices":[{"y":2,"delta":{"z":3}}],"usage":{}}`))
	f.Add(false, []byte(`{"choices":[{"text":"a","k":1}],"error":{"code":"busy"}}`))
	f.Fuzz(func(t *testing.T, isChat bool, body []byte) {
		e := Completions
		if isChat {
			e = Chat
		}
		r, err := ParseChunk(e, body)
		if err != nil {
			return
		}
		for _, u := range []Usage{StripUsage, KeepUsage} {
			out := r.Rewrite(nil, "pub", "alias", u)
			var got map[string]json.RawMessage
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("%s became %s: %v", body, out, err)
			}
			if id, there := got["id"]; there && string(id) != `"pub"` && string(id) != "null" {
				t.Fatalf("id %s in %s", id, out)
			}
			if _, there := got["usage"]; there && u == StripUsage {
				t.Fatalf("usage in %s", out)
			}
		}
		if n := CutEvent(AppendEvent(nil, body)); n != len("data: \n\n")+len(body) && !bytes.ContainsAny(body, "\n\r") {
			t.Fatalf("event of %d bytes", n)
		}
	})
}

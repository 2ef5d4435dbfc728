package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

func TestWholeAnswer(t *testing.T) {
	r := newRig(t, nil)
	for _, tc := range []struct{ path, body, prefix string }{
		{chatPath, chatBody(`,"user":"u","max_tokens":50,"seed":-3`), "chatcmpl-"},
		{"/v1/completions", `{"model":"recall","prompt":"hello ` + secret + `"}`, "cmpl-"},
	} {
		a := r.send(r.request("POST", tc.path, tc.body))
		var v struct {
			ID, Model string
			Choices   []struct {
				Message struct{ Content string }
				Text    string
				Finish  string `json:"finish_reason"`
			}
			Usage struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		if a.status != 200 || a.err != nil || json.Unmarshal([]byte(a.body), &v) != nil {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if v.Choices[0].Message.Content+v.Choices[0].Text != "The answer" || v.Usage.Prompt != promptTokens || v.Model != "recall" {
			t.Errorf("answer: %s", a.body)
		}
		if !strings.HasPrefix(v.ID, tc.prefix) || v.ID != tc.prefix+strings.TrimPrefix(a.header.Get(headerID), "req-") {
			t.Errorf("id %q, request id %q", v.ID, a.header.Get(headerID))
		}
		if a.header.Get(headerVerdict) != "agreed" {
			t.Errorf("verdict %q", a.header.Get(headerVerdict))
		}
		e := r.event()
		if e.Verdict != Served || e.Agreement != upstream.Agreed || e.Attempts != 1 || e.Tenant != "tenant-a" || e.Model != "recall" ||
			e.Prompt != admit.Known(promptTokens) || e.Completion != admit.Known(3) || e.From != record.Reported || e.Target != "pair-prefill-0" || e.Count != record.ByBytes || e.Status != 200 || e.Code != "" {
			t.Errorf("event: %+v", e)
		}
	}
	checkLegs(t, r)
}

// checkLegs holds what both legs of every request must have been sent.
func checkLegs(t *testing.T, r *rig) {
	t.Helper()
	p, d := r.prefill.got(), r.decode.got()
	if len(p) != 2 || len(d) != 2 {
		t.Fatalf("%d prefill and %d decode calls", len(p), len(d))
	}
	seen := map[string]bool{}
	for i := range p {
		for _, c := range []call{p[i], d[i]} {
			if c.err != nil {
				t.Errorf("pass: %v", c.err)
			}
			if !strings.Contains(string(c.raw), secret) {
				t.Error("the prompt did not reach the leg: the search for secrets would find nothing anywhere")
			}
			if strings.Contains(string(c.raw), `"user":"u"`) || c.header.Get("Authorization") != "" {
				t.Errorf("a leg got what is not its own: %s %v", c.raw, c.header)
			}
			for name := range c.header {
				switch name {
				case "Content-Type", "Content-Length", "User-Agent", "X-Bulkhead-Pass":
				default:
					t.Errorf("a leg got the header %s", name)
				}
			}
		}
		if p[i].rid == d[i].rid || d[i].rid == "" || p[i].room != d[i].room || p[i].room < 1 || p[i].pass != d[i].pass {
			t.Errorf("the legs differ: %+v %+v", p[i], d[i])
		}
		if p[i].max != 1 || p[i].stream {
			t.Errorf("prefill leg: %s", p[i].raw)
		}
		for _, id := range []string{p[i].rid, d[i].rid, fmt.Sprint(p[i].room), p[i].pass.Attempt.String()} {
			if seen[id] {
				t.Errorf("%s was used twice", id)
			}
			seen[id] = true
		}
	}
	if d[0].max != 50 || d[1].max != 20 {
		t.Errorf("max_tokens %d and %d", d[0].max, d[1].max)
	}
	seed := func(c call) string {
		var v map[string]json.RawMessage
		_ = json.Unmarshal(c.raw, &v)
		return string(v["seed"])
	}
	if seed(p[0]) != "-3" || seed(d[0]) != "-3" || seed(p[1]) == "" || seed(p[1]) != seed(d[1]) {
		t.Errorf("seeds %s %s %s %s", seed(p[0]), seed(d[0]), seed(p[1]), seed(d[1]))
	}
	if p[0].pass.Domain != p[1].pass.Domain {
		t.Error("one tenant has two domains")
	}
}

// chunks reads the events of a stream as a client does.
func chunks(body string) []string {
	var out []string
	b := []byte(body)
	for n := upstream.CutEvent(b); n > 0; n = upstream.CutEvent(b) {
		if data, ok := upstream.EventData(b[:n]); ok {
			out = append(out, string(data))
		}
		b = b[n:]
	}
	return out
}

// streamed reads text and the last event of a stream.
func streamed(body string) (text, last string) {
	for _, c := range chunks(body) {
		var v struct {
			Choices []struct {
				Delta struct{ Content string }
				Text  string
			}
		}
		_ = json.Unmarshal([]byte(c), &v)
		for _, ch := range v.Choices {
			text += ch.Delta.Content + ch.Text
		}
		last = c
	}
	return text, last
}

func TestStream(t *testing.T) {
	for _, tc := range []struct {
		name, path, body string
		usage            bool
	}{
		{"chat", chatPath, chatBody(`,"stream":true`), false},
		{"chat with usage", chatPath, chatBody(`,"stream":true,"stream_options":{"include_usage":true}`), true},
		{"completion", "/v1/completions", `{"stream":true,"model":"recall","prompt":["` + secret + `"]}`, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			a := r.send(r.request("POST", tc.path, tc.body))
			text, last := streamed(a.body)
			if a.status != 200 || a.err != nil || text != "The answer" || last != "[DONE]" || a.header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("%d %v %v\n%s", a.status, a.err, a.header, a.body)
			}
			got := chunks(a.body)
			want := 5
			if tc.usage {
				want = 6
			}
			if len(got) != want {
				t.Errorf("%d events: %s", len(got), a.body)
			}
			for i, c := range got[:len(got)-1] {
				isUsage := tc.usage && i == len(got)-2
				if strings.Contains(c, "usage") != isUsage || strings.Contains(c, "bh-") || !strings.Contains(c, a.header.Get(headerID)[4:]) || !strings.Contains(c, `"model":"recall"`) {
					t.Errorf("event %d: %s", i, c)
				}
			}
			e := r.event()
			if e.Verdict != Served || e.Completion != admit.Known(3) || e.Streaming != upstream.Streamed {
				t.Errorf("event: %+v", e)
			}
			if d := r.decode.got()[0]; !d.stream || !strings.Contains(string(d.raw), `"continuous_usage_stats":true`) {
				t.Errorf("decode leg: %s", d.raw)
			}
			if p := r.prefill.got()[0]; p.stream || strings.Contains(string(p.raw), "stream_options") {
				t.Errorf("prefill leg: %s", p.raw)
			}
		})
	}
}

// TestStreamIsNotBuffered holds that an event reaches the client before the next one
// exists.
func TestStreamIsNotBuffered(t *testing.T) {
	r := newRig(t, nil)
	step := make(chan struct{})
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		for _, d := range append(decodeChunks(chatPath, c.id), "[DONE]") {
			events(w, d)
			if strings.Contains(d, `:""`) || d == "[DONE]" {
				continue // the role chunk is held until there is text
			}
			<-step
		}
	})
	resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer closeBody(resp)
	in := eventReader{r: resp.Body, max: 1 << 16}
	for _, want := range []string{`:""`, `"The"`, `" ans"`, `"wer"`} {
		data, err := in.next()
		if err != nil || !strings.Contains(string(data), want) {
			t.Fatalf("want %s, got %s, %v", want, data, err)
		}
		if want != `:""` {
			step <- struct{}{}
		}
	}
	if data, err := in.next(); err != nil || string(data) != "[DONE]" {
		t.Fatalf("%s, %v", data, err)
	}
	if _, err := in.next(); err != io.EOF {
		t.Fatalf("end: %v", err)
	}
	r.event()
}

// TestNothingBeforeTheVerdict holds the first byte, header and all, until prefill spoke.
func TestNothingBeforeTheVerdict(t *testing.T) {
	for _, members := range []string{"", `,"stream":true`} {
		r := newRig(t, nil)
		decoded, let := make(chan struct{}), make(chan struct{})
		r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
			<-let
			honestPrefill(w, req, c)
		})
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			honestDecode(w, req, c)
			close(decoded)
		})
		got := make(chan answer, 1)
		go func() { got <- r.chat(members) }()
		<-decoded
		select {
		case a := <-got:
			t.Fatalf("answered before prefill did: %d %s", a.status, a.body)
		case e := <-r.events:
			t.Fatalf("ended before prefill did: %+v", e)
		default:
		}
		close(let)
		if a := <-got; a.status != 200 || !strings.Contains(a.body, "wer") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if e := r.event(); e.Verdict != Served {
			t.Errorf("event: %+v", e)
		}
	}
}

func TestModelsAndHealth(t *testing.T) {
	r := newRig(t, nil)
	a := r.send(r.request("GET", "/v1/models", ""))
	if want := `{"object":"list","data":[{"id":"recall","object":"model","created":0,"owned_by":"bulkhead","max_model_len":600}]}` + "\n"; a.status != 200 || a.body != want {
		t.Errorf("%d %s", a.status, a.body)
	}
	req := r.request("GET", "/v1/models", "")
	req.Header.Set("Authorization", "Bearer "+r.other)
	if a := r.send(req); a.status != 200 || a.body != `{"object":"list","data":[]}`+"\n" {
		t.Errorf("a tenant without models: %d %s", a.status, a.body)
	}
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer bk-0", "Basic " + r.key, r.key, "Bearer " + r.key + "x", "Bearer " + strings.Repeat("a", 5000)} {
		req := r.request("GET", "/v1/models", "")
		req.Header.Del("Authorization")
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		if a := r.send(req); a.status != 401 || a.header.Get("WWW-Authenticate") != "Bearer" || !strings.Contains(a.code(), "api_key") {
			t.Errorf("%.20q: %d %s", header, a.status, a.body)
		}
	}
	one := r.send(r.request("GET", "/v1/models/recall", ""))
	if want := `{"id":"recall","object":"model","created":0,"owned_by":"bulkhead","max_model_len":600}` + "\n"; one.status != 200 || one.body != want {
		t.Errorf("%d %s", one.status, one.body)
	}
	if id := one.header.Get("X-Request-Id"); !strings.HasPrefix(id, "req-") || id != one.header.Get("X-Bulkhead-Request-Id") {
		t.Errorf("request id %q", id)
	}
	req = r.request("GET", "/v1/models/recall", "")
	req.Header.Set("Authorization", "Bearer "+r.other)
	theirs, nobodys := r.send(req), r.send(r.request("GET", "/v1/models/nothing", ""))
	if theirs.status != 404 || nobodys.status != 404 || theirs.code() != "model_not_found" || nobodys.code() != "model_not_found" {
		t.Errorf("a model of somebody else's: %d %s; of nobody's: %d %s", theirs.status, theirs.body, nobodys.status, nobodys.body)
	}
	if a := r.send(r.request("POST", "/v1/embeddings", "{}")); a.status != 404 || a.code() != "path_not_served" || !strings.Contains(a.body, "/v1/embeddings") {
		t.Errorf("%d %s", a.status, a.body)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/": 404, "/v1/chat/completions/": 404, "/metrics": 404, "/v1/../healthz": 404, "/abort_request": 404, "/server_info": 404} {
		if a := r.send(r.request("GET", path, "")); a.status != want {
			t.Errorf("GET %s: %d %s", path, a.status, a.body)
		}
	}
	for _, tc := range [][2]string{{"GET", chatPath}, {"PUT", "/v1/completions"}, {"POST", "/v1/models"}, {"DELETE", "/readyz"}} {
		if a := r.send(r.request(tc[0], tc[1], "")); a.status != 405 || a.header.Get("Allow") == "" {
			t.Errorf("%s %s: %d %s", tc[0], tc[1], a.status, a.body)
		}
	}
}

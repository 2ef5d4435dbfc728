package upstream

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var rewriteReplies = flag.Bool("rewrite-replies", false, "write testdata/replies anew; read the diff")

// recorded is one answer of a real engine, as the recordings list it.
type recorded struct {
	Name    string            `json:"name"`
	File    string            `json:"file"` // SGLang's lists
	Path    string            `json:"path"`
	Request json.RawMessage   `json:"request"`
	Sent    json.RawMessage   `json:"body"` // a file name, or what SGLang was sent
	Headers map[string]string `json:"request_headers"`
	Status  int               `json:"status"`

	text []byte
}

// read is what we make of it.
type read struct {
	File      string   `json:"file"`
	Error     string   `json:"error,omitempty"`
	Code      string   `json:"code,omitempty"`
	Message   string   `json:"message,omitempty"`
	Judged    []string `json:"judged,omitempty"`
	Prompt    []int64  `json:"prompt,omitempty"` // the different counts, in order
	Texts     []string `json:"texts,omitempty"`  // by index
	Finishes  []string `json:"finishes,omitempty"`
	Rewritten []string `json:"rewritten,omitempty"` // of a stream its first and last chunks
}

// recording is a version of an engine, and the dialect that reads it.
type recording struct {
	dir   string
	d     Dialect
	lists []string
}

// recordings are those of testdata. It is read only.
var recordings = [...]recording{
	{"llamacpp/10434", LlamaCPP, []string{"cases.json"}},
	{"llamacpp/11549", LlamaCPP, []string{"cases.json"}},
	{"vllm/0.32.0", VLLM, []string{"cases.json", "cases-tools.json", "cases-nixl.json"}},
	{"sglang/0.5.19", SGLangPD, []string{"requests.json"}},
	{"sglang/0.5.20", SGLangPD, []string{"requests.json"}},
}

// loadRecorded reads the answers of completions out of a directory.
func loadRecorded(t *testing.T, dir string, lists []string) []recorded {
	t.Helper()
	var all []recorded
	for _, list := range lists {
		raw, err := os.ReadFile(filepath.Join("testdata", dir, list))
		if err != nil {
			t.Fatal(err)
		}
		var some []recorded
		if err := json.Unmarshal(raw, &some); err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		for _, r := range some {
			if r.File == "" {
				r.File = r.Name
				var name string
				if json.Unmarshal(r.Sent, &name) == nil {
					r.File = name
				}
			} else {
				r.Request = r.Sent
			}
			if r.Path != Chat.Path() && r.Path != Completions.Path() || r.Status == 0 {
				continue // a request that was never answered is listed with status 0
			}
			r.text, err = os.ReadFile(filepath.Join("testdata", dir, r.File))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r)
		}
	}
	return all
}

// id is the id that we gave with the request.
func (r *recorded) id() string {
	if id := r.Headers["X-Request-Id"]; id != "" {
		return id
	}
	var sent struct {
		RID string `json:"rid"`
	}
	_ = json.Unmarshal(r.Request, &sent) // what sent none has none
	return sent.RID
}

func (r *recorded) endpoint() Endpoint {
	if r.Path == Completions.Path() {
		return Completions
	}
	return Chat
}

var goldenPublic = Public{ID: "req-public", Model: "alias", Usage: KeepUsage}

// TestGoldenReplies reads every recorded answer of every engine version, and holds what we
// make of it against testdata/replies and against a second reading by encoding/json.
func TestGoldenReplies(t *testing.T) {
	for _, rec := range recordings {
		t.Run(rec.dir, func(t *testing.T) {
			var got []read
			answers := 0
			for _, r := range loadRecorded(t, rec.dir, rec.lists) {
				one := readRecorded(t, rec.d, &r)
				if len(one.Rewritten) > 0 {
					answers++
				}
				got = append(got, one)
			}
			if answers < 5 {
				t.Fatalf("only %d answers were read", answers)
			}
			text, err := json.MarshalIndent(got, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, '\n')
			path := filepath.Join("testdata", "replies", strings.ReplaceAll(rec.dir, "/", "-")+".json")
			if *rewriteReplies {
				if err := os.WriteFile(path, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(text, want) {
				t.Errorf("not what %s holds; run with -rewrite-replies and read the diff", path)
			}
		})
	}
}

// readRecorded reads one answer.
func readRecorded(t *testing.T, d Dialect, r *recorded) read {
	t.Helper()
	one := read{File: r.File}
	stream := strings.HasSuffix(r.File, ".sse")
	if r.Status != 200 {
		f := ParseFailure(d, r.Status, r.text)
		one.Code, one.Message = string(f.Code), f.Message
		return one
	}
	if strings.HasSuffix(r.File, ".http") {
		_, r.text, _ = bytes.Cut(r.text, []byte("\r\n\r\n"))
		r.text = unchunk(r.text)
		stream = true
	}
	if !stream {
		reply, err := ParseAnswer(d, r.endpoint(), r.text)
		if err != nil {
			t.Fatalf("%s: %v", r.File, err)
		}
		one.add(t, d, r, &reply)
		return one
	}
	var assembly Assembly
	left := r.text
	for n := CutEvent(left); n > 0; n = CutEvent(left) {
		data, ok := EventData(left[:n])
		left = left[n:]
		if !ok || string(data) == Done {
			continue
		}
		reply, err := ParseChunk(d, r.endpoint(), data)
		if err != nil {
			t.Fatalf("%s: %s: %v", r.File, data, err)
		}
		one.add(t, d, r, &reply)
		if err := assembly.Add(&reply); err != nil {
			t.Errorf("%s: %v", r.File, err)
		}
	}
	if one.Code == "" && len(one.Finishes) > 0 {
		one.assembled(t, d, r, &assembly)
	}
	if n := len(one.Rewritten); n > 4 {
		one.Rewritten = append(one.Rewritten[:2], one.Rewritten[n-2:]...)
	}
	return one
}

// unchunk takes the chunks of a recorded HTTP body away, as far as it came.
func unchunk(b []byte) (out []byte) {
	for {
		line, rest, ok := bytes.Cut(b, []byte("\r\n"))
		n := 0
		for _, c := range line {
			n = n<<4 | strings.IndexByte("0123456789abcdef", c)
		}
		if !ok || len(rest) < n {
			return append(out, rest...)
		}
		out = append(out, rest[:n]...)
		b = bytes.TrimPrefix(rest[n:], []byte("\r\n"))
	}
}

// add adds one answer or chunk, and reads it a second time.
func (one *read) add(t *testing.T, d Dialect, r *recorded, reply *Reply) {
	t.Helper()
	id := r.id()
	if d.Traits().IDs == Steady {
		id = ""
	}
	judged := Sound(d, id, reply)
	if d == VLLM && strings.HasPrefix(r.File, "nixl-prefill") {
		again, err := ParseAnswer(VLLMNixl, r.endpoint(), r.text)
		if err != nil {
			t.Fatal(err)
		}
		judged = Prefilled(VLLMNixl, r.id(), &again)
		if h, a := ReadHandle(&again, 128); a != Agreed || h.Extent != ExtentExact || h.Tokens != again.Prompt.N || h.Port != 5701 || h.Host != "127.0.0.1" {
			t.Errorf("%s: handle %+v, %v", r.File, h, a)
		}
	}
	if name, _, _ := strings.Cut(r.File, "."); d == SGLangPD && (strings.HasPrefix(name, "prefill") || strings.HasSuffix(name, "-prefill")) {
		judged = Prefilled(d, r.id(), reply)
	}
	if s := judged.String(); !slices.Contains(one.Judged, s) {
		one.Judged = append(one.Judged, s)
	}
	if reply.Failure != nil {
		one.Code, one.Message = string(reply.Failure.Code), reply.Failure.Message
		return
	}
	if reply.Prompt.Known && !slices.Contains(one.Prompt, reply.Prompt.N) {
		one.Prompt = append(one.Prompt, reply.Prompt.N)
	}
	for i := range reply.Choices {
		at := int(reply.Index(i).N)
		for len(one.Texts) <= at {
			one.Texts, one.Finishes = append(one.Texts, ""), append(one.Finishes, "")
		}
		one.Texts[at] += string(reply.Text(i))
		if f := reply.Finish(i); f != "" {
			one.Finishes[at] += f
		}
	}
	out := reply.Rewrite(nil, goldenPublic)
	one.Rewritten = append(one.Rewritten, string(out))
	checkMembers(t, r.File, reply.body, out)
}

// checkMembers reads original and rewritten reply with encoding/json, by a list of its own.
func checkMembers(t *testing.T, file string, before, after []byte) {
	t.Helper()
	type object = map[string]any
	var was, is object
	if json.Unmarshal(before, &was) != nil || json.Unmarshal(after, &is) != nil {
		t.Fatalf("%s: became %s", file, after)
	}
	allowed := func(o object, where string, names string) {
		for name := range o {
			if !slices.Contains(strings.Fields(names), name) {
				t.Errorf("%s: %s of the rewritten reply has %q", file, where, name)
			}
		}
	}
	allowed(is, "top", "id object created model choices usage system_fingerprint service_tier prompt_logprobs")
	if is["id"] != "req-public" || is["model"] != "alias" || was["id"] == nil || bytes.Contains(after, []byte(was["id"].(string))) {
		t.Errorf("%s: became %s", file, after)
	}
	usage, _ := is["usage"].(object)
	allowed(usage, "usage", "prompt_tokens completion_tokens total_tokens prompt_tokens_details completion_tokens_details reasoning_tokens")
	details, _ := usage["prompt_tokens_details"].(object)
	allowed(details, "details", "multimodal_tokens")
	old, _ := was["choices"].([]any)
	list, _ := is["choices"].([]any)
	if len(old) != len(list) {
		t.Fatalf("%s: %d choices became %d", file, len(old), len(list))
	}
	for i := range list {
		c, o := list[i].(object), old[i].(object)
		allowed(c, "choice", "index message delta text logprobs finish_reason stop_reason matched_stop prompt_logprobs")
		for _, holder := range []string{"message", "delta"} {
			m, _ := c[holder].(object)
			n, _ := o[holder].(object)
			allowed(m, holder, "role content refusal annotations audio function_call tool_calls reasoning reasoning_content")
			if m["content"] != n["content"] || m["role"] != n["role"] || (m["tool_calls"] == nil) != (n["tool_calls"] == nil) {
				t.Errorf("%s: %v became %v", file, n, m)
			}
		}
		if c["text"] != o["text"] || c["finish_reason"] != o["finish_reason"] || c["index"] != o["index"] || (c["logprobs"] == nil) != (o["logprobs"] == nil) {
			t.Errorf("%s: %v became %v", file, o, c)
		}
	}
}

// assembled makes the stream one answer, and reads it.
func (one *read) assembled(t *testing.T, d Dialect, r *recorded, a *Assembly) {
	t.Helper()
	if slices.Contains(one.Finishes, "") {
		return // it was cut
	}
	out := a.Answer(nil, r.endpoint(), goldenPublic)
	whole, err := ParseAnswer(d, r.endpoint(), out)
	if err != nil || whole.Choices != len(one.Texts) {
		t.Fatalf("%s: assembled %s: %v", r.File, out, err)
	}
	for i := range whole.Choices {
		if string(whole.Text(i)) != one.Texts[i] || whole.Finish(i) != one.Finishes[i] {
			t.Errorf("%s: assembled %s", r.File, out)
		}
	}
	if d.Traits().IDs == Steady {
		if got := Sound(d, "req-public", &whole); got != Agreed && len(one.Texts) == 1 {
			t.Errorf("%s: assembled: %v", r.File, got)
		}
	}
}

// TestRecordedStreams is recipe R10 over what engines really send: no error event and no
// cut can be taken for the end of an answer.
func TestRecordedStreams(t *testing.T) {
	for file, want := range map[string]struct {
		d                 Dialect
		failed, ended, ok bool
	}{
		"vllm/0.32.0/error-in-stream.sse":     {VLLM, true, true, false}, // an error, then [DONE]
		"vllm/0.32.0/chat-continuous.sse":     {VLLM, false, true, true},
		"sglang/0.5.20/overlong-prefill.sse":  {SGLangPD, true, true, false},
		"sglang/0.5.20/overlong-decode.sse":   {SGLangPD, true, true, false},
		"sglang/0.5.20/chat-usage.sse":        {SGLangPD, false, true, true},
		"llamacpp/11549/chat-stream.sse":      {LlamaCPP, false, true, true},
		"llamacpp/11549/killed.http":          {LlamaCPP, false, false, false},
		"llamacpp/10434/chat-stream-stop.sse": {LlamaCPP, false, true, true},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, ".http") {
			_, text, _ = bytes.Cut(text, []byte("\r\n\r\n"))
			text = unchunk(text)
		}
		failed, ended, finished := false, false, false
		for n := CutEvent(text); n > 0; n = CutEvent(text) {
			data, ok := EventData(text[:n])
			text = text[n:]
			if string(data) == Done {
				ended = true
			} else if ok {
				r, err := ParseChunk(want.d, Chat, data)
				if err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				failed = failed || r.Failure != nil
				finished = finished || r.Finish(0) != ""
			}
		}
		if failed != want.failed || ended != want.ended || (finished && ended && !failed) != want.ok {
			t.Errorf("%s: failed %v, ended %v, finished %v", file, failed, ended, finished)
		}
	}
}

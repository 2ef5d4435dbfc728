package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// numbered is an answer of several choices, by index.
type numbered struct {
	Choices []struct {
		Index   int
		Message struct{ Content string }
		Delta   struct{ Content string }
		Text    string
		Finish  *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
}

// texts are the texts by index, and how many of the choices ended.
func texts(t *testing.T, docs ...string) (byIndex map[int]string, ended int, usage string) {
	t.Helper()
	byIndex = map[int]string{}
	for _, doc := range docs {
		if doc == "[DONE]" {
			continue
		}
		var v numbered
		if err := json.Unmarshal([]byte(doc), &v); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		for _, c := range v.Choices {
			byIndex[c.Index] += c.Message.Content + c.Delta.Content + c.Text
			if c.Finish != nil {
				ended++
			}
		}
		if v.Usage != nil {
			usage = fmt.Sprint(*v.Usage)
		}
	}
	return byIndex, ended, usage
}

// echoing is an engine that answers with what stands behind "say " in its one prompt, or
// with its seed where there is none.
func echoing(honest script) script {
	return func(w http.ResponseWriter, r *http.Request, c call) {
		var v struct {
			Prompt json.RawMessage
			Seed   int64
		}
		_ = json.Unmarshal(c.raw, &v)
		var one []string
		if json.Unmarshal(v.Prompt, &one) != nil {
			one = make([]string, 1)
			_ = json.Unmarshal(v.Prompt, &one[0])
		}
		word := fmt.Sprint(len(one))
		if len(one) == 1 {
			_, word, _ = strings.Cut(one[0], "say ")
		}
		rec := &recorder{header: http.Header{}}
		honest(rec, r, c)
		w.Header().Set("Content-Type", rec.header.Get("Content-Type"))
		_, _ = fmt.Fprint(w, strings.ReplaceAll(rec.body.String(), "ans", word))
	}
}

// splits are the dialects of which each sequence is a call of its own.
func splits() []upstream.Dialect {
	return slices.DeleteFunc(upstream.Dialects(), func(d upstream.Dialect) bool {
		return d.Traits().Lists != upstream.Split || d == upstream.Bulkhead
	})
}

// TestPromptLists are lists of prompts where each becomes a call of its own: no hand-off
// serves two, and the answers come together in their order (G-11; recipe R3, row 6).
func TestPromptLists(t *testing.T) {
	const list = `["say Ada ` + secret + `","say Bob","say Cid","say Dan","say Eve","say Fay"]`
	for _, d := range splits() {
		for mode, members := range modes() {
			t.Run(d.String()+"/"+mode, func(t *testing.T) {
				r := rigOf(t, d, nil)
				r.decode.set(echoing(honestDecode))
				if d.Traits().Counting == upstream.AtEnd {
					r.decode.set(echoing(lateDecode))
				}
				a := r.send(r.request("POST", completionsPath, `{"model":"recall","prompt":`+strings.ReplaceAll(list, secret, "")+`,"stream_options":{"include_usage":true}`+members+`}`))
				if mode == "whole" {
					r.event()
					a = r.send(r.request("POST", completionsPath, `{"model":"recall","prompt":`+strings.ReplaceAll(list, secret, "")+`}`))
				}
				docs := []string{a.body}
				if mode == "stream" {
					docs = chunks(a.body)
					if docs[len(docs)-1] != "[DONE]" || strings.Count(a.body, "[DONE]") != 1 {
						t.Errorf("end: %s", docs[len(docs)-1])
					}
				}
				got, ended, usage := texts(t, docs...)
				if a.status != 200 || a.err != nil || len(got) != 6 || ended != 6 {
					t.Fatalf("%d %v %s", a.status, a.err, a.body)
				}
				for i, want := range []string{"Ada ", "Bob", "Cid", "Dan", "Eve", "Fay"} {
					if got[i] != "The "+want+"wer" {
						t.Errorf("choice %d is %q", i, got[i])
					}
				}
				if usage != fmt.Sprint(struct{ A, B, C int }{6 * promptTokens, 18, 6*promptTokens + 18}) {
					t.Errorf("usage %s", usage)
				}
				e := r.event()
				if e.Verdict != Served || e.Sequences != 6 || e.Attempts != 6 || e.Prompt != admit.Known(6*promptTokens) || e.Completion != admit.Known(18) {
					t.Errorf("event: %+v", e)
				}
				r.distinctHandOffs(6)
			})
		}
	}
}

// distinctHandOffs holds that the last n calls of each leg met under ids of their own.
func (r *rig) distinctHandOffs(n int) {
	r.t.Helper()
	seen := map[string]bool{}
	for _, leg := range r.legs() {
		calls := leg.got()
		for _, c := range calls[len(calls)-n:] {
			m := c.members(r.t)
			keys := []string{leg.role + c.rid, leg.role + string(m["bootstrap_room"])}
			if r.dialect == upstream.VLLMMooncake || r.dialect == upstream.VLLMNixl && leg.role == "decode" {
				keys = append(keys, leg.role+string(m["kv_transfer_params"]))
			}
			for _, k := range keys {
				if k == leg.role {
					continue
				}
				if seen[k] && r.dialect.Traits().IDs == upstream.Minted {
					r.t.Errorf("%s was used twice", k)
				}
				seen[k] = true
			}
			if strings.Contains(string(m["prompt"]), "Ada") && strings.Contains(string(m["prompt"]), "Bob") {
				r.t.Errorf("a call has two prompts: %s", c.raw)
			}
			if string(m["n"]) != "" && string(m["n"]) != "1" {
				r.t.Errorf("a call asks for %s answers", m["n"])
			}
		}
	}
}

// TestSeveralAnswers are n answers to one prompt: equal seeds would make them equal.
func TestSeveralAnswers(t *testing.T) {
	for _, d := range splits() {
		for mode, members := range modes() {
			t.Run(d.String()+"/"+mode, func(t *testing.T) {
				r := rigOf(t, d, nil)
				if d.Traits().Counting == upstream.AtEnd {
					r.decode.set(lateDecode)
				}
				a := r.chat(`,"n":3,"temperature":1,"seed":40` + members)
				docs := []string{a.body}
				if mode == "stream" {
					docs = chunks(a.body)
				}
				got, ended, _ := texts(t, docs...)
				if a.status != 200 || len(got) != 3 || ended != 3 || got[2] != "The answer" {
					t.Fatalf("%d %s", a.status, a.body)
				}
				// The prompt counts once, and the client did not ask a stream for its usage.
				if e := r.event(); e.Prompt != admit.Known(promptTokens) || e.Completion != admit.Known(9) {
					t.Errorf("event: %+v", e)
				}
				var seeds []string
				for _, c := range r.decode.got() {
					seeds = append(seeds, string(c.members(t)["seed"]))
				}
				slices.Sort(seeds)
				if fmt.Sprint(seeds) != "[40 41 42]" {
					t.Errorf("seeds %v", seeds)
				}
				r.distinctHandOffs(3)
			})
		}
	}
}

// TestOneFailsAll holds that one sequence that fails, fails the whole, and ends the others.
func TestOneFailsAll(t *testing.T) {
	for _, d := range splits() {
		for mode, members := range modes() {
			t.Run(d.String()+"/"+mode, func(t *testing.T) {
				r := rigOf(t, d, nil)
				began := make(chan struct{}, 8)
				r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
					if !strings.Contains(string(c.raw), "Cid") {
						if c.stream {
							events(w, bare(c.path, c.id, "The "+foreign, ""))
						}
						hanging(began)(w, req, c)
						return
					}
					for range 3 {
						<-began
					}
					refusing(400, foreign)(w, req, c)
				})
				a := r.send(r.request("POST", completionsPath, `{"model":"recall","prompt":["Ada","Bob","Cid","Dan","Eve"]`+members+`}`))
				if e := r.refused(a, 400, "bad_input"); e.Sequences != 5 {
					t.Errorf("event: %+v", e)
				}
				if n := len(r.decode.got()); n != 4 {
					t.Errorf("%d calls, four at a time may run", n)
				}
				r.clock.advance(r.lease())
			})
		}
	}
}

// TestAllAgreeBeforeTheFirstByte holds a stream of several sequences until the last of
// them has agreed.
func TestAllAgreeBeforeTheFirstByte(t *testing.T) {
	r := rigOf(t, upstream.SGLangPD, nil)
	let, others := make(chan struct{}), make(chan struct{}, 3)
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		if strings.Contains(string(c.raw), "Cid") {
			<-let
			leakingAs(promptTokens+1, w, req, c)
			return
		}
		honestDecode(w, req, c)
		others <- struct{}{}
	})
	got := make(chan answer, 1)
	go func() {
		got <- r.send(r.request("POST", completionsPath, `{"model":"recall","stream":true,"prompt":["Ada","Bob","Cid"]}`))
	}()
	<-others
	<-others
	close(let)
	r.refused(<-got, 502, "legs_disagree")
}

// TestTooManySequences is refused by number.
func TestTooManySequences(t *testing.T) {
	r := rigOf(t, upstream.SGLangPD, func(c *Config) { c.Models[0].MaxSequences = 4 })
	r.refused(r.chat(`,"n":5`), 400, "value_out_of_range")
	if a := r.chat(`,"n":4`); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.event()
}

// TestNativeChoices are several answers of an engine that takes them as they are: each
// choice must end (recipe R10, row 13).
func TestNativeChoices(t *testing.T) {
	both := func(finish0, finish1 string) string {
		one := func(i int, text, finish string) string {
			return strings.Replace(choiceJSON(chatPath, "delta", text, finish), `"index":0`, fmt.Sprintf(`"index":%d`, i), 1)
		}
		return fmt.Sprintf(`{"id":"ID","object":"x","created":1,"model":"served","choices":[%s,%s]}`, one(0, "A", finish0), one(1, "B", finish1))
	}
	for _, tc := range []struct {
		name string
		last string
		code string
	}{
		{"both end", both("stop", "length"), ""},
		{"one does not", both("stop", ""), "stream_broken"},
		{"none does", both("", ""), "stream_broken"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rigOf(t, upstream.VLLM, nil)
			seen := make(chan struct{})
			r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
				events(w, strings.Replace(both("", ""), "ID", c.id, 1))
				<-seen
				events(w, strings.Replace(tc.last, "ID", c.id, 1), usageChunk(c.id, promptTokens, 8), "[DONE]")
			})
			a := r.sendSeen(r.request("POST", chatPath, chatBody(`,"n":2,"temperature":1,"stream":true`)), `"B"`, seen)
			e := r.event()
			docs := chunks(a.body)
			if last := docs[len(docs)-1]; tc.code == "" && (last != "[DONE]" || e.Verdict != Served || e.Completion != admit.Known(8)) ||
				tc.code != "" && ((answer{body: last}).code() != tc.code || a.err == nil || strings.Contains(a.body, "[DONE]")) {
				t.Errorf("%s, event %+v", a.body, e)
			}
			if got := string(r.decode.got()[0].members(t)["n"]); got != "2" {
				t.Errorf("n is %s", got)
			}
		})
	}
	for name, edit := range map[string]func(string) string{
		"a choice is missing":   func(s string) string { return strings.Replace(s, `,{"index":1`, `],"x":[{"index":1`, 1) },
		"a choice comes twice":  func(s string) string { return strings.Replace(s, `"index":1`, `"index":0`, 1) },
		"a choice did not end":  func(s string) string { return strings.Replace(s, `"length"`, `null`, 1) },
		"a choice that was not": func(s string) string { return strings.Replace(s, `"index":1`, `"index":2`, 1) },
		"":                      func(s string) string { return s },
	} {
		t.Run("whole/"+name, func(t *testing.T) {
			r := rigOf(t, upstream.VLLM, nil)
			r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
				reply(w, 200, edit(strings.ReplaceAll(strings.Replace(both("stop", "length"), "ID", c.id, 1), "delta", "message")))
			})
			a := r.chat(`,"n":2,"temperature":1`)
			if name == "" {
				if a.status != 200 {
					t.Errorf("%d %s", a.status, a.body)
				}
				r.event()
				return
			}
			r.refused(a, 502, map[bool]string{true: "engine_failed", false: "upstream_answer_void"}[false])
		})
	}
}

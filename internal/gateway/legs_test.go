package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// modes are the two ways in which an answer is asked for.
func modes() map[string]string {
	return map[string]string{"whole": "", "stream": `,"stream":true`}
}

// leaking is a decode leg that answers with another request's text.
func leaking(w http.ResponseWriter, r *http.Request, c call) { leakingAs(promptTokens, w, r, c) }

// leakingAs is leaking with a count of the prompt.
func leakingAs(prompt int, w http.ResponseWriter, r *http.Request, c call) {
	if !c.stream {
		reply(w, 200, whole(r.URL.Path, c.id, "The "+foreign, "stop", prompt, 3))
		return
	}
	events(w, chunk(r.URL.Path, c.id, "The "+foreign, "", prompt, 1), chunk(r.URL.Path, c.id, foreign, "stop", prompt, 3),
		usageChunk(c.id, prompt, 3), "[DONE]")
}

// edited is an honest leg whose answer is changed by a replacement.
func edited(honest script, from, to string) script {
	return func(w http.ResponseWriter, r *http.Request, c call) {
		rec := &recorder{header: http.Header{}}
		honest(rec, r, c)
		if !strings.Contains(rec.body.String(), from) {
			panic("nothing to edit: " + from)
		}
		w.Header().Set("Content-Type", rec.header.Get("Content-Type"))
		w.WriteHeader(rec.status)
		_, _ = fmt.Fprint(w, strings.ReplaceAll(rec.body.String(), from, to))
	}
}

// recorder takes an answer to be edited.
type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(s int)   { r.status = s }
func (r *recorder) Flush()              {}
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.body.Write(p)
}

// other is an id of the right form that is nobody's.
const otherID = "bh-00000000000000000000000000000000"

// TestPrefillFails is every way in which prefill can fail, against a decode leg that
// answers 200 with another tenant's text: no byte of it may come through.
func TestPrefillFails(t *testing.T) {
	tooLong := string(fault.New(fault.TooLong, fault.Int(900), fault.Int(671)).Body())
	prefillEdit := func(from, to string) script { return edited(honestPrefill, from, to) }
	for _, tc := range []struct {
		name    string
		do      script
		status  int
		code    string
		verdict Verdict
	}{
		{"400", refusing(400, tooLong), 400, "too_long", record.Refused},
		{"400 with free text", refusing(400, `{"error":{"message":"`+foreign+`","code":"`+foreign+`"}}`), 400, "bad_input", record.Refused},
		{"400 as SGLang says it", refusing(400, `{"object":"error","message":"`+foreign+`","code":400}`), 400, "bad_input", record.Refused},
		{"500 as text", refusing(500, foreign), 500, "engine_failed", record.Failed},
		{"403", refusing(403, string(fault.New(fault.BadPass).Body())), 502, "upstream_refused", record.Failed},
		{"401 without a body", refusing(401, ""), 502, "upstream_refused", record.Failed},
		{"409", refusing(409, string(fault.New(fault.DuplicateAttempt).Body())), 502, "upstream_refused", record.Failed},
		{"502 integrity", refusing(502, string(fault.New(fault.Integrity).Body())), 502, "integrity", record.Void},
		{"503", refusing(503, ""), 503, "busy", record.Refused},
		{"302", refusing(302, ""), 500, "engine_failed", record.Failed},
		{"204", func(w http.ResponseWriter, _ *http.Request, _ call) { w.WriteHeader(204) }, 500, "engine_failed", record.Failed},
		{"200 with an error object", refusing(200, `{"error":{"message":"`+foreign+`","code":400}}`), 500, "engine_failed", record.Failed},
		{"200 with our error object", refusing(200, tooLong), 400, "too_long", record.Refused},
		{"200 with an error beside an answer", prefillEdit(`"created":1`, `"error":{"message":"x"}`), 500, "engine_failed", record.Failed},
		{"200, finish abort", prefillEdit(`"length"`, `"abort"`), 500, "engine_failed", record.Failed},
		{"200, no finish", prefillEdit(`"length"`, `null`), 500, "engine_failed", record.Failed},
		{"200, a stream with an error", func(w http.ResponseWriter, _ *http.Request, _ call) { events(w, tooLong) }, 502, "upstream_answer_void", record.Void},
		{"200, no JSON", refusing(200, foreign), 502, "upstream_answer_void", record.Void},
		{"200, empty", refusing(200, ""), 502, "upstream_answer_void", record.Void},
		{"200, two answers", func(w http.ResponseWriter, r *http.Request, c call) {
			honestPrefill(w, r, c)
			_, _ = fmt.Fprint(w, whole(r.URL.Path, c.id, "The", "length", promptTokens, 1))
		}, 502, "upstream_answer_void", record.Void},
		{"200, endless", func(w http.ResponseWriter, _ *http.Request, _ call) {
			reply(w, 200, strings.Repeat(" ", maxPrefill+1))
		}, 502, "upstream_answer_void", record.Void},
		{"200, another id", func(w http.ResponseWriter, r *http.Request, c call) {
			c.id = otherID
			honestPrefill(w, r, c)
		}, 502, "upstream_answer_void", record.Void},
		{"200, no id", prefillEdit(`"id"`, `"idx"`), 502, "upstream_answer_void", record.Void},
		{"200, one token counted: the incident", func(w http.ResponseWriter, r *http.Request, c call) {
			reply(w, 200, whole(r.URL.Path, c.id, "The", "length", 1, 1))
		}, 502, "legs_disagree", record.Void},
		{"200, one token more", func(w http.ResponseWriter, r *http.Request, c call) {
			reply(w, 200, whole(r.URL.Path, c.id, "The", "length", promptTokens+1, 1))
		}, 502, "legs_disagree", record.Void},
		{"200, no count", prefillEdit(`"prompt_tokens"`, `"x"`), 502, "upstream_answer_void", record.Void},
		{"200, another first token", prefillEdit(`"The"`, `"An"`), 502, "legs_disagree", record.Void},
		{"200, no text", prefillEdit(`"The"`, `null`), 502, "upstream_answer_void", record.Void},
		{"hangs up", func(http.ResponseWriter, *http.Request, call) { panic(http.ErrAbortHandler) }, 502, "upstream_unreachable", record.Failed},
		{"hangs up in its answer", func(w http.ResponseWriter, _ *http.Request, _ call) {
			reply(w, 200, `{"id":`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 502, "upstream_unreachable", record.Failed},
	} {
		for mode, members := range modes() {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				r := newRig(t, nil)
				r.prefill.set(tc.do)
				r.decode.set(leaking)
				e := r.refused(r.chat(members), tc.status, tc.code)
				if e.Verdict != tc.verdict || e.Attempts != 1 {
					t.Errorf("event: %+v", e)
				}
			})
		}
	}
}

// TestNumbersOfARefusal holds that a worker's two numbers reach the client, and no text.
func TestNumbersOfARefusal(t *testing.T) {
	r := newRig(t, nil)
	r.prefill.set(refusing(400, string(fault.New(fault.TooLong, fault.Int(900), fault.Int(671)).Body())))
	a := r.chat("")
	r.event()
	if !strings.Contains(a.body, "900") || !strings.Contains(a.body, "671") {
		t.Errorf("%s", a.body)
	}
}

// TestPrefillFailsWhileDecodeWaits holds that decode is ended at once, by closing its
// call and by its exact id, when prefill refuses.
func TestPrefillFailsWhileDecodeWaits(t *testing.T) {
	for mode, members := range modes() {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, nil)
			began, left := make(chan struct{}, 1), make(chan struct{})
			r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
				<-began
				refusing(400, "")(w, req, c)
			})
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				hanging(began)(w, req, c)
				close(left)
			})
			r.refused(r.chat(members), 400, "bad_input")
			<-left
			if rid := r.decode.aborted(t); rid != r.decode.got()[0].rid {
				t.Errorf("aborted %q", rid)
			}
			r.g.tasks.Wait()
			if len(r.prefill.aborts) != 0 {
				t.Error("prefill, which had answered, was aborted")
			}
		})
	}
}

// TestDecodeFails is decode failing before its first byte counts, against a prefill leg
// that hangs: it is ended too.
func TestDecodeFails(t *testing.T) {
	for _, tc := range []struct {
		name   string
		do     script
		status int
		code   string
		aborts bool // decode itself has to be aborted too
	}{
		{"503", refusing(503, string(fault.New(fault.Busy).Body())), 503, "busy", false},
		{"400", refusing(400, string(fault.New(fault.PoolExceeded, fault.Int(9), fault.Int(5)).Body())), 400, "pool_exceeded", false},
		{"integrity", refusing(502, string(fault.New(fault.Integrity).Body())), 502, "integrity", false},
		{"hangs up", func(http.ResponseWriter, *http.Request, call) { panic(http.ErrAbortHandler) }, 502, "upstream_unreachable", true},
		{"200 of another kind", refusing(200, "x"), 502, "upstream_answer_void", true},
		{"error as first event", func(w http.ResponseWriter, _ *http.Request, c call) {
			if !c.stream {
				refusing(200, string(fault.New(fault.TooLong, fault.Int(9), fault.Int(5)).Body()))(w, nil, c)
				return
			}
			events(w, string(fault.New(fault.TooLong, fault.Int(9), fault.Int(5)).Body()), "[DONE]")
		}, 400, "too_long", true},
		{"another id", func(w http.ResponseWriter, r *http.Request, c call) {
			c.id = otherID
			leaking(w, r, c)
		}, 502, "upstream_answer_void", true},
		{"an id that begins as ours", func(w http.ResponseWriter, r *http.Request, c call) {
			c.id += "0"
			leaking(w, r, c)
		}, 502, "upstream_answer_void", true},
		{"two choices", edited(leaking, `"choices":[`, `"choices":[{"index":1},`), 502, "upstream_answer_void", true},
		{"finish abort", edited(leaking, `"stop"`, `"abort"`), 500, "engine_failed", true},
		{"repeated keys", edited(leaking, `"object"`, `"id":"x","object"`), 502, "upstream_answer_void", true},
	} {
		for mode, members := range modes() {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				r := newRig(t, nil)
				began := make(chan struct{}, 1)
				r.prefill.set(hanging(began))
				r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
					<-began // so that prefill has a call to be ended
					if tc.name == "finish abort" && c.stream {
						c := c
						events(w, chunk(chatPath, c.id, foreign, "abort", promptTokens, 1))
						return
					}
					tc.do(w, req, c)
				})
				e := r.refused(r.chat(members), tc.status, tc.code)
				if rid := r.prefill.aborted(t); rid != r.prefill.got()[0].rid || r.decode.got()[0].rid != e.RID {
					t.Errorf("aborted %q, the attempt was %q", rid, e.RID)
				}
				r.g.tasks.Wait()
				if mode == "stream" && tc.aborts != (len(r.decode.aborts) == 1) {
					t.Errorf("decode got %d aborts", len(r.decode.aborts))
				}
			})
		}
	}
}

// TestDecodeUnproved is a decode leg whose answer lacks what the comparison needs, or
// contradicts prefill. Both legs look well.
func TestDecodeUnproved(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   script
		code string
		ag   upstream.Agreement
	}{
		{"count of another prompt", func(w http.ResponseWriter, r *http.Request, c call) { leakingAs(4096, w, r, c) }, "legs_disagree", upstream.CountsDiffer},
		{"a sum that is none", edited(leaking, fmt.Sprintf(`"prompt_tokens":%d`, promptTokens), `"prompt_tokens":4096`), "upstream_answer_void", upstream.Unproved},
		{"first token of another answer", edited(leaking, "The ", ""), "legs_disagree", upstream.TokensDiffer},
		{"no usage", edited(leaking, `"usage"`, `"x"`), "upstream_answer_void", upstream.Unproved},
	} {
		for mode, members := range modes() {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				r := newRig(t, nil)
				r.decode.set(tc.do)
				e := r.refused(r.chat(members), 502, tc.code)
				if e.Agreement != tc.ag || e.Verdict != record.Void {
					t.Errorf("event: %+v", e)
				}
			})
		}
	}
	t.Run("no finish reason/whole", func(t *testing.T) {
		r := newRig(t, nil)
		r.decode.set(edited(leaking, `"stop"`, `null`))
		r.refused(r.chat(""), 502, "upstream_answer_void")
	})
	t.Run("held too long/stream", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Bounds.Held = 4096 })
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			for range 200 {
				events(w, chunk(req.URL.Path, c.id, "", "", promptTokens, 0))
			}
			<-req.Context().Done()
		})
		r.refused(r.chat(`,"stream":true,"max_tokens":500`), 502, "upstream_answer_void")
		r.decode.aborted(t)
	})
	t.Run("whole answer too long", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.Bounds.Answer = 4096 })
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			reply(w, 200, whole(req.URL.Path, c.id, "The"+strings.Repeat("x", 4096), "stop", promptTokens, 3))
		})
		r.refused(r.chat(""), 502, "upstream_answer_void")
	})
}

// TestStopStringAtTheStart is an honest answer that ends before its first token.
func TestStopStringAtTheStart(t *testing.T) {
	r := newRig(t, nil)
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		if !c.stream {
			reply(w, 200, whole(req.URL.Path, c.id, "", "stop", promptTokens, 1))
			return
		}
		events(w, chunk(req.URL.Path, c.id, "", "stop", promptTokens, 1), "[DONE]")
	})
	for mode, members := range modes() {
		if a := r.chat(`,"stop":["The"]` + members); a.status != 200 || a.err != nil {
			t.Errorf("%s: %d %s", mode, a.status, a.body)
		}
		r.event()
		// Without the stop string nothing explains the missing token.
		r.refused(r.chat(members), 502, "legs_disagree")
	}
	for _, c := range r.prefill.got() {
		if strings.Contains(string(c.raw), `["The"]`) {
			t.Errorf("prefill got the stop string: %s", c.raw)
		}
	}
}

// TestBrokenStream is every way in which a stream can go wrong after its first byte. The
// client must see that, whatever it looks at: an error event, no end mark, and a
// connection that does not end well.
func TestBrokenStream(t *testing.T) {
	begin := func(w http.ResponseWriter, c call) {
		events(w, decodeChunks(chatPath, c.id)[:2]...)
	}
	rest := func(c call) []string { return decodeChunks(chatPath, c.id)[2:] }
	for _, tc := range []struct {
		name string
		do   func(w http.ResponseWriter, c call)
		code string
	}{
		{"cut", func(w http.ResponseWriter, c call) { panic(http.ErrAbortHandler) }, "stream_broken"},
		{"cut inside an event", func(w http.ResponseWriter, c call) {
			_, _ = fmt.Fprint(w, `data: {"id":`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "stream_broken"},
		{"clean end, nothing", func(w http.ResponseWriter, c call) {}, "stream_broken"},
		{"clean end inside an event", func(w http.ResponseWriter, c call) { _, _ = fmt.Fprint(w, "data: [DONE]\n") }, "stream_broken"},
		{"finish without [DONE]", func(w http.ResponseWriter, c call) { events(w, rest(c)...) }, "stream_broken"},
		{"[DONE] without finish", func(w http.ResponseWriter, c call) { events(w, "[DONE]") }, "stream_broken"},
		{"usage and [DONE] without finish", func(w http.ResponseWriter, c call) {
			events(w, usageChunk(c.id, promptTokens, 2), "[DONE]")
		}, "stream_broken"},
		{"error then [DONE]", func(w http.ResponseWriter, c call) {
			events(w, `{"error":{"message":"`+foreign+`","code":"x"}}`, "[DONE]")
		}, "engine_failed"},
		{"finish, error, then [DONE]", func(w http.ResponseWriter, c call) {
			events(w, append(rest(c), string(fault.New(fault.Integrity).Body()), "[DONE]")...)
		}, "integrity"},
		{"finish abort", func(w http.ResponseWriter, c call) {
			events(w, chunk(chatPath, c.id, "", "abort", promptTokens, 2), "[DONE]")
		}, "engine_failed"},
		{"another id", func(w http.ResponseWriter, c call) { events(w, chunk(chatPath, otherID, foreign, "", promptTokens, 2)) }, "upstream_answer_void"},
		{"another id in the usage chunk", func(w http.ResponseWriter, c call) {
			events(w, append(rest(c), usageChunk(otherID, promptTokens, 3), "[DONE]")...)
		}, "upstream_answer_void"},
		{"another count", func(w http.ResponseWriter, c call) { events(w, chunk(chatPath, c.id, foreign, "", promptTokens+1, 2)) }, "legs_disagree"},
		{"text after the finish", func(w http.ResponseWriter, c call) {
			events(w, append(rest(c), chunk(chatPath, c.id, foreign, "", promptTokens, 4), "[DONE]")...)
		}, "upstream_answer_void"},
		{"second choice", func(w http.ResponseWriter, c call) {
			events(w, strings.Replace(chunk(chatPath, c.id, foreign, "", promptTokens, 2), `"index":0`, `"index":1`, 1))
		}, "upstream_answer_void"},
		{"no JSON", func(w http.ResponseWriter, c call) { events(w, foreign) }, "upstream_answer_void"},
		{"event too long", func(w http.ResponseWriter, c call) {
			events(w, chunk(chatPath, c.id, strings.Repeat("x", 1<<20), "", promptTokens, 2))
		}, "upstream_answer_void"},
		{"never ends", func(w http.ResponseWriter, c call) {
			for range 2*20 + moreChunks + 1 {
				events(w, usageChunk(c.id, promptTokens, 2))
			}
		}, "upstream_answer_void"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			seen := make(chan struct{})
			r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
				begin(w, c)
				<-seen
				tc.do(w, c)
			})
			a := r.sendSeen(r.request("POST", chatPath, chatBody(`,"stream":true`)), "The", seen)
			text, last := streamed(a.body)
			if a.status != 200 || !strings.HasPrefix(text, "The") {
				t.Fatalf("the stream did not begin: %d %s", a.status, a.body)
			}
			if a.err == nil {
				t.Error("the connection ended well")
			}
			if strings.Contains(a.body, "[DONE]") {
				t.Errorf("an end mark: %s", a.body)
			}
			if (answer{body: last}).code() != tc.code {
				t.Errorf("last event %s, want %s", last, tc.code)
			}
			e := r.event()
			if e.Verdict != record.Broken || string(e.Code) != tc.code || e.Status != 200 || e.FirstByte != 0 && e.FirstByte > time.Minute {
				t.Errorf("event: %+v", e)
			}
			if e.From == record.Reported {
				t.Error("a broken answer has the token count of a whole one")
			}
		})
	}
}

// TestSoundPartIsDelivered holds that what came before a failure in one piece with it is
// not lost.
func TestSoundPartIsDelivered(t *testing.T) {
	r := newRig(t, nil)
	seen := make(chan struct{})
	r.decode.set(func(w http.ResponseWriter, _ *http.Request, c call) {
		d := decodeChunks(chatPath, c.id)
		events(w, d[:2]...)
		<-seen
		_, _ = fmt.Fprintf(w, "data: %s\n\ndata: %s\n\n", d[2], fault.New(fault.Integrity).Body())
	})
	a := r.sendSeen(r.request("POST", chatPath, chatBody(`,"stream":true`)), "The", seen)
	if text, last := streamed(a.body); text != "The ans" || (answer{body: last}).code() != "integrity" {
		t.Errorf("%s", a.body)
	}
	r.event()
}

// TestUsageThatDoesNotAddUp is told as unknown.
func TestUsageThatDoesNotAddUp(t *testing.T) {
	for name, usage := range map[string]string{
		"more than asked":   `"prompt_tokens":40,"completion_tokens":21,"total_tokens":61`,
		"a wrong sum":       `"prompt_tokens":40,"completion_tokens":3,"total_tokens":44`,
		"no completion":     `"prompt_tokens":40,"total_tokens":43`,
		"the sum left out":  `"prompt_tokens":40,"completion_tokens":3`,
		"all of it in sums": `"prompt_tokens":40,"completion_tokens":3,"total_tokens":43`,
	} {
		r := newRig(t, nil)
		r.decode.set(edited(honestDecode, `"prompt_tokens":40,"completion_tokens":3,"total_tokens":43`, usage))
		r.chat("")
		_, known := r.event().Completion.Value()
		if want := strings.Contains(name, "sums") || strings.Contains(name, "left out"); known != want {
			t.Errorf("%s: known %v", name, known)
		}
	}
}

// TestIdleStream is a worker that stops sending, and one that sends comments only.
func TestIdleStream(t *testing.T) {
	for name, more := range map[string]string{"silence": "", "comments": ": still here\n\n"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			sent := make(chan struct{})
			r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
				events(w, decodeChunks(chatPath, c.id)[:2]...)
				_, _ = fmt.Fprint(w, more)
				_ = http.NewResponseController(w).Flush()
				close(sent)
				<-req.Context().Done()
			})
			resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"stream":true`)))
			if err != nil {
				t.Fatal(err)
			}
			defer closeBody(resp)
			in := eventReader{r: resp.Body, max: 1 << 16}
			for range 2 {
				if _, err := in.next(); err != nil {
					t.Fatal(err)
				}
			}
			<-sent
			r.clock.advance(r.g.bounds.Idle)
			data, err := in.next()
			if err != nil || (answer{body: string(data)}).code() != "stream_broken" {
				t.Errorf("%s, %v", data, err)
			}
			if _, err := in.next(); err == nil {
				t.Error("the connection ended well")
			}
			r.decode.aborted(t)
			if e := r.event(); e.Verdict != record.Broken {
				t.Errorf("event: %+v", e)
			}
		})
	}
}

// TestNoVerdictInTime is a pair that never answers.
func TestNoVerdictInTime(t *testing.T) {
	for mode, members := range modes() {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, nil)
			began := make(chan struct{}, 2)
			r.prefill.set(hanging(began))
			r.decode.set(hanging(began))
			got := make(chan answer, 1)
			go func() { got <- r.chat(members) }()
			<-began
			<-began
			r.clock.advance(r.g.bounds.FirstByte)
			r.refused(<-got, 504, "deadline")
			if p, d := r.prefill.aborted(t), r.decode.aborted(t); p != r.prefill.got()[0].rid || d != r.decode.got()[0].rid {
				t.Errorf("aborted %q and %q", p, d)
			}
		})
	}
}

// TestLongStreamOutlivesTheFirstByteBound holds that the bound to the first byte is none
// for the stream behind it.
func TestLongStreamOutlivesTheFirstByteBound(t *testing.T) {
	r := newRig(t, nil)
	step := make(chan struct{})
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		events(w, decodeChunks(chatPath, c.id)[:2]...)
		<-step
		events(w, append(decodeChunks(chatPath, c.id)[2:], "[DONE]")...)
	})
	r.g.bounds.Idle = 2 * r.g.bounds.FirstByte
	resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer closeBody(resp)
	r.clock.advance(r.g.bounds.FirstByte)
	close(step)
	in := eventReader{r: resp.Body, max: 1 << 16}
	last := ""
	for {
		data, err := in.next()
		if err != nil {
			break
		}
		last = string(data)
	}
	if last != "[DONE]" {
		t.Errorf("last event %s", last)
	}
	r.event()
}

// TestClientLeaves holds that both legs end, by closing their calls and by exact id.
func TestClientLeaves(t *testing.T) {
	for mode, members := range modes() {
		t.Run("while it waits/"+mode, func(t *testing.T) {
			r := newRig(t, nil)
			began, ended := make(chan struct{}, 2), make(chan struct{}, 2)
			wait := func(w http.ResponseWriter, req *http.Request, c call) {
				hanging(began)(w, req, c)
				ended <- struct{}{}
			}
			r.prefill.set(wait)
			r.decode.set(wait)
			ctx, leave := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(members)).WithContext(ctx))
				if err == nil {
					closeBody(resp)
				}
				done <- err
			}()
			<-began
			<-began
			leave()
			if <-done == nil {
				t.Fatal("an answer came")
			}
			<-ended
			<-ended
			e := r.event()
			if p, d := r.prefill.aborted(t), r.decode.aborted(t); p != r.prefill.got()[0].rid || d != e.RID {
				t.Errorf("aborted %q and %q, the attempt was %q", p, d, e.RID)
			}
			if e.Verdict != record.Left || e.Status != 0 {
				t.Errorf("event: %+v", e)
			}
		})
	}
	t.Run("in mid-stream", func(t *testing.T) {
		r := newRig(t, nil)
		ended := make(chan struct{})
		r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
			events(w, decodeChunks(chatPath, c.id)[:2]...)
			<-req.Context().Done()
			close(ended)
		})
		ctx, leave := context.WithCancel(context.Background())
		resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"stream":true`)).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		leave()
		closeBody(resp)
		<-ended
		e := r.event()
		if rid := r.decode.aborted(t); rid != e.RID || e.Verdict != record.Left || e.Status != 200 {
			t.Errorf("aborted %q, event: %+v", rid, e)
		}
	})
}

// TestDeadWorkersDoNotStopTheEnd is an abort that nobody answers, of a call that goes on:
// when the time for it is over the client has its error, and the seat comes back.
func TestDeadWorkersDoNotStopTheEnd(t *testing.T) {
	r := newRig(t, nil)
	began := make(chan struct{}, 1)
	r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
		<-began
		refusing(400, "")(w, req, c)
	})
	r.decode.set(hanging(began))
	stuck := make(chan struct{}, 2)
	r.decode.become(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/abort_request" {
			_, _ = io.Copy(io.Discard, req.Body) // only then does the server see its caller leave
			stuck <- struct{}{}
			<-req.Context().Done()
			return
		}
		r.decode.serve(w, req)
	})
	got := make(chan answer, 1)
	go func() { got <- r.chat("") }()
	<-stuck
	if r.g.seats.Held() != 1 {
		t.Error("the seat is free although an abort is under way")
	}
	r.clock.advance(r.g.bounds.Abort)
	r.refused(<-got, 400, "bad_input")
	r.g.tasks.Wait()
}

package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// commits makes the streams of a rig's model begin after 10 s.
func commits(c *Config) { c.Models[0].Hold.CommitAfter = 10 * time.Second }

// waits makes a leg wait for let, and tell of its first call.
func waits(began chan<- struct{}, let <-chan struct{}, do script) script {
	return func(w http.ResponseWriter, r *http.Request, c call) {
		if c.first == 0 {
			began <- struct{}{}
			select {
			case <-let:
			case <-r.Context().Done():
				return
			}
		}
		do(w, r, c)
	}
}

// opened is a request whose verdict is open, and what its client has got.
type opened struct {
	let   chan struct{} // closed for the engine to answer
	got   chan answer
	began chan struct{} // closed when the client has the first comment
}

// open sends a request to a pair whose first decode call waits.
func (r *rig) open(members string, do script) *opened {
	r.t.Helper()
	o := &opened{let: make(chan struct{}), got: make(chan answer, 1), began: make(chan struct{})}
	began := make(chan struct{}, 1)
	r.decode.set(waits(began, o.let, do))
	go func() { o.got <- r.sendSeen(r.request("POST", chatPath, chatBody(members)), ": held\n\n", o.began) }()
	<-began
	return o
}

// end lets the engine answer.
func (o *opened) end() answer {
	close(o.let)
	return <-o.got
}

// TestCommitAfter holds what a client gets whose stream began before its verdict: comments,
// the verdict as another one, and then the answer as it always is.
func TestCommitAfter(t *testing.T) {
	for d, verdict := range map[upstream.Dialect]string{
		upstream.Bulkhead: agreed, upstream.SGLangPD: agreed, upstream.VLLMNixl: agreed, upstream.VLLM: lone, upstream.LlamaCPP: late,
	} {
		t.Run(d.String(), func(t *testing.T) {
			r := rigOf(t, d, commits)
			do := honestDecode
			if d.Traits().Counting == upstream.AtEnd {
				do, verdict = lateDecode, lone
			}
			o := r.open(`,"stream":true`, do)
			r.clock.advance(10 * time.Second)
			<-o.began
			r.clock.advance(10 * time.Second)
			a := o.end()
			rest, begins := strings.CutPrefix(a.body, ": held\n\n: held\n\n: "+verdict+"\n\ndata: ")
			text, last := streamed(a.body)
			if a.status != 200 || a.err != nil || !begins || strings.Contains(rest, "\n: ") || text != "The answer" || last != upstream.Done {
				t.Errorf("%d, %v: %s", a.status, a.err, a.body)
			}
			if a.header.Get(headerVerdict) != undecided || a.header.Get(headerCount) != "" || a.header.Get("Content-Type") != "text/event-stream" {
				t.Errorf("%v", a.header)
			}
			e := r.event()
			if e.Verdict != Served || e.Status != 200 || e.Committed != 10*time.Second || e.FirstByte != 20*time.Second {
				t.Errorf("event: %+v", e)
			}
			if rec, _ := r.g.Explain(e.ID); rec.Committed != e.Committed {
				t.Errorf("record: %+v", rec)
			}
			// A verdict that comes in time leaves nothing of it, and a timer that is still to
			// run does nothing.
			a = r.chat(`,"stream":true`)
			r.clock.advance(20 * time.Second)
			if e := r.event(); e.Committed != 0 || a.header.Get(headerVerdict) != verdict || strings.Contains(a.body, ": held") || strings.Contains(a.body, ": "+verdict) {
				t.Errorf("%v %s, event %+v", a.header, a.body, e)
			}
		})
	}
}

// slowCounter counts so many tokens, and takes its time.
type slowCounter struct {
	clock *testClock
	n     int
}

func (c slowCounter) Count(context.Context, string, []byte) (int, error) {
	c.clock.advance(15 * time.Second)
	return c.n, nil
}

// TestCountBeforeCommit holds that the time counts from admission: a prompt that a slow
// count finds too long is a 400 for a stream too (G-2).
func TestCountBeforeCommit(t *testing.T) {
	slowly := func(n int) *rig {
		r := newBare(t, upstream.VLLM)
		r.start(func(c *Config) {
			commits(c)
			c.Models[0].Counter, c.Models[0].Sizes = slowCounter{r.clock, n}, Sizes{BytesPerToken: 100, PerRequest: 2000}
		})
		return r
	}
	r := slowly(5000)
	r.refused(r.chat(`,"stream":true`), 400, "context_length_exceeded")
	r = slowly(promptTokens)
	o := r.open(`,"stream":true`, honestDecode)
	r.clock.advance(10 * time.Second)
	<-o.began
	a := o.end()
	if e := r.event(); a.status != 200 || e.Verdict != Served || e.Committed != 25*time.Second {
		t.Errorf("%d %s, event %+v", a.status, a.body, e)
	}
}

// TestRefusedAfterCommit is every way in which a request may fail before its verdict, on a
// stream that has begun: an error event, no end mark and a connection that is cut. Without
// the setting the same is a status; so it is for an answer in one piece with it.
func TestRefusedAfterCommit(t *testing.T) {
	disagrees := func(w http.ResponseWriter, r *http.Request, c call) { leakingAs(promptTokens+1, w, r, c) }
	for _, tc := range []struct {
		name    string
		do      script
		status  int
		code    string
		verdict Verdict
	}{
		{"refused", refusing(400, ""), 400, "bad_input", record.Refused},
		{"failed", refusing(500, foreign), 500, "engine_failed", record.Failed},
		{"gone twice", peerGone, 502, "peer_gone", record.Failed},
		{"hung up", reset, 502, "upstream_unreachable", record.Failed},
		{"the legs disagree", disagrees, 502, "legs_disagree", record.Void},
		{"an error event and an end mark", func(w http.ResponseWriter, req *http.Request, c call) {
			if !c.stream {
				refusing(200, string(fault.New(fault.Integrity).Body()))(w, req, c)
				return
			}
			events(w, string(fault.New(fault.Integrity).Body()), upstream.Done)
		}, 502, "integrity", record.Void},
		{"too late", nil, 504, "deadline", record.Failed},
	} {
		for name, mode := range map[string]struct {
			members   string
			change    func(*Config)
			committed bool
		}{
			"committed": {`,"stream":true`, commits, true},
			"never":     {`,"stream":true`, nil, false},
			"whole":     {"", commits, false},
		} {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				r := newRig(t, func(c *Config) {
					c.Tenants[0].Budget = 1000
					if mode.change != nil {
						mode.change(c)
					}
				})
				o := r.open(mode.members, tc.do)
				r.clock.advance(15 * time.Second)
				if mode.committed {
					<-o.began
				}
				if tc.do == nil {
					r.clock.advance(5 * time.Minute)
				} else {
					close(o.let)
				}
				a := <-o.got
				if !mode.committed {
					if e := r.refused(a, tc.status, tc.code); e.Verdict != tc.verdict || e.Committed != 0 {
						t.Errorf("event: %+v", e)
					}
					return
				}
				e := r.event()
				_, last := streamed(a.body)
				if a.status != 200 || a.err == nil || strings.Contains(a.body, upstream.Done) || (answer{body: last}).code() != tc.code || !strings.Contains(last, e.ID) {
					t.Errorf("%d, %v: %s", a.status, a.err, a.body)
				}
				if n := len(chunks(a.body)); n != 1 || !strings.Contains(a.body, "\n\n: "+tc.verdict.String()+"\n\ndata: ") {
					t.Errorf("%d events: %s", n, a.body)
				}
				if e.Verdict != tc.verdict || string(e.Code) != tc.code || e.Status != 200 || e.Committed == 0 || e.FirstByte != 0 {
					t.Errorf("event: %+v", e)
				}
				if n := r.g.door.byID["tenant-a"].spent.Held(); n != 0 {
					t.Errorf("a request without an answer costs %d tokens", n)
				}
			})
		}
	}
}

// TestRetryAfterCommit holds that comments are no first byte: an engine that goes away is
// still replaced (G-6). Once a part of an answer has left, it is not.
func TestRetryAfterCommit(t *testing.T) {
	r := newRig(t, commits)
	o := r.open(`,"stream":true`, func(w http.ResponseWriter, req *http.Request, c call) {
		if c.first == 0 {
			peerGone(w, req, c)
			return
		}
		honestDecode(w, req, c)
	})
	r.clock.advance(10 * time.Second)
	<-o.began
	a := o.end()
	if text, last := streamed(a.body); text != "The answer" || last != upstream.Done || a.err != nil {
		t.Errorf("%v: %s", a.err, a.body)
	}
	if e := r.event(); e.Attempts != 2 || e.Verdict != Served || e.Committed == 0 {
		t.Errorf("event: %+v", e)
	}
}

// TestBrokenAfterCommit is a stream that began early and breaks behind its first byte, as any
// other does.
func TestBrokenAfterCommit(t *testing.T) {
	r := newRig(t, commits)
	o := r.open(`,"stream":true`, func(w http.ResponseWriter, _ *http.Request, c call) {
		events(w, append(decodeChunks(c.path, c.id)[:2], string(fault.New(fault.PeerGone).Body()))...)
	})
	r.clock.advance(10 * time.Second)
	<-o.began
	a := o.end()
	text, last := streamed(a.body)
	if e := r.event(); text != "The" || (answer{body: last}).code() != "peer_gone" || a.err == nil || e.Verdict != record.Broken || e.Attempts != 1 {
		t.Errorf("%v: %s, event %+v", a.err, a.body, e)
	}
}

// TestLeavesAfterCommit is a client that leaves while it gets comments: both legs end.
func TestLeavesAfterCommit(t *testing.T) {
	r := newRig(t, commits)
	began := make(chan struct{}, 1)
	r.decode.set(hanging(began))
	r.prefill.set(hanging(began))
	ctx, leave := context.WithCancel(t.Context())
	got := make(chan *http.Response, 1)
	go func() {
		resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"stream":true`)).WithContext(ctx))
		if err != nil {
			t.Error(err)
		}
		got <- resp
	}()
	<-began
	<-began
	r.clock.advance(10 * time.Second)
	resp := <-got
	leave()
	closeBody(resp)
	if e := r.event(); e.Verdict != record.Left || e.Status != 200 || e.Committed == 0 {
		t.Errorf("event: %+v", e)
	}
	r.prefill.aborted(t)
	r.decode.aborted(t)
}

// TestCommitOfSeveral holds that a stream of several sequences has its verdict when all of
// them have, and shows it once.
func TestCommitOfSeveral(t *testing.T) {
	r := rigOf(t, upstream.SGLangPD, commits)
	o := r.open(`,"stream":true,"n":3`, honestDecode)
	soon(t, "the others have ended", func() bool { return len(r.decode.got()) == 3 })
	r.clock.advance(10 * time.Second)
	<-o.began
	a := o.end()
	if _, last := streamed(a.body); a.err != nil || last != upstream.Done || strings.Count(a.body, "The") != 3 || strings.Count(a.body, ": agreed") != 1 {
		t.Errorf("%v: %s", a.err, a.body)
	}
	if e := r.event(); e.Verdict != Served || e.Attempts != 3 {
		t.Errorf("event: %+v", e)
	}
}

// TestPostureOfCommit holds that what is traded is visible (G-10), beside what still holds.
func TestPostureOfCommit(t *testing.T) {
	states := func(change func(*Config)) (all []StanceState) {
		for _, s := range newRig(t, change).g.Posture() {
			if s.Rule == "G-3" {
				all = append(all, s.State)
			}
		}
		return all
	}
	if with, without := states(commits), states(nil); !slices.Equal(with, []StanceState{Enforced, Disabled}) || !slices.Equal(without, []StanceState{Enforced}) {
		t.Errorf("with %v, without %v", with, without)
	}
}

// paper takes what an outlet writes.
type paper struct {
	listener
	fails bool
	at    []time.Time
}

// Write notes the time, or fails.
func (p *paper) Write(b []byte) (int, error) {
	if p.fails {
		return 0, errors.New("closed")
	}
	p.at = append(p.at, time.Now())
	return p.listener.Write(b)
}

// TestCommentsInTime holds when comments are due, by the machine's clock: for a stream at
// the times of the setting until the first byte or the end, for others never.
func TestCommentsInTime(t *testing.T) {
	for _, tc := range []struct {
		name  string
		every time.Duration
		how   upstream.Streaming
		probe bool
		end   func(*exchange)
		want  int
	}{
		{"a stream", 3 * time.Second, upstream.Streamed, false, nil, 3},
		{"a stream whose answer begins", 3 * time.Second, upstream.Streamed, false, func(x *exchange) { _ = x.out.release([]byte("data: x\n\n")) }, 3},
		{"a stream that is refused", 3 * time.Second, upstream.Streamed, false, func(x *exchange) { x.out.hush() }, 3},
		{"never", 0, upstream.Streamed, false, nil, 0},
		{"whole", 3 * time.Second, upstream.Whole, false, nil, 0},
		{"a question of our own", 3 * time.Second, upstream.Streamed, true, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &paper{listener: listener{header: http.Header{}, most: 1 << 20}}
				g := &Gateway{clock: SystemClock{}, bounds: Bounds{}.WithDefaults()}
				x := &exchange{g: g, w: p, model: &model{Model: Model{Hold: Hold{CommitAfter: tc.every}}}, req: &upstream.Request{Streaming: tc.how}}
				x.event.Start, x.event.Probe = g.clock.Now(), tc.probe
				x.out.x, x.out.rc = x, http.NewResponseController(p)
				x.ctx, x.cancel = context.WithCancelCause(t.Context())
				x.first = g.clock.AfterFunc(time.Hour, func() {})
				start := time.Now()
				x.out.commitLater()
				x.out.prepare(1, agreed)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if len(p.at) != tc.want || p.body.String() != strings.Repeat(": held\n\n", tc.want) {
					t.Fatalf("%d comments: %s", len(p.at), p.body.String())
				}
				for i, at := range p.at {
					if at.Sub(start) != time.Duration(i+1)*tc.every {
						t.Errorf("comment %d came after %v", i, at.Sub(start))
					}
				}
				if x.ctx.Err() != nil || x.out.begun() {
					t.Error("a comment is no first byte")
				}
				if tc.end == nil {
					x.out.hush()
					return
				}
				tc.end(x)
				before := p.body.Len()
				time.Sleep(time.Minute)
				if synctest.Wait(); p.body.Len() != before {
					t.Errorf("comments behind the end: %s", p.body.String())
				}
			})
		})
	}
}

// TestCommentsUnread is a client that takes no comment: it has left, and its request ends.
func TestCommentsUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gateway{clock: SystemClock{}, bounds: Bounds{}.WithDefaults()}
		p := &paper{listener: listener{header: http.Header{}, most: 1 << 20}, fails: true}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, bytes.NewReader(nil))
		if err != nil {
			t.Fatal(err)
		}
		x := &exchange{g: g, w: p, r: r, model: &model{Model: Model{Hold: Hold{CommitAfter: time.Second}}}, req: &upstream.Request{Streaming: upstream.Streamed}}
		x.out.x, x.out.rc = x, http.NewResponseController(p)
		x.ctx, x.cancel = context.WithCancelCause(t.Context())
		x.event.Start = g.clock.Now()
		x.out.commitLater()
		time.Sleep(time.Second)
		synctest.Wait()
		e := x.ended()
		if e == nil || e.Code != fault.Cancelled {
			t.Fatalf("%v", e)
		}
		x.refuse(e)
		if x.event.Verdict != record.Left || x.event.Status != 200 || !x.broken {
			t.Errorf("event: %+v", x.event)
		}
	})
}

// TestHTTP10AfterCommit holds that a stream which could not break visibly is refused as ever.
func TestHTTP10AfterCommit(t *testing.T) {
	r := newRig(t, commits)
	body := chatBody(`,"stream":true`)
	got := r.raw("POST "+chatPath+" HTTP/1.0\r\nAuthorization: Bearer "+r.key+"\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body, keepOpen)
	if !strings.Contains(got, " 400 ") || !strings.Contains(got, "stream_needs_http_1_1") {
		t.Errorf("%q", got)
	}
	r.event()
	r.undispatched()
}

package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// stopped is a clock that tells when a timer of a certain length is stopped.
type stopped struct {
	*testClock
	of   time.Duration
	tell func()
}

type toldTimer struct {
	Timer
	tell func()
}

func (t toldTimer) Stop() bool {
	was := t.Timer.Stop()
	t.tell()
	return was
}

// AfterFunc makes a timer.
func (c *stopped) AfterFunc(d time.Duration, f func()) Timer {
	t := c.testClock.AfterFunc(d, f)
	if d == c.of {
		return toldTimer{t, c.tell}
	}
	return t
}

// TestEndedBetweenSequences ends a request when one of its sequences is through and the next
// one has not begun: that is no answer, and nothing is held afterwards.
func TestEndedBetweenSequences(t *testing.T) {
	for _, d := range splits() {
		for mode, members := range modes() {
			if mode == "whole" && !d.Traits().Leased {
				continue // decode is not asked for a stream there, whose end is a moment to be seen
			}
			for _, how := range []string{"the client leaves", "it takes too long", "nothing happens"} {
				t.Run(d.String()+"/"+mode+"/"+how, func(t *testing.T) {
					clock := &stopped{of: 17 * time.Second, tell: func() {}}
					r := newBare(t, d)
					clock.testClock = r.clock
					r.start(func(c *Config) {
						c.Clock, c.Bounds.Sequences, c.Bounds.Idle = clock, 1, clock.of
					})
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					gone := func() {} // returns once all that the request began is ended
					r.front.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
						inner, end := context.WithCancel(context.WithoutCancel(req.Context()))
						gone = func() { <-req.Context().Done(); end() }
						r.g.ServeHTTP(w, req.WithContext(inner))
					})
					switch how {
					case "the client leaves":
						clock.tell = func() { leave(); gone() }
					case "it takes too long":
						clock.tell = func() { r.clock.advance(r.g.bounds.FirstByte) }
					}
					resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"n":2`+members)).WithContext(ctx))
					if err == nil {
						defer closeBody(resp)
					}
					e := r.event()
					calls := len(r.decode.got())
					switch how {
					case "the client leaves":
						if err == nil || e.Verdict != record.Left || e.Code != "cancelled" || calls != 1 {
							t.Errorf("error %v, %d calls, event %+v", err, calls, e)
						}
					case "it takes too long":
						if err != nil || resp.StatusCode != 504 || e.Verdict == Served || e.Code != "deadline" || calls != 1 {
							t.Errorf("error %v, %d calls, event %+v", err, calls, e)
						}
					default:
						if err != nil || resp.StatusCode != 200 || e.Verdict != Served || calls != 2 {
							t.Errorf("error %v, %d calls, event %+v", err, calls, e)
						}
					}
					r.clock.advance(r.lease())
				})
			}
		}
	}
}

// planted panics at one of the things that a handler does, the n-th time.
type planted struct {
	http.ResponseWriter
	at string
	n  int
}

func (p *planted) now(what string) {
	if p.at != what {
		return
	}
	if p.n--; p.n == -1 {
		panic("planted")
	}
}

func (p *planted) WriteHeader(status int) {
	p.now("header")
	p.ResponseWriter.WriteHeader(status)
}

func (p *planted) Write(b []byte) (int, error) {
	p.now("write")
	return p.ResponseWriter.Write(b)
}

func (p *planted) Flush() { p.now("flush") }

func (p *planted) Read([]byte) (int, error) {
	p.now("body")
	return 0, http.ErrBodyReadAfterClose
}

func (p *planted) Close() error { return nil }

func (p *planted) Count(context.Context, string, []byte) (int, error) {
	p.now("count")
	return promptTokens, nil
}

func (p *planted) Request(RequestEvent) { p.now("event") }

// TestPanicLeaksNothing plants panics where a handler runs: net/http swallows them, and
// nothing of the request may be held afterwards.
func TestPanicLeaksNothing(t *testing.T) {
	for _, d := range upstream.Dialects() {
		for mode, members := range modes() {
			for _, at := range []string{"header", "write", "flush", "late write", "several", "count", "body", "event", "lease", ""} {
				if at == "several" && d == upstream.Bulkhead || at == "lease" && !d.Traits().Leased {
					continue // it has one sequence, or no lease
				}
				t.Run(d.String()+"/"+mode+"/"+at, func(t *testing.T) {
					members := members
					p := &planted{ResponseWriter: httptest.NewRecorder(), at: at}
					switch at {
					case "late write":
						p.at, p.n = "write", 1
					case "several":
						p.at, members = "write", members+`,"n":2,"temperature":1`
					}
					r := newBare(t, d)
					r.start(func(c *Config) {
						c.Events = p
						c.Clock = &stopped{r.clock, 30 * time.Second, func() { p.now("lease") }}
						if at == "count" {
							c.Models[0].Counter = p
							c.Models[0].Sizes = Sizes{BytesPerToken: 100, PerRequest: 2000}
						}
					})
					body := strings.NewReader(chatBody(members))
					req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, chatPath, body)
					if at == "body" {
						req.Body = p
					}
					req.Header.Set("Authorization", "Bearer "+r.key)
					panicked := func() (was any) {
						defer func() { was = recover() }()
						r.g.ServeHTTP(p, req)
						return nil
					}()
					if want := at != "" && !(at == "late write" && mode == "whole"); want != (panicked != nil && panicked != http.ErrAbortHandler) {
						t.Errorf("panic: %v", panicked)
					}
					r.clock.advance(r.lease())
					if n := r.g.door.byID["tenant-a"].uncollected.Held(); n != 0 {
						t.Errorf("%d tokens of prompts are held", n)
					}
				})
			}
		}
	}
}

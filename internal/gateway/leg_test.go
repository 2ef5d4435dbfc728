package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/record"
)

// forgetful stands before a leg as the door of an engine may: it ends the call of an id when
// it is told to, if it knows the id; it forgets one whose caller has gone, and works on it.
type forgetful struct {
	leg  *scripted
	deaf int // so many words find nothing yet

	mu    sync.Mutex
	told  int
	lost  []string // forgotten while they ran
	ended []string // by a word
	calls map[string]context.CancelFunc
}

func (r *rig) forgets(leg *scripted, deaf int) *forgetful {
	f := &forgetful{leg: leg, deaf: deaf, calls: map[string]context.CancelFunc{}}
	leg.become(f.serve)
	return f
}

func (f *forgetful) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/abort_request" {
		var v struct{ RID string }
		_ = json.NewDecoder(r.Body).Decode(&v)
		f.mu.Lock()
		f.told++
		if stop := f.calls[v.RID]; stop != nil && f.told > f.deaf {
			stop()
			f.ended = append(f.ended, v.RID)
		}
		f.mu.Unlock()
		_, _ = io.WriteString(w, "{}")
		return
	}
	f.leg.serve(w, r)
}

// runs is a call that begins, if it is a stream, with some chunks, and then takes longer
// than any test.
func (f *forgetful) runs(began chan<- struct{}, chunks func(c call) []string) script {
	return func(w http.ResponseWriter, req *http.Request, c call) {
		ctx, stop := context.WithCancel(context.Background())
		f.mu.Lock()
		f.calls[c.rid] = stop
		f.mu.Unlock()
		if c.stream && chunks != nil {
			events(w, chunks(c)...)
		}
		began <- struct{}{}
		select {
		case <-ctx.Done():
			if !c.stream {
				reply(w, 500, `{"object":"error","message":"Aborted","type":"InternalServerError","code":500}`)
			}
		case <-req.Context().Done():
			f.mu.Lock()
			f.lost = append(f.lost, c.rid)
			f.mu.Unlock()
		}
		f.mu.Lock()
		delete(f.calls, c.rid)
		f.mu.Unlock()
	}
}

// check holds that the word came while the call was there, for the call's own id.
func (f *forgetful) check(t *testing.T, words int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.lost) != 0 || len(f.ended) != 1 || f.ended[0] != f.leg.got()[0].rid || f.told != words {
		t.Errorf("%s was told %d times, ended %v, and works on %v, which it has forgotten", f.leg.role, f.told, f.ended, f.lost)
	}
}

// TestEndedBeforeHungUp holds that an engine hears that it is to end a request while the
// call is still there, whatever the reason (G-3, G-6).
func TestEndedBeforeHungUp(t *testing.T) {
	begun := func(c call) []string { return decodeChunks(c.path, c.id)[:2] }
	wrong := func(c call) []string { return []string{chunk(c.path, c.id, "The "+foreign, "", promptTokens+1, 1)} }
	for mode, members := range modes() {
		t.Run("the client leaves/"+mode, func(t *testing.T) {
			r := newRig(t, nil)
			f, began := r.forgets(r.decode, 0), make(chan struct{}, 1)
			r.decode.set(f.runs(began, begun))
			ctx, leave := context.WithCancel(t.Context())
			go func() { <-began; leave() }()
			resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(members)).WithContext(ctx))
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				closeBody(resp)
			}
			if e := r.event(); e.Verdict != record.Left {
				t.Errorf("event: %+v", e)
			}
			r.g.tasks.Wait()
			f.check(t, 1)
		})
		t.Run("prefill refuses/"+mode, func(t *testing.T) {
			r := newRig(t, nil)
			f, began := r.forgets(r.decode, 0), make(chan struct{}, 1)
			r.decode.set(f.runs(began, nil))
			r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
				<-began
				refusing(400, "")(w, req, c)
			})
			r.refused(r.chat(members), 400, "bad_input")
			r.g.tasks.Wait()
			f.check(t, 1)
		})
	}
	t.Run("the legs disagree", func(t *testing.T) {
		r := newRig(t, nil)
		f := r.forgets(r.decode, 0)
		r.decode.set(f.runs(make(chan struct{}, 1), wrong))
		r.refused(r.chat(`,"stream":true`), 502, "legs_disagree")
		r.g.tasks.Wait()
		f.check(t, 1)
	})
}

// TestEndedAgain is a word that overtakes its request, and one that nobody ever hears: it
// is said again until the call is over, or the time for that is.
func TestEndedAgain(t *testing.T) {
	for mode, members := range modes() {
		for name, deaf := range map[string]int{"overtaken": 3, "never heard": 1000} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				r := newRig(t, nil)
				f, began := r.forgets(r.decode, deaf), make(chan struct{}, 1)
				r.decode.set(f.runs(began, nil))
				r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
					<-began
					refusing(400, "")(w, req, c)
				})
				got := make(chan answer, 1)
				go func() { got <- r.chat(members) }()
				var a answer
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for waits := true; waits; {
					select {
					case a = <-got:
						waits = false
					case <-tick.C:
						r.clock.advance(firstAgain / 10)
					}
				}
				r.refused(a, 400, "bad_input")
				r.g.tasks.Wait()
				if name == "overtaken" {
					f.check(t, deaf+1)
					return
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				// 50 ms, 100 ms ... in 2 s.
				if len(f.ended) != 0 || f.told < 3 || f.told > 7 {
					t.Errorf("told %d times, ended %v", f.told, f.ended)
				}
			})
		}
	}
}

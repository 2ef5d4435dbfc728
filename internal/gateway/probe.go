package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// probeTenant is the name under which known-answer probes stand in events. No tenant of a
// configuration can have it.
const probeTenant = "(probe)"

// newProber makes the tenant whose requests the probes are. It has every model, a domain
// of its own, and no key.
func newProber(c Config, models map[string]*model) *tenant {
	t := Tenant{ID: probeTenant, Uncollected: 1 << 40}
	for name := range models {
		t.Models = append(t.Models, name)
	}
	return newTenant(c, t, models)
}

// probeTick is the shortest time between two looks at whether a probe is due.
const probeTick = time.Second

// probe asks the targets of a model the question whose answer is known, each in its time
// and none waiting for another, until ctx ends or a later configuration holds (G-9). It is
// asked through the path of every request, so that what is judged is what serves.
func (g *Gateway) probe(ctx context.Context, m *model) {
	ctx, cancel := context.WithCancel(ctx)
	var asks sync.WaitGroup
	defer asks.Wait()
	defer cancel()
	every := max(probeTick, m.Probe.Every/16)
	tick := make(chan struct{}, 1)
	for {
		for ctx.Err() == nil {
			t := m.group.Probe(m.Probe.Every)
			if t == nil {
				break
			}
			asks.Go(func() {
				if h := g.ask(ctx, m, t); ctx.Err() == nil {
					g.fleet.SetHealth(t, h)
				}
			})
		}
		timer := g.clock.AfterFunc(every, func() { tick <- struct{}{} })
		select {
		case <-tick:
		case <-g.fleet.Succeeded():
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// ask asks one target. A slow answer is as good as a fast one, as long as it makes
// progress: only the time between two events is bounded, and the time until each leg begins
// to answer.
func (g *Gateway) ask(ctx context.Context, m *model, t *fleet.Target) fleet.Health {
	drawn, err := g.draw()
	if err != nil {
		t.Release(fleet.Cancelled)
		return fleet.Silent
	}
	r, err := probeRequest(ctx, m)
	if err != nil {
		t.Release(fleet.Cancelled)
		return fleet.Silent
	}
	heard := &listener{header: http.Header{}, most: chunkBytes * (2*m.Probe.MaxTokens + moreChunks)}
	x := &exchange{
		g: g, w: heard, r: r, ids: drawn, tenant: g.prober, target: t,
		event: RequestEvent{
			ID: "probe-" + drawn.public, Path: upstream.Chat.Path(), Start: g.clock.Now(), Tenant: probeTenant, Probe: true,
		},
	}
	x.out.x, x.out.rc = x, http.NewResponseController(heard)
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	defer x.close()
	x.body, err = io.ReadAll(r.Body)
	x.read = true
	fail := fault.New(fault.Internal)
	if err == nil {
		if fail = x.judge(upstream.Chat); fail == nil {
			if fail = x.measure(); fail == nil {
				fail = x.dispatch()
			}
		}
	}
	if x.target != nil {
		x.target.Release(fleet.Cancelled) // it was never asked
	}
	switch {
	case heard.full:
		return fleet.Wrong
	case fail != nil:
		x.event.Verdict, x.event.Code, x.event.Status = record.VerdictOf(fail), fail.Code, fail.Status
	case x.event.Verdict == Served && strings.Contains(heard.text(m.Dialect), m.Probe.Want):
		return fleet.Right
	}
	if x.event.Verdict == Served || x.event.Verdict == record.Void {
		return fleet.Wrong
	}
	return fleet.Silent
}

// probed gives a probe its target; there is no other for it.
func (x *exchange) probed(not *fleet.Target) (*fleet.Target, admit.Decision, *fault.Error) {
	t := x.target
	if not != nil {
		return nil, admit.Decision{}, fault.New(fault.NoPairReady)
	}
	x.target = nil
	// The next question is due then. Whoever has not begun to answer hangs.
	patience := min(x.g.bounds.FirstByte, max(x.model.Probe.Every, x.g.bounds.Idle))
	x.first.Reset(patience)
	x.ctx = httptrace.WithClientTrace(x.ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { x.first.Reset(patience) }})
	return t, admit.Decision{Outcome: admit.Admit, MaxTokens: x.model.Probe.MaxTokens}, nil
}

// probeRequest is the question as a client would ask it.
func probeRequest(ctx context.Context, m *model) (*http.Request, error) {
	body, err := json.Marshal(map[string]any{
		"model": m.Name, "temperature": 0, "max_tokens": m.Probe.MaxTokens, "stream": true,
		"messages": []map[string]string{{"role": "user", "content": m.Probe.Prompt}},
	})
	if err != nil {
		return nil, err
	}
	return http.NewRequestWithContext(ctx, http.MethodPost, upstream.Chat.Path(), bytes.NewReader(body))
}

// chunkBytes is how long the chunks of an answer to a probe may be, on the average.
const chunkBytes = 2 << 10

// errMuch says that an answer to a probe is longer than it may be.
var errMuch = errors.New("gateway: answer to a probe too long")

// listener takes the answer to a probe.
type listener struct {
	header http.Header
	body   bytes.Buffer
	most   int64 // bytes of body
	full   bool  // there were more
}

func (l *listener) Header() http.Header { return l.header }
func (l *listener) WriteHeader(int)     {}
func (l *listener) Flush()              {}

// Write takes a part of a stream, as long as all of it is no longer than it may be.
func (l *listener) Write(p []byte) (int, error) {
	if l.full = l.full || int64(l.body.Len()+len(p)) > l.most; l.full {
		return 0, errMuch
	}
	return l.body.Write(p)
}

// text is the text of the answer, as clients see it.
func (l *listener) text(d upstream.Dialect) string {
	var text strings.Builder
	b := l.body.Bytes()
	for n := upstream.CutEvent(b); n > 0; n = upstream.CutEvent(b) {
		data, ok := upstream.EventData(b[:n])
		b = b[n:]
		if !ok || string(data) == upstream.Done {
			continue
		}
		if r, err := upstream.ParseChunk(d, upstream.Chat, data); err == nil {
			text.Write(r.Text(0))
		}
	}
	return text.String()
}

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/wire"
)

// serve is one leg, from its door to its last byte.
func (w *Worker) serve(rw http.ResponseWriter, r *http.Request, chat bool) {
	req, refusal, f := w.admit(rw, r, chat)
	w.giveTime(rw) // the body may have taken its own
	if f != nil {
		refuse(rw, f, "")
		return
	}
	select {
	case w.seats <- struct{}{}:
		defer func() { <-w.seats }()
	default:
		refuse(rw, fault.New(fault.Busy), req.rid)
		return
	}
	leg := newLeg()
	if !w.mail.put(func(w *Worker) { w.door(req, leg) }) {
		refuse(rw, fault.New(fault.PeerGone), req.rid)
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), w.cfg.LegTime, errLegTime)
	defer cancel()
	n, code := w.await(ctx, leg)
	w.giveTime(rw)
	switch {
	case code != handoff.NoCode:
		w.mail.put(func(w *Worker) { w.cancel(req, leg, code) })
		refuse(rw, faultOf(verdict{Code: code}, 0), req.rid)
	case n.verdict.Code == handoff.OK:
		a := &answerer{w: w, req: req, leg: leg, created: w.cfg.Now().Unix(), ctl: http.NewResponseController(rw), rw: rw}
		if req.stream && w.cfg.Role == wire.RoleDecode {
			a.stream(r.Context(), n)
		} else {
			a.whole(r.Context(), n)
		}
	case n.verdict.Code == handoff.BadInput && refusal != nil:
		refuse(rw, refusal, req.rid)
	default:
		refuse(rw, faultOf(*n.verdict, req.maxTokens), req.rid)
	}
}

var errLegTime = errors.New("worker: leg deadline")

// await waits for the leg's verdict, the client's leaving, or the deadline.
func (w *Worker) await(ctx context.Context, leg *leg) (news, handoff.Code) {
	for {
		if n := leg.look(); n.verdict != nil {
			return n, handoff.NoCode
		}
		select {
		case <-leg.ready:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errLegTime) {
				return news{}, handoff.Deadline
			}
			return news{}, handoff.Cancelled
		case <-w.ended:
			if n := leg.look(); n.verdict != nil { // its last word came before
				return n, handoff.NoCode
			}
			return news{}, handoff.PeerGone
		}
	}
}

// answerer writes one answer.
type answerer struct {
	w       *Worker
	req     *request
	leg     *leg
	created int64
	ctl     *http.ResponseController
	rw      http.ResponseWriter
}

// next waits for more of the answer. It reports false if the client left; the
// attempt was cancelled then.
func (a *answerer) next(ctx context.Context) (news, bool) {
	select {
	case <-a.leg.ready:
		return a.leg.look(), true
	case <-ctx.Done():
		a.gone()
		return news{}, false
	case <-a.w.ended:
		n := a.leg.look()
		if n.finish == "" && n.broken == handoff.NoCode {
			n.broken = handoff.PeerGone
		}
		return n, true
	}
}

func (a *answerer) gone() {
	req, leg := a.req, a.leg
	a.w.mail.put(func(w *Worker) { w.cancel(req, leg, handoff.Cancelled) })
}

// whole writes a JSON answer once it is complete.
func (a *answerer) whole(ctx context.Context, n news) {
	var text []byte
	for {
		text = append(text, n.text...)
		if n.broken != handoff.NoCode {
			a.w.giveTime(a.rw)
			refuse(a.rw, faultOf(verdict{Code: n.broken}, 0), a.req.rid)
			return
		}
		if n.finish != "" {
			break
		}
		var ok bool
		if n, ok = a.next(ctx); !ok {
			abandon()
		}
	}
	a.w.giveTime(a.rw)
	writeJSON(a.rw, a.req.answer(string(text), n.finish, n.tokens, a.created))
}

// stream writes server-sent events. It ends with the finish reason, the usage
// and [DONE], or visibly broken (H-14).
func (a *answerer) stream(ctx context.Context, n news) {
	if n.broken != handoff.NoCode { // before the first byte it is a status
		a.w.giveTime(a.rw)
		refuse(a.rw, faultOf(verdict{Code: n.broken}, 0), a.req.rid)
		return
	}
	a.rw.Header().Set("Content-Type", "text/event-stream")
	a.rw.Header().Set("Cache-Control", "no-cache")
	first := true
	for {
		if n.broken != handoff.NoCode {
			a.breakOff(n.broken)
		}
		if len(n.text) > 0 || n.finish != "" || first {
			if !a.event(a.req.chunk(string(n.text), n.finish, first, n.tokens, a.created)) {
				abandon()
			}
			first = false
		}
		if n.finish != "" {
			break
		}
		var ok bool
		if n, ok = a.next(ctx); !ok {
			abandon()
		}
	}
	if a.req.usage && !a.event(a.req.usageChunk(n.tokens, a.created)) {
		abandon()
	}
	a.w.giveTime(a.rw)
	_, _ = io.WriteString(a.rw, "data: [DONE]\n\n") // the answer is over either way
}

// abandon ends an answer that nobody seems to take. A handler that returned
// would end it as if it were whole, and whoever still reads would believe that
// (H-14).
func abandon() { panic(http.ErrAbortHandler) }

// breakOff ends a stream so that nobody takes it for whole.
func (a *answerer) breakOff(code handoff.Code) {
	a.w.giveTime(a.rw)
	body := faultOf(verdict{Code: code}, 0).WithID(a.req.rid).Body()
	_, _ = fmt.Fprintf(a.rw, "data: %s\n\n", body) // a client that does not get it sees the connection end
	_ = a.ctl.Flush()
	abandon()
}

// event writes one event. It reports false if the client does not take it; the
// attempt was cancelled then.
func (a *answerer) event(v any) bool {
	a.w.giveTime(a.rw)
	data, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(a.rw, "data: %s\n\n", data)
	}
	if err == nil {
		err = a.ctl.Flush()
	}
	if err != nil {
		a.gone()
		return false
	}
	return true
}

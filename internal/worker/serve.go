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
func (w *Worker) serve(rw http.ResponseWriter, r *http.Request, f form) {
	c, fail := w.admit(rw, r, f)
	w.giveTime(rw) // the body may have taken its own
	if fail != nil {
		refuse(rw, fail, "")
		return
	}
	seated := 0
	defer func() {
		for range seated {
			<-w.seats
		}
	}()
	for range c.seqs {
		select {
		case w.seats <- struct{}{}:
			seated++
		default:
			refuse(rw, fault.New(fault.Busy), c.id)
			return
		}
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), w.cfg.LegTime, errLegTime)
	defer cancel()
	if fail := w.await(ctx, c); fail != nil {
		w.giveTime(rw)
		refuse(rw, fail, c.id)
		return
	}
	w.giveTime(rw)
	a := &answerer{w: w, call: c, created: w.cfg.Now().Unix(), ctl: http.NewResponseController(rw), rw: rw}
	if c.seqs[0].req.stream && w.cfg.Role == wire.RoleDecode {
		a.stream(r.Context())
	} else {
		a.whole(r.Context())
	}
}

var errLegTime = errors.New("worker: leg deadline")

// await sends every sequence of a call to its door and waits for all verdicts, the
// client's leaving, or the deadline. If one sequence is not served, none is.
func (w *Worker) await(ctx context.Context, c *call) *fault.Error {
	for i, s := range c.seqs {
		req, leg := s.req, s.leg
		if !w.mail.put(func(w *Worker) { w.door(req, leg) }) {
			w.cancelAll(c.seqs[:i], handoff.PeerGone)
			return fault.New(fault.PeerGone)
		}
	}
	for waiting := true; waiting; {
		waiting = false
		for _, s := range c.seqs {
			switch v := s.leg.outcome(); {
			case v == nil:
				waiting = true
			case v.Code != handoff.OK:
				w.cancelAll(c.seqs, v.Code)
				if v.Code == handoff.BadInput && c.refusal != nil {
					return c.refusal
				}
				return faultOf(*v, s.req.maxTokens)
			}
		}
		if !waiting {
			break
		}
		code := handoff.NoCode
		select {
		case <-c.ready:
			continue
		case <-ctx.Done():
			code = handoff.Cancelled
			if errors.Is(context.Cause(ctx), errLegTime) {
				code = handoff.Deadline
			}
		case <-w.ended:
			if c.settled() { // their last words came before
				continue
			}
			code = handoff.PeerGone
		}
		w.cancelAll(c.seqs, code)
		return faultOf(verdict{Code: code}, 0)
	}
	return nil
}

// settled reports whether every sequence has its verdict.
func (c *call) settled() bool {
	for _, s := range c.seqs {
		if s.leg.outcome() == nil {
			return false
		}
	}
	return true
}

// cancelAll ends sequences that have not ended yet.
func (w *Worker) cancelAll(seqs []*sequence, code handoff.Code) {
	for _, s := range seqs {
		req, leg := s.req, s.leg
		w.mail.put(func(w *Worker) { w.cancel(req, leg, code) })
	}
}

// answerer writes one answer.
type answerer struct {
	*call
	w       *Worker
	created int64
	ctl     *http.ResponseController
	rw      http.ResponseWriter
}

// next waits for more of the answer. It reports false if the client left; the
// attempts were cancelled then.
func (a *answerer) next(ctx context.Context) bool {
	select {
	case <-a.ready:
		return true
	case <-ctx.Done():
		a.gone()
		return false
	case <-a.w.ended:
		return true
	}
}

func (a *answerer) gone() { a.w.cancelAll(a.seqs, handoff.Cancelled) }

// look takes what is new in every sequence. It returns what broke one of them, and
// whether all are complete.
func (a *answerer) look() (broken handoff.Code, complete bool) {
	complete = true
	over := false
	select {
	case <-a.w.ended:
		over = true // before the looks: what they see then is all there will be
	default:
	}
	for _, s := range a.seqs {
		n := s.leg.look()
		s.text = append(s.text, n.text...)
		s.tokens, s.finish = n.tokens, n.finish
		switch {
		case n.broken != handoff.NoCode:
			return n.broken, false
		case n.finish == "" && over:
			return handoff.PeerGone, false
		case n.finish == "":
			complete = false
		}
	}
	return handoff.NoCode, complete
}

// whole writes a JSON answer once it is complete.
func (a *answerer) whole(ctx context.Context) {
	for {
		broken, complete := a.look()
		if broken != handoff.NoCode {
			a.gone()
			a.w.giveTime(a.rw)
			refuse(a.rw, faultOf(verdict{Code: broken}, 0), a.id)
			return
		}
		if complete {
			break
		}
		if !a.next(ctx) {
			abandon()
		}
	}
	a.w.giveTime(a.rw)
	writeJSON(a.rw, a.answer(a.created))
}

// stream writes server-sent events. It ends with the finish reason, the usage
// and [DONE], or visibly broken (H-14).
func (a *answerer) stream(ctx context.Context) {
	for first := true; ; first = false {
		broken, complete := a.look()
		switch {
		case broken != handoff.NoCode && first: // before the first byte it is a status
			a.gone()
			a.w.giveTime(a.rw)
			refuse(a.rw, faultOf(verdict{Code: broken}, 0), a.id)
			return
		case broken != handoff.NoCode:
			a.gone()
			a.breakOff(broken)
		case first:
			a.rw.Header().Set("Content-Type", "text/event-stream")
			a.rw.Header().Set("Cache-Control", "no-cache")
		}
		if !a.tell(first) {
			abandon()
		}
		if complete {
			break
		}
		if !a.next(ctx) {
			abandon()
		}
	}
	if a.seqs[0].req.usage && !a.event(a.usageChunk(a.created)) {
		abandon()
	}
	a.w.giveTime(a.rw)
	_, _ = io.WriteString(a.rw, "data: [DONE]\n\n") // the answer is over either way
}

// tell writes an event for every sequence with something new. It reports false if the
// client does not take it.
func (a *answerer) tell(first bool) bool {
	for i, s := range a.seqs {
		if s.ended || s.told == len(s.text) && s.finish == "" && !first {
			continue
		}
		if !a.event(a.chunk(i, first, a.created)) {
			return false
		}
		s.told, s.ended = len(s.text), s.finish != ""
	}
	return true
}

// abandon ends an answer that nobody seems to take. A handler that returned
// would end it as if it were whole, and whoever still reads would believe that
// (H-14).
func abandon() { panic(http.ErrAbortHandler) }

// breakOff ends a stream so that nobody takes it for whole.
func (a *answerer) breakOff(code handoff.Code) {
	a.w.giveTime(a.rw)
	body := faultOf(verdict{Code: code}, 0).WithID(a.id).Body()
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

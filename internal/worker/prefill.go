package worker

import (
	"errors"
	"io"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// allocate takes prefill's own pages for the attempt at the head of the queue.
// Nothing is offered before it has them. It returns what came of it; nothing, if
// there are too few pages now.
func (w *Worker) allocate(a *attempt) handoff.Event {
	seq, err := w.pool.Local(a.req.domain, len(a.req.tokens), nil)
	switch {
	case errors.Is(err, kv.ErrFull):
		return handoff.Event{}
	case err != nil:
		w.did(a, handoff.DoReserve)
		return handoff.Event{On: handoff.OnReserveFailed, Code: handoff.TooLong, Limit: uint32(w.limit())}
	}
	if _, err := io.ReadFull(w.cfg.Random, a.secret[:]); err != nil {
		broken(err)
	}
	w.did(a, handoff.DoReserve)
	a.seq = seq
	return handoff.Event{On: handoff.OnReserved}
}

// prefillStep computes one chunk of the oldest attempt.
func (w *Worker) prefillStep() {
	a := w.running[0]
	at := a.seq.Tokens()
	n := min(w.cfg.Chunk, len(a.req.tokens)-at)
	items := w.scratch(1)
	items[0].Seq = a.seq
	items[0].Tokens = append(items[0].Tokens[:0], a.req.tokens[at:at+n]...)
	w.runner.Step(items)
	if items[0].Err != nil {
		w.take(a, handoff.Event{On: handoff.OnFailed, Code: handoff.Engine}, nil)
		return
	}
	last := a.seq.Tokens() == len(a.req.tokens)
	if last {
		err := a.out.start(a.req)
		var t llm.Token
		if err == nil {
			t, err = a.out.sample(items[0].Logits)
		}
		if err != nil {
			w.take(a, handoff.Event{On: handoff.OnFailed, Code: handoff.Engine}, nil)
			return
		}
		a.first = t
		w.running = without(w.running, a)
	}
	if n := w.digest(a, last); n > 0 {
		ev := handoff.Event{On: handoff.OnComputed, N: uint32(n), Last: last}
		if last { // what the engine was given, not what the door saw (H-3)
			ev.View = w.view(a.req, chain(a.req.tokens, w.layout.PageTokens))
		}
		w.take(a, ev, nil)
	}
}

// digest digests every page that the last chunk completed, once, while it is
// hot (H-7), and returns their number. Pages that decode holds already are
// nobody's to write, and have none.
func (w *Worker) digest(a *attempt, last bool) int {
	whole := a.seq.Tokens() / w.layout.PageTokens
	if last {
		whole = w.layout.Pages(a.seq.Tokens())
	}
	done := w.skipped(a) + len(a.digests)
	if whole <= done {
		return 0
	}
	dg, err := digest.New(w.cfg.Digest, a.secret)
	broken(err)
	for i := done; i < whole; i++ {
		a.digests = append(a.digests, a.seq.Digest(dg, i))
	}
	return whole - done
}

// skipped is the number of leading pages that decode holds already (H-3).
func (w *Worker) skipped(a *attempt) int { return int(a.prefill.View.Prefix) / w.layout.PageTokens }

// post hands the next n complete pages to the transport, by their ordinal among
// the granted ones. It reads them until each write has completed: the machine
// holds them until then (H-8).
func (w *Worker) post(a *attempt, n int) {
	if a.conn == nil {
		return // only with the fence off
	}
	skip, end := w.skipped(a), int(a.prefill.Posted)
	for i := end - n; i < end; i++ {
		segs, rows := a.seq.Segments(skip + i)
		w.writeID++
		w.writes[w.writeID] = a
		err := a.conn.link.Write(wire.PageWrite{ID: w.writeID, Key: a.key, Page: i, Rows: rows, Segments: segs})
		if err != nil {
			// Not taken: it will never be reported. OnPeerGone ends the attempt.
			delete(w.writes, w.writeID)
			a.conn.link.Close(errWrite)
			return
		}
	}
}

// written books the completion of one page write. A page that the peer refused
// is complete too: its frame was consumed, nothing of it is under way, and
// decode will not find what the notice says. Any other error is no proof that
// the page is not read any more (H-8).
func (w *Worker) written(id uint64, err error) {
	a := w.writes[id]
	if a == nil {
		return
	}
	delete(w.writes, id)
	ev := handoff.Event{On: handoff.OnWritten, N: 1}
	if err != nil {
		w.cfg.Events.Event(Event{Kind: PageRefused, Attempt: a.id})
		if !errors.Is(err, kv.ErrRefused) {
			ev = handoff.Event{On: handoff.OnWriteFailed}
		}
	}
	w.take(a, ev, nil)
}

// attest fills in what a notice says of the pages (H-7).
func (w *Worker) attest(a *attempt, m *wire.Message) {
	m.DigestKey, m.Algorithm, m.Digests = a.secret, uint8(w.cfg.Digest), a.digests
	m.First = uint32(a.first)
	m.MAC = digest.Bind(a.secret, statement(a.prefill.ID, a.prefill.View, w.cfg.Digest, m.First, a.digests))
}

package worker

import (
	"errors"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
)

// reserve takes decode's pages for the attempt at the head of the queue: the
// prompt's for prefill to write, and room for the output. It returns what came
// of it; nothing, if there are too few pages now.
func (w *Worker) reserve(a *attempt) handoff.Event {
	r, err := w.pool.Reserve(a.req.domain, len(a.req.tokens), a.req.maxTokens, a.prefix)
	switch {
	case errors.Is(err, kv.ErrFull):
		return handoff.Event{}
	case err != nil: // the door let it in though it never fits
		w.did(a, handoff.DoReserve)
		return handoff.Event{On: handoff.OnReserveFailed, Code: handoff.NoRoom, Limit: uint32(w.limit())}
	}
	w.did(a, handoff.DoReserve)
	w.reserved(a, r)
	return handoff.Event{On: handoff.OnReserved, Gen: r.Generation()}
}

// seal takes the write key away; nothing lands after it returns (H-5).
func (w *Worker) seal(a *attempt, do handoff.Do) {
	w.did(a, do)
	if a.seq != nil { // a drill read without a seal; the key is still open
		w.pool.Landing().Revoke(a.res.Key())
		return
	}
	s, err := w.pool.Seal(a.res)
	broken(err)
	a.sealed, a.proved = s, true
}

// verify compares what landed with what prefill computed (H-7).
func (w *Worker) verify(a *attempt) handoff.On {
	w.did(a, handoff.DoVerify)
	n := a.notice
	alg := digest.Algorithm(n.Algorithm)
	if alg != w.cfg.Digest || int64(n.First) >= int64(w.cfg.Model.Config().Vocab) {
		return handoff.OnMismatch // a peer cannot choose a weaker digest, or a token that is none
	}
	dg, err := digest.New(alg, n.DigestKey)
	if err != nil {
		return handoff.OnMismatch
	}
	if !digest.Check(n.DigestKey, statement(a.decode.ID, a.decode.View, alg, n.First, n.Digests), n.MAC) {
		return handoff.OnMismatch
	}
	v, err := w.pool.Verify(a.sealed, dg, n.Digests)
	switch {
	case errors.Is(err, kv.ErrDigest), errors.Is(err, kv.ErrExtent):
		return handoff.OnMismatch
	default:
		broken(err)
	}
	a.verified = v
	return handoff.OnVerified
}

// statement is what a notice attests, from the point of view of whoever makes
// it or checks it.
func statement(id handoff.ID, v handoff.View, alg digest.Algorithm, first uint32, pages []kv.Digest) digest.Statement {
	return digest.Statement{
		Attempt: id.Attempt, Generation: id.Gen, Input: v.Input,
		Tokens: v.Tokens, Pages: v.Pages, Prefix: v.Prefix, PrefixHash: v.PrefixHash,
		Layout: v.Layout, Domain: v.Domain, Algorithm: alg, First: first, Digests: pages,
	}
}

// read lets the engine have the pages, and starts the answer with the token
// that prefill sampled.
func (w *Worker) read(a *attempt) handoff.Event {
	w.did(a, handoff.DoRead)
	v := a.verified
	if !w.cfg.Guards.Has(handoff.GuardDigest) {
		v = w.cfg.Unguarded.Trust(w.pool, a.res)
	}
	seq, err := w.pool.Open(v)
	broken(err)
	a.seq = seq
	w.share(a)
	first := llm.Token(a.notice.First)
	a.notice = nil
	if a.out.start(a.req) != nil {
		return handoff.Event{On: handoff.OnCancel, Code: handoff.Engine}
	}
	a.out.sampler.Skip(1)
	if a.out.push(first, a.leg) {
		return handoff.Event{On: handoff.OnFinished}
	}
	w.running = append(w.running, a)
	return handoff.Event{}
}

// decodeStep gives every running attempt, up to a batch, one token.
func (w *Worker) decodeStep() {
	n := min(w.cfg.Batch, len(w.running))
	batch := make([]*attempt, 0, n)
	for i := range n {
		batch = append(batch, w.running[(w.turn+i)%len(w.running)])
	}
	w.turn = (w.turn + n) % len(w.running)
	items := w.scratch(n)
	for i, a := range batch {
		items[i].Seq = a.seq
		items[i].Tokens = append(items[i].Tokens[:0], a.out.last)
	}
	w.runner.Step(items)
	for i, a := range batch {
		w.advance(a, &items[i])
	}
}

// advance samples one attempt's next token.
func (w *Worker) advance(a *attempt, it *llm.Item) {
	if it.Err != nil {
		code := handoff.Engine
		if errors.Is(it.Err, kv.ErrTag) {
			code = handoff.Integrity // the page is not this attempt's any more (H-12)
		}
		w.take(a, handoff.Event{On: handoff.OnCancel, Code: code}, nil)
		return
	}
	t, err := a.out.sample(it.Logits)
	if err != nil {
		w.take(a, handoff.Event{On: handoff.OnCancel, Code: handoff.Engine}, nil)
		return
	}
	if a.out.push(t, a.leg) {
		w.take(a, handoff.Event{On: handoff.OnFinished}, nil)
	}
}

// scratch returns n engine items with room for logits, kept between steps.
func (w *Worker) scratch(n int) []llm.Item {
	for len(w.items) < n {
		w.items = append(w.items, llm.Item{Logits: make([]float32, w.cfg.Model.Config().Vocab)})
	}
	for i := range n {
		w.items[i].Err = nil
	}
	return w.items[:n]
}

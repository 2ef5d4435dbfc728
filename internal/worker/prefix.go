package worker

import (
	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// The prefix cache of decode (H-3, H-12). Whole prompt pages that were verified
// are kept under the domain and the chain hash of their token ids. A later
// request of the same domain that begins with the same tokens does not reserve
// them again: the ask and the grant name the run, and prefill, which has the
// whole prompt, writes the rest.
//
// Pages that are cached and not pinned are taken back whenever a reservation
// needs them. Pages that are pinned for a request which still waits are not, so
// their number is bounded, and no request may need more than the pool has
// beside them: then the first in the queue always gets its pages.

// pin looks for the longest run that leaves at least one token of the prompt to
// prefill, and names it in the view.
func (w *Worker) pin(a *attempt, v handoff.View) handoff.View {
	n := min((len(a.req.tokens)-1)/w.layout.PageTokens, w.cfg.PrefixCache-w.pinned)
	if n < 1 {
		return v
	}
	x := w.pool.Pin(a.req.domain, a.req.hashes[:n])
	if x == nil {
		return v
	}
	a.prefix = x
	w.pinned += x.Pages()
	v.Prefix, v.PrefixHash = uint32(x.Tokens()), a.req.hashes[x.Pages()-1]
	v.Pages -= uint32(x.Pages())
	return v
}

// unpin lets go of a run that was not reserved with.
func (w *Worker) unpin(a *attempt) {
	w.pinned -= a.prefix.Pages()
	w.pool.Unpin(a.prefix)
	a.prefix = nil
}

// reserved notes that the pins have passed to the reservation.
func (w *Worker) reserved(a *attempt, r *kv.Reservation) {
	w.pinned -= a.prefix.Pages()
	a.prefix, a.res = nil, r
}

// share publishes the whole prompt pages of a verified attempt.
func (w *Worker) share(a *attempt) {
	if w.cfg.PrefixCache > 0 {
		w.pool.Publish(a.seq, a.req.hashes[:len(a.req.tokens)/w.layout.PageTokens])
	}
}

// Flush gives back every cached page that no request reads.
func (w *Worker) Flush() {
	w.mail.put(func(w *Worker) { w.pool.Flush() })
}

// holds reports whether the run that the peer says it holds is one of this
// prompt: whole pages, fewer than all, of exactly these tokens, and the rest
// still to be written (H-3).
func (r *request) holds(peer handoff.View, pageTokens int) bool {
	if peer.Prefix == 0 {
		return true // the rest of the view says whether that is so
	}
	n := int(peer.Prefix) / pageTokens
	return int(peer.Prefix)%pageTokens == 0 && int(peer.Prefix) < len(r.tokens) && n <= len(r.hashes) &&
		r.hashes[n-1] == peer.PrefixHash && int(peer.Pages) == len(r.hashes)-n
}

// checkPrefix ends a leg that waits for an ask, when the ask comes with a run
// that is not of the leg's prompt. The ask then finds it ended.
func (w *Worker) checkPrefix(a *attempt, peer handoff.View) {
	if a.prefill.Phase == handoff.PrefillWaiting && !a.req.holds(peer, w.layout.PageTokens) {
		w.take(a, handoff.Event{On: handoff.OnCancel, Code: handoff.Disagree}, nil)
	}
}

package gateway

import (
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// inTurn calls prefill, and then decode with the handle that prefill gave (G-11). Without
// a handle whose extent is proved decode is never called. A handle serves this sequence
// once, within its lease, which counts from the first byte that went to prefill: when
// prefill took over half of it, the handle is dropped unread and prefill called once more,
// which then is a prefix hit. If even that takes as long, there is no other attempt (G-6):
// the request has had its second try, and one more would cost prefill a third pass over a
// prompt that it is too slow for, for which no retry budget was asked.
func (a *attempt) inTurn() *failure {
	x := a.x
	of := x.model.Lease
	if fail := a.reserve(); fail != nil {
		return fail
	}
	for try := 0; ; try++ {
		a.began = x.g.clock.Now()
		a.ahead = a.round.leg(a.round.target.Prefill, a.prefillID)
		s := a.runPrefill(a.call(upstream.PrefillRole, a.prefillID, nil))
		a.heard = &s
		a.waiting.until = x.g.clock.Now().Add(of) // prefill counts from its answer
		if n := s.reply.Prompt; s.fail == nil && n.Known {
			a.waiting.hold(min(n.N, max(a.waiting.n, x.ask.Tokens.High)))
		}
		if s.fail != nil {
			if s.fail.ended {
				a.waiting.collected() // it refused: nothing is held there
			}
			return s.fail
		}
		if x.g.clock.Now().Sub(a.began) <= of/2 {
			break
		}
		a.odd |= record.HandleDropped
		if try > 0 {
			return failed(fault.New(fault.LeaseOver)).at(a.round.target.Prefill)
		}
		// Another id, for the first call may not be over for the engine.
		id, err := x.g.legID()
		if err != nil {
			return &failure{err: fault.New(fault.Internal)}
		}
		a.legs, a.first = append(a.legs, a.first), LegRecord{}
		a.prefillID = id
		// What was dropped is held until its own lease is over.
		a.waiting.end()
		if fail := a.reserve(); fail != nil {
			return fail.at(a.round.target.Prefill)
		}
	}
	block := a.round.target.Prefill.Info().PageSize.N // 0 if it is not known
	handle, ag := upstream.ReadHandle(&a.heard.reply, block)
	if ag != upstream.Agreed {
		a.agreement = ag
		return broken(ag, &upstream.Reply{}).at(a.round.target.Prefill)
	}
	if handle.Extent == upstream.ExtentUnknown {
		a.odd |= record.ExtentUnproved
	}
	a.lease.Of = of
	left := of - x.g.clock.Now().Sub(a.began)
	a.decode = a.round.leg(a.round.target.Decode, a.id)
	a.expiry = x.g.clock.AfterFunc(left, func() { a.decode.end(errLease) })
	defer a.expiry.Stop()
	return a.runDecode(upstream.DecodeRole, handle)
}

// collected says that decode's first token came, so that it has fetched what prefill held
// for it. It is a failure if the lease was over by then.
func (a *attempt) collected() *failure {
	if a.expiry == nil || a.lease.Used > 0 {
		return nil
	}
	a.expiry.Stop()
	a.lease.Used = max(1, a.x.g.clock.Now().Sub(a.began))
	if a.lease.Used > a.lease.Of {
		return a.expired()
	}
	a.waiting.collected()
	return nil
}

// expired is the failure of an attempt whose lease ran out before decode's first token.
// Nothing of it has left, what decode says is void, and its leg ends, so that a new attempt
// may do better (G-6). That has all that is its own: another handle, of another prefill if
// there is one, and another salt for decode, in whose cache a void answer leaves what is
// not this prompt's (G-7).
func (a *attempt) expired() *failure {
	a.odd |= record.LeaseOver
	return &failure{err: fault.New(fault.LeaseOver), retry: true, outcome: fleet.Failed}
}

// uncollected is a part of a tenant's budget for prompts that prefill holds for decode
// (G-14). What is not fetched is held until the lease is over.
type uncollected struct {
	g      *Gateway
	budget *account.Budget
	n      int64
	// until is when prefill lets go of it. That is later than when decode may no longer
	// fetch it, which is counted from the first byte to prefill.
	until time.Time
}

// prompt is how many tokens prefill will hold of each sequence, as far as that is known
// before it has counted them: exactly, or else the usual number within the bounds. A prompt
// of more than the whole budget takes all of it: it must wait, but not for ever.
func (x *exchange) prompt() int64 {
	r := x.ask.Tokens
	n, exact := r.Exact.Value()
	if !exact {
		n = r.High
		if e := x.ask.Estimate; e > 0 {
			n = min(max(e, r.Low), r.High)
		}
	}
	return min(n, x.tenant.uncollected.Limit())
}

// abreast is how many sequences the budget lets run at the same time.
func (x *exchange) abreast() int {
	if !x.model.traits.Leased {
		return x.g.bounds.Sequences
	}
	return int(min(int64(x.g.bounds.Sequences), x.tenant.uncollected.Limit()/max(1, x.prompt())))
}

// reserve takes the prompt's tokens from the tenant's budget.
func (a *attempt) reserve() *failure {
	t, n := a.x.tenant, a.x.prompt()
	if !t.uncollected.Take(n) {
		return &failure{err: fault.New(fault.Uncollected, fault.Int(t.uncollected.Limit())), ended: true}
	}
	a.waiting = &uncollected{g: a.x.g, budget: t.uncollected, n: n}
	return nil
}

// hold corrects what was taken to what prefill says that it holds, even over the budget:
// the next prompt finds the less room.
func (u *uncollected) hold(n int64) {
	u.budget.Give(u.n - n)
	u.n = n
}

// collected gives the tokens back: prefill holds nothing any more.
func (u *uncollected) collected() {
	if u != nil && u.n > 0 {
		u.budget.Give(u.n)
		u.n = 0
	}
}

// end gives back at the end of the lease what was not fetched.
func (u *uncollected) end() {
	if u == nil || u.n == 0 {
		return
	}
	n := u.n
	u.n = 0
	left := u.until.Sub(u.g.clock.Now())
	if left <= 0 {
		u.budget.Give(n)
		return
	}
	u.g.clock.AfterFunc(left, func() { u.budget.Give(n) })
}

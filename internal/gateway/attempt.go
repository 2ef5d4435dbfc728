package gateway

import (
	"context"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// failure is why an attempt gave no answer.
type failure struct {
	err *fault.Error
	// retry: the engine went away, or the lease was over, so that a new attempt may do better (G-6).
	retry bool
	// echo: the leg only ended because we ended it; the reason lies elsewhere.
	echo bool
	// ended: the engine has nothing left to abort.
	ended bool
	// outcome is what it says about the engines, and node which one; nil is all of them.
	outcome fleet.Outcome
	node    *fleet.Node
}

// failed makes a failure of a fault.
func failed(e *fault.Error) *failure { return &failure{err: e, outcome: outcomeOf(e)} }

// void is a failure of an answer that was read to its end.
func void(c fault.Code) *failure {
	f := failed(fault.New(c))
	f.ended = true
	return f
}

// at names the node that a failure speaks of.
func (f *failure) at(n *fleet.Node) *failure {
	if f != nil {
		f.node = n
	}
	return f
}

// said is what the prefill leg answered.
type said struct {
	reply upstream.Reply
	fail  *failure
}

// attempt is one try at one sequence: one or two calls, under ids that nobody had before.
// One goroutine owns it and runs the leg that is relayed; where both legs run at the same
// time one more runs the prefill leg, and is always waited for.
type attempt struct {
	x        *exchange
	round    *round
	sequence int
	identity
	// id is that of the leg that is relayed, prefillID that of the other one.
	id, prefillID string
	// decode is the leg that is relayed, ahead the prefill leg.
	decode, ahead *leg
	prefill       chan said // one value
	heard         *said     // that value, once it was received
	// first tells of the prefill leg until it was heard.
	first LegRecord
	last  LegRecord // of the leg that is relayed
	// began is when the first byte went to prefill, where that starts a lease.
	began   time.Time
	expiry  Timer
	waiting *uncollected

	// What the round puts together.
	legs               []LegRecord
	agreement          upstream.Agreement
	prompt, completion admit.Tokens
	from               record.Source
	odd                record.Oddities
	held               time.Duration
	lease              record.Lease
	created            int64
	answer             *upstream.Reply // a whole answer that is not alone
}

// run makes the calls and relays the answer if it holds. It returns nil if the answer was
// handed on whole.
func (a *attempt) run() *failure {
	x, traits := a.x, a.x.model.traits
	var err error
	if a.identity, err = x.g.mint(); err == nil {
		a.id, err = x.g.legID()
	}
	if err == nil && traits.Legs != upstream.One {
		a.prefillID, err = x.g.legID()
	}
	if err != nil {
		return &failure{err: fault.New(fault.Internal)}
	}
	t := a.round.target
	var f *failure
	switch traits.Legs {
	case upstream.One:
		a.decode = a.round.leg(t.Plain, a.id)
		f = a.runDecode(upstream.Plain, nil)
	case upstream.Together:
		a.ahead, a.decode = a.round.leg(t.Prefill, a.prefillID), a.round.leg(t.Decode, a.id)
		a.prefill = make(chan said, 1)
		call := a.call(upstream.PrefillRole, a.prefillID, nil)
		go func() {
			s := a.runPrefill(call)
			if s.fail != nil {
				a.decode.end(errPrefill) // at once; left alone it would wait
			}
			a.prefill <- s
		}()
		f = a.runDecode(upstream.DecodeRole, nil)
	case upstream.InTurn:
		f = a.inTurn()
	}
	return a.settle(f)
}

// call is the call of one leg. That to a worker of our own is in one piece, for its pass
// is made over it.
func (a *attempt) call(role upstream.Role, id string, h *upstream.Handle) *outgoing {
	x, t := a.x, a.round.target
	c := upstream.Control{
		ID: id, Model: x.route.served, MaxTokens: a.round.max, Seed: x.ids.seed,
		Sequence: -1, Room: a.room, TransferID: a.transfer, Handle: h, Salt: x.salt, Priority: x.priority(),
	}
	if x.model.traits.Lists == upstream.Split {
		c.Sequence = a.sequence
	}
	if x.model.traits.SaltPerAttempt && role == upstream.DecodeRole {
		c.Salt = account.FreshSalt(x.g.domainKey, x.domain, a.attempt[:])
	}
	if x.model.SafetyID == Pseudonym {
		c.SafetyID = account.Pseudonym(x.g.domainKey, x.domain)
	}
	if t.Prefill != nil {
		if x.model.traits.Bootstrap {
			c.Host, c.Port = t.Prefill.Bootstrap()
			c.RemoteAddr = "http://" + net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
		}
		c.RemoteEngine = t.Prefill.EngineID()
	}
	if a.assembles() {
		c.Stream = upstream.Streamed
	}
	var o outgoing
	if x.model.Dialect == upstream.Bulkhead {
		o.Call = x.req.Leg(x.model.Dialect, role, c)
		o.pieces = [][]byte{o.Body}
	} else {
		o.Call, o.pieces = x.req.Pieces(x.model.Dialect, role, c)
	}
	return &o
}

// assembles says whether decode is asked for a stream although the client wants its
// answer whole: only so does decode's first token show that it came within its lease.
func (a *attempt) assembles() bool {
	return a.x.req.Streaming == upstream.Whole && a.x.model.traits.Leased
}

// hear waits for the prefill leg. It ends soon after it is told to, so this is bounded.
func (a *attempt) hear() *said {
	if a.heard == nil && a.prefill != nil {
		s := <-a.prefill
		a.heard = &s
	}
	return a.heard
}

// settle ends both legs and finds the one reason why an attempt failed, if it did.
func (a *attempt) settle(d *failure) *failure {
	x := a.x
	a.ahead.end(errOver)
	s := a.hear()
	a.waiting.end()
	if s != nil && s.fail == nil {
		a.doubt(&s.reply)
	}
	if a.prefillID != "" && a.first.Node != "" {
		a.legs = append(a.legs, a.first)
	}
	if a.last.Node != "" {
		a.legs = append(a.legs, a.last)
	}
	if d == nil {
		a.from = record.Reported
		return nil
	}
	a.from = record.Observed
	f := d
	var p *failure
	if s != nil {
		p = s.fail
		f = worse(p, d)
	}
	cause := context.Cause(a.round.ctx)
	over := x.overtaken()
	switch {
	case over != nil && !errors.Is(cause, errSibling):
		f = over
	case errors.Is(cause, errSibling):
		f = &failure{err: f.err, echo: true}
	case errors.Is(a.decode.why(), errLease):
		f = a.expired().at(d.node)
	case errors.Is(a.decode.why(), errIdle):
		f = &failure{err: fault.New(fault.StreamBroken), outcome: fleet.Failed, node: d.node}
	case f.echo:
		f = &failure{err: fault.New(fault.Internal)}
	}
	return f
}

// overtaken is the failure of what did not end before the request was ended from outside;
// nil if it was not.
func (x *exchange) overtaken() *failure {
	switch over := x.ended(); {
	case over == nil:
		return nil
	case over.Code == fault.Deadline:
		return &failure{err: over, outcome: fleet.Failed}
	default:
		return &failure{err: over}
	}
}

// worse picks the failure to tell: a leg that was ended by us tells nothing; of two that
// failed by themselves a refusal tells more than a breakdown, and prefill's comes first.
func worse(p, d *failure) *failure {
	switch {
	case p == nil || p.echo && !d.echo:
		return d
	case d.echo || p.err.Status < http.StatusInternalServerError:
		return p
	default:
		return d
	}
}

// runPrefill calls the prefill leg and judges its answer by itself.
func (a *attempt) runPrefill(call *outgoing) said {
	x, node := a.x, a.ahead.node
	began := x.g.clock.Now()
	a.first = LegRecord{Role: upstream.PrefillRole, Node: node.Name(), ID: a.prefillID, Sequence: a.sequence}
	s := a.askPrefill(call)
	a.ahead.leave(s.fail)
	a.first.Took = x.g.clock.Now().Sub(began)
	a.first.First = a.first.Took
	s.fail.at(node)
	return s
}

// doubt notes what is odd about a sound answer of prefill, once it was heard.
func (a *attempt) doubt(r *upstream.Reply) {
	if r.CachedTooMany {
		a.odd |= record.CachedTooMany
	}
	if n := r.Prompt.N - r.Cached.N; n >= fastPrompt && a.first.Took > 0 && float64(n)/a.first.Took.Seconds() > fastRate {
		a.odd |= record.TooFast
	}
}

// What is faster than any engine: so many tokens a second, of a prompt that is long
// enough to tell. It is noted only; a clock proves nothing.
const (
	fastRate   = 2e6
	fastPrompt = 4096
)

func (a *attempt) askPrefill(call *outgoing) said {
	x := a.x
	if fail := a.post(a.ahead.ctx, a.ahead, call, &a.first); fail != nil {
		return said{fail: fail}
	}
	data, fail := a.readAnswer(a.ahead.answer, maxPrefill)
	if fail != nil {
		return said{fail: fail}
	}
	reply, err := upstream.ParseAnswer(x.model.Dialect, x.req.Endpoint, data)
	if err != nil {
		return said{fail: void(fault.UpstreamVoid)}
	}
	a.first.Note(&reply)
	if ag := upstream.Prefilled(x.model.Dialect, a.prefillID, &reply); ag != upstream.Agreed {
		return said{fail: broken(ag, &reply)}
	}
	return said{reply: reply}
}

// Limits of what is small by nature, in bytes.
const (
	maxPrefill = 2 << 20  // a prefill leg's answer: one token, and a handle
	maxError   = 64 << 10 // a leg's error
)

// broken is the failure that a judgement stands for.
func broken(ag upstream.Agreement, r *upstream.Reply) *failure {
	switch {
	case r.Failure != nil:
		f := failed(r.Failure.ForClient())
		f.retry, f.ended = r.Failure.Code == fault.PeerGone, true
		return f
	case ag == upstream.LegFailed:
		return void(fault.EngineFailed)
	case ag == upstream.CountsDiffer || ag == upstream.TokensDiffer:
		return void(fault.LegsDisagree)
	default:
		return void(fault.UpstreamVoid)
	}
}

// post makes the call of a leg, and leaves its answer there. Any other status than 200 is a
// failure.
func (a *attempt) post(ctx context.Context, l *leg, call *outgoing, rec *LegRecord) *failure {
	x, node := a.x, l.node
	if !l.begin() {
		return &failure{err: fault.New(fault.Internal), ended: true}
	}
	req, err := node.NewRequest(ctx, http.MethodPost, call.Path, nil)
	if err != nil {
		return &failure{err: fault.New(fault.Internal), ended: true}
	}
	node.KeepApart(req, x.tenant.ID)
	call.give(req)
	setHeaders(req, call.Call)
	if x.model.Dialect == upstream.Bulkhead {
		expiry := x.g.clock.Now().Add(x.g.bounds.PassLife)
		req.Header.Set("X-Bulkhead-Pass", x.g.passer.Mint(a.attempt, x.domain, expiry, a.room, call.whole()))
	}
	resp, err := node.RoundTrip(req) //nolint:bodyclose // leave does
	if err != nil {
		return lost(err)
	}
	l.reads(resp)
	rec.Status = resp.StatusCode
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	e := upstream.ParseFailure(x.model.Dialect, resp.StatusCode, data)
	f := failed(e.ForClient())
	f.retry, f.ended = e.Code == fault.PeerGone, err == nil
	return f
}

// lost is the failure of a call that gave no answer. Only a connection that never came
// about makes a retry: after that, a request may have been what ended the engine.
func lost(err error) *failure {
	f := &failure{err: fault.New(fault.UpstreamUnreachable), outcome: fleet.Failed}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		f.retry, f.ended, f.outcome = true, true, fleet.Unreachable
	}
	return f
}

const (
	// answerCopies is how often an answer is held: as it came, and as it is sent.
	answerCopies = 2
	// firstAnswer is how many bytes of an answer no budget counts, and how many are set aside
	// for one of unknown length.
	firstAnswer = 16 << 10
)

// hold takes bytes from the byte budgets for an answer that is held, of which there were
// before so many bytes, and will be after so many (G-14): how long one becomes is the
// client's wish.
func (x *exchange) hold(before, after int64) *fault.Error {
	more := max(after, firstAnswer) - max(before, firstAnswer)
	if more <= 0 {
		return nil
	}
	return x.lease.take(answerCopies * more)
}

// readAnswer reads a whole JSON answer of at most limit bytes.
func (a *attempt) readAnswer(resp *http.Response, limit int64) ([]byte, *failure) {
	size := resp.ContentLength
	if !hasType(resp, "application/json") || size > limit {
		return nil, failed(fault.New(fault.UpstreamVoid))
	}
	if size < 0 {
		size = min(firstAnswer, limit)
	}
	if fail := a.x.hold(0, size); fail != nil {
		return nil, &failure{err: fail}
	}
	into := make([]byte, 0, size+1) // one byte more than is due makes the read see the end
	for {
		if n := int64(cap(into)); int64(len(into)) == n && n <= limit {
			more := min(n, limit+1-n)
			if fail := a.x.hold(n, n+more); fail != nil {
				return nil, &failure{err: fail}
			}
			into = append(make([]byte, 0, n+more), into...)
		}
		n, err := resp.Body.Read(into[len(into):cap(into)])
		into = into[:len(into)+n]
		switch {
		case int64(len(into)) > limit:
			return nil, failed(fault.New(fault.UpstreamVoid))
		case errors.Is(err, io.EOF):
			return into, nil
		case err != nil:
			return nil, lost(err)
		}
	}
}

func hasType(resp *http.Response, want string) bool {
	declared := resp.Header.Get("Content-Type")
	if declared == want {
		return true
	}
	kind, _, err := mime.ParseMediaType(declared)
	return err == nil && kind == want
}

// runDecode calls the leg that is relayed, and relays its answer.
func (a *attempt) runDecode(role upstream.Role, h *upstream.Handle) *failure {
	x, node := a.x, a.decode.node
	began := x.g.clock.Now()
	a.last = LegRecord{Role: role, Node: node.Name(), ID: a.id, Sequence: a.sequence}
	f := a.askDecode(role, h, began)
	a.decode.leave(f)
	a.last.Took = x.g.clock.Now().Sub(began)
	return f.at(node)
}

func (a *attempt) askDecode(role upstream.Role, h *upstream.Handle, began time.Time) *failure {
	l := a.decode
	if a.x.req.Streaming == upstream.Whole && !a.assembles() {
		if fail := a.post(l.ctx, l, a.call(role, a.id, h), &a.last); fail != nil {
			return fail
		}
		return a.whole(l.answer, began)
	}
	var conn net.Conn
	ctx := httptrace.WithClientTrace(l.ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	if fail := a.post(ctx, l, a.call(role, a.id, h), &a.last); fail != nil {
		return fail
	}
	fail := a.stream(l.answer, began)
	if a.odd&record.SurplusBytes != 0 && conn != nil {
		// Where the surplus came in one piece with the end, the transport has the connection
		// back already (G-12).
		_ = conn.Close()
	}
	return fail
}

// minted is the id that the relayed leg's answers must carry; empty if it is the engine's
// own, which only must not change.
func (a *attempt) minted() string {
	if a.x.model.traits.IDs == upstream.Steady {
		return ""
	}
	return a.id
}

// whole relays an answer in one body.
func (a *attempt) whole(resp *http.Response, began time.Time) *failure {
	x := a.x
	data, fail := a.readAnswer(resp, x.g.bounds.Answer)
	if fail != nil {
		return fail
	}
	a.decode.over()
	a.last.First = x.g.clock.Now().Sub(began)
	reply, err := upstream.ParseAnswer(x.model.Dialect, x.req.Endpoint, data)
	if err != nil {
		return void(fault.UpstreamVoid)
	}
	ag := upstream.Sound(x.model.Dialect, a.minted(), &reply)
	if ag == upstream.Agreed && !complete(&reply, x.choices()) {
		ag = upstream.Unproved
	}
	if fail := a.collected(); fail != nil {
		return fail
	}
	if ag == upstream.Agreed && x.model.traits.Legs != upstream.One {
		var d upstream.Decoded
		d.Add(&reply)
		ag, fail = a.agree(d)
	}
	if fail != nil {
		return fail
	}
	if ag != upstream.Agreed {
		a.agreement = ag
		return broken(ag, &reply)
	}
	a.usage(&reply)
	a.untold()
	a.counted(reply.Prompt)
	if a.round.split {
		a.answer = &reply
		return nil
	}
	p := x.public()
	p.Usage = upstream.KeepUsage
	x.out.deliver(reply.Rewrite(make([]byte, 0, len(data)+64), p))
	return nil
}

// complete says whether a whole answer has all choices, each with its text or what stands
// in place of one, and each ended.
func complete(r *upstream.Reply, choices int) bool {
	if r.Choices != choices {
		return false
	}
	seen := make([]bool, choices)
	for i := range choices {
		at := r.Index(i)
		n := int(at.N)
		if !at.Known {
			n = i
		}
		if n < 0 || n >= choices || seen[n] || r.Finish(i) == "" || !r.HasText(i) && !r.Moves(i) {
			return false
		}
		seen[n] = true
	}
	return true
}

// agree waits for prefill and compares it with what decode said so far.
func (a *attempt) agree(d upstream.Decoded) (upstream.Agreement, *failure) {
	p := a.hear()
	if p.fail != nil {
		return upstream.Open, &failure{err: p.fail.err, echo: true}
	}
	ag := upstream.Agree(a.x.model.Dialect, &p.reply, d, a.x.req.Stops)
	if a.agreement != upstream.Agreed && ag == upstream.Agreed {
		a.prefilled()
	}
	a.agreement = ag
	return ag, nil
}

// counted tells how long the prompt is by the engine's own count, and prefilled that
// prefill is through with it, so that what was held too much is free. Sequences share
// their target, so only one that is alone can tell.
func (a *attempt) counted(n upstream.Count) {
	if n.Known && !a.round.split && a.x.req.Prompts <= 1 {
		a.round.target.Counted(n.N)
	}
}

func (a *attempt) prefilled() {
	if !a.round.split {
		a.round.target.Prefilled()
	}
}

// usage notes what the relayed leg reported, if it adds up.
func (a *attempt) usage(r *upstream.Reply) {
	if r.Contradictory {
		a.odd |= record.UsageWrong
		a.prompt, a.completion = admit.Unknown(), admit.Unknown()
		return
	}
	a.last.Note(r)
	if r.CachedTooMany {
		a.odd |= record.CachedTooMany
	}
	if !r.Prompt.Known || !r.Completion.Known {
		return
	}
	a.prompt, a.completion = admit.Known(r.Prompt.N), admit.Known(r.Completion.N)
	if r.Completion.N > a.round.max*int64(a.x.choices()) {
		a.odd |= record.UsageWrong
		a.completion = admit.Unknown()
	}
}

// untold notes that a complete answer did not tell what it used.
func (a *attempt) untold() {
	if _, told := a.completion.Value(); !told && a.odd&record.UsageWrong == 0 {
		a.odd |= record.UsageMissing
	}
}

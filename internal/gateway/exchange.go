package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
	"bulkhead.dev/bulkhead/kv"
)

// exchange is one request to a completion path, from its headers to its last byte. One
// goroutine owns it: the handler's. Attempts run beside it see only what does not change
// while they run, and out.
type exchange struct {
	g *Gateway
	w http.ResponseWriter
	r *http.Request
	// ctx ends when the client leaves, or with a cause of ours.
	ctx    context.Context
	cancel context.CancelCauseFunc

	ids    ids
	tenant *tenant
	route  route
	model  *model
	domain kv.Domain
	salt   string // of the domain, where the engine takes one
	req    *upstream.Request
	body   []byte
	ask    fleet.Ask
	lease  lease
	charge charge
	seated bool
	read   bool // the body was read to its end
	// overlong says that admission in shadow has counted the request.
	overlong bool
	out      outlet
	// latest is the round under way, or the last one; pending says that aborts are under
	// way, and the seat is kept until they are through.
	latest  *round
	pending bool
	// target is where a known answer is asked for; nil for requests of clients (G-9).
	target *fleet.Target

	// first ends what takes too long to its first byte.
	first Timer

	event  RequestEvent
	record Record // what the event does not hold
	wait   time.Duration
	// broken says that the answer ends with a cut connection.
	broken bool
}

// ErrShutdown is the cause with which a server's base context is cancelled to cut the
// answers in progress. Their clients are told, and their connections are aborted (H-14).
var ErrShutdown = errors.New("gateway: shutting down")

// Causes with which the gateway ends what it began.
var (
	errFirstByte = errors.New("gateway: no verdict in time")
	errIdle      = errors.New("gateway: no event in time")
	errPrefill   = errors.New("gateway: the prefill leg failed")
	errSibling   = errors.New("gateway: another sequence of the request failed")
	errLease     = errors.New("gateway: the lease is over")
	errOver      = errors.New("gateway: the attempt is over")
)

// complete serves a completion.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request, e upstream.Endpoint, id string, drawn ids) {
	x := &exchange{
		g: g, w: w, r: r, ids: drawn,
		event: RequestEvent{ID: id, Path: e.Path(), Start: g.clock.Now()},
	}
	x.out.x, x.out.rc = x, http.NewResponseController(w)
	x.ctx, x.cancel = context.WithCancelCause(r.Context())
	defer x.close()
	if x.record.Client = clientID(r.Header); x.record.Client != "" {
		w.Header().Set(headerClient, x.record.Client)
	}
	if fail := x.serve(e); fail != nil {
		x.refuse(fail)
	}
	if x.broken || x.event.Status == 0 {
		// Returning without a word would be a 200.
		panic(http.ErrAbortHandler)
	}
}

// close gives everything back and tells what became of the request.
func (x *exchange) close() {
	x.cancel(errOver)
	if x.lease.tenant != nil {
		x.lease.release()
	}
	if x.seated {
		release := func() {
			x.tenant.seats.Give(1)
			x.g.seats.Give(1)
		}
		if x.pending {
			x.g.tasks.Go(func() { x.latest.aborts.Wait(); release() })
		} else {
			release()
		}
	}
	if x.event.Verdict == record.Undecided {
		x.event.Verdict, x.event.Code = record.Failed, fault.Internal
	}
	x.event.Committed = x.out.hush()
	now := x.g.clock.Now()
	x.charge.settle(x.event, now)
	x.event.Total = now.Sub(x.event.Start)
	x.record.Event = x.event
	if x.tenant != nil {
		x.g.records.Add(x.record) // a stranger cannot push out what is remembered of others
	}
	x.g.events.Request(x.event)
}

// refuse ends the request with an error in place of an answer.
func (x *exchange) refuse(e *fault.Error) {
	late := x.out.hush() > 0
	if late {
		x.event.Status, x.broken = http.StatusOK, true
	}
	if x.gone() && x.read || late && x.out.gone() {
		x.event.Verdict, x.event.Code = record.Left, fault.Cancelled
		return
	}
	x.event.Verdict, x.event.Code = record.VerdictOf(e), e.Code
	if late {
		x.refuseLate(e)
		return
	}
	x.event.Status = e.Status
	x.w.Header().Set(headerVerdict, x.event.Verdict.String())
	if x.wait > 0 {
		retryAfter(x.w, x.wait)
	}
	x.out.writeDeadline()
	writeFault(x.w, e.WithID(x.event.ID))
}

// gone says whether the client has left. Before the body is read it may also mean that
// the body did not come.
func (x *exchange) gone() bool {
	return x.r.Context().Err() != nil && !errors.Is(context.Cause(x.r.Context()), ErrShutdown)
}

// ended is the fault of a request that was ended from outside, or nil.
func (x *exchange) ended() *fault.Error {
	cause := context.Cause(x.ctx)
	switch {
	case cause == nil:
		return nil
	case x.gone() || errors.Is(cause, errLeft):
		return fault.New(fault.Cancelled)
	case errors.Is(cause, ErrShutdown):
		return fault.New(fault.ShuttingDown)
	case errors.Is(cause, errFirstByte):
		return fault.New(fault.Deadline)
	}
	return fault.New(fault.Internal)
}

// serve takes a request from its headers to its end. It returns the error to answer
// with, or nil if an answer was sent or nobody waits for one.
func (x *exchange) serve(e upstream.Endpoint) *fault.Error {
	t, fail := x.g.door.tenant(x.r.Header, x.event.Start)
	if fail != nil {
		return fail
	}
	x.tenant, x.event.Tenant = t, t.ID
	if fail := checkHeaders(x.r.Header); fail != nil {
		return fail
	}
	if fail := checkForm(x.r.Header); fail != nil {
		return fail
	}
	if wait, ok := t.requests.Take(1, x.event.Start); !ok {
		x.wait = wait
		return fault.New(fault.RequestRate, fault.Int(t.RequestsPerMinute))
	}
	if !t.seats.Take(1) {
		return fault.New(fault.TooManyRequests, fault.Int(t.seats.Limit()))
	}
	if !x.g.seats.Take(1) {
		t.seats.Give(1)
		return fault.New(fault.Overloaded)
	}
	x.seated = true
	t.retry.Earn()
	x.lease.process, x.lease.tenant = x.g.bytes, t.bytes
	if x.body, fail = x.g.readBody(x.w, x.r, &x.lease); fail != nil {
		return fail
	}
	x.read, x.event.BodyBytes = true, int64(len(x.body))
	if fail := x.judge(e); fail != nil {
		return fail
	}
	if fail := x.measure(); fail != nil {
		return fail
	}
	return x.dispatch()
}

// judge scans the body, finds the model, and holds the request against what the model and
// the tenant allow (G-1, G-13).
func (x *exchange) judge(e upstream.Endpoint) *fault.Error {
	body, fail := upstream.Scan(e, x.body)
	if fail != nil {
		return fail
	}
	r, known := x.tenant.routes[body.Model]
	if !known {
		return fault.New(fault.ModelNotFound, fault.Field("model"))
	}
	x.route, x.model, x.event.Model = r, r.model, r.model.Name
	policy := upstream.Policy{
		Dialect: r.model.Dialect, Grants: r.grants, Domains: r.model.URLs,
		MaxSchema: r.model.MaxSchema, MaxSequences: r.model.MaxSequences,
	}
	state := x.g.mode(AllowList)
	if state != Enforce {
		policy.Shadow = []string{"*"}
	}
	req, fail := body.Judge(policy)
	if fail != nil {
		return fail
	}
	x.req, x.event.Streaming, x.event.Sequences = req, req.Streaming, req.Sequences()
	if state == Shadow {
		x.event.Shadowed = record.Shown(req.Shadowed)
		x.g.shadows.Count(x.event.Shadowed, x.tenant.ID, x.model.Name)
	}
	if len(req.Dropped) > 0 {
		x.w.Header().Set(headerDropped, strings.Join(req.Dropped, ", "))
	}
	if req.Streaming == upstream.Streamed && !x.r.ProtoAtLeast(1, 1) {
		return fault.New(fault.StreamNeedsHTTP11)
	}
	x.settleDomain()
	return x.more()
}

// settleDomain finds the cache domain of the request. What a tenant lets narrow it can
// only lead to a part of the tenant's own (G-7).
func (x *exchange) settleDomain() {
	x.domain, x.record.Domain = x.tenant.domain, x.tenant.short
	if x.model.traits.Salted {
		x.salt = x.tenant.salt
	}
	value := ""
	switch x.tenant.Narrow {
	case "":
	case NarrowSafetyID:
		value = x.req.SafetyID
	default:
		// All that was sent counts: of two values either may be the client's own, and a line
		// break is in none of them.
		value = strings.Join(x.r.Header.Values(x.tenant.Narrow), "\n")
	}
	if value != "" {
		x.domain = account.Narrowed(x.g.domainKey, x.domain, value)
		x.record.Domain = account.Short(x.g.domainKey, x.domain)
		if x.model.traits.Salted {
			x.salt = account.Salt(x.g.domainKey, x.domain)
		}
	}
}

// more takes the bytes that the bodies of several sequences need beside those of one.
func (x *exchange) more() *fault.Error {
	if k := min(x.sequences(), x.g.bounds.Sequences); k > 1 {
		return x.lease.take(int64(k-1) * (copies - 1) * int64(len(x.body)))
	}
	return nil
}

// sequences is how many calls the request becomes, not counting legs.
func (x *exchange) sequences() int {
	if x.model.traits.Lists == upstream.Split {
		return max(1, x.req.Sequences())
	}
	return 1
}

// choices is how many answers one call gives.
func (x *exchange) choices() int {
	if x.model.traits.Lists == upstream.Split {
		return 1
	}
	return max(1, x.req.Sequences())
}

// measure bounds the prompt and charges the tenant for it.
func (x *exchange) measure() *fault.Error {
	m, req := x.model, x.req
	text := int64(0)
	for i := range max(1, req.Prompts) {
		text = max(text, req.TextOf(i*max(1, req.N)))
	}
	low, high := m.Sizes.bounds(text, int64(req.Messages))
	if req.Loose && (m.Counter != nil || req.Countable(m.Dialect)) {
		// Only a count can tell. Where nobody can count, as with pictures, the bytes must do:
		// an engine refuses what is too long for it, and of a pair both legs must agree.
		low, high = 1, max(high, looseHigh)
	}
	x.ask = fleet.Ask{
		Tokens: admit.Request{Low: low, High: high, Exact: exactOf(req), Default: m.DefaultMaxTokens},
		Tenant: x.tenant.ID, Private: x.tenant.Private, Parallel: min(x.sequences(), x.g.bounds.Sequences),
	}
	if req.Max.Known {
		x.ask.Tokens.Output = admit.Known(req.Max.N)
	}
	if text > 0 {
		x.ask.Estimate = max(1, text/bytesPerToken)
	}
	x.event.Count = record.ByBytes
	if x.g.mode(Affinity) == Enforce {
		if s := x.r.Header.Get(headerSession); s != "" && len(s) <= maxSession {
			x.ask.Session = account.Affinity(x.g.domainKey, "session", x.domain, []byte(s))
		}
		if head := req.Head(0, prefixBytes); len(head) == prefixBytes {
			x.ask.Prefix = account.Affinity(x.g.domainKey, "prefix", x.domain, head)
		}
	}
	return x.pay()
}

// exactOf is the number of tokens of the longest prompt, if they came as tokens.
func exactOf(req *upstream.Request) admit.Tokens {
	longest := int64(0)
	for i := range max(1, req.Prompts) {
		n := req.Tokens(i * max(1, req.N))
		if !n.Known {
			return admit.Unknown()
		}
		longest = max(longest, n.N)
	}
	return admit.Known(longest)
}

const (
	// looseHigh is more tokens than any engine takes, for prompts whose bytes bound nothing.
	looseHigh = 1 << 40
	// headerSession names a session of the client's; requests of one go to one engine if
	// that has room.
	headerSession = "X-Session-Affinity"
	// maxSession is the longest name of a session, in bytes. A longer one names none.
	maxSession = 256
	// prefixBytes is how much of a prompt must be equal for two requests to prefer one
	// engine. Shorter prompts prefer none.
	prefixBytes = 1024
	// bytesPerToken is the usual length of a token. It bears on the load only.
	bytesPerToken = 4
)

// charge is what a tenant was charged in advance.
type charge struct {
	tenant *tenant
	tokens int64
}

// pay charges the tenant what the request may use at least of its prompt, and at most of
// its answers. What it did use is settled at the end.
func (x *exchange) pay() *fault.Error {
	t := x.tenant
	if t.tokens == nil && t.spent == nil {
		return nil
	}
	want := x.ask.Tokens.Default
	if n, asked := x.ask.Tokens.Output.Value(); asked {
		want = n
	}
	low := x.ask.Tokens.Low
	if exact, known := x.ask.Tokens.Exact.Value(); known {
		low = exact
	}
	n := low*int64(max(1, x.req.Prompts)) + want*int64(max(1, x.req.Sequences()))
	if n < 0 {
		n = low // an absurd length is refused by admission
	}
	if t.spent != nil && !t.spent.Take(n) {
		return fault.New(fault.TokenBudget, fault.Int(t.spent.Limit()))
	}
	if wait, ok := t.tokens.Take(n, x.event.Start); !ok {
		if t.spent != nil {
			t.spent.Give(n)
		}
		x.wait = wait
		return fault.New(fault.TokenRate, fault.Int(t.TokensPerMinute))
	}
	x.charge = charge{t, n}
	return nil
}

// settle charges what was used. A request that failed without an answer is free. One that
// gave one, or whose client left while an engine worked for it, and did not tell what it
// used, costs what was charged in advance.
func (c charge) settle(e RequestEvent, now time.Time) {
	if c.tenant == nil {
		return
	}
	used := int64(0)
	switch e.Verdict {
	case Served, record.Broken, record.Left:
		prompt, told := e.Prompt.Value()
		completion, counted := e.Completion.Value()
		switch {
		case told && counted:
			used = prompt + completion
		case e.Attempts == 0: // no engine worked for it
		default:
			used = c.tokens
		}
	}
	if c.tenant.spent != nil {
		c.tenant.spent.Give(c.tokens - used)
	}
	c.tenant.tokens.Settle(used-c.tokens, now)
}

// bounds bounds a prompt's tokens by its bytes (G-2).
func (s Sizes) bounds(bytes, messages int64) (low, high int64) {
	low = 1
	if s.BytesPerToken > 0 {
		low = max(1, (bytes+s.BytesPerToken-1)/s.BytesPerToken)
	}
	return low, max(low, bytes+messages*s.PerMessage+s.PerRequest)
}

// publicID is the id under which clients know the answer.
func (x *exchange) publicID() string {
	if x.req.Endpoint == upstream.Chat {
		return "chatcmpl-" + x.ids.public
	}
	return "cmpl-" + x.ids.public
}

// public is how clients see replies.
func (x *exchange) public() upstream.Public {
	return upstream.Public{ID: x.publicID(), Model: x.route.name}
}

// priority is what the engine is told: the tenant's class, or what the client asked for
// if that is lower. With vLLM a larger number comes later, with SGLang earlier.
func (x *exchange) priority() upstream.Count {
	own, asked := x.tenant.Priority, x.req.Priority
	if !own.Known || !asked.Known {
		return own
	}
	switch x.model.Dialect {
	case upstream.SGLang, upstream.SGLangPD:
		own.N = min(own.N, asked.N)
	default:
		own.N = max(own.N, asked.N)
	}
	return own
}

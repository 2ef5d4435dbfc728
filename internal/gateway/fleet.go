package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// model is one model at work.
type model struct {
	Model
	pairs []*pair
}

// pair is two workers, and what they last said about themselves.
type pair struct {
	Pair
	prefill, decode *leg
	// busy counts the attempts in progress.
	busy atomic.Int64

	mu     sync.Mutex
	sound  bool // the last look found a pair that fits together
	why    Why  // what else it found
	seen   time.Time
	limits admit.Limits // of the last look that succeeded
	lives  [2]string    // incarnations
}

// leg is one worker as an HTTP server.
type leg struct {
	Leg
	transport *http.Transport
}

// newLeg makes the client of one worker. Each has connections of its own, no cookies, no
// redirects, no proxy and no compression; addresses are those of the configuration.
func newLeg(l Leg, b Bounds) *leg {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &leg{Leg: l, transport: &http.Transport{
		DialContext:            (&net.Dialer{Timeout: b.Connect, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:        l.TLS,
		TLSHandshakeTimeout:    b.Connect,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    b.InFlight,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
		Protocols:              protocols,
	}}
}

func newModel(m Model, b Bounds) *model {
	made := &model{Model: m.WithDefaults()}
	for _, p := range m.Pairs {
		p = p.WithDefaults()
		made.pairs = append(made.pairs, &pair{Pair: p, prefill: newLeg(p.Prefill, b), decode: newLeg(p.Decode, b)})
	}
	return made
}

// errStatus says that a worker answered a look with another status than 200.
var errStatus = errors.New("gateway: look at worker: unexpected status")

// maxInfo is the longest /server_info, in bytes, that is read.
const maxInfo = 1 << 20

// info asks a worker about itself.
func (l *leg) info(ctx context.Context) (upstream.Info, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.URL+"/server_info", nil)
	if err != nil {
		return upstream.Info{}, fmt.Errorf("gateway: look at worker: %w", err)
	}
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return upstream.Info{}, fmt.Errorf("gateway: look at worker: %w", err)
	}
	defer closeBody(resp)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxInfo))
	if err != nil {
		return upstream.Info{}, fmt.Errorf("gateway: look at worker: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return upstream.Info{}, errStatus
	}
	return upstream.ParseInfo(body)
}

// closeBody closes an answer. What is unread makes the transport close the connection.
func closeBody(resp *http.Response) { _ = resp.Body.Close() }

// look asks both workers of a pair, and notes what they say. A pair that does not answer,
// or does not fit together, takes no requests; its last limits stay known.
func (p *pair) look(ctx context.Context, m *model, now func() time.Time) {
	var infos [2]upstream.Info
	var errs [2]error
	var wg sync.WaitGroup
	for i, l := range [...]*leg{p.prefill, p.decode} {
		wg.Go(func() { infos[i], errs[i] = l.info(ctx) })
	}
	wg.Wait()
	why := found(errs)
	if why == Fits && upstream.Match(m.Served, infos[0], infos[1]) != nil {
		why = Unmatched
	}
	sound := why == Fits
	p.mu.Lock()
	p.sound, p.why, p.seen = sound, why, now()
	if !sound {
		p.mu.Unlock()
		return
	}
	p.limits = limits(m.Window, infos[0], infos[1])
	lives := [2]string{infos[0].Incarnation, infos[1].Incarnation}
	reborn := lives != p.lives
	p.lives = lives
	p.mu.Unlock()
	if reborn {
		// Connections to an earlier life answer nothing any more.
		p.prefill.transport.CloseIdleConnections()
		p.decode.transport.CloseIdleConnections()
	}
}

// limits is what a pair takes, by what its workers say. A worker's pool is its capacity,
// whatever is free (G-2).
func limits(window int64, p, d upstream.Info) admit.Limits {
	l := admit.Limits{
		Window:       admit.Min(tokens(p.Window), tokens(d.Window)),
		Prefill:      admit.Min(tokens(p.Pool), tokens(p.MaxInput)),
		DecodePrompt: admit.Min(tokens(d.Pool), tokens(d.MaxInput)),
		Decode:       tokens(d.Pool),
	}
	if window == 0 {
		return l
	}
	if _, known := l.Window.Value(); known {
		l.Window = admit.Min(l.Window, admit.Known(window))
	} else {
		l.Window = admit.Known(window)
	}
	return l
}

func tokens(c upstream.Count) admit.Tokens {
	if !c.Known {
		return admit.Unknown()
	}
	return admit.Known(c.N)
}

// ready returns the pair's limits if it may take requests: the last look found both
// workers, fitting together, with known limits, and is not too old.
func (p *pair) ready(now time.Time, fresh time.Duration) (admit.Limits, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limits, p.sound && now.Sub(p.seen) <= fresh
}

// advertised is the least number of tokens that any pair of the model serves, over the
// pairs that ever told (G-2). It is unknown if none did, or if one told too little.
func (m *model) advertised() admit.Tokens {
	all, some := admit.Unknown(), false
	for _, p := range m.pairs {
		p.mu.Lock()
		seen, n := p.lives != [2]string{} || p.limits != admit.Limits{}, p.limits.Advertised()
		p.mu.Unlock()
		switch {
		case !seen:
		case !some:
			all, some = n, true
		default:
			all = admit.Min(all, n)
		}
	}
	return all
}

// Refresh looks at every worker once and returns when all have answered or timed out.
// [Gateway.Run] calls it over and over.
func (g *Gateway) Refresh(ctx context.Context) {
	g.looking.Lock()
	defer g.looking.Unlock()
	g.refresh(ctx)
}

// refresh is Refresh under the lock.
func (g *Gateway) refresh(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer g.clock.AfterFunc(g.bounds.Probe, cancel).Stop()
	var wg sync.WaitGroup
	for _, m := range g.models {
		for _, p := range m.pairs {
			wg.Go(func() { p.look(ctx, m, g.clock.Now) })
		}
	}
	wg.Wait()
	g.looked = g.clock.Now()
}

// minLookGap is the least time between two looks that requests bring about.
const minLookGap = 250 * time.Millisecond

// lookNow refreshes if the last look is not very recent. A request calls it that finds
// no pair, so that a worker which is back serves at once.
func (g *Gateway) lookNow(ctx context.Context) {
	g.looking.Lock()
	defer g.looking.Unlock()
	if now := g.clock.Now(); g.looked.IsZero() || now.Sub(g.looked) >= minLookGap {
		// A client that leaves must not make workers look dead.
		g.refresh(context.WithoutCancel(ctx))
	}
}

// Run looks at the workers until ctx ends, then waits for what the gateway still has to
// tell them. Exactly one goroutine runs it, for as long as the gateway serves.
func (g *Gateway) Run(ctx context.Context) {
	tick := make(chan struct{}, 1)
	for {
		g.Refresh(ctx)
		t := g.clock.AfterFunc(g.bounds.Refresh, func() { tick <- struct{}{} })
		select {
		case <-tick:
		case <-ctx.Done():
			t.Stop()
			g.tasks.Wait()
			for _, m := range g.models {
				for _, p := range m.pairs {
					p.prefill.transport.CloseIdleConnections()
					p.decode.transport.CloseIdleConnections()
				}
			}
			return
		}
	}
}

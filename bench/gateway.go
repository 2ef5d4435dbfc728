package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Targets of the comparison.
const (
	toDirect  = iota // decode's leg itself
	toProxy          // httputil.ReverseProxy before it
	toFloor          // both legs, spliced in Go, nothing checked
	toGateway        // the gateway before both legs
	targets
)

// targetName names a target in a figure.
func targetName(t int) string {
	return [targets]string{"direct", "bare Go reverse proxy", "two bare Go legs", "gateway"}[t]
}

// site is the servers of the comparison, each a process of its own.
type site struct {
	legs   *child
	server [targets]*child // none is direct's own
	target [targets]struct{ small, stream, large target }
}

// newSite starts them. large is the size of a large prompt in bytes.
func newSite(ctx context.Context, s settings, name string, l looks, large int) (*site, error) {
	x := &site{}
	var err error
	if x.legs, err = startChild(ctx, served{Role: "legs", Looks: l}); err != nil {
		return nil, err
	}
	legURL := func(i int) string { return (&url.URL{Scheme: "http", Host: x.legs.Addrs[i]}).String() }
	for t, role := range [...]string{toProxy: "proxy", toFloor: "floor", toGateway: "gateway"} {
		addr, key := x.legs.Addrs[1], ""
		if role != "" {
			c := served{Role: role, Prefill: legURL(0), Decode: legURL(1)}
			if s.profile != "" {
				c.Profile = filepath.Join(s.profile, name+"-"+role+".pprof")
			}
			if x.server[t], err = startChild(ctx, c); err != nil {
				return nil, errors.Join(err, x.stop())
			}
			addr, key = x.server[t].Addrs[0], x.server[t].Key
		}
		x.target[t].small = post(addr, key, chat("Which way is it from here to the harbour?", whole))
		x.target[t].stream = post(addr, key, chat("Which way is it from here to the harbour?", streamed))
		x.target[t].large = post(addr, key, chat(strings.Repeat("0123456789abcde ", large/16), whole))
	}
	return x, nil
}

// chat is the body of a request.
func chat(prompt string, m mode) []byte {
	stream := ""
	if m == streamed {
		stream = `"stream":true,"stream_options":{"include_usage":true},`
	}
	return fmt.Appendf(nil, `{"model":"recall",%s"max_tokens":64,"messages":[{"role":"user","content":"%s"}]}`, stream, prompt)
}

// stop ends every process.
func (x *site) stop() error {
	var all []error
	for _, c := range append(x.server[:], x.legs) {
		if c != nil {
			all = append(all, c.stop())
		}
	}
	return errors.Join(all...)
}

// cpu is what the server of a target has used; direct has none of its own.
func (x *site) cpu(t int) (time.Duration, error) {
	if x.server[t] == nil {
		return 0, nil
	}
	u, err := x.server[t].used()
	return u.CPU, err
}

// sample is one window of a load at one target.
type sample struct {
	window
	cpu time.Duration // of the server, for each request
}

// loadLimit is how long one kind of load may take.
const loadLimit = 15 * time.Second

// kind is one kind of load.
type kind struct {
	conns, requests int
	ends            string // how an answer ends
	of              func(*site, int) target
}

// measure runs rounds of a load at every target in turn.
func (x *site) measure(ctx context.Context, rounds int, k kind) (got [targets][]sample, err error) {
	err = repeat(ctx, rounds, loadLimit, func(round int) error {
		for i := range targets {
			t := (i + round) % targets
			before, err := x.cpu(t)
			if err != nil {
				return err
			}
			w, err := k.of(x, t).load(k.conns, k.requests, k.ends)
			if err != nil {
				return fmt.Errorf("bench: %s: %w", targetName(t), err)
			}
			after, err := x.cpu(t)
			if err != nil {
				return err
			}
			got[t] = append(got[t], sample{w, (after - before) / time.Duration(k.requests+k.conns)})
		}
		return nil
	})
	return got, err
}

// Ends of answers.
const (
	endsJSON   = "}"
	endsStream = "data: [DONE]\n\n"
)

// small is a short chat, streamed or not.
func small(m mode) func(*site, int) target {
	return func(x *site, t int) target {
		if m == streamed {
			return x.target[t].stream
		}
		return x.target[t].small
	}
}

// gatewayLoad compares the gateway's PD route with what else can stand before the
// same two legs.
func gatewayLoad(ctx context.Context, s settings) (figures []figure, err error) {
	x, err := newSite(ctx, s, "small", looksAtHead, 16)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.stop()) }()
	rounds := s.count(11)
	if _, err := x.measure(ctx, 1, kind{16, s.count(1000), endsJSON, small(whole)}); err != nil { // warm
		return nil, err
	}
	one, err := x.measure(ctx, rounds, kind{1, s.count(500), endsJSON, small(whole)})
	if err != nil {
		return nil, err
	}
	many, err := x.measure(ctx, rounds, kind{16, s.count(3200), endsJSON, small(whole)})
	if err != nil {
		return nil, err
	}
	figures = append(figures, latencies("gateway.c1", "p50 at concurrency 1, PD route", one)...)
	figures = append(figures, rateFigures(many)...)
	figures = append(figures, cpuFigures("gateway.c1_cpu", "cpu for a request at concurrency 1", microseconds, one)...)
	figures = append(figures, cpuFigures("gateway.c16_cpu", "cpu for a request at concurrency 16", microseconds, many)...)
	return figures, nil
}

// streamLoad is the same with streams of 32 events.
func streamLoad(ctx context.Context, s settings) (figures []figure, err error) {
	x, err := newSite(ctx, s, "stream", looksAtHead, 16)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.stop()) }()
	k := kind{1, s.count(200), endsStream, small(streamed)}
	if _, err := x.measure(ctx, 1, k); err != nil { // warm
		return nil, err
	}
	got, err := x.measure(ctx, s.count(15), k)
	if err != nil {
		return nil, err
	}
	return append(streams(got), cpuFigures("stream.cpu", "cpu for a stream of 32 events", microseconds, got)...), nil
}

// largeSize is a large prompt, in bytes.
const largeSize = 4 << 20

// largeLoad is a prompt of 4 MB, before processes that have seen nothing else:
// first with legs that parse it, as engines do, then with legs that do not, so
// that the way there is all that is seen.
func largeLoad(ctx context.Context, s settings) ([]figure, error) {
	parsed, err := largeOver(ctx, s, looksAtAll, func(x *site, got [targets][]sample) ([]figure, error) {
		i := over(got, toGateway, toProxy, p50)
		return []figure{
			newFigure("large.p50_proxy", "p50 of a 4 MB prompt, PD route, legs parse it", ratio, i).
				against(targetName(toProxy)).held(budget{atMost, 1.4, 1.2}, i, nil),
			newFigure("large.p50_floor", "the same", ratio, over(got, toGateway, toFloor, p50)).against(targetName(toFloor)),
			newFigure("large.floor_proxy", "the same, two bare Go legs", ratio, over(got, toFloor, toProxy, p50)).against(targetName(toProxy)),
		}, nil
	})
	if err != nil {
		return nil, err
	}
	bare, err := largeOver(ctx, s, looksAtHead, largeCosts)
	return append(parsed, bare...), err
}

// largeOver measures with legs of one kind.
func largeOver(ctx context.Context, s settings, l looks, read func(*site, [targets][]sample) ([]figure, error)) (figures []figure, err error) {
	x, err := newSite(ctx, s, "large-"+string(l), l, largeSize)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.stop()) }()
	k := kind{1, s.count(16), endsJSON, func(x *site, t int) target { return x.target[t].large }}
	got, err := x.measure(ctx, s.count(7), k)
	if err != nil {
		return nil, err
	}
	return read(x, got)
}

// largeCosts is what the servers themselves used.
func largeCosts(x *site, got [targets][]sample) ([]figure, error) {
	figures := []figure{
		newFigure("large.p50_bare_proxy", "p50 of a 4 MB prompt, PD route, legs only read it", ratio, over(got, toGateway, toProxy, p50)).against(targetName(toProxy)),
		newFigure("large.p50_bare_floor", "the same", ratio, over(got, toGateway, toFloor, p50)).against(targetName(toFloor)),
	}
	figures = append(figures, cpuFigures("large.cpu", "cpu for a 4 MB prompt", milliseconds, got)...)
	last := &figures[len(figures)-1]
	*last = last.held(budget{atMost, 8, 5}, spent(got[toGateway], milliseconds), nil)
	for t := toProxy; t < targets; t++ {
		u, err := x.server[t].used()
		if err != nil {
			return nil, err
		}
		mb := bootstrap(nil)
		if u.RSSKnown {
			mb = exactly(float64(u.PeakRSS) / 1e6)
		}
		f := newFigure("large.rss_"+short(t), "peak RSS after 4 MB prompts, "+targetName(t), megabytes, mb)
		if t == toGateway {
			f = f.held(budget{atMost, 40, 25}, mb, nil)
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// short names a target in an id.
func short(t int) string { return [targets]string{"direct", "proxy", "floor", "gateway"}[t] }

func p50(s sample) float64  { return float64(s.p50) }
func rate(s sample) float64 { return s.rate }

// over is what target a has of target b, round by round.
func over(got [targets][]sample, a, b int, of func(sample) float64) interval {
	var ratios []float64
	for i := range got[a] {
		ratios = append(ratios, of(got[a][i])/of(got[b][i]))
	}
	return bootstrap(ratios)
}

// spent is a server's processor time for each request.
func spent(all []sample, u unit) interval {
	scale := map[unit]float64{microseconds: 1e3, milliseconds: 1e6}[u]
	var x []float64
	for _, s := range all {
		x = append(x, float64(s.cpu)/scale)
	}
	return bootstrap(x)
}

func cpuFigures(id, what string, u unit, got [targets][]sample) (figures []figure) {
	for t := toProxy; t < targets; t++ {
		figures = append(figures, newFigure(id+"_"+short(t), what+", "+targetName(t), u, spent(got[t], u)))
	}
	return figures
}

func latencies(id, what string, got [targets][]sample) (figures []figure) {
	i := over(got, toGateway, toProxy, p50)
	figures = append(figures, newFigure(id+"_p50_proxy", what, ratio, i).against(targetName(toProxy)).held(budget{atMost, 1.3, 1.1}, i, nil))
	for _, t := range [...]int{toFloor, toDirect} {
		figures = append(figures, newFigure(id+"_p50_"+short(t), what, ratio, over(got, toGateway, t, p50)).against(targetName(t)))
	}
	figures = append(figures, newFigure(id+"_floor_proxy", "p50 of two bare Go legs", ratio, over(got, toFloor, toProxy, p50)).against(targetName(toProxy)))
	var us []float64
	for _, s := range got[toGateway] {
		us = append(us, float64(s.p50)/1e3)
	}
	return append(figures, newFigure(id+"_p50", what, microseconds, bootstrap(us)))
}

func rateFigures(got [targets][]sample) (figures []figure) {
	const what = "requests a second at concurrency 16, PD route"
	i := over(got, toGateway, toProxy, rate)
	figures = append(figures, newFigure("gateway.c16_rate_proxy", what, ratio, i).against(targetName(toProxy)).held(budget{atLeast, 0.6, 0.75}, i, nil))
	for _, t := range [...]int{toFloor, toDirect} {
		figures = append(figures, newFigure("gateway.c16_rate_"+short(t), what, ratio, over(got, toGateway, t, rate)).against(targetName(t)))
	}
	figures = append(figures, newFigure("gateway.c16_floor_proxy", "requests a second of two bare Go legs", ratio, over(got, toFloor, toProxy, rate)).against(targetName(toProxy)))
	var persec []float64
	for _, s := range got[toGateway] {
		persec = append(persec, s.rate)
	}
	return append(figures, newFigure("gateway.c16_rate", what, perSecond, bootstrap(persec)))
}

func streams(got [targets][]sample) (figures []figure) {
	const what = "p50 of a stream of 32 events, kept-alive connection"
	i := over(got, toGateway, toDirect, p50)
	figures = append(figures, newFigure("stream.p50_direct", what, ratio, i).against(targetName(toDirect)).held(budget{atMost, 1.8, 1.4}, i, nil))
	for _, t := range [...]int{toProxy, toFloor} {
		figures = append(figures, newFigure("stream.p50_"+short(t)+"_direct", what+", "+targetName(t), ratio, over(got, t, toDirect, p50)).against(targetName(toDirect)))
	}
	return figures
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// row is one comparison: a route, a kind of request, and how many at a time.
type row struct {
	id, title string
	route     route
	body      func() []byte
	conns     int
	ends      string // how an answer ends
	least     int    // calls of a window on each connection
	// judged is what the budget is on, base what it is a ratio to.
	judged measure
	base   string
	budget *budget
	large  bool // processor time and memory are judged, in ms and MB
}

// measure is what a window says of a contender.
type measure string

const (
	byP50  measure = "p50"
	byRate measure = "rate"
	byCPU  measure = "cpu" // for each request
)

// largeSize is a large prompt, in bytes.
const largeSize = 4 << 20

// Ends of answers.
const (
	endsJSON   = "}"
	endsStream = "data: [DONE]\n\n"
)

// chat is the body of a request.
func chat(prompt string, m mode) []byte {
	stream := ""
	if m == streamed {
		stream = `"stream":true,"stream_options":{"include_usage":true},`
	}
	return fmt.Appendf(nil, `{"model":%q,%s"max_tokens":64,"messages":[{"role":"user","content":"%s"}]}`, servedModel, stream, prompt)
}

func shortBody() []byte  { return chat("Which way is it from here to the harbour?", whole) }
func streamBody() []byte { return chat("Which way is it from here to the harbour?", streamed) }
func largeBody() []byte  { return chat(strings.Repeat("0123456789abcde ", largeSize/16), whole) }

// rows lists the comparisons. DESIGN, budgets: each is a ratio in the same run.
func rows() []row {
	const few, some, many = 3, 20, 50
	all := []row{
		{id: "c1", title: "a short chat, one at a time", body: shortBody, conns: 1, ends: endsJSON, least: many, judged: byP50, base: nameProxy},
		{id: "c16", title: "short chats, 16 at a time", body: shortBody, conns: 16, ends: endsJSON, least: many, judged: byRate, base: nameProxy},
		{id: "stream", title: "a stream of 32 events, one at a time", body: streamBody, conns: 1, ends: endsStream, least: some, judged: byP50, base: nameDirect},
		{id: "large", title: "a prompt of 4 MB, one at a time", body: largeBody, conns: 1, ends: endsJSON, least: few, judged: byP50, base: nameProxy, large: true},
	}
	budgets := map[string]*budget{
		"plain_c1": {atMost, 1, 0.85}, "pd_c1": {atMost, 1.3, 1.1},
		"plain_c16": {atLeast, 1, 1.2}, "pd_c16": {atLeast, 0.6, 0.75},
		"plain_stream": {atMost, 1.8, 1.4}, "pd_stream": {atMost, 1.8, 1.4},
		"pd_large": {atMost, 1.4, 1.2},
	}
	var out []row
	for _, r := range all {
		for _, way := range [...]route{plainRoute, pdRoute} {
			r := r
			r.route, r.id = way, string(way)+"_"+r.id
			r.budget = budgets[r.id]
			out = append(out, r)
		}
	}
	return out
}

// sample is one window of a load at one contender. What is not known is NaN.
type sample struct {
	p50, rate, cpu float64 // ns, requests a second, ns for each request
}

func (s sample) of(m measure) float64 {
	return map[measure]float64{byP50: s.p50, byRate: s.rate, byCPU: s.cpu}[m]
}

// Sizes of the comparison: rounds, and how long a window is.
const (
	gatewayRounds = 11
	windowTime    = 300 * time.Millisecond
	gatewayTime   = 20 * time.Minute // on the busiest machine
	rowTime       = time.Minute      // after which a row has no more rounds
)

// gatewayLoad compares the gateway with everything else that can stand before the same
// workers, row by row. Each row has fresh processes; in each round everybody has a turn,
// in another order.
func gatewayLoad(ctx context.Context, s settings) (found, error) {
	var f found
	for _, r := range rows() {
		if s.only != "" && !slices.Contains(strings.Split(s.only, ","), r.id) {
			continue
		}
		fmt.Fprintf(s.says, "  %s: %s, %s ...\n", r.id, r.title, r.route)
		if err := r.measure(ctx, s, &f); err != nil {
			return f, fmt.Errorf("%s: %w", r.id, err)
		}
	}
	return f, nil
}

// measure runs the row and adds what it found.
func (r *row) measure(ctx context.Context, s settings, f *found) (err error) {
	x, err := s.set(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.strike()) }()
	window := span{time.Duration(float64(windowTime) * min(1, s.scale)), max(1, int(float64(r.least)*min(1, s.scale)))}
	for _, c := range slices.Clone(x.stands) { // warm
		if err := x.turn(c, window); err != nil {
			return err
		}
		c.samples = nil
	}
	order := rand.New(rand.NewPCG(uint64(len(x.stands)), 0x9e3779b97f4a7c15))
	err = repeat(ctx, s.count(gatewayRounds), rowTime, func(int) error {
		// A drawn order: in a fixed one everybody would always run after the same neighbour.
		turns := slices.Clone(x.stands)
		for _, i := range order.Perm(len(turns)) {
			if err := x.turn(turns[i], window); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.read(x, f)
	if s.profile != "" {
		return x.profileOurs(ctx)
	}
	return nil
}

// turn is one window at one contender. One of others that fails is left out from now on.
func (x *stage) turn(c *standing, w span) error {
	before, known := c.cpu()
	got, err := c.to.load(x.row.conns, w, x.row.ends)
	if err != nil {
		if i := slices.IndexFunc(contenders(), func(k contender) bool { return k.name == c.name }); contenders()[i].ownName() {
			return fmt.Errorf("bench: %s: %w: %s", c.name, err, c.tail())
		}
		x.drop(c.name, err)
		return nil
	}
	s := sample{p50: float64(got.p50), rate: got.rate, cpu: math.NaN()}
	if after, still := c.cpu(); known && still && len(c.pids) > 0 {
		s.cpu = float64(after-before) / float64(got.calls)
	}
	c.samples = append(c.samples, s)
	return nil
}

// cpu is what all processes of a contender have used.
func (c *standing) cpu() (sum time.Duration, known bool) {
	for _, pid := range c.pids {
		t, ok := cpuOf(pid)
		if !ok {
			return 0, false
		}
		sum += t
	}
	return sum, true
}

// peakRSS is the most memory that its processes had, in bytes, added up.
func (c *standing) peakRSS() float64 {
	sum := 0.0
	for _, pid := range c.pids {
		n, ok := kilobytes(field(fmt.Sprintf("/proc/%d/status", pid), "VmHWM", ":"))
		if !ok {
			return math.NaN()
		}
		sum += float64(n)
	}
	if len(c.pids) == 0 {
		return math.NaN()
	}
	return sum
}

// find is the contender of that name, or nil.
func (x *stage) find(name string) *standing {
	i := slices.IndexFunc(x.stands, func(s *standing) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return x.stands[i]
}

// over is what a has of b, round by round.
func over(a, b *standing, m measure) interval {
	var ratios []float64
	for i := range min(len(a.samples), len(b.samples)) {
		ratios = append(ratios, a.samples[i].of(m)/b.samples[i].of(m))
	}
	return bootstrap(ratios)
}

// values are the samples of a contender in the unit of the tables.
func (c *standing) values(m measure, scale float64) []float64 {
	var out []float64
	for _, s := range c.samples {
		if v := s.of(m); !math.IsNaN(v) {
			out = append(out, v/scale)
		}
	}
	return out
}

// unitOf is the unit of a measure in this row, and what to divide by.
func (r *row) unitOf(m measure) (unit, float64) {
	switch {
	case m == byRate:
		return perSecond, 1
	case r.large:
		return milliseconds, 1e6
	}
	return microseconds, 1e3
}

// read makes cells of all contenders, and figures of ours.
func (r *row) read(x *stage, f *found) {
	for name, why := range x.missing {
		f.leaveOut(name, why)
	}
	base := x.find(r.base)
	for _, c := range x.stands {
		for _, m := range [...]measure{byP50, byRate, byCPU} {
			if m == byCPU && len(c.pids) == 0 {
				continue
			}
			u, scale := r.unitOf(m)
			f.Cells = append(f.Cells, newCell(r, c.name, string(m), u, c.values(m, scale)).over(r.base, over(c, base, m)))
		}
		if len(c.pids) > 0 {
			f.Cells = append(f.Cells, newCell(r, c.name, "rss", megabytes, []float64{c.peakRSS() / 1e6}))
		}
	}
	ours, control := x.find(nameOurs), over(x.find(nameAgain), x.find(nameDirect), r.judged)
	what := measureWords(string(r.judged)) + " of " + r.title + ", " + routeWords(r.route)
	i := over(ours, base, r.judged)
	main := newFigure("gateway."+r.id+"_"+string(r.judged), what, ratio, i).against(r.base).checked(control)
	if r.budget != nil {
		main = main.held(*r.budget, i, blur(control, i))
	}
	f.Figures = append(f.Figures, main)
	if r.route != pdRoute || !r.large {
		return
	}
	cpu, rss := bootstrap(ours.values(byCPU, 1e6)), bootstrap(nil)
	if peak := ours.peakRSS(); !math.IsNaN(peak) {
		rss = exactly(peak / 1e6)
	}
	f.Figures = append(f.Figures,
		newFigure("gateway.pd_large_cpu", "cpu of the gateway for a prompt of 4 MB, "+routeWords(r.route), milliseconds, cpu).held(budget{atMost, 8, 5}, cpu, nil),
		newFigure("gateway.pd_large_rss", "its peak RSS", megabytes, rss).held(budget{atMost, 40, 25}, rss, nil))
}

// routeWords is a route in words.
func routeWords(r route) string {
	if r == pdRoute {
		return "PD route"
	}
	return "plain route"
}

// measureWords is a measure in words.
func measureWords(m string) string {
	return map[string]string{"p50": "p50", "rate": "requests a second", "cpu": "processor time of a request"}[m]
}

// blur is what a ratio near i may differ by although nothing differs: the control is
// direct against direct.
func blur(control, i interval) *interval {
	return &interval{value: (control.value - 1) * i.value, low: (control.low - 1) * i.value, high: (control.high - 1) * i.value, n: control.n}
}

// profileTime is how long a profile is, in seconds.
const profileTime = 8

// profileOurs loads the gateway of this row again, and keeps a profile of the processor
// that it makes of itself meanwhile, and one of all that it allocated.
func (x *stage) profileOurs(ctx context.Context) error {
	c := x.find(nameOurs)
	loaded := make(chan error, 1)
	go func() {
		_, err := c.to.load(x.row.conns, span{time: (profileTime + 1) * time.Second}, x.row.ends)
		loaded <- err
	}()
	base := "http://" + at(c.admin) + "/debug/pprof/"
	err := fetch(ctx, fmt.Sprintf("%sprofile?seconds=%d", base, profileTime), filepath.Join(x.profile, x.row.id+".pprof"))
	if err == nil {
		err = fetch(ctx, base+"allocs", filepath.Join(x.profile, x.row.id+"-allocs.pprof"))
	}
	return errors.Join(err, <-loaded)
}

// fetch writes what a URL answers to a file.
func fetch(ctx context.Context, url, file string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("bench: the gateway gives no profile: %s", resp.Status)
	}
	to, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, resp.Body)
	return errors.Join(err, to.Close())
}

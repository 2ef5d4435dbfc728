package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/internal/worker"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// off is all guards off but those that cost no work and only keep an order: without
// offer a grant can come before prefill knows of the attempt, and is lost; without
// completion and source-hold decode would read pages that are not there yet. The
// arms would not do the same.
const off = handoff.GuardOffer | handoff.GuardCompletion | handoff.GuardSourceHold

// latencyLimit is how long the comparison may take.
const latencyLimit = 50 * time.Second

// streamSize is the length of the stream whose latency is measured, in tokens.
const streamSize = 1500

// latency compares what a client of a running pair of workers sees between two
// tokens, guards on and off. A stream of 1,500 tokens after a 1k prompt runs
// while other 1k prompts are handed to the same decode worker, one after the
// other: their seals and verifications are what can hold the stream up.
func latency(ctx context.Context, s settings) ([]figure, error) {
	if err := guardsCount(ctx); err != nil {
		return nil, err
	}
	// Two workers are two processes, and share the processors as the kernel has it:
	// with too few Ps here, a chunk of prefill would stop decode's goroutines.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4 * runtime.NumCPU()))
	pairs, stop, err := startPairs(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	size := min(streamSize, s.count(streamSize))
	run := func(arm int) ([]float64, error) { return pairs[arm].gaps(ctx, size) }
	if _, err := runBlock(run); err != nil { // warm
		return nil, err
	}
	var p99, p50 []block
	var absolute []float64
	err = repeat(ctx, s.count(15), latencyLimit, func(int) error {
		b, err := runBlock(run)
		if err != nil {
			return err
		}
		p99, p50 = append(p99, b[0]), append(p50, b[1])
		absolute = append(absolute, b[0][armOn][0]/1e3, b[0][armOn][1]/1e3)
		return nil
	})
	if err != nil {
		return nil, err
	}
	itl := budget{atMost, 0.5, 0.1}
	a, b := pairedOf(p99, times), pairedOf(p50, times)
	return []figure{
		pairedFigure("latency.p99", "p99 inter-token latency, hand-offs beside", a).held(itl, a.effect, &a.control),
		pairedFigure("latency.p50", "p50 of the same", b),
		newFigure("latency.p99_on", "p99 inter-token latency, guards on", microseconds, bootstrap(absolute)),
	}, nil
}

// startPairs starts a pair of workers for each arm.
func startPairs(ctx context.Context) (pairs [arms]*workers, stop func(), err error) {
	stop = func() {
		for _, p := range pairs {
			if p != nil {
				p.stop()
			}
		}
	}
	for arm := range pairs {
		g, u := handoff.All, (*kv.Unguarded)(nil)
		if arm == armOff {
			g, u = off, kv.NewUnguarded()
		}
		if pairs[arm], err = startWorkers(ctx, func(c *worker.Config) { c.Guards, c.Unguarded = g, u }); err != nil {
			stop()
			return pairs, nil, err
		}
	}
	return pairs, stop, nil
}

var (
	errOn  = errors.New("bench: with the guards on a hand-off with the wrong digest was served: this measures nothing")
	errOff = errors.New("bench: with the guards off a hand-off with the wrong digest was refused: this measures nothing")
)

// guardsCount is the positive control of the comparison: between workers of
// different digests a hand-off is refused with the guards on and served with
// them off.
func guardsCount(ctx context.Context) error {
	for _, arm := range [...]int{armOn, armOff} {
		p, err := startWorkers(ctx, func(c *worker.Config) {
			if c.Role == wire.RolePrefill {
				c.Digest = digest.GMAC
			}
			if arm == armOff {
				c.Guards, c.Unguarded = off, kv.NewUnguarded()
			}
		})
		if err != nil {
			return err
		}
		_, err = p.ask(ctx, "which digest is it?", 2, whole)
		p.stop()
		switch {
		case arm == armOff && err != nil:
			return fmt.Errorf("%w: %w", errOff, err)
		case arm == armOn && err == nil:
			return errOn
		case arm == armOn && !errors.Is(err, errRefused):
			return err
		}
	}
	return nil
}

// workers is a prefill and a decode worker in this process, linked over loopback
// TCP and asked without HTTP between.
type workers struct {
	passes          *wire.Passer
	host, port      string
	prefill, decode http.Handler
	prompt          string // 1k tokens
	recited         []byte // how an answer to it begins
	stop            func() // ends both and waits for them
}

// startWorkers starts a pair. change may change each configuration.
func startWorkers(ctx context.Context, change func(*worker.Config)) (*workers, error) {
	t, err := newTransports(2, wire.PlainData)
	if err != nil {
		return nil, err
	}
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	w := &workers{}
	if w.passes, err = wire.NewPasser(key[:]); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	w.host, w.port, _ = net.SplitHostPort(addr)
	w.prompt, w.recited = recitation(shortPrompt, 20, 1)
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	w.stop = func() { cancel(); all.Wait() }
	var made [2]*worker.Worker
	for i, x := range [...]struct {
		role wire.Role
		tcp  wire.TCP
		to   *http.Handler
	}{{wire.RolePrefill, t.prefill, &w.prefill}, {wire.RoleDecode, t.decode, &w.decode}} {
		c := worker.Config{
			Role: x.role, Name: x.role.String(), Model: llm.Recall(), ServedName: "recall", Pages: 128,
			Passes: w.passes, Transport: x.tcp, Bootstrap: addr, Peers: []worker.Peer{{Label: addr, Addr: addr}},
		}
		change(&c)
		if made[i], err = worker.New(c); err != nil {
			w.stop()
			return nil, err
		}
		all.Go(func() { _ = made[i].Run(ctx) }) // a pair that cannot run is never linked
		*x.to = made[i].Handler(nil)
	}
	if err := linked(ctx, made[:]); err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

// freeAddr is an address on loopback that was free just now.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

var errLink = errors.New("bench: the workers did not link")

// linked waits until all workers have a link.
func linked(ctx context.Context, all []*worker.Worker) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for all[0].Linked() == 0 || all[1].Linked() == 0 {
		select {
		case <-look.C:
		case <-deadline.C:
			return errLink
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// mode says how an answer is wanted.
type mode int

const (
	whole mode = iota
	streamed
)

// recorder takes an answer and notes when each event of it came.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
	events []time.Time
}

// Header implements [http.ResponseWriter].
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) { r.status = status }

// Write implements [http.ResponseWriter].
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.body.Write(p)
}

// Flush implements [http.Flusher]. Workers flush once for each event.
func (r *recorder) Flush() { r.events = append(r.events, time.Now()) }

var errRefused = errors.New("bench: a worker refused")

// ask sends both legs of one request and returns what decode answered. Its cache
// domain shares with nobody, so that every prompt is computed and handed over.
func (w *workers) ask(ctx context.Context, prompt string, output int, m mode) (*recorder, error) {
	var id [24]byte
	_, _ = rand.Read(id[:]) // never fails
	call := func(h http.Handler, output int, m mode) (*recorder, error) {
		room := int64(id[16])<<8 | int64(id[17])<<16 | int64(id[18])<<24 | int64(id[19])<<32 | 1
		body, err := json.Marshal(map[string]any{
			"model": "recall", "prompt": prompt, "max_tokens": output, "temperature": 0, "stream": m == streamed,
			"rid": hex.EncodeToString(id[:]), "bootstrap_host": w.host, "bootstrap_port": json.Number(w.port), "bootstrap_room": room,
		})
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set(worker.PassHeader, w.passes.Mint(handoff.Attempt(id[:16]), kv.Domain{}, time.Now().Add(time.Minute), room, body))
		r := &recorder{header: http.Header{}, events: make([]time.Time, 0, output+8)}
		if aborted(h, r, req) {
			return r, cmp.Or(context.Cause(ctx), errRefused)
		}
		if r.status != http.StatusOK {
			return r, fmt.Errorf("%w with status %d", errRefused, r.status)
		}
		return r, nil
	}
	var failed error
	var prefill sync.WaitGroup
	prefill.Go(func() { _, failed = call(w.prefill, 1, whole) })
	r, err := call(w.decode, output, m)
	prefill.Wait()
	return r, errors.Join(err, failed)
}

// aborted serves a request as an http.Server would, and reports whether the
// handler gave it up: its client, that is this run, had left.
func aborted(h http.Handler, w http.ResponseWriter, r *http.Request) (gone bool) {
	defer func() {
		p := recover()
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			gone = true
		} else if p != nil {
			panic(p)
		}
	}()
	h.ServeHTTP(w, r)
	return false
}

var errShort = errors.New("bench: a stream ended before its length: the arms do not do the same work")

// check holds that a stream has its length and begins as it must.
func (w *workers) check(stream []byte) error {
	var text []byte
	finish := ""
	for line := range bytes.Lines(stream) {
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: {"))
		if !ok {
			continue
		}
		var v struct {
			Choices []struct {
				Text   string
				Finish string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal(append([]byte("{"), data...), &v); err != nil || len(v.Choices) != 1 {
			return errShape
		}
		if text, finish = append(text, v.Choices[0].Text...), v.Choices[0].Finish; finish != "" && finish != "length" {
			return errShort
		}
	}
	if finish == "" {
		return errShort
	}
	if !bytes.HasPrefix(text, w.recited) {
		return errAnswer
	}
	return nil
}

// gaps runs one stream beside hand-offs, and returns p99 and p50 of the times
// between its events, in nanoseconds.
func (w *workers) gaps(ctx context.Context, size int) ([]float64, error) {
	beside, cancel := context.WithCancel(ctx)
	defer cancel()
	var others sync.WaitGroup
	others.Go(func() {
		for beside.Err() == nil {
			if _, err := w.ask(beside, w.prompt, 2, whole); err != nil {
				return // the stream is over, or will say what is wrong
			}
		}
	})
	r, err := w.ask(ctx, w.prompt, size, streamed)
	cancel()
	others.Wait()
	if err != nil {
		return nil, err
	}
	if err := w.check(r.body.Bytes()); err != nil {
		return nil, err
	}
	var gaps []float64
	for i := 1; i < len(r.events); i++ {
		gaps = append(gaps, float64(r.events[i].Sub(r.events[i-1])))
	}
	return []float64{quantile(gaps, 0.99), quantile(gaps, 0.5)}, nil
}

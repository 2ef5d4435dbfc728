package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/internal/telemetry"
	"bulkhead.dev/bulkhead/internal/worker"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// runWorker is bulkhead worker.
func runWorker(ctx context.Context, sys System, args []string) error {
	f := flags(sys, "worker", "run one prefill or decode worker")
	path := f.String("config", "", "configuration `FILE`; - reads it from the parent's pipe and stops when that closes")
	role := f.String("role", "", "refuse to start unless the configuration has this role")
	open := f.Bool("open-dialect", false, "also serve requests without the gateway's pass, as routers of SGLang send them; whoever reaches the worker can then ask it")
	if err := parse(f, args); err != nil {
		return err
	}
	sys.private()
	c, ctx, cancel, src, err := loadWorker(ctx, sys, *path, *open)
	if err != nil {
		return err
	}
	defer cancel()
	if *role != "" && *role != c.Role {
		return usage("the configuration is of a %s worker, --role says %s", c.Role, *role)
	}
	out := telemetry.NewAsync(sys.Stderr)
	defer out.Close(logTime)
	tel := telemetry.New(c.Role, slog.New(slog.NewTextHandler(out, nil)).With("worker", c.Name))
	w, err := newWorker(c, sys, src, tel)
	if err != nil {
		return err
	}
	ln, err := workerListener(c, sys, src)
	if err != nil {
		return err
	}
	tel.Log(out)
	gauges(tel, w)
	if c.OpenDialect {
		borrowed(tel, w, c)
	}
	return serveWorker(ctx, w, ln, tel)
}

// HTTP server limits of a worker and of the admin listener.
const (
	headerTime = 10 * time.Second
	idleTime   = 120 * time.Second
	headerMax  = 64 << 10
)

// logTime bounds the wait for log lines that are not written yet.
const logTime = time.Second

// inherited is the address of a listener that the parent opened and passed on.
const inherited = "inherited"

// workerListener opens the worker's HTTP side.
func workerListener(c config.Worker, sys System, src source) (net.Listener, error) {
	r := &secretReader{sys: sys}
	cert := r.certificate("http_tls", c.HTTPTLS)
	if err := r.Err(); err != nil {
		return nil, err
	}
	ln, err := openWorker(c, src)
	if err != nil {
		return nil, fmt.Errorf("cli: listen: %w", err)
	}
	if cert != nil {
		ln = overTLS(ln, func() *tls.Certificate { return cert })
	}
	return ln, nil
}

// openWorker opens the port, or takes it over from the parent. A parent keeps it open
// while a worker is dead, so that nobody else can take its place.
func openWorker(c config.Worker, src source) (net.Listener, error) {
	if c.Listen != inherited || src != fromParent {
		return net.Listen("tcp", c.Listen)
	}
	file := os.NewFile(firstPassed, inherited)
	defer file.Close()
	return net.FileListener(file)
}

// loadWorker reads a worker's configuration from a file, or from the parent's pipe. open
// opens its dialect, whatever the configuration says.
func loadWorker(ctx context.Context, sys System, path string, open bool) (c config.Worker, _ context.Context, cancel context.CancelFunc, src source, err error) {
	var r io.Reader
	switch path {
	case "":
		return c, nil, nil, fromFile, usage("--config is required")
	case "-":
		src = fromParent
		if ctx, cancel, r, err = fromParentInput(ctx, sys.Stdin); err != nil {
			return c, nil, nil, src, err
		}
	default:
		file, err := os.Open(path)
		if err != nil {
			return c, nil, nil, src, exit{exitUsage, err}
		}
		defer file.Close()
		ctx, cancel = context.WithCancel(ctx)
		r = file
	}
	if c, err = config.DecodeWorker(r); err == nil {
		c.OpenDialect = c.OpenDialect || open
		err = c.Check()
	}
	if err != nil {
		cancel()
	}
	return c, ctx, cancel, src, asUsage(err)
}

// newWorker joins a worker from its configuration.
func newWorker(c config.Worker, sys System, src source, tel *telemetry.Set) (*worker.Worker, error) {
	role, err := wire.ParseRole(c.Role)
	if err != nil {
		return nil, err
	}
	alg, err := digest.Parse(c.Digest)
	if err != nil {
		return nil, usage("configuration: digest: want xxh3 or gmac")
	}
	passer, err := workerPasser(c, sys, src)
	if err != nil {
		return nil, err
	}
	control, err := resolve(c.ControlKey, sys, src, "control_key")
	if err != nil {
		return nil, err
	}
	transport, err := transport(c, sys, src)
	if err != nil {
		return nil, err
	}
	wc := worker.Config{
		Role: role, Name: c.Name, Model: llm.Recall(), ServedName: c.Model,
		PageTokens: c.PageSize, Pages: c.Pages, Window: c.Window, Digest: alg,
		Passes: passer, Control: control, Transport: transport, Bootstrap: c.Bootstrap,
		OpenDialect: c.OpenDialect, Chunk: c.Chunk, Batch: c.Batch, Threads: c.Threads, Attempts: c.Attempts, Events: workerEvents{tel},
	}
	for _, p := range c.Peers {
		wc.Peers = append(wc.Peers, worker.Peer{Label: p.Label, Addr: p.Addr})
	}
	return worker.New(wc)
}

// workerPasser checks passes under the key that the gateway has too. A worker that serves
// without passes may have none; then a random one lets no pass through.
func workerPasser(c config.Worker, sys System, src source) (*wire.Passer, error) {
	if c.PassKey == "" && c.OpenDialect {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // it never fails
		return wire.NewPasser(key)
	}
	text, err := resolve(c.PassKey, sys, src, "pass_key")
	if err != nil {
		return nil, err
	}
	key, err := hexKey(text)
	if err != nil {
		return nil, usage("configuration: pass_key: %w", err)
	}
	return wire.NewPasser(key)
}

// workerEvents passes a worker's events to telemetry.
type workerEvents struct{ tel *telemetry.Set }

func (e workerEvents) Event(x worker.Event) {
	if x.Kind == worker.AttemptEnded {
		e.tel.Attempt(x.Code.String(), x.Prompt, x.Output)
	}
	attrs := []slog.Attr{}
	if x.Attempt != (worker.Event{}).Attempt {
		attrs = append(attrs, slog.String("attempt", hex.EncodeToString(x.Attempt[:])))
	}
	if x.Kind == worker.AttemptEnded {
		attrs = append(attrs, slog.String("code", x.Code.String()), slog.Int("prompt", x.Prompt), slog.Int("output", x.Output))
	}
	if x.Peer != "" {
		attrs = append(attrs, slog.String("peer", x.Peer))
	}
	if x.Reason != "" {
		attrs = append(attrs, slog.String("reason", x.Reason))
	}
	e.tel.Event(x.Kind.String(), attrs...)
}

// gauges shows the worker's pool and links.
func gauges(tel *telemetry.Set, w *worker.Worker) {
	pages := func(name, help string, of func(kv.Counts) int) {
		tel.Gauge(name, help, func() float64 { return float64(of(w.Pool())) })
	}
	pages("pages_total", "Pages of the KV pool.", func(c kv.Counts) int { return c.Total })
	pages("pages_free", "Free pages of the KV pool.", func(c kv.Counts) int { return c.Free })
	pages("pages_quarantined", "Pages that wait for proof of quiet.", func(c kv.Counts) int { return c.Quarantined })
	tel.Gauge("links", "Live links to peers.", func() float64 { return float64(w.Linked()) })
}

// borrowed shows the load under the names that routers and dashboards of SGLang look for.
func borrowed(tel *telemetry.Set, w *worker.Worker, c config.Worker) {
	labels := map[string]string{"model_name": c.Model, "engine_type": c.Role}
	used := func(s worker.Status) float64 { return float64(s.Counts.Total-s.Counts.Free) * float64(c.PageSize) }
	for _, g := range [...]struct {
		name, help string
		of         func(worker.Status) float64
	}{
		{"num_running_reqs", "Requests that run.", func(s worker.Status) float64 { return float64(s.Attempts - s.Waiting) }},
		{"num_queue_reqs", "Requests that wait.", func(s worker.Status) float64 { return float64(s.Waiting) }},
		{"num_used_tokens", "Tokens in the KV pool.", used},
		{"token_usage", "Part of the KV pool that is in use.", func(s worker.Status) float64 { return used(s) / max(1, float64(s.Counts.Total*c.PageSize)) }},
		{"max_total_num_tokens", "Tokens that the KV pool holds.", func(s worker.Status) float64 { return float64(s.Counts.Total * c.PageSize) }},
	} {
		tel.Borrowed("sglang:"+g.name, g.help, labels, func() float64 { return g.of(w.Status()) })
	}
}

// drainTime bounds how long answers may go on after a worker was told to stop.
const drainTime = 5 * time.Second

// serveWorker runs a worker and its HTTP side until ctx ends.
func serveWorker(ctx context.Context, w *worker.Worker, ln net.Listener, tel *telemetry.Set) error {
	srv := &http.Server{
		Handler: w.Handler(tel.Handler()), ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerMax,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	run, stop := context.WithCancel(context.Background())
	defer stop()
	var all sync.WaitGroup
	errs := make(chan error, 2)
	all.Go(func() { errs <- w.Run(run) })
	all.Go(func() { errs <- srv.Serve(ln) })
	var err error
	select {
	case err = <-errs:
	case <-ctx.Done():
	}
	if !shutdown(srv, drainTime) {
		_ = srv.Close() // it says only that a listener was closed already
	}
	stop()
	all.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

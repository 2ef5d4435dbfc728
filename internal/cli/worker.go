package cli

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

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
	path := f.String("config", "", "configuration file; - reads it from the parent's pipe and stops when that closes")
	role := f.String("role", "", "refuse to start unless the configuration has this role")
	if err := parse(f, args); err != nil {
		return err
	}
	sys.private()
	c, ctx, cancel, src, err := loadWorker(ctx, sys, *path)
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
	ln, err := c.listen(sys, src)
	if err != nil {
		return err
	}
	gauges(tel, w)
	return serveWorker(ctx, w, ln, tel)
}

// logTime bounds the wait for log lines that are not written yet.
const logTime = time.Second

// inherited is the address of a listener that the parent opened and passed on.
const inherited = "inherited"

// listen opens the worker's HTTP side.
func (c *WorkerConfig) listen(sys System, src source) (net.Listener, error) {
	r := &secretReader{sys: sys}
	cert := r.certificate("http_tls", c.HTTPTLS)
	if err := r.err(); err != nil {
		return nil, err
	}
	ln, err := c.open(src)
	if err != nil {
		return nil, fmt.Errorf("cli: listen: %w", err)
	}
	if cert != nil {
		ln = overTLS(ln, func() *tls.Certificate { return cert })
	}
	return ln, nil
}

// open opens the port, or takes it over from the parent. A parent keeps it open
// while a worker is dead, so that nobody else can take its place.
func (c *WorkerConfig) open(src source) (net.Listener, error) {
	if c.Listen != inherited || src != fromParent {
		return net.Listen("tcp", c.Listen)
	}
	file := os.NewFile(firstPassed, inherited)
	defer file.Close()
	return net.FileListener(file)
}

func loadWorker(ctx context.Context, sys System, path string) (WorkerConfig, context.Context, context.CancelFunc, source, error) {
	var none WorkerConfig
	switch path {
	case "":
		return none, nil, nil, fromFile, usage("--config is required")
	case "-":
		ctx, cancel, r, err := fromParentInput(ctx, sys.Stdin)
		if err != nil {
			return none, nil, nil, fromParent, err
		}
		c, err := decodeWorker(r)
		return c, ctx, cancel, fromParent, err
	}
	file, err := os.Open(path)
	if err != nil {
		return none, nil, nil, fromFile, exit{exitUsage, err}
	}
	defer file.Close()
	c, err := decodeWorker(file)
	ctx, cancel := context.WithCancel(ctx)
	return c, ctx, cancel, fromFile, err
}

// newWorker joins a worker from its configuration.
func newWorker(c WorkerConfig, sys System, src source, tel *telemetry.Set) (*worker.Worker, error) {
	role, err := wire.ParseRole(c.Role)
	if err != nil {
		return nil, err
	}
	alg, err := digest.Parse(c.Digest)
	if err != nil {
		return nil, usage("configuration: digest: want xxh3 or gmac")
	}
	passText, err := c.PassKey.resolve(sys, src, "pass_key")
	if err != nil {
		return nil, err
	}
	key, err := hexKey("configuration: pass_key", passText)
	if err != nil {
		return nil, err
	}
	passer, err := wire.NewPasser(key)
	if err != nil {
		return nil, err
	}
	control, err := c.ControlKey.resolve(sys, src, "control_key")
	if err != nil {
		return nil, err
	}
	transport, err := c.transport(sys, src)
	if err != nil {
		return nil, err
	}
	wc := worker.Config{
		Role: role, Name: c.Name, Model: llm.Recall(), ServedName: c.Model,
		PageTokens: c.PageSize, Pages: c.Pages, Window: c.Window, Digest: alg,
		Passes: passer, Control: control, Transport: transport, Bootstrap: c.Bootstrap,
		Chunk: c.Chunk, Batch: c.Batch, Threads: c.Threads, Attempts: c.Attempts, Events: workerEvents{tel},
	}
	for _, p := range c.Peers {
		wc.Peers = append(wc.Peers, worker.Peer{Label: p.Label, Addr: p.Addr})
	}
	return worker.New(wc)
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

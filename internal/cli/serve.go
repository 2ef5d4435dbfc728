package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bulkhead.dev/bulkhead/internal/admin"
	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/telemetry"
)

// server is bulkhead serve at work. One goroutine owns it; what others look at is
// atomic, or behind the front.
type server struct {
	sys   System
	load  func(gateway.Events) (*site, error)
	out   *lineWriter
	tel   *telemetry.Set
	since time.Time

	config   config.Serve // in force
	front    *gateway.Front
	cert     atomic.Pointer[tls.Certificate]
	keys     atomic.Pointer[[]time.Time] // when API keys expire
	draining atomic.Bool
	waits    atomic.Bool // a reload does, for an earlier configuration to end
	missing  func()      // says soon which engines take no requests
}

// runServe is bulkhead serve.
func runServe(ctx context.Context, sys System, args []string) error {
	f := flags(sys, "serve", "run the gateway in front of engines\n"+
		"SIGHUP reads the configuration again; SIGTERM or an interrupt lets the answers\n"+
		"in progress end, and stops.\n\n"+
		"Without a file it takes sglang-router's flags, and all callers are one tenant:\n"+quickUsage)
	path := f.String("config", "", "configuration `FILE`; see bulkhead config init and docs/config.md")
	if isQuick(args) {
		return serveQuick(ctx, sys, args)
	}
	if err := parse(f, args); err != nil {
		return err
	}
	if *path == "" {
		return usage("--config is required; or, without a file, --worker-urls, or --prefill and --decode")
	}
	return serve(ctx, sys, func(events gateway.Events) (*site, error) { return loadSite(sys, *path, events) })
}

// serve runs the gateway of the configuration that load reads, again and again.
func serve(ctx context.Context, sys System, load func(gateway.Events) (*site, error)) error {
	reloads := sys.Reloads() // from here on SIGHUP does not end the process
	sys.private()
	out := &lineWriter{w: sys.Stderr}
	lines := telemetry.NewAsync(out)
	defer lines.Close(logTime)
	s := &server{
		sys: sys, load: load, out: out, since: time.Now(),
		tel: telemetry.New("gateway", slog.New(slog.NewTextHandler(lines, nil))),
	}
	s.tel.Log(lines)
	return s.run(ctx, reloads)
}

// next reads the configuration.
func (s *server) next() (*site, error) {
	events := gatewayEvents{s.tel}
	n, err := s.load(events)
	if err == nil {
		n.gateway.Fleet = events.Fleet
	}
	return n, err
}

// take makes a configuration the one in force.
func (s *server) take(n *site) {
	s.config = n.config
	s.cert.Store(n.cert)
	s.keys.Store(&n.keys)
}

func (s *server) run(ctx context.Context, reloads <-chan os.Signal) error {
	first, err := s.next()
	if err != nil {
		return err
	}
	s.take(first)
	ln, err := listenOn("listen", string(s.config.Listen))
	if err != nil {
		return err
	}
	defer ln.Close() // the server closes it too; a second close is harmless
	url := "http://" + ln.Addr().String()
	if first.cert != nil {
		url, ln = "https://"+ln.Addr().String(), overTLS(ln, s.cert.Load)
	}
	adminURL := "off"
	var adminLn net.Listener
	if s.config.Admin.Listen != config.Off {
		if adminLn, err = listenOn("admin.listen", string(s.config.Admin.Listen)); err != nil {
			return err
		}
		defer adminLn.Close() // see above
		adminURL = "http://" + adminLn.Addr().String()
	}
	if s.front, err = gateway.NewFront(first.gateway); err != nil {
		return err
	}
	s.tel.State(s.state)
	defer s.export(first.otlp)()
	defer s.serveAdmin(adminLn)()
	s.note(first.notes)
	fmt.Fprintf(s.sys.Stdout, "Bulkhead %s serves %s at %s\n  admin  %s\n", Version, count(first.config), url, adminURL)
	var saying sync.WaitGroup
	defer saying.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	s.missing = func() {
		b := bounds(s.config.Bounds)
		saying.Go(func() { s.sayMissing(ctx, b) })
	}
	s.missing()
	var handler http.Handler = s.front
	if first.open != "" {
		handler = asOneTenant(first.open, s.front)
	}
	return serveWhile(ln, s.front, handler, func(failed <-chan error) error {
		defer s.draining.Store(true)
		return s.watch(ctx, reloads, failed)
	}, func() time.Duration { return time.Duration(s.config.Drain) })
}

// listenOn listens on the address of a setting.
func listenOn(setting, addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, usage("configuration: %s: cannot listen on %s: %v", setting, addr, cause(err))
	}
	return ln, nil
}

// count says how much a configuration has.
func count(c config.Serve) string {
	pairs, nodes := 0, 0
	for _, m := range c.Models {
		pairs += len(m.Pairs)
		nodes += len(m.Nodes) + len(m.Prefill) + len(m.Decode)
	}
	of := func(n int, what string) string {
		if n != 1 {
			what += "s"
		}
		return strconv.Itoa(n) + " " + what
	}
	all := []string{of(len(c.Tenants), "tenant"), of(len(c.Models), "model")}
	if pairs > 0 {
		all = append(all, of(pairs, "pair"))
	}
	if nodes > 0 {
		all = append(all, of(nodes, "node"))
	}
	return strings.Join(all, ", ")
}

func (s *server) note(notes []string) {
	for _, n := range notes {
		s.out.line("note: %s", n)
	}
}

// watch waits for the end, and reads the configuration again when it is told to.
func (s *server) watch(ctx context.Context, reloads <-chan os.Signal, failed <-chan error) error {
	var eased <-chan struct{} // while a reload waits
	for {
		select {
		case <-ctx.Done():
			what := "and ends"
			if n := s.front.Status().InFlight; n > 0 {
				what = fmt.Sprintf("and ends with those in progress (%d), within %s", n, time.Duration(s.config.Drain))
			}
			s.out.line("bulkhead serve: it takes no more requests, %s", what)
			return nil
		case err := <-failed:
			return err
		case <-reloads:
			eased = s.tryReload(ctx)
		case <-eased:
			eased = s.tryReload(ctx)
		}
	}
}

// tryReload reloads, and says why it does not. Where it has to wait for requests of an
// earlier configuration, it returns what says when to try again.
func (s *server) tryReload(ctx context.Context) (again <-chan struct{}) {
	eased := s.front.Eased()
	select {
	case <-eased: // before this one
	default:
	}
	err := s.reload(ctx)
	if ctx.Err() != nil {
		return nil
	}
	s.waits.Store(errors.Is(err, gateway.ErrEarlier))
	switch {
	case s.waits.Load():
		s.tel.Event("reload_waits")
		s.out.line("bulkhead serve: reload waits, the configuration in force stays: requests of %d earlier ones are in progress; when those of one have ended, the file is read anew", s.front.Status().Earlier)
		return eased
	case err != nil:
		s.tel.Event("reload_refused")
		s.out.line("bulkhead serve: reload refused, the configuration in force stays: %s", strings.TrimPrefix(err.Error(), "cli: "))
	}
	return nil
}

// reload reads the configuration again. It is taken over whole, or not at all;
// requests in progress end under the one that they began with.
func (s *server) reload(ctx context.Context) error {
	next, err := s.next()
	if err != nil {
		return err
	}
	if err := follows(s.config, next.config); err != nil {
		return err
	}
	if err := s.front.Exchange(ctx, next.gateway); err != nil {
		return err
	}
	s.take(next)
	s.note(next.notes)
	s.missing()
	s.tel.Event("reloaded", slog.String("configuration", count(next.config)))
	return nil
}

// follows says which setting of next cannot be changed while serving.
func follows(c, next config.Serve) error {
	var telemetry, nextTelemetry config.Telemetry
	if c.Telemetry != nil {
		telemetry = *c.Telemetry
	}
	if next.Telemetry != nil {
		nextTelemetry = *next.Telemetry
	}
	for _, s := range [...]struct {
		name string
		same bool
	}{
		{"listen", c.Listen == next.Listen},
		{"tls", (c.TLS == nil) == (next.TLS == nil)},
		{"admin", c.Admin == next.Admin},
		{"telemetry", telemetry == nextTelemetry},
	} {
		if !s.same {
			return usage("configuration: %s: it changes only when serve is started anew", s.name)
		}
	}
	return nil
}

// export sends the metrics to a collector, if there is one, and returns what ends that.
func (s *server) export(key string) (end func()) {
	t := s.config.Telemetry
	if t == nil {
		return func() {}
	}
	var instance [8]byte
	_, _ = rand.Read(instance[:]) // it never fails
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		s.tel.Export(ctx, telemetry.Export{
			URL: string(t.OTLP), Every: time.Duration(t.Every), Key: key, Version: Version, Instance: hex.EncodeToString(instance[:]),
			Start: s.since, Now: time.Now,
		})
	})
	return func() {
		stop()
		running.Wait()
	}
}

// serveAdmin serves the operator, if there is a listener, and returns what ends it.
func (s *server) serveAdmin(ln net.Listener) (end func()) {
	if ln == nil {
		return func() {}
	}
	srv := &http.Server{
		Handler: admin.Handler(admin.Answers{
			Metrics: s.tel.Handler(), Ready: s.status, Explain: s.explain, Posture: s.posture, Shadow: s.shadow,
			Profiles: s.config.Admin.Pprof,
		}),
		ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerMax,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	var served sync.WaitGroup
	served.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.tel.Event("admin_failed")
			s.out.line("bulkhead serve: the admin listener ended: %v", cause(err))
		}
	})
	return func() {
		_ = srv.Close() // it says only that the listener was closed already
		served.Wait()
	}
}

package cli

import (
	"context"
	"crypto/tls"
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

	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/telemetry"
)

// server is bulkhead serve at work. One goroutine owns it; what others look at is
// atomic, or behind the front.
type server struct {
	sys  System
	path string
	out  *lineWriter
	tel  *telemetry.Set

	config   ServeConfig // in force
	front    *gateway.Front
	cert     atomic.Pointer[tls.Certificate]
	draining atomic.Bool
}

// runServe is bulkhead serve.
func runServe(ctx context.Context, sys System, args []string) error {
	f := flags(sys, "serve", "run the gateway in front of worker pairs\n"+
		"SIGHUP reads the configuration again; SIGTERM or an interrupt lets the answers in progress end, and stops")
	path := f.String("config", "", "configuration file; see bulkhead config init and docs/config.md")
	if err := parse(f, args); err != nil {
		return err
	}
	if *path == "" {
		return usage("--config is required")
	}
	reloads := sys.Reloads() // from here on SIGHUP does not end the process
	sys.private()
	out := &lineWriter{w: sys.Stderr}
	lines := telemetry.NewAsync(out)
	defer lines.Close(logTime)
	s := &server{sys: sys, path: *path, out: out, tel: telemetry.New("gateway", slog.New(slog.NewTextHandler(lines, nil)))}
	return s.run(ctx, reloads)
}

func (s *server) load() (*site, error) { return loadSite(s.sys, s.path, gatewayEvents{s.tel}) }

func (s *server) run(ctx context.Context, reloads <-chan os.Signal) error {
	first, err := s.load()
	if err != nil {
		return err
	}
	s.config = first.config
	s.cert.Store(first.cert)
	ln, err := listenOn("listen", s.config.Listen)
	if err != nil {
		return err
	}
	defer ln.Close() // the server closes it too; a second close is harmless
	url := "http://" + ln.Addr().String()
	if first.cert != nil {
		url, ln = "https://"+ln.Addr().String(), overTLS(ln, s.cert.Load)
	}
	admin := "off"
	var adminLn net.Listener
	if s.config.Admin.Listen != off {
		if adminLn, err = listenOn("admin.listen", s.config.Admin.Listen); err != nil {
			return err
		}
		defer adminLn.Close() // see above
		admin = "http://" + adminLn.Addr().String()
	}
	if s.front, err = gateway.NewFront(first.gateway); err != nil {
		return err
	}
	defer s.serveAdmin(adminLn)()
	s.note(first.notes)
	fmt.Fprintf(s.sys.Stdout, "Bulkhead %s serves %s at %s\n  admin  %s\n", Version, count(first.config), url, admin)
	return serveWhile(ln, s.front, func(failed <-chan error) error {
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
func count(c ServeConfig) string {
	pairs := 0
	for _, m := range c.Models {
		pairs += len(m.Pairs)
	}
	of := func(n int, what string) string {
		if n != 1 {
			what += "s"
		}
		return strconv.Itoa(n) + " " + what
	}
	return of(len(c.Tenants), "tenant") + ", " + of(len(c.Models), "model") + ", " + of(pairs, "pair")
}

func (s *server) note(notes []string) {
	for _, n := range notes {
		s.out.line("note: %s", n)
	}
}

// watch waits for the end, and reads the configuration again when it is told to.
func (s *server) watch(ctx context.Context, reloads <-chan os.Signal, failed <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-reloads:
			if err := s.reload(ctx); err != nil && ctx.Err() == nil {
				s.tel.Event("reload_refused")
				s.out.line("bulkhead serve: reload refused, the configuration in force stays: %s", strings.TrimPrefix(err.Error(), "cli: "))
			}
		}
	}
}

// reload reads the configuration again. It is taken over whole, or not at all;
// requests in progress end under the one that they began with.
func (s *server) reload(ctx context.Context) error {
	next, err := s.load()
	if err != nil {
		return err
	}
	if err := s.config.follows(next.config); err != nil {
		return err
	}
	if err := s.front.Exchange(ctx, next.gateway); err != nil {
		return err
	}
	s.config = next.config
	s.cert.Store(next.cert)
	s.note(next.notes)
	s.tel.Event("reloaded", slog.String("configuration", count(next.config)))
	return nil
}

// follows says which setting of next cannot be changed while serving.
func (c *ServeConfig) follows(next ServeConfig) error {
	for _, s := range [...]struct {
		name string
		same bool
	}{
		{"listen", c.Listen == next.Listen},
		{"tls", (c.TLS == nil) == (next.TLS == nil)},
		{"admin", c.Admin == next.Admin},
	} {
		if !s.same {
			return usage("configuration: %s: it changes only when serve is started anew", s.name)
		}
	}
	return nil
}

// serveAdmin serves the operator, if there is a listener, and returns what ends it.
func (s *server) serveAdmin(ln net.Listener) (end func()) {
	if ln == nil {
		return func() {}
	}
	s.tel.Gauge("requests_in_flight", "Requests in progress.", func() float64 { return float64(s.front.Status().InFlight) })
	s.tel.Gauge("pairs_ready", "Pairs that take requests.", func() float64 {
		ready := 0
		for _, p := range s.front.Status().Pairs {
			if p.Ready {
				ready++
			}
		}
		return float64(ready)
	})
	srv := &http.Server{
		Handler:           adminHandler(s.tel.Handler(), s.status, s.config.Admin.Pprof),
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

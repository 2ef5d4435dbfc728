package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/telemetry"
	"bulkhead.dev/bulkhead/internal/upstream"
	"bulkhead.dev/bulkhead/wire"
)

// upFlags are the flags of bulkhead up.
type upFlags struct {
	host                             string
	port, prefill, decode, bootstrap int
	pages, pageSize, window          int
	digest                           string
	verbose, open                    bool
}

// up is bulkhead up: a gateway in this process and two workers as children.
func up(ctx context.Context, sys System, args []string) error {
	var o upFlags
	f := flags(sys, "up", "run a gateway, a prefill and a decode worker on this machine")
	f.StringVar(&o.host, "host", "127.0.0.1", "address to listen on; anything but loopback is open to your network")
	f.IntVar(&o.port, "port", 8080, "port of the gateway; 0 takes a free one")
	f.IntVar(&o.prefill, "prefill-port", 0, "HTTP port of the prefill worker; 0 takes a free one")
	f.IntVar(&o.decode, "decode-port", 0, "HTTP port of the decode worker; 0 takes a free one")
	f.IntVar(&o.bootstrap, "bootstrap-port", 0, "port where decode connects to prefill; 0 takes a free one")
	f.IntVar(&o.pages, "pages", 512, "KV pool of each worker, in pages")
	f.IntVar(&o.pageSize, "page-size", 64, "tokens of a page: 64 or 16")
	f.IntVar(&o.window, "window", 0, "longest prompt plus output, in tokens; 0 means the pool")
	f.StringVar(&o.digest, "digest", "xxh3", "page digest: xxh3 or gmac")
	f.BoolVar(&o.verbose, "v", false, "log requests and events to standard error")
	f.BoolVar(&o.open, "open-dialect", false, "the workers also serve requests without the gateway's pass, as routers of SGLang send them")
	if err := parse(f, args); err != nil {
		return err
	}
	sys.private()
	return o.run(ctx, sys)
}

func (o *upFlags) run(ctx context.Context, sys System) error {
	ln, err := claim(o.host, &o.port, "port")
	if err != nil {
		return err
	}
	defer ln.Close() // the server closes it too; a second close is harmless
	var held []net.Listener
	for _, p := range []struct {
		port *int
		flag string
	}{{&o.prefill, "prefill-port"}, {&o.decode, "decode-port"}, {&o.bootstrap, "bootstrap-port"}} {
		one, err := claim("127.0.0.1", p.port, p.flag)
		if err != nil {
			return err
		}
		defer one.Close() // closed before, if a child takes its port
		held = append(held, one)
	}
	keys, err := newSiteKeys()
	if err != nil {
		return err
	}
	configs, err := o.workers(keys)
	if err != nil {
		return err
	}
	out := &lineWriter{w: sys.Stderr}
	logTo := io.Discard
	if o.verbose {
		lines := telemetry.NewAsync(out)
		defer lines.Close(logTime)
		logTo = lines
	}
	tel := telemetry.New("gateway", slog.New(slog.NewTextHandler(logTo, nil)))
	var children []*child
	for i, c := range configs {
		if _, err := newWorker(c, sys, fromParent, tel); err != nil {
			return usage("--pages, --page-size, --window or --digest: %v", err)
		}
		ch, err := newChild(c, held[i], out, o.verbose)
		if err != nil {
			return err
		}
		children = append(children, ch)
	}
	_ = held[len(held)-1].Close() // prefill binds it: without a certificate nobody can play its part there
	text, front, err := o.gateway(keys, tel)
	if err != nil {
		return err
	}
	return o.serve(ctx, sys, ln, front, children, text)
}

// claim listens on a port, or says which flag to change. Port 0 is replaced by
// the one that was taken.
func claim(host string, port *int, flag string) (net.Listener, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(*port)))
	if err != nil {
		return nil, usage("cannot listen on %s:%d: choose another with --%s (%v)", host, *port, flag, cause(err))
	}
	*port = ln.Addr().(*net.TCPAddr).Port
	return ln, nil
}

// cause is the innermost error.
func cause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// siteKeys are the secrets that a gateway and its workers share.
type siteKeys struct {
	pass, control, pepper, domain []byte
	authority                     *wire.Authority
}

func newSiteKeys() (*siteKeys, error) {
	k := &siteKeys{}
	for _, b := range []*[]byte{&k.pass, &k.control, &k.pepper, &k.domain} {
		*b = make([]byte, 32)
		if _, err := io.ReadFull(rand.Reader, *b); err != nil {
			return nil, err
		}
	}
	ca, err := wire.NewAuthority(time.Now(), credentialLife)
	k.authority = ca
	return k, err
}

// worker adds to a worker's configuration what all workers of the site share.
func (k *siteKeys) worker(c config.Worker) (config.Worker, error) {
	role, err := wire.ParseRole(c.Role)
	if err != nil {
		return c, err
	}
	cred, err := k.authority.Issue(time.Now(), credentialLife, wire.Identity{Role: role, Name: c.Name})
	if err != nil {
		return c, err
	}
	cert, key, ca, err := cred.PEM()
	if err != nil {
		return c, err
	}
	value := func(b []byte) config.Secret { return config.Secret("value:" + string(b)) }
	c.TLS = config.Identity{CA: value(ca), Cert: value(cert), Key: value(key)}
	c.PassKey = config.Secret("value:" + hex.EncodeToString(k.pass))
	c.ControlKey = config.Secret("value:" + hex.EncodeToString(k.control))
	return c, nil
}

// workers configures the two children. Pages travel on loopback without TLS;
// the control connection has it always (H-13).
func (o *upFlags) workers(k *siteKeys) ([]config.Worker, error) {
	addr := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	base := config.Worker{
		Model: "recall", Pages: o.pages, PageSize: o.pageSize, Window: o.window, Digest: o.digest,
		PlainData: true, Streams: 2, OpenDialect: o.open,
	}
	p, d := base, base
	p.Role, p.Name, p.Listen, p.Bootstrap = "prefill", "prefill-0", addr(o.prefill), addr(o.bootstrap)
	d.Role, d.Name, d.Listen = "decode", "decode-0", addr(o.decode)
	d.Peers = []config.Peer{{Label: addr(o.bootstrap), Addr: addr(o.bootstrap)}}
	var all []config.Worker
	for _, c := range []config.Worker{p, d} {
		c, err := k.worker(c)
		if err == nil {
			err = c.Check()
		}
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// gateway makes the gateway and a key for its one tenant.
func (o *upFlags) gateway(k *siteKeys, tel *telemetry.Set) (string, *gateway.Front, error) {
	passer, err := wire.NewPasser(k.pass)
	if err != nil {
		return "", nil, err
	}
	text, hash, err := account.NewKey(rand.Reader, k.pepper)
	if err != nil {
		return "", nil, err
	}
	leg := func(port int) fleet.Source {
		return fleet.Source{URL: "http://127.0.0.1:" + strconv.Itoa(port), ControlKey: hex.EncodeToString(k.control)}
	}
	front, err := gateway.NewFront(gateway.Config{
		Tenants: []gateway.Tenant{{ID: "default", Keys: []gateway.Key{{Hash: hash}}, Models: []string{"recall"}}},
		Models: []gateway.Model{{
			Name: "recall", Dialect: upstream.Bulkhead, Counter: recallCounter{}, Sizes: recallSizes(),
			Engines: fleet.Spec{Pairs: []fleet.PairSpec{{
				Name: "local", BootstrapHost: "127.0.0.1", BootstrapPort: o.bootstrap,
				Prefill: leg(o.prefill), Decode: leg(o.decode),
			}}},
		}},
		Pepper: k.pepper, DomainKey: k.domain, Passer: passer, Events: gatewayEvents{tel},
		Random: rand.Reader, Clock: gateway.SystemClock{},
		Bounds: gateway.Bounds{Body: workerBody},
	})
	return text, front, err
}

// Times of bulkhead up.
const (
	readyTime = 30 * time.Second       // for the workers to come up
	readyPoll = 100 * time.Millisecond // between two looks
)

// serve runs everything until ctx ends, then ends everything in order: no new
// requests, the answers in progress, the workers.
func (o *upFlags) serve(ctx context.Context, sys System, ln net.Listener, front *gateway.Front, children []*child, key string) error {
	life, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, c := range children {
		all.Go(func() { c.supervise(life) })
	}
	err := serveWhile(ln, front, front, func(failed <-chan error) error {
		if err := o.ready(ctx); err != nil {
			return err
		}
		o.banner(sys.Stdout, key, children)
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		}
	}, func() time.Duration { return drainTime })
	if errors.Is(err, context.Canceled) {
		return nil // stopped before it was up
	}
	return err
}

// ready waits until the gateway says that its pair answers.
func (o *upFlags) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	url := "http://" + net.JoinHostPort(o.host, strconv.Itoa(o.port)) + "/readyz"
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		t := time.NewTimer(readyPoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("cli: the workers did not come up in %v; run with -v to see why", readyTime)
			}
			return ctx.Err()
		}
	}
}

// banner says how to use what runs. The key is shown here and nowhere else.
func (o *upFlags) banner(w io.Writer, key string, children []*child) {
	url := "http://" + net.JoinHostPort(o.host, strconv.Itoa(o.port))
	who := fmt.Sprintf("gateway %d", os.Getpid())
	for _, c := range children {
		who += fmt.Sprintf(", %s %d", c.name, c.pid.Load())
	}
	fmt.Fprintf(w, `Bulkhead is up at %[1]s

  model      recall (built in: it recites its context)
  key        %[2]s (shown once; only its hash is kept)
  processes  %[3]s

Try it:

  curl -N %[1]s/v1/chat/completions \
    -H 'Authorization: Bearer %[2]s' -H 'Content-Type: application/json' \
    -d '{"model":"recall","stream":true,"max_tokens":34,"messages":[{"role":"user","content":"The code word of ship 7 is heliotrope, kept by Mara. The code word of ship 7 is"}]}'

Ctrl-C stops it.
`, url, key, who)
}

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// network is a network of scripted engines, by address. It holds within one bubble.
type network struct {
	t  *testing.T
	mu sync.Mutex
	at map[string]*engine
	// all are to be closed at the end.
	all []*engine
	// names are what a resolver says.
	names map[string][]string
	// others answer in turn with the engine at an address.
	others map[string][]*engine
	dials  map[string]int
}

// engine is one scripted engine.
type engine struct {
	mu    sync.Mutex
	pages map[string]page
	down  bool   // refuses connections
	hangs bool   // accepts and says nothing
	stuck string // a path at which it says nothing
	asked map[string]int
	auth  map[string]string // by path
	hosts map[string]string
	conns chan net.Conn
	srv   *http.Server
}

type page struct {
	status int
	body   any
}

func newNetwork(t *testing.T) *network {
	n := &network{t: t, at: map[string]*engine{}, names: map[string][]string{}, others: map[string][]*engine{}, dials: map[string]int{}}
	t.Cleanup(func() {
		for _, e := range n.all {
			_ = e.srv.Close()
		}
	})
	return n
}

// engine makes an engine that serves its pages.
func (n *network) engine() *engine {
	e := &engine{pages: map[string]page{}, asked: map[string]int{}, auth: map[string]string{}, hosts: map[string]string{}, conns: make(chan net.Conn)}
	e.srv = &http.Server{Handler: e}
	n.all = append(n.all, e)
	go func() { _ = e.srv.Serve(pipes{e, make(chan struct{})}) }()
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.asked[r.URL.Path]++
	e.auth[r.URL.Path], e.hosts[r.URL.Path] = r.Header.Get("Authorization"), r.Host
	p, ok := e.pages[r.URL.Path]
	hangs := e.hangs || e.stuck == r.URL.Path
	e.mu.Unlock()
	switch {
	case hangs:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case !ok:
		p = page{404, "not found"}
	}
	w.WriteHeader(p.status)
	if text, is := p.body.(string); is {
		_, _ = w.Write([]byte(text))
		return
	}
	_ = json.NewEncoder(w).Encode(p.body)
}

func (e *engine) do(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// say changes one member of /server_info; nil removes it.
func (e *engine) say(key string, value any) {
	e.do(func() {
		info := maps.Clone(e.pages["/server_info"].body.(map[string]any))
		if info[key] = value; value == nil {
			delete(info, key)
		}
		e.pages["/server_info"] = page{200, info}
	})
}

func (e *engine) looks() (n int) {
	e.do(func() { n = e.asked["/server_info"] + e.asked["/v1/models"] })
	return n
}

// times is how often a path was asked.
func (e *engine) times(path string) (n int) {
	e.do(func() { n = e.asked[path] })
	return n
}

// bearer is with which authorization a path was asked last.
func (e *engine) bearer(path string) (auth string) {
	e.do(func() { auth = e.auth[path] })
	return auth
}

// pipes is a listener over net.Pipe.
type pipes struct {
	e      *engine
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.e.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.closed)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// errRefused is what a dead address says.
var errRefused = errors.New("connection refused")

func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	n.mu.Lock()
	e := n.at[address]
	if list := n.others[address]; len(list) > 0 {
		if i := n.dials[address] % (len(list) + 1); i > 0 {
			e = list[i-1]
		}
	}
	n.dials[address]++
	n.mu.Unlock()
	dead := e == nil
	if !dead {
		e.do(func() { dead = e.down })
	}
	if dead {
		return nil, &net.OpError{Op: "dial", Net: kind, Err: errRefused}
	}
	ours, theirs := net.Pipe()
	select {
	case e.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// LookupHost makes the network a resolver.
func (n *network) LookupHost(_ context.Context, name string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addresses := n.names[name]; addresses != nil {
		return addresses, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (n *network) name(name string, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[name] = addresses
}

// put puts an engine at an address.
func (n *network) put(address string, e *engine) *engine {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[address] = e
	return e
}

// worker is an engine that speaks of itself as one of our workers does, or SGLang.
func (n *network) worker(address string, role upstream.Role, pool int64) *engine {
	e := n.engine()
	e.pages["/server_info"] = page{200, map[string]any{
		"disaggregation_mode": string(role), "served_model_name": "m", "version": "1", "incarnation": "life of " + address,
		"context_length": 1024, "max_total_num_tokens": pool, "max_req_input_len": pool, "page_size": 16,
	}}
	e.pages["/v1/models"] = page{200, map[string]any{"data": []any{map[string]any{"id": "m", "max_model_len": 1024}}}}
	return n.put(address, e)
}

// plain is a single SGLang engine.
func (n *network) plain(address string, pool int64) *engine {
	e := n.worker(address, "null", pool)
	e.say("startup_time", map[string]any{"at": "life of " + address})
	return e
}

// hosted is an API that tells nothing of itself.
func (n *network) hosted(address string) *engine { return n.put(address, n.engine()) }

// rig is a fleet over a network.
type rig struct {
	t *testing.T
	*network
	f      *Fleet
	g      *Group
	mu     sync.Mutex
	events []Event
}

// config is a configuration over the network.
func (r *rig) config(models map[string]Spec) Config {
	return Config{
		Models: models, Clock: SystemClock{}, Random: strings.NewReader(strings.Repeat("0123456789abcdef", 4)), Resolver: r.network, Dial: r.network.dial,
		Events: func(e Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
		},
	}
}

// start makes a fleet with the model m, and looks once.
func (n *network) start(t *testing.T, s Spec) *rig {
	t.Helper()
	return n.startAll(t, map[string]Spec{"m": s})
}

func (n *network) startAll(t *testing.T, models map[string]Spec) *rig {
	t.Helper()
	r := &rig{t: t, network: n}
	for name, s := range models {
		if s.Served == "" {
			s.Served = "m"
		}
		models[name] = s
	}
	f, err := New(r.config(models))
	if err != nil {
		t.Fatal(err)
	}
	r.f, r.g = f, f.Model("m")
	r.refresh()
	t.Cleanup(func() {
		for _, g := range r.f.groups {
			g.leave()
		}
	})
	return r
}

// next makes the fleet that follows.
func (r *rig) next(models map[string]Spec) *rig {
	r.t.Helper()
	n := &rig{t: r.t, network: r.network}
	f, err := New(n.config(models))
	if err != nil {
		r.t.Fatal(err)
	}
	f.Follow(r.f)
	f.Lead()
	n.f, n.g = f, f.Model("m")
	r.t.Cleanup(func() {
		for _, g := range n.f.groups {
			g.leave()
		}
	})
	return n
}

func (r *rig) refresh() { r.f.Refresh(context.Background()) }

// run runs the fleet until the end of the test.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.f.Run(ctx); close(done) }()
	r.t.Cleanup(func() { cancel(); <-done })
}

// kinds are the events so far, without those of a look's outcome unless asked.
func (r *rig) kinds() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, e := range r.events {
		all = append(all, fmt.Sprintf("%s %s: %s", e.Node, e.Kind, e.Why))
	}
	return all
}

// exact is a request of known length.
func exact(prompt, output int64) Ask {
	return Ask{Tenant: "t", Tokens: admit.Request{Exact: admit.Known(prompt), Output: admit.Known(output), Default: 16}}
}

// take acquires a target that there must be at once.
func (r *rig) take(a Ask) *Target {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var late atomic.Bool
	timer := time.AfterFunc(time.Millisecond, func() { late.Store(true); cancel() })
	defer timer.Stop()
	defer cancel()
	t, d, err := r.g.Acquire(ctx, a)
	if err != nil || t == nil {
		r.t.Fatalf("no target: %v, %+v, waited: %v", err, d, late.Load())
	}
	return t
}

// refused acquires what must be refused at once.
func (r *rig) refused(a Ask) admit.Decision {
	r.t.Helper()
	start := time.Now()
	t, d, err := r.g.Acquire(context.Background(), a)
	if t != nil || err != nil || time.Since(start) > 10*time.Second {
		r.t.Fatalf("target %v, error %v after %v", t, err, time.Since(start))
	}
	return d
}

// fails acquires what must fail.
func (r *rig) fails(a Ask, want error) {
	r.t.Helper()
	if t, d, err := r.g.Acquire(context.Background(), a); t != nil || !errors.Is(err, want) {
		r.t.Fatalf("target %v, decision %+v, error %v; want %v", t, d, err, want)
	}
}

// result is what an Acquire came to.
type result struct {
	t    *Target
	d    admit.Decision
	err  error
	done bool
}

// acquiring is an Acquire in the background.
type acquiring struct{ came atomic.Pointer[result] }

// got is what it came to so far.
func (a *acquiring) got() result {
	if r := a.came.Load(); r != nil {
		return *r
	}
	return result{}
}

// later acquires in the background.
func (r *rig) later(ctx context.Context, a Ask) *acquiring {
	g := &acquiring{}
	go func() {
		t, d, err := r.g.Acquire(ctx, a)
		g.came.Store(&result{t, d, err, true})
	}()
	synctest.Wait()
	return g
}

// flight is the estimated tokens in flight at a node.
func (r *rig) flight(name string) int64 {
	r.t.Helper()
	return r.node(name).Tokens
}

func (r *rig) node(name string) NodeStatus {
	r.t.Helper()
	for _, s := range r.f.Status() {
		if s.Name == name {
			return s
		}
	}
	r.t.Fatalf("no node %s", name)
	return NodeStatus{}
}

// idle holds that nothing is in flight, nobody waits and no room is kept.
func (r *rig) idle() {
	r.t.Helper()
	for _, s := range r.f.Status() {
		if s.Tokens != 0 || s.Requests != 0 {
			r.t.Errorf("%s: %d tokens, %d requests in flight", s.Name, s.Tokens, s.Requests)
		}
	}
	for _, g := range r.f.groups {
		if g.Waiting() != 0 {
			r.t.Errorf("%d wait", g.Waiting())
		}
		for _, n := range g.Nodes() {
			if n.meter.pool.Keeps() {
				r.t.Errorf("%s keeps room", n.name)
			}
		}
	}
}

// pairOf is a pair of our own workers.
func pairOf(name string) PairSpec {
	return PairSpec{
		Name: name, BootstrapHost: name, Prefill: Source{Name: name + "-p", URL: "http://" + name + "-p:1"}, Decode: Source{Name: name + "-d", URL: "http://" + name + "-d:1"},
	}
}

// one is a fleet of one pair with pools of 672, the window 1024.
func one(t *testing.T, n *network) (r *rig, prefill, decode *engine) {
	t.Helper()
	prefill, decode = n.worker("a-p:1", upstream.PrefillRole, 672), n.worker("a-d:1", upstream.DecodeRole, 672)
	return n.start(t, Spec{Pairs: []PairSpec{pairOf("a")}}), prefill, decode
}

// plains is a fleet of single engines a, b, c... with the given pool each.
func plains(t *testing.T, n *network, count int, pool int64, change func(i int, s *Source)) (*rig, []*engine) {
	t.Helper()
	s := Spec{Dialect: upstream.SGLang, SlowStart: -1}
	var engines []*engine
	for i := range count {
		name := string(rune('a' + i))
		engines = append(engines, n.plain(name+":1", pool))
		src := Source{Name: name, URL: "http://" + name + ":1"}
		if change != nil {
			change(i, &src)
		}
		s.Plain = append(s.Plain, src)
	}
	return n.start(t, s), engines
}

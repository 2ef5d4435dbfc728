package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fleet"
	gw "bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/twin"
	"bulkhead.dev/bulkhead/internal/upstream"
)

const (
	// The secrets of two tenants. Each stands in its tenant's prompts, and the twins say
	// the last secret that they can see.
	secretA = "cnry-7f3a9c51e2b84d06"
	secretB = "cnry-0d1e2f3a4b5c6d7e"
	// engineKey is what the twins want.
	engineKey = "key-of-the-twins-4711"

	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// kind is a dialect and the twin that speaks it.
type kind struct {
	dialect upstream.Dialect
	engine  string
}

func kinds() []kind {
	return []kind{
		{upstream.SGLangPD, "sglang-0.5.20"}, {upstream.SGLang, "sglang-0.5.20"}, {upstream.VLLM, "vllm-0.32.0"},
		{upstream.VLLMNixl, "vllm-0.32.0"}, {upstream.VLLMMooncake, "vllm-0.32.0"}, {upstream.LlamaCPP, "llamacpp-10434"},
		{upstream.OpenAI, "openai"},
	}
}

// some are the kinds for which is says yes.
func some(is func(upstream.Traits) bool) []kind {
	return slices.DeleteFunc(kinds(), func(k kind) bool { return !is(k.dialect.Traits()) })
}

func pairs() []kind {
	return some(func(t upstream.Traits) bool { return t.Legs != upstream.One })
}

// handClock stands still until it is advanced.
type handClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*handTimer
}

type handTimer struct {
	c  *handClock
	at time.Time
	f  func()
	on bool
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) AfterFunc(d time.Duration, f func()) gw.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &handTimer{c: c, at: c.now.Add(d), f: f, on: true}
	c.timers = append(c.timers, t)
	return t
}

func (t *handTimer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := t.on
	t.on = false
	return was
}

func (t *handTimer) Reset(d time.Duration) bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := t.on
	t.on, t.at = true, t.c.now.Add(d)
	if !was {
		t.c.timers = append(t.c.timers, t)
	}
	return was
}

// advance moves the clock and runs what became due.
func (c *handClock) advance(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	var due []func()
	c.timers = slices.DeleteFunc(c.timers, func(t *handTimer) bool {
		if t.on && !t.at.After(c.now) {
			t.on = false
			due = append(due, t.f)
		}
		return !t.on
	})
	c.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// passes lets the time pass that an engine has to end a request, whenever it is told to: it
// may be told too early, or not listen.
func (c *handClock) passes(ctx context.Context, told <-chan struct{}) {
	const steps = 25
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for left := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-told:
			left = steps
		case <-tick.C:
			if left > 0 {
				c.advance(100 * time.Millisecond)
				left--
			}
		}
	}
}

// node is a twin that listens.
type node struct {
	*twin.Twin
	name string
	srv  *httptest.Server

	mu    sync.Mutex
	over  func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) // in place of serving a completion
	conns []string                                                             // where completions came from
	told  chan<- struct{}                                                      // hears of aborts
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !isCompletion(r.URL.Path) {
		n.Twin.ServeHTTP(w, r)
		if r.URL.Path == "/abort_request" {
			select {
			case n.told <- struct{}{}:
			default:
			}
		}
		return
	}
	n.mu.Lock()
	over := n.over
	n.conns = append(n.conns, r.RemoteAddr)
	n.mu.Unlock()
	if over == nil {
		n.Twin.ServeHTTP(w, r)
		return
	}
	over(w, r, n.Twin.ServeHTTP)
}

// become lets f stand before the twin; nil takes it away.
func (n *node) become(f func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over = f
}

// arm arms a fault for one time.
func (n *node) arm(t *testing.T, fault string) {
	t.Helper()
	if err := n.Arm(fault, 1); err != nil {
		t.Fatal(err)
	}
}

func isCompletion(path string) bool { return path == chatPath || path == completionPath }

// sent is one completion that arrived at a twin.
type sent struct {
	twin.Seen
	fields map[string]json.RawMessage
}

// text is a field that is a string, else empty.
func (s sent) text(name string) string {
	var v string
	_ = json.Unmarshal(s.fields[name], &v) // another type is as good as none
	return v
}

// rid is the id that the gateway gave the leg.
func (s sent) rid() string { return s.text("rid") + s.Header.Get("X-Request-Id") }

// meeting is where the two legs of a pair meet.
func (s sent) meeting() string {
	var kv struct {
		ID      string `json:"transfer_id"`
		Request string `json:"remote_request_id"`
	}
	_ = json.Unmarshal(s.fields["kv_transfer_params"], &kv) // none is empty
	return string(s.fields["bootstrap_room"]) + kv.ID + kv.Request
}

// got are the completions that arrived, oldest first.
func (n *node) got(t *testing.T) []sent {
	t.Helper()
	var all []sent
	for _, s := range n.Seen() {
		if !isCompletion(s.Path) {
			continue
		}
		one := sent{Seen: s}
		if err := json.Unmarshal(s.Body, &one.fields); err != nil {
			t.Fatalf("%s was sent what is not JSON: %v", n.name, err)
		}
		all = append(all, one)
	}
	return all
}

// forget empties the log of the twin.
func (n *node) forget() {
	n.Twin.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodDelete, "/twin/log", http.NoBody))
}

// stage is a gateway in front of twins.
type stage struct {
	t       *testing.T
	kind    kind
	traits  upstream.Traits
	cold    bool
	clock   *handClock
	front   *gw.Front
	srv     *httptest.Server
	nodes   []*node
	prefill *node // nil where there is one leg
	decode  *node // or the one leg
	keys    [3]string
	events  chan gw.RequestEvent
	probes  chan gw.RequestEvent
	aborts  chan struct{} // some engine is told to end a request

	mu    sync.Mutex
	fleet []fleet.Event
}

// plan is how a stage is set up. Its zero value will do.
type plan struct {
	twins  int  // of each role; 1
	cold   bool // the twins keep no connection
	decode twin.Options
	// prefill differs from decode where there are two legs.
	prefill *twin.Options
	change  func(*gw.Config)
}

// set sets a stage up and waits until it can serve.
func set(t *testing.T, k kind, p plan) *stage {
	t.Helper()
	s := &stage{
		t: t, kind: k, traits: k.dialect.Traits(), clock: &handClock{now: time.Now()}, cold: p.cold,
		events: make(chan gw.RequestEvent, 4096), probes: make(chan gw.RequestEvent, 4096), aborts: make(chan struct{}, 1),
	}
	c := s.config(p)
	if p.change != nil {
		p.change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var passing sync.WaitGroup
	passing.Go(func() { s.clock.passes(ctx, s.aborts) })
	var err error
	if s.front, err = gw.NewFront(c); err != nil {
		t.Fatal(err)
	}
	s.srv = httptest.NewUnstartedServer(nil)
	s.srv.Config = gw.Server(s.front)
	s.srv.Start()
	s.srv.Client().Timeout = time.Minute // so that a test which hangs says where
	t.Cleanup(func() {
		s.srv.Close()
		s.front.Close()
		for _, n := range s.nodes {
			n.srv.Close()
		}
		cancel()
		passing.Wait()
		s.told()
	})
	until(t, func() bool { return s.front.Status().Ready })
	return s
}

func (s *stage) config(p plan) gw.Config {
	pepper := bytes.Repeat([]byte{1}, 16)
	c := gw.Config{
		Pepper: pepper, DomainKey: bytes.Repeat([]byte{2}, 16), Random: rand.Reader, Clock: s.clock, Events: s,
		// The clock leaps: no look may be overtaken by it, or be old when it has leapt.
		Bounds: gw.Bounds{Probe: time.Hour, Fresh: 2 * time.Hour},
		Fleet: func(e fleet.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.fleet = append(s.fleet, e)
		},
	}
	for i := range s.keys {
		key, hash, err := account.NewKey(rand.Reader, pepper)
		if err != nil {
			s.t.Fatal(err)
		}
		s.keys[i] = key
		c.Tenants = append(c.Tenants, gw.Tenant{ID: "tenant-" + strconv.Itoa(i), Keys: []gw.Key{{Hash: hash}}, Models: []string{"m"}})
	}
	// The third tenant shares the domain of nobody by name, and that of the second by
	// configuration, where a test says so.
	m := gw.Model{Name: "m", Served: "served", Dialect: s.kind.dialect, DefaultMaxTokens: 16}
	if s.traits.Leased {
		m.Lease = 30 * time.Second
	}
	if s.traits.Hosted {
		m.Window = 4096
	}
	m.Engines = fleet.Spec{SlowStart: -1, Overcommit: 1000, Breaker: fleet.Breaker{Failures: 1 << 30, Rate: 1, Least: 1 << 30}}
	for i := range max(1, p.twins) {
		s.add(&m.Engines, p, i)
	}
	c.Models = []gw.Model{m}
	return c
}

// add makes the twins of one place.
func (s *stage) add(spec *fleet.Spec, p plan, i int) {
	s.t.Helper()
	suffix := strconv.Itoa(i)
	p.decode.Model, p.decode.Key, p.decode.EngineID = "served", engineKey, "engine-"+suffix
	if s.traits.Legs == upstream.One {
		e, err := twin.New(s.kind.engine, p.decode)
		if err != nil {
			s.t.Fatal(err)
		}
		n := s.listen(e, "plain-"+suffix)
		if s.decode == nil {
			s.decode = n
		}
		spec.Plain = append(spec.Plain, source(n))
		return
	}
	first := p.decode
	if p.prefill != nil {
		first = *p.prefill
		first.Model, first.Key, first.EngineID = "served", engineKey, p.decode.EngineID
	}
	ep, ed, err := twin.Pair(s.kind.engine, first, p.decode)
	if err != nil {
		s.t.Fatal(err)
	}
	np, nd := s.listen(ep, "prefill-"+suffix), s.listen(ed, "decode-"+suffix)
	if s.decode == nil {
		s.prefill, s.decode = np, nd
	}
	pair := fleet.PairSpec{Name: "pair-" + suffix, BootstrapHost: np.name, Prefill: source(np), Decode: source(nd)}
	if s.kind.dialect == upstream.VLLMMooncake {
		host, port, _ := strings.Cut(strings.TrimPrefix(np.srv.URL, "http://"), ":")
		pair.BootstrapHost = host
		pair.BootstrapPort, _ = strconv.Atoi(port) // it is the server's own
	}
	spec.Pairs = append(spec.Pairs, pair)
}

func (s *stage) listen(e *twin.Twin, name string) *node {
	n := &node{Twin: e, name: name, told: s.aborts}
	n.srv = httptest.NewUnstartedServer(n)
	n.srv.Config.ErrorLog = gw.Server(nil).ErrorLog // cut connections are not worth a word
	n.srv.Config.SetKeepAlivesEnabled(!s.cold)
	n.srv.Start()
	s.nodes = append(s.nodes, n)
	return n
}

func source(n *node) fleet.Source {
	return fleet.Source{Name: n.name, URL: n.srv.URL, Key: engineKey}
}

// Request takes the events of the gateway.
func (s *stage) Request(e gw.RequestEvent) {
	if e.Probe {
		s.probes <- e
		return
	}
	s.events <- e
}

// event waits for the next event and looks for secrets in it and in the record.
func (s *stage) event() gw.RequestEvent {
	s.t.Helper()
	return s.take(s.events)
}

func (s *stage) take(from chan gw.RequestEvent) gw.RequestEvent {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	select {
	case e := <-from:
		s.silent("an event", fmt.Sprintf("%+v %s %s %s", e, e.Verdict, e.Agreement, e.Oddities))
		record, ok := s.front.Explain(e.ID)
		if !ok && e.Tenant != "" { // nobody can fill the memory without a key
			s.t.Errorf("nothing is remembered of a request with the verdict %s", e.Verdict)
		}
		s.silent("a record", fmt.Sprintf("%+v", record))
		return e
	case <-ctx.Done():
		s.t.Fatal("no event")
		return gw.RequestEvent{}
	}
}

// silent holds that a text which is not an answer tells none of the planted secrets, no
// key and no address.
func (s *stage) silent(what, text string) {
	s.t.Helper()
	for _, n := range s.nodes {
		if strings.Contains(text, strings.TrimPrefix(n.srv.URL, "http://")) {
			s.t.Errorf("%s tells the address of %s", what, n.name)
		}
	}
	for name, planted := range map[string]string{
		"the secret of tenant 0": secretA, "the secret of tenant 1": secretB, "the engines' key": engineKey,
		"the key of tenant 0": s.keys[0], "the key of tenant 1": s.keys[1], "what the twin says of its faults": "The twin was told",
	} {
		if strings.Contains(text, planted) {
			s.t.Errorf("%s tells %s: %s", what, name, text)
		}
	}
}

// told looks for secrets in all that the fleet said.
func (s *stage) told() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.fleet {
		s.silent("an event of the fleet", fmt.Sprintf("%+v", e))
	}
}

// reply is what a client got.
type reply struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// code is that of an error, in a body or in the last event of a stream.
func (a reply) code() string {
	var v struct {
		Error struct{ Code string } `json:"error"`
	}
	body := a.body
	if i := strings.LastIndex(body, "data: {\"error\""); i >= 0 {
		body = body[i+len("data: "):]
	}
	_ = json.NewDecoder(strings.NewReader(body)).Decode(&v) // whoever has none has no code
	return v.Error.Code
}

// param is the field that an error names.
func (a reply) param() string {
	var v struct {
		Error struct{ Param string } `json:"error"`
	}
	_ = json.Unmarshal([]byte(a.body), &v) // whoever has none has no field
	return v.Error.Param
}

func (a reply) done() bool { return strings.Contains(a.body, "[DONE]") }

// answer is what is read of answers and chunks.
type answer struct {
	Choices []struct {
		Text    string
		Message struct{ Content string }
		Delta   struct{ Content string }
		Finish  *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
		Total      int64 `json:"total_tokens"`
	}
}

// parts are the whole answer, or the chunks.
func (a reply) parts() []answer {
	var all []answer
	for line := range strings.Lines(a.body) {
		var v answer
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &v) == nil {
			all = append(all, v)
		}
	}
	return all
}

// text is what was said.
func (a reply) text() string {
	var b strings.Builder
	for _, p := range a.parts() {
		for _, c := range p.Choices {
			b.WriteString(c.Text + c.Message.Content + c.Delta.Content)
		}
	}
	return b.String()
}

// request makes a request of a tenant.
func (s *stage) request(tenant int, path, body string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.srv.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.keys[tenant])
	r.Header.Set("Content-Type", "application/json")
	return r
}

// send sends a request and reads its answer. Headers tell no secret, and neither does
// the body of an error; nobody's answer holds the secret of another.
func (s *stage) send(r *http.Request) reply { return s.sendSeen(r, nil) }

// sendSeen is send that calls seen with the body so far, as it grows.
func (s *stage) sendSeen(r *http.Request, seen func(body string)) reply {
	s.t.Helper()
	resp, err := s.srv.Client().Do(r)
	if err != nil {
		s.t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	a := reply{status: resp.StatusCode, header: resp.Header}
	var body []byte
	for buf := make([]byte, 32<<10); err == nil; {
		var n int
		n, err = resp.Body.Read(buf)
		body = append(body, buf[:n]...)
		if seen != nil {
			seen(string(body))
		}
	}
	if err != io.EOF {
		a.err = err
	}
	a.body = string(body)
	s.silent("a header", fmt.Sprint(a.header))
	if a.status != http.StatusOK {
		s.silent("an error", a.body)
	}
	if mine := r.Header.Get("Authorization"); mine != "Bearer "+s.keys[1] && strings.Contains(a.body, secretB) ||
		mine != "Bearer "+s.keys[0] && strings.Contains(a.body, secretA) {
		s.t.Errorf("an answer holds the secret of another tenant: %s", a.body)
	}
	return a
}

// secretOf is the secret of a tenant.
func secretOf(tenant int) string { return []string{secretA, secretB, "cnry-5a5a5a5a5a5a5a5a"}[tenant] }

// body is a request with the tenant's secret in its prompt.
func body(tenant int, path, members string) string {
	text := "Remember " + secretOf(tenant) + " and say it."
	if path == completionPath {
		return `{"model":"m","prompt":"` + text + `"` + members + `}`
	}
	return `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]` + members + `}`
}

// said is the whole answer of a twin to such a prompt.
func said(tenant int) string { return "The code is " + secretOf(tenant) + "." }

// chat asks as tenant 0.
func (s *stage) chat(members string) reply {
	s.t.Helper()
	return s.send(s.request(0, chatPath, body(0, chatPath, members)))
}

// works is the positive control: a plain request is answered whole and right.
func (s *stage) works() {
	s.t.Helper()
	for _, members := range []string{"", `,"stream":true`} {
		a := s.chat(members)
		if e := s.event(); a.status != http.StatusOK || a.text() != said(0) || a.err != nil || e.Verdict != gw.Served {
			s.t.Fatalf("control: %d, %v, verdict %s: %s", a.status, a.err, e.Verdict, a.body)
		}
	}
	for _, n := range s.nodes {
		n.forget()
	}
}

// counts says how many completions have arrived at a node.
func (s *stage) counts(n *node) int {
	s.t.Helper()
	return len(n.got(s.t))
}

// readAll is what is left of a body, as far as it can be read.
func readAll(resp *http.Response) string {
	b, _ := io.ReadAll(resp.Body) // what was cut is told by what is missing
	return string(b)
}

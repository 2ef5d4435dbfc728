package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/internal/world"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// pair is a prefill and a decode worker, linked over tcp on loopback, and their
// HTTP sides.
type pair struct {
	t               *testing.T
	prefill, decode *side
	passes          *wire.Passer
	ca              *wire.Authority
	setups          []setup
	addr            string // where prefill listens for decode
	room            atomic.Int64
	domain          kv.Domain
	client          *http.Client
	planted         bool // the test looks at the traces itself
}

// side is one worker that runs.
type side struct {
	*Worker
	trace  *world.Trace
	http   *httptest.Server
	events *recorder
	stop   func() // the worker, then its HTTP side
}

// setup changes a worker's configuration before it is made.
type setup func(*Config)

// at is a setup of one role.
func at(role wire.Role, f setup) setup {
	return func(c *Config) {
		if c.Role == role {
			f(c)
		}
	}
}

func atPrefill(f setup) setup { return at(wire.RolePrefill, f) }
func atDecode(f setup) setup  { return at(wire.RoleDecode, f) }

// faulty puts faults on what one role sends.
func faulty(role wire.Role, f *wire.Faults) setup {
	return at(role, func(c *Config) {
		f.Transport, c.Transport = c.Transport, f
	})
}

const (
	testControl = "control-key-of-a-test"
	testHost    = "prefill.test" // the label; the address is another
	testPort    = 8998
)

// recorder keeps what a worker tells.
type recorder struct {
	mu  sync.Mutex
	all []Event
}

func (r *recorder) Event(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

func (r *recorder) of(k EventKind) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var some []Event
	for _, e := range r.all {
		if e.Kind == k {
			some = append(some, e)
		}
	}
	return some
}

// last is the event of an attempt's end.
func (r *recorder) last(a handoff.Attempt) (Event, bool) {
	for _, e := range r.of(AttemptEnded) {
		if e.Attempt == a {
			return e, true
		}
	}
	return Event{}, false
}

// ended is the code with which an attempt ended, NoCode if it has not.
func (r *recorder) ended(a handoff.Attempt) handoff.Code {
	e, _ := r.last(a)
	return e.Code
}

// anywhere listens where there is room, and tells where that was.
type anywhere struct {
	wire.Transport
	told chan string
}

func (a anywhere) Listen(addr string, hello wire.Hello, h wire.Handler, landing *kv.Landing) (wire.Listener, error) {
	l, err := a.Transport.Listen(addr, hello, h, landing)
	if err == nil {
		a.told <- l.Addr()
	}
	return l, err
}

// newPair starts a pair. The setups apply to both workers.
func newPair(t *testing.T, setups ...setup) *pair {
	t.Helper()
	passes, err := wire.NewPasser(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := wire.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{
		t: t, passes: passes, ca: ca, setups: setups, domain: kv.Domain{1},
		addr: "127.0.0.1:0", client: &http.Client{Transport: &http.Transport{}},
	}
	t.Cleanup(p.client.CloseIdleConnections)
	p.prefill = p.start(wire.RolePrefill)
	p.decode = p.start(wire.RoleDecode)
	p.linked()
	return p
}

func (p *pair) linked() {
	p.t.Helper()
	p.eventually("the workers are linked", func() bool { return p.prefill.Linked() == 1 && p.decode.Linked() == 1 })
}

func (p *pair) config(role wire.Role) Config {
	cred, err := p.ca.Issue(time.Now(), time.Hour, wire.Identity{Role: role, Name: role.String()})
	if err != nil {
		p.t.Fatal(err)
	}
	return Config{
		Role: role, Name: role.String(), Model: llm.Recall(), ServedName: "recall",
		PageTokens: 16, Pages: 64, Passes: p.passes, Control: testControl,
		Transport: wire.TCP{Credential: cred, Protection: wire.PlainData},
		Bootstrap: p.addr, Peers: []Peer{{Label: fmt.Sprintf("%s:%d", testHost, testPort), Addr: p.addr}},
		TickTime: 10 * time.Millisecond, LegTime: time.Minute,
	}
}

// start runs one worker until the test ends or stop is called. When it has
// stopped, its pool must be at rest.
func (p *pair) start(role wire.Role) *side {
	p.t.Helper()
	c := p.config(role)
	events, told := &recorder{}, make(chan string, 1)
	c.Events = events
	for _, f := range p.setups {
		f(&c)
	}
	trace := &world.Trace{Role: world.Decode, Guards: handoff.All}
	if role == wire.RolePrefill {
		trace.Role = world.Prefill
	}
	if c.Guards != 0 {
		trace.Guards = c.Guards
	}
	c.Trace = trace
	c.Transport = anywhere{c.Transport, told}
	w, err := New(c)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	if role == wire.RolePrefill {
		p.addr = <-told
	}
	s := &side{Worker: w, trace: trace, http: httptest.NewServer(w.Handler(nil)), events: events}
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("%v: Run: %v", role, err)
		}
		if !w.pool.Whole() {
			p.t.Errorf("%v: after Run the pool is not at rest: %+v", role, w.pool.Counts())
		}
		_, err := trace.Check()
		idle := errors.Is(err, world.ErrNoSteps) && len(events.of(AttemptEnded)) == 0 // nothing came, so there is no trace
		if err != nil && !idle && !p.planted {
			p.t.Errorf("%v: %v", role, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		_ = s.http.Config.Shutdown(ctx) // lets every leg have its last word
		s.http.CloseClientConnections()
		s.http.Close()
	})
	p.t.Cleanup(s.stop)
	return s
}

// eventually waits for a condition that the workers bring about.
func (p *pair) eventually(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-look.C:
		case <-deadline.C:
			p.t.Fatalf("never happened: %s; prefill %+v, decode %+v", what, p.prefill.Status(), p.decode.Status())
		}
	}
}

// reaches waits until a worker knows of a request, by its leg or its peer.
func (p *pair) reaches(s *side, c legCall) {
	p.t.Helper()
	p.eventually("the worker knows of the request", func() (known bool) {
		on(s, func(w *Worker) { known = w.attempts[c.attempt] != nil })
		return known
	})
}

// on runs f in a worker's owner loop and waits for it.
func on(s *side, f func(*Worker)) {
	done := make(chan struct{})
	if s.mail.put(func(w *Worker) {
		defer close(done)
		f(w)
	}) {
		<-done
	}
}

// legCall is one request, as a router sends it to both workers.
type legCall struct {
	path    string
	body    map[string]any
	attempt handoff.Attempt
	room    int64
	domain  kv.Domain
	expiry  time.Time
}

// call makes a request. Its room is one that a float64 cannot hold.
func (p *pair) call(path string, body map[string]any) legCall {
	room := p.room.Add(1) + 1<<62
	var a handoff.Attempt
	binary.LittleEndian.PutUint64(a[:], uint64(room))
	return legCall{path: path, body: body, attempt: a, room: room, domain: p.domain, expiry: time.Now().Add(time.Minute)}
}

// complete makes a completion of at most most tokens.
func (p *pair) complete(prompt string, most int) legCall {
	return p.call("/v1/completions", map[string]any{"prompt": prompt, "max_tokens": most})
}

// with is a copy of the request with other fields.
func (c legCall) with(edit map[string]any) legCall {
	body := maps.Clone(c.body)
	maps.Copy(body, edit)
	c.body = body
	return c
}

// forPrefill is the leg that a router sends to prefill.
func (c legCall) forPrefill() legCall {
	return c.with(map[string]any{"max_tokens": 1, "stream": false})
}

// bytes is the body of a leg. A field of nil is left out.
func (c legCall) bytes(t *testing.T) []byte {
	b := map[string]any{
		"model": "recall", "bootstrap_host": testHost, "bootstrap_port": testPort, "bootstrap_room": c.room,
		"rid": c.rid(), "temperature": 0, "seed": 7,
	}
	maps.Copy(b, c.body)
	maps.DeleteFunc(b, func(_ string, v any) bool { return v == nil })
	data, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (c legCall) rid() string { return "rid-" + c.attempt.String() }

// request is the HTTP request of a leg.
func (p *pair) request(ctx context.Context, s *side, c legCall) *http.Request {
	data := c.bytes(p.t)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.http.URL+c.path, bytes.NewReader(data))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set(PassHeader, p.passes.Mint(c.attempt, c.domain, c.expiry, c.room, data))
	return req
}

func (p *pair) send(ctx context.Context, s *side, c legCall) (*http.Response, error) {
	return p.client.Do(p.request(ctx, s, c))
}

// reply is a leg's whole answer.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (p *pair) leg(ctx context.Context, s *side, c legCall) reply {
	return read(p.send(ctx, s, c))
}

func read(resp *http.Response, err error) reply {
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(data), err: err}
}

// pending is a leg that was sent.
type pending struct {
	leave context.CancelFunc
	done  chan reply
}

func (p *pair) begin(s *side, c legCall) *pending {
	ctx, cancel := context.WithCancel(context.Background())
	g := &pending{leave: cancel, done: make(chan reply, 1)}
	go func() { g.done <- p.leg(ctx, s, c) }()
	p.t.Cleanup(cancel)
	return g
}

func (p *pair) beginPrefill(c legCall) *pending { return p.begin(p.prefill, c.forPrefill()) }
func (p *pair) beginDecode(c legCall) *pending  { return p.begin(p.decode, c) }

// both sends both legs at once.
func (p *pair) both(c legCall) (pre, dec reply) {
	a, b := p.beginPrefill(c), p.beginDecode(c)
	return <-a.done, <-b.done
}

// naive is a router that sends both legs at once, drops what prefill says, and
// relays decode's answer.
func (p *pair) naive(c legCall) reply {
	_, dec := p.both(c)
	return dec
}

// whole checks that both pools are whole: every page is free, nothing waits, and
// no attempt is live. What ended with an answer that was read before has an event then.
func (p *pair) whole() {
	p.t.Helper()
	for _, s := range []*side{p.prefill, p.decode} {
		on(s, func(*Worker) {}) // or the status could be from before the turn that answered
	}
	p.eventually("both workers are at rest", func() bool { return atRest(p.prefill) && atRest(p.decode) })
}

func atRest(s *side) bool {
	st := s.Status()
	return st.Counts.Free == st.Counts.Total && st.Counts.Quarantined == 0 && st.Attempts == 0 && st.Waiting == 0
}

// serves checks that the pair answers the next request.
func (p *pair) serves() {
	p.t.Helper()
	pre, dec := p.both(p.complete("The code word of ship 7 is heliotrope. The code word of ship 7 is", 12))
	if pre.status != 200 || text(dec) != " heliotrope." {
		p.t.Errorf("the next request: prefill %d %s, decode %d %s", pre.status, pre.body, dec.status, dec.body)
	}
}

// answer is what is read of an answer, a chunk or an error.
type answer struct {
	ID      string
	Object  string
	Model   string
	Choices []struct {
		Text    string
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		Finish  string `json:"finish_reason"`
	}
	Usage *usage
	Error *struct {
		Message, Code string
		ID            string
	}
}

func parseAnswer(body string) answer {
	var v answer
	_ = json.Unmarshal([]byte(body), &v)
	return v
}

// text is the text of an answer or of one chunk.
func (v answer) text() string {
	if len(v.Choices) == 0 {
		return ""
	}
	c := v.Choices[0]
	return c.Text + c.Message.Content + c.Delta.Content
}

func text(r reply) string { return parseAnswer(r.body).text() }

// code is the code of an error, empty if it is none.
func code(r reply) string {
	if v := parseAnswer(r.body); v.Error != nil {
		return v.Error.Code
	}
	return ""
}

// streamed is a stream that was read to its end.
type streamed struct {
	chunks []answer
	text   string
	finish string
	done   bool // [DONE] came
}

func parseStream(t *testing.T, body string) streamed {
	t.Helper()
	var s streamed
	for line := range strings.SplitSeq(body, "\n\n") {
		if line == "" {
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || s.done {
			t.Fatalf("not an event, or one after the last: %q", line)
		}
		if data == "[DONE]" {
			s.done = true
			continue
		}
		v := parseAnswer(data)
		s.chunks = append(s.chunks, v)
		s.text += v.text()
		if len(v.Choices) > 0 {
			s.finish += v.Choices[0].Finish
		}
	}
	return s
}

func containsAll(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

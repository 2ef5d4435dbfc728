package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
	"bulkhead.dev/bulkhead/wire"
)

const (
	// secret is planted in every prompt, foreign in answers that must not come through.
	secret  = "cnry-7f3a9c51e2b84d06"
	foreign = "cnry-0d1e2f3a4b5c6d7e"
	control = "control-key-of-the-workers"
)

// patience is how long a test waits for what must come before it fails.
const patience = 10 * time.Second

// testClock stands still until it is advanced.
type testClock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*testTimer
	armed  chan struct{}
}

type testTimer struct {
	c  *testClock
	at time.Time
	f  func()
	on bool
}

func newClock() *testClock { return &testClock{now: time.Now(), armed: make(chan struct{}, 1)} }

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) AfterFunc(d time.Duration, f func()) Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &testTimer{c: c, at: c.now.Add(d), f: f, on: true}
	c.timers = append(c.timers, t)
	return t
}

func (t *testTimer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := t.on
	t.on = false
	return was
}

func (t *testTimer) Reset(d time.Duration) bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := t.on
	t.on, t.at = true, t.c.now.Add(d)
	return was
}

// advance moves the clock and runs what became due.
func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	var due []func()
	for _, t := range c.timers {
		if t.on && !t.at.After(c.now) {
			t.on = false
			due = append(due, t.f)
		}
	}
	c.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// call is one call that a scripted leg got.
type call struct {
	raw    []byte
	header http.Header
	proto  string
	path   string
	rid    string // the id that the leg was given
	id     string // the id that its answer must bear
	room   int64
	stream bool
	max    int64
	pass   wire.Pass
	err    error // of the pass
	first  int64 // how many calls the leg got before
}

// script is what a leg does with a call.
type script func(w http.ResponseWriter, r *http.Request, c call)

// scripted is a leg that does as it is told, over real HTTP.
type scripted struct {
	rig  *rig
	role string
	srv  *httptest.Server

	mu     sync.Mutex
	do     script
	over   http.HandlerFunc // takes the place of everything, if set
	info   map[string]any
	models []string
	count  func() (status int, body string) // what its tokenizer says
	blocks int                              // of vLLM's pool
	calls  []call
	counts []call
	aborts chan string
	live   map[string]context.CancelFunc // ends the call of an id
	looks  int
}

func newScripted(r *rig, role string) *scripted {
	s := &scripted{rig: r, role: role, aborts: make(chan string, 1024), live: map[string]context.CancelFunc{}, models: []string{"served"}, blocks: 41, info: map[string]any{
		"disaggregation_mode": role, "served_model_name": "served", "context_length": 1024, "page_size": 64,
		"max_total_num_tokens": 640, "max_req_input_len": 600, "version": "1", "incarnation": role + "-" + strconv.Itoa(r.engines),
	}}
	r.engines++
	if role == "plain" {
		s.info["disaggregation_mode"] = "null"
	}
	s.srv = httptest.NewServer(s)
	r.t.Cleanup(s.srv.Close)
	return s
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over != nil {
		over(w, r)
		return
	}
	s.serve(w, r)
}

// become lets f take every call from now on; nil ends that.
func (s *scripted) become(f http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = f
}

// vllm says whether the leg is one of vLLM's.
func (s *scripted) vllm() bool { return strings.HasPrefix(s.rig.dialect.String(), "vllm") }

func (s *scripted) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/abort_request":
		var v struct{ RID string }
		if json.NewDecoder(r.Body).Decode(&v) != nil || r.Header.Get("Authorization") != "Bearer "+control {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		s.aborts <- v.RID
		s.mu.Lock()
		if stop := s.live[v.RID]; stop != nil {
			stop()
		} else {
			s.live[v.RID] = func() {} // for the call that it overtook
		}
		s.mu.Unlock()
		_, _ = io.WriteString(w, "{}")
	case "/v1/chat/completions", "/v1/completions":
		s.take(w, r)
	case "/tokenize", "/v1/tokenize", "/v1/chat/completions/input_tokens":
		raw, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.counts = append(s.counts, call{raw: raw, header: r.Header, path: r.URL.Path})
		f := s.count
		s.mu.Unlock()
		status, body := 404, ""
		if f != nil {
			status, body = f()
		}
		reply(w, status, body)
	default:
		s.look(w, r)
	}
}

// look answers what an engine is asked about itself.
func (s *scripted) look(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	sglang := strings.HasPrefix(s.rig.dialect.String(), "sglang") || s.rig.dialect == upstream.Bulkhead
	switch path := r.URL.Path; {
	case path == "/server_info" && sglang:
		body, _ := json.Marshal(s.info)
		_, _ = w.Write(body)
	case path == "/v1/models" && s.rig.dialect != upstream.Bulkhead:
		var data []string
		for _, m := range s.models {
			data = append(data, fmt.Sprintf(`{"id":%q,"max_model_len":1024}`, m))
		}
		_, _ = fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(data, ","))
	case path == "/metrics" && s.vllm():
		_, _ = fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n", s.blocks)
	case path == "/version" && s.vllm():
		_, _ = io.WriteString(w, `{"version":"0.32.0"}`)
	case path == "/query" && s.vllm():
		_, _ = fmt.Fprintf(w, `{"0":{"engine_id":"engine-of-%s","worker_addr":{}}}`, s.info["incarnation"])
	case path == "/props" && s.rig.dialect == upstream.LlamaCPP:
		_, _ = io.WriteString(w, `{"default_generation_settings":{"n_ctx":1024},"total_slots":4,"model_alias":"served","build_info":"b1"}`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *scripted) take(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var v struct {
		RID       string `json:"rid"`
		Room      int64  `json:"bootstrap_room"`
		Stream    bool   `json:"stream"`
		MaxTokens int64  `json:"max_tokens"`
	}
	_ = json.Unmarshal(raw, &v)
	c := call{
		raw: raw, header: r.Header, proto: r.Proto, path: r.URL.Path, rid: v.RID, id: v.RID, room: v.Room, stream: v.Stream, max: v.MaxTokens,
	}
	switch d := s.rig.dialect; {
	case s.vllm():
		c.rid = r.Header.Get("X-Request-Id")
		c.id = "cmpl-" + c.rid
		if c.path == chatPath {
			c.id = "chatcmpl-" + c.rid
		}
	case d == upstream.LlamaCPP || d == upstream.OpenAI:
		c.rid, c.id = "", "chatcmpl-the-engine-s-own"
	}
	c.pass, c.err = s.rig.passer.Check(r.Header.Get("X-Bulkhead-Pass"), v.Room, raw, s.rig.clock.Now())
	s.mu.Lock()
	c.first = int64(len(s.calls))
	s.calls = append(s.calls, c)
	do := s.do
	ctx, stop := context.WithCancel(r.Context())
	if c.rid != "" { // else nobody can tell it to end
		if s.live[c.rid] != nil {
			stop()
		}
		s.live[c.rid] = stop
	}
	s.mu.Unlock()
	defer stop()
	do(w, r.WithContext(ctx), c)
}

// set changes what the leg does from now on.
func (s *scripted) set(do script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.do = do
}

func (s *scripted) say(key string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value == nil {
		delete(s.info, key)
	} else {
		s.info[key] = value
	}
}

func (s *scripted) got() []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]call(nil), s.calls...)
}

// looked counts the looks at the leg.
func (s *scripted) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// aborted waits for an abort and returns its id.
func (s *scripted) aborted(t *testing.T) string {
	t.Helper()
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case rid := <-s.aborts:
		return rid
	case <-soon.Done():
		t.Fatalf("%s got no abort", s.role)
		return ""
	}
}

// rig is a gateway over scripted legs.
type rig struct {
	t       *testing.T
	dialect upstream.Dialect
	clock   *testClock
	passer  *wire.Passer
	g       *Gateway
	front   *httptest.Server
	prefill *scripted
	decode  *scripted // the one leg, of dialects that have one
	engines int
	key     string
	other   string // key of a tenant that may use nothing
	events  chan RequestEvent
}

type eventChan chan RequestEvent

func (c eventChan) Request(e RequestEvent) { c <- e }

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	return rigOf(t, upstream.Bulkhead, change)
}

// rigOf is a rig with honest engines of a dialect.
func rigOf(t *testing.T, d upstream.Dialect, change func(*Config)) *rig {
	t.Helper()
	r := newBare(t, d)
	r.start(change)
	return r
}

// newBare makes the legs of a rig.
func newBare(t *testing.T, d upstream.Dialect) *rig {
	t.Helper()
	r := &rig{t: t, dialect: d, clock: newClock(), events: make(chan RequestEvent, 64)}
	var err error
	if r.passer, err = wire.NewPasser(bytes.Repeat([]byte{7}, 32)); err != nil {
		t.Fatal(err)
	}
	if d.Traits().Legs == upstream.One {
		r.decode = newScripted(r, "plain")
		r.decode.set(honestDecode)
		return r
	}
	r.prefill, r.decode = newScripted(r, "prefill"), newScripted(r, "decode")
	r.prefill.set(honestPrefill)
	r.decode.set(honestDecode)
	return r
}

// legs are the legs that there are.
func (r *rig) legs() []*scripted {
	if r.prefill == nil {
		return []*scripted{r.decode}
	}
	return []*scripted{r.prefill, r.decode}
}

// start puts a gateway before the legs.
func (r *rig) start(change func(*Config)) {
	r.t.Helper()
	c := r.config()
	if change != nil {
		change(&c)
	}
	var err error
	if r.g, err = New(c); err != nil {
		r.t.Fatal(err)
	}
	r.g.Refresh(context.Background())
	r.front = httptest.NewUnstartedServer(nil)
	r.front.Config = Server(r.g)
	r.front.Start()
	r.t.Cleanup(func() {
		r.front.Close()
		r.atRest()
	})
}

func (r *rig) config() Config {
	pepper := bytes.Repeat([]byte{1}, 16)
	key, hash, err := account.NewKey(rand.Reader, pepper)
	if err != nil {
		r.t.Fatal(err)
	}
	other, otherHash, err := account.NewKey(rand.Reader, pepper)
	if err != nil {
		r.t.Fatal(err)
	}
	r.key, r.other = key, other
	return Config{
		Tenants: []Tenant{{ID: "tenant-a", Keys: []Key{{Hash: hash}}, Models: []string{"recall"}}, {ID: "tenant-b", Keys: []Key{{Hash: otherHash}}}},
		Models: []Model{{
			Name: "recall", Served: "served", Dialect: r.dialect, DefaultMaxTokens: 20, Sizes: Sizes{BytesPerToken: 1, PerMessage: 8, PerRequest: 8},
			Engines: r.spec(), Lease: r.lease(), Window: r.window(),
		}},
		Pepper: pepper, DomainKey: bytes.Repeat([]byte{2}, 16),
		Passer: r.passer, Events: eventChan(r.events), Random: rand.Reader, Clock: r.clock,
	}
}

// lease is what the rig's prefill keeps a prompt for.
func (r *rig) lease() time.Duration {
	if r.dialect.Traits().Leased {
		return 30 * time.Second
	}
	return 0
}

// window is the window of a model that does not tell one.
func (r *rig) window() int64 {
	if r.dialect.Traits().Hosted {
		return 1024
	}
	return 0
}

// spec is the engines of the rig: they are at their full weight at once, no failure makes
// them be left alone, and nothing waits for room.
func (r *rig) spec() fleet.Spec {
	s := fleet.Spec{
		SlowStart: -1, Overcommit: 1000,
		Breaker: fleet.Breaker{Failures: 1 << 30, Rate: 1, Least: 1 << 30},
	}
	switch r.dialect.Traits().Legs {
	case upstream.One:
		s.Plain = []fleet.Source{r.source(r.decode, "plain-0")}
	default:
		s.Pairs = []fleet.PairSpec{r.pairOf(r.prefill, r.decode, "prefill-0")}
	}
	return s
}

func (r *rig) source(s *scripted, name string) fleet.Source {
	src := fleet.Source{Name: name, URL: s.srv.URL, ControlKey: control}
	if r.dialect != upstream.Bulkhead {
		src.Key = engineKey // our own workers have the pass instead
	}
	return src
}

// engineKey is the key of the engines.
const engineKey = "key-of-the-engines-0123"

func (r *rig) pairOf(p, d *scripted, name string) fleet.PairSpec {
	spec := fleet.PairSpec{Name: "pair-" + name, BootstrapHost: name, Prefill: r.source(p, name), Decode: r.source(d, "decode-of-"+name)}
	if r.dialect == upstream.VLLMMooncake {
		host, port, _ := strings.Cut(strings.TrimPrefix(p.srv.URL, "http://"), ":")
		spec.BootstrapHost = host
		spec.BootstrapPort, _ = strconv.Atoi(port)
	}
	return spec
}

// atRest holds that nothing is held any more.
func (r *rig) atRest() {
	r.g.tasks.Wait()
	if n := r.g.seats.Held(); n != 0 {
		r.t.Errorf("%d seats are taken at rest", n)
	}
	if n := r.g.bytes.Held(); n != 0 {
		r.t.Errorf("%d bytes are taken at rest", n)
	}
	for _, t := range r.g.door.byID {
		if t.seats.Held() != 0 || t.bytes.Held() != 0 || t.counts.Held() != 0 {
			r.t.Errorf("%s holds budget at rest", t.ID)
		}
	}
	for _, n := range r.g.fleet.Status() {
		if n.Tokens != 0 || n.Requests != 0 {
			r.t.Errorf("%s has %d tokens of %d requests at rest", n.Name, n.Tokens, n.Requests)
		}
	}
}

// event waits for the next event, and holds that it tells no secret.
func (r *rig) event() RequestEvent {
	r.t.Helper()
	soon, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	select {
	case e := <-r.events:
		text := fmt.Sprintf("%+v %s %s", e, e.Verdict, e.Agreement)
		for _, s := range []string{secret, foreign, r.key, r.other, control, engineKey, "127.0.0.1"} {
			if strings.Contains(text, s) {
				r.t.Errorf("the event tells %q: %s", s, text)
			}
		}
		return e
	case <-soon.Done():
		r.t.Fatal("no event")
		return RequestEvent{}
	}
}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// code is the code of an error body.
func (a answer) code() string {
	var v struct {
		Error struct{ Code string } `json:"error"`
	}
	_ = json.Unmarshal([]byte(a.body), &v)
	return v.Error.Code
}

// request makes a request with a key.
func (r *rig) request(method, path, body string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequest(method, r.front.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.key)
	req.Header.Set("Content-Type", "application/json")
	return req
}

// send sends a request and reads the answer; secrets may stand in no header, and in no
// body of an error.
func (r *rig) send(req *http.Request) answer {
	r.t.Helper()
	return r.sendSeen(req, "", nil)
}

// sendSeen is send that closes seen once the answer's body has shown a text.
func (r *rig) sendSeen(req *http.Request, text string, seen chan struct{}) answer {
	r.t.Helper()
	resp, err := r.front.Client().Do(req)
	if err != nil {
		r.t.Fatalf("no answer: %v", err)
	}
	defer closeBody(resp)
	var body []byte
	for buf := make([]byte, 4096); err == nil; {
		var n int
		n, err = resp.Body.Read(buf)
		body = append(body, buf[:n]...)
		if seen != nil && bytes.Contains(body, []byte(text)) {
			close(seen)
			seen = nil
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if seen != nil {
		close(seen)
	}
	a := answer{resp.StatusCode, resp.Header, string(body), err}
	for _, s := range []string{secret, foreign, r.key, r.other, control, engineKey, "127.0.0.1", r.decode.srv.URL} {
		if strings.Contains(fmt.Sprint(a.header), s) {
			r.t.Errorf("a header tells %q: %v", s, a.header)
		}
		if strings.Contains(a.body, s) {
			r.t.Errorf("status %d tells %q: %s", a.status, s, a.body)
		}
	}
	for name := range a.header {
		switch name {
		case "Content-Type", "Content-Length", "Date", "Cache-Control", "X-Content-Type-Options", "Connection", "Allow", "Www-Authenticate", "Retry-After",
			headerID, headerAlsoID, headerVerdict, headerDropped, headerCount, headerClient:
		default:
			r.t.Errorf("header %s is on no list", name)
		}
	}
	if a.header.Get(headerID) == "" {
		r.t.Error("no request id")
	}
	return a
}

const chatPath = "/v1/chat/completions"

// chat is a sound chat body with more members.
func chatBody(members string) string {
	return `{"model":"recall","messages":[{"role":"user","content":"hello ` + secret + `"}]` + members + `}`
}

func (r *rig) chat(members string) answer {
	r.t.Helper()
	return r.send(r.request("POST", chatPath, chatBody(members)))
}

// refused holds that an answer is an error of the given status and code, and that its
// event says the same.
func (r *rig) refused(a answer, status int, code string) RequestEvent {
	r.t.Helper()
	e := r.event()
	if a.status != status || a.code() != code {
		r.t.Errorf("got %d %s, want %d %s", a.status, a.body, status, code)
	}
	if e.Status != status || string(e.Code) != code || e.FirstByte != 0 || e.Verdict == Served || e.Verdict == record.Undecided {
		r.t.Errorf("event: %+v", e)
	}
	if a.header.Get(headerVerdict) != e.Verdict.String() {
		r.t.Errorf("verdict header %q, event %v", a.header.Get(headerVerdict), e.Verdict)
	}
	var v struct {
		Error struct{ ID, Hint, Message, Type string } `json:"error"`
	}
	if json.Unmarshal([]byte(a.body), &v) != nil || v.Error.ID != a.header.Get(headerID) || v.Error.ID != e.ID || v.Error.Hint == "" || v.Error.Message == "" {
		r.t.Errorf("error body: %s", a.body)
	}
	return e
}

// choiceJSON is the choice of an answer (message) or of a chunk (delta).
func choiceJSON(path, inner, text, finish string) string {
	f := "null"
	if finish != "" {
		f = strconv.Quote(finish)
	}
	q, _ := json.Marshal(text)
	if path == chatPath {
		return fmt.Sprintf(`{"index":0,%q:{"role":"assistant","content":%s},"finish_reason":%s}`, inner, q, f)
	}
	return fmt.Sprintf(`{"index":0,"text":%s,"finish_reason":%s}`, q, f)
}

// whole is a whole answer in the dialect.
func whole(path, id, text, finish string, prompt, completion int) string {
	return fmt.Sprintf(`{"id":%q,"object":"chat.completion","created":1,"model":"served","choices":[%s],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d},"internal":"%s"}`,
		id, choiceJSON(path, "message", text, finish), prompt, completion, prompt+completion, foreign)
}

// chunk is one chunk in the dialect, with continuous usage.
func chunk(path, id, text, finish string, prompt, completion int) string {
	return fmt.Sprintf(`{"id":%q,"object":"chat.completion.chunk","created":1,"model":"served","choices":[%s],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`,
		id, choiceJSON(path, "delta", text, finish), prompt, completion, prompt+completion)
}

func usageChunk(id string, prompt, completion int) string {
	return fmt.Sprintf(`{"id":%q,"object":"chat.completion.chunk","created":1,"model":"served","choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`,
		id, prompt, completion, prompt+completion)
}

const promptTokens = 40

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Worker", "http://127.0.0.1:1")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func honestPrefill(w http.ResponseWriter, r *http.Request, c call) {
	body := whole(r.URL.Path, c.id, "The", "length", promptTokens, 1)
	if bytes.Contains(c.raw, []byte(`"do_remote_decode":true`)) && !bytes.Contains(c.raw, []byte("transfer_id")) {
		body = strings.TrimSuffix(body, "}") + `,"kv_transfer_params":` + handle(c, promptTokens, 3) + `}`
	}
	reply(w, 200, body)
}

// handle is what vLLM's prefill gives for decode: so many blocks of 16 tokens.
func handle(c call, tokens, blocks int) string {
	ids := make([]string, blocks)
	for i := range ids {
		ids[i] = strconv.Itoa(i + 1)
	}
	return fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%s]],"remote_engine_id":"engine-p","remote_request_id":"%s-1a2b3c4d",`+
		`"remote_host":"10.9.8.7","remote_port":5701,"tp_size":1,"remote_num_tokens":%d,"remote_blocks_expiry_time":null,"transfer_mode":"pull"}`,
		strings.Join(ids, ","), c.id, tokens)
}

// events sends events, each flushed.
func events(w http.ResponseWriter, data ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Worker", "http://127.0.0.1:1")
	for _, d := range data {
		_, _ = io.WriteString(w, "data: "+d+"\n\n")
		_ = http.NewResponseController(w).Flush()
	}
}

// decodeChunks is the honest stream up to its finish reason.
func decodeChunks(path, rid string) []string {
	return []string{
		chunk(path, rid, "", "", promptTokens, 0), chunk(path, rid, "The", "", promptTokens, 1),
		chunk(path, rid, " ans", "", promptTokens, 2), chunk(path, rid, "wer", "stop", promptTokens, 3),
	}
}

func honestDecode(w http.ResponseWriter, r *http.Request, c call) {
	if !c.stream {
		reply(w, 200, whole(r.URL.Path, c.id, "The answer", "stop", promptTokens, 3))
		return
	}
	events(w, decodeChunks(r.URL.Path, c.id)...)
	events(w, usageChunk(c.id, promptTokens, 3), "[DONE]")
}

// refusing is a leg that refuses as our workers do.
func refusing(status int, body string) script {
	return func(w http.ResponseWriter, _ *http.Request, _ call) { reply(w, status, body) }
}

// hanging is a leg that answers nothing until it is let go or its caller leaves.
func hanging(began chan<- struct{}) script {
	return func(_ http.ResponseWriter, r *http.Request, _ call) {
		if began != nil {
			began <- struct{}{}
		}
		<-r.Context().Done()
	}
}

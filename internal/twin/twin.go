package twin

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Role is what a twin is for.
type Role string

const (
	// Plain serves requests by itself.
	Plain Role = "plain"
	// Prefill computes prompts for a decode twin.
	Prefill Role = "prefill"
	// Decode answers from what a prefill twin computed.
	Decode Role = "decode"
)

// Profile names an engine and a version of it.
type Profile struct {
	// Name is how people name it: sglang-0.5.19.
	Name string
	// Engine and Version are its parts.
	Engine, Version string
	// Pairs says that it can also run as a prefill and decode pair.
	Pairs bool
	// Says is one sentence on what the twin of it shows.
	Says string
}

// Engines.
const (
	sglang = "sglang"
	vllm   = "vllm"
	llama  = "llamacpp"
	openai = "openai"
)

// Profiles lists the twins that there are.
func Profiles() []Profile {
	return []Profile{
		{"sglang-0.5.19", sglang, "0.5.19", true, "an over-long prompt becomes a one-token stub, and decode reads pages that nobody wrote"},
		{"sglang-0.5.20", sglang, "0.5.20", true, "prefill refuses an over-long prompt; decode is told nothing and waits 300 s"},
		{"vllm-0.32.0", vllm, "0.32.0", true, "decode reads whatever the named blocks hold, also after their lease"},
		{"llamacpp-10434", llama, "b10434-7e4c0a9", false, "cached prompts show in the answer; streams are open by conversation id"},
		{"llamacpp-11549", llama, "b11549-0000000", false, "as llamacpp-10434, and calls malformed JSON the client's fault"},
		{"openai", openai, "", false, "a well-behaved API of which nothing but the model list can be read"},
	}
}

// Options set a twin up. The zero value of each means what stands beside it.
type Options struct {
	// Role is plain.
	Role Role
	// Model is the served name: twin.
	Model string
	// Window and Pool are in tokens: 4096 and 4096.
	Window, Pool int
	// Block is the block size of a vLLM twin in tokens: 16.
	Block int
	// Slots is the number of slots of a llama.cpp twin: 2.
	Slots int
	// Lease is how long a vLLM prefill twin holds blocks for decode: 30 s.
	Lease time.Duration
	// EngineID is what a vLLM twin calls its engine: a fixed one.
	EngineID string
	// Pace is the time between two words of a stream: 0.
	Pace time.Duration
	// PerToken is how long a token of a prompt takes that is not cached: 0.
	PerToken time.Duration
	// Wait is how long a decode leg of SGLang waits for prefill: 300 s.
	Wait time.Duration
	// Key, if set, is the bearer key that the twin wants.
	Key string
}

func (o Options) withDefaults() Options {
	if o.Role == "" {
		o.Role = Plain
	}
	if o.Model == "" {
		o.Model = "twin"
	}
	for _, d := range []struct {
		value *int
		to    int
	}{{&o.Window, 4096}, {&o.Pool, 4096}, {&o.Block, 16}, {&o.Slots, 2}} {
		if *d.value == 0 {
			*d.value = d.to
		}
	}
	if o.Lease == 0 {
		o.Lease = 30 * time.Second
	}
	if o.Wait == 0 {
		o.Wait = 300 * time.Second
	}
	if o.EngineID == "" {
		o.EngineID = "11111111-2222-4333-8444-555555555555"
	}
	return o
}

// Seen is one request that a twin got.
type Seen struct {
	Method string      `json:"method"`
	Path   string      `json:"path"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// Bounds of what a twin remembers.
const (
	maxSeen = 256
	maxBody = 64 << 20
)

// engine is the part of a twin that differs from engine to engine.
type engine interface {
	// serve answers a request to a path of the engine's own; false if there is no such path.
	serve(c *call) bool
}

// Twin is one server. It is an http.Handler.
type Twin struct {
	profile Profile
	opts    Options
	engine  engine

	calls atomic.Int64 // numbers the answers, so that no two share an id

	// Two answers that are exchanged: the first comes over swaps, the second over swapped.
	swaps, swapped chan shape

	mu     sync.Mutex // guards what follows
	dead   bool
	broken bool // its worker is gone
	faults []armed
	seen   []Seen
	epoch  int // changes what the twin says it is
}

// ErrProfile says that there is no twin of that name, or not in that role.
var ErrProfile = errors.New("twin: no such engine, version or role")

// New makes a twin with the role plain.
func New(name string, o Options) (*Twin, error) {
	o = o.withDefaults()
	p, ok := profile(name)
	if !ok || o.Role != Plain {
		return nil, fmt.Errorf("%w: %s, %s", ErrProfile, name, o.Role)
	}
	t := newTwin(p, o)
	switch p.Engine {
	case sglang:
		t.engine = newSGLang(t, newFabric())
	case vllm:
		t.engine = newVLLM(t, newBlocks(o))
	case llama:
		t.engine = newLlama(t)
	default:
		t.engine = &hosted{t}
	}
	return t, nil
}

// Pair makes a prefill and a decode twin that work together. Their options differ where
// the caller wants them to; their roles are set here.
func Pair(name string, prefill, decode Options) (p, d *Twin, err error) {
	prof, ok := profile(name)
	if !ok || !prof.Pairs {
		return nil, nil, fmt.Errorf("%w: %s as a pair", ErrProfile, name)
	}
	prefill.Role, decode.Role = Prefill, Decode
	p, d = newTwin(prof, prefill.withDefaults()), newTwin(prof, decode.withDefaults())
	if prof.Engine == sglang {
		f := newFabric()
		p.engine, d.engine = newSGLang(p, f), newSGLang(d, f)
		return p, d, nil
	}
	b := newBlocks(p.opts)
	b.there = p.Alive
	p.engine, d.engine = newVLLM(p, b), newVLLM(d, b)
	return p, d, nil
}

func newTwin(p Profile, o Options) *Twin {
	return &Twin{profile: p, opts: o, swaps: make(chan shape), swapped: make(chan shape)}
}

func profile(name string) (Profile, bool) {
	all := Profiles()
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return all[i], true
}

// Alive says whether the twin still answers: an engine that died does not.
func (t *Twin) Alive() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.dead
}

// Kill ends the twin as a crash ends an engine: what it is saying is cut, and from now on
// every connection is.
func (t *Twin) Kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead = true
}

// Break ends the worker of the twin and leaves its HTTP server: what it is saying ends
// with an error event and [DONE], and whoever comes after that gets 500.
func (t *Twin) Break() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = true
}

// idle says whether the worker is gone.
func (t *Twin) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.broken
}

// Revive starts a twin anew that died or broke.
func (t *Twin) Revive() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dead, t.broken = false, false
}

// Seen returns what the twin was sent, oldest first, its own paths left out.
func (t *Twin) Seen() []Seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.seen)
}

// ServeHTTP serves one request.
func (t *Twin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if t.control(w, r) {
		return
	}
	if !t.Alive() {
		panic(http.ErrAbortHandler)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	t.note(r, body)
	if t.opts.Key != "" && r.Header.Get("Authorization") != "Bearer "+t.opts.Key && !open(r.URL.Path) {
		writeJSON(w, http.StatusUnauthorized, object{"error": "Unauthorized"})
		return
	}
	c := &call{t: t, w: w, r: r, body: body}
	c.id = strconv.FormatInt(t.calls.Add(1), 16)
	if !t.engine.serve(c) {
		writeJSON(w, http.StatusNotFound, object{"detail": "Not Found"})
	}
}

// open says whether a path asks for no key. Mooncake's /query stands on a server of its
// own, which has none.
func open(path string) bool { return path == "/health" || path == "/query" }

func (t *Twin) note(r *http.Request, body []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.seen) == maxSeen {
		t.seen = slices.Delete(t.seen, 0, 1)
	}
	t.seen = append(t.seen, Seen{r.Method, r.URL.RequestURI(), r.Header.Clone(), body})
}

// control serves the paths by which a test steers a twin: /twin/log and /twin/fault.
func (t *Twin) control(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case r.URL.Path == "/twin/log" && r.Method == http.MethodGet:
		writeJSON(w, http.StatusOK, t.Seen())
	case r.URL.Path == "/twin/log" && r.Method == http.MethodDelete:
		t.mu.Lock()
		t.seen = nil
		t.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == "/twin/fault" && r.Method == http.MethodPost:
		count, err := strconv.Atoi(r.URL.Query().Get("count"))
		if r.URL.Query().Get("count") == "" {
			count, err = 1, nil
		}
		if err == nil {
			err = t.Arm(r.URL.Query().Get("name"), count)
		}
		if err != nil {
			writeJSON(w, http.StatusBadRequest, object{"error": err.Error()})
			return true
		}
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == "/twin/fault" && r.Method == http.MethodDelete:
		t.Disarm()
		t.Revive()
		w.WriteHeader(http.StatusNoContent)
	default:
		return false
	}
	return true
}

// object is a JSON object.
type object map[string]any

func writeJSON(w http.ResponseWriter, status int, v any) {
	b := encode(v)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that left has nothing to be told
}

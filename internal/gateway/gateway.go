package gateway

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Gateway is an http.Handler. [Gateway.Run] must run beside it.
type Gateway struct {
	models    map[string]*model
	names     []string // of models, in the order of the configuration
	fleet     *fleet.Fleet
	door      *door
	passer    Passer
	events    Events
	clock     Clock
	bounds    Bounds
	domainKey []byte
	modes     map[Control]Mode
	seats     *account.Budget
	bytes     *account.Budget
	records   *record.Ring
	shadows   *record.Shadows
	prober    *tenant // whose requests the known-answer probes are (G-9)

	drawing sync.Mutex // guards random, which need not be safe for concurrent use
	random  io.Reader

	buffers sync.Pool      // of streams, *[]byte
	tasks   sync.WaitGroup // aborts that are under way
}

// model is one model at work.
type model struct {
	Model
	traits upstream.Traits
	group  *fleet.Group
}

// New checks a configuration and makes a gateway of it.
func New(c Config) (*Gateway, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Bounds = c.Bounds.WithDefaults()
	g := &Gateway{
		models: map[string]*model{}, passer: c.Passer, events: c.Events, clock: c.Clock, bounds: c.Bounds,
		domainKey: c.DomainKey, modes: c.Modes, random: c.Random,
		seats: account.NewBudget(int64(c.Bounds.InFlight)), bytes: account.NewBudget(c.Bounds.Bytes),
		records: record.NewRing(c.Records), shadows: record.NewShadows(),
	}
	g.buffers.New = func() any { b := make([]byte, firstBuffer); return &b }
	specs := map[string]fleet.Spec{}
	for _, m := range c.Models {
		m = m.WithDefaults()
		specs[m.Name] = m.Engines
		g.names = append(g.names, m.Name)
		g.models[m.Name] = &model{Model: m, traits: m.Dialect.Traits()}
	}
	var err error
	g.fleet, err = fleet.New(fleet.Config{
		Models: specs, Clock: c.Clock, Random: lockedReader{g}, Events: c.Fleet, Bounds: fleet.Bounds{
			Refresh: c.Bounds.Refresh, Fresh: c.Bounds.Fresh, Probe: c.Bounds.Probe,
			Connect: c.Bounds.Connect, Resolve: c.Bounds.Resolve, InFlight: c.Bounds.InFlight,
		},
	})
	if err != nil {
		return nil, err
	}
	for name, m := range g.models {
		m.group = g.fleet.Model(name)
	}
	g.door = newDoor(c, g.models)
	g.prober = newProber(c, g.models)
	return g, nil
}

// lockedReader is the gateway's source of randomness for others.
type lockedReader struct{ g *Gateway }

func (r lockedReader) Read(b []byte) (int, error) {
	if err := r.g.fill(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// mode returns the state of a control at this time (G-10). A shadow that has ended is
// enforced.
func (g *Gateway) mode(c Control) ModeState {
	m := g.modes[c]
	if m.State == Shadow && !g.clock.Now().Before(m.Until) {
		return Enforce
	}
	return m.State
}

// Refresh looks at every engine once and returns when all have answered or timed out.
// [Gateway.Run] does so over and over.
func (g *Gateway) Refresh(ctx context.Context) { g.fleet.Refresh(ctx) }

// Run looks at the engines until ctx ends, then waits for what the gateway still has to
// tell them. Exactly one goroutine runs it, for as long as the gateway serves.
func (g *Gateway) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { g.fleet.Run(ctx) })
	for _, name := range g.names {
		if m := g.models[name]; m.Probe.Prompt != "" {
			parts.Go(func() { g.probe(ctx, m) })
		}
	}
	parts.Wait()
	g.tasks.Wait()
}

// maxHeader is the longest request header, in bytes.
const maxHeader = 64 << 10

// Server is the http.Server that the gateway's promises count on: bounded headers, a
// deadline for them, HTTP/1 only, and no log of its own. Bodies and answers have
// deadlines per request, so it sets none for them. The caller listens and shuts down.
func Server(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		Protocols:         protocols,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
}

// Response headers.
const (
	headerID      = "X-Bulkhead-Request-Id"
	headerAlsoID  = "X-Request-Id" // the same, where the SDKs of OpenAI look for it
	headerVerdict = "X-Bulkhead-Verdict"
	headerDropped = "X-Bulkhead-Dropped"
	headerCount   = "X-Bulkhead-Count"
	headerClient  = "X-Client-Request-Id"
)

// ServeHTTP serves one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	// Whoever does not take an answer must not keep the connection, and the deadline of an
	// earlier request on it would stop this one's.
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(g.clock.Now().Add(g.bounds.Write)) // a server without deadlines has none
	if r.ContentLength != 0 {
		// Nor must whoever is refused early, by never sending its body.
		_ = rc.SetReadDeadline(g.clock.Now().Add(g.bounds.BodyGrace))
	}
	ids, err := g.draw()
	if err != nil {
		writeFault(w, fault.New(fault.Internal))
		return
	}
	id := "req-" + ids.public
	h.Set(headerID, id)
	h.Set(headerAlsoID, id)
	method := http.MethodGet
	var serve func()
	switch r.URL.Path {
	case upstream.Chat.Path():
		method, serve = http.MethodPost, func() { g.complete(w, r, upstream.Chat, id, ids) }
	case upstream.Completions.Path():
		method, serve = http.MethodPost, func() { g.complete(w, r, upstream.Completions, id, ids) }
	case "/v1/models":
		serve = func() { g.list(w, r, id) }
	case "/healthz":
		serve = func() { writeJSON(w, http.StatusOK, map[string]bool{"healthy": true}) }
	case "/readyz":
		serve = func() { g.readiness(w, id) }
	default:
		name, found := strings.CutPrefix(r.URL.Path, "/v1/models/")
		if !found || name == "" {
			writeFault(w, nothingAt(r.URL.Path).WithID(id))
			return
		}
		serve = func() { g.retrieve(w, r, id, name) }
	}
	if r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
		h.Set("Allow", method)
		writeFault(w, fault.New(fault.MethodNotAllowed).WithID(id))
		return
	}
	serve()
}

// writeFault sends an error as the whole answer.
func writeFault(w http.ResponseWriter, e *fault.Error) {
	h := w.Header()
	switch e.Code {
	case fault.TooManyRequests, fault.TenantBytes, fault.TooManyCounts, fault.QueueFull, fault.Uncollected:
		// The tenant's own budget; of the gateway's it says nothing (G-8). When another request
		// of the tenant's ends is not known.
		h.Set("Retry-After", "1")
	case fault.MissingKey, fault.InvalidKey, fault.ExpiredKey:
		h.Set("WWW-Authenticate", "Bearer")
	}
	writeBody(w, e.Status, e.Body())
}

// retryAfter tells when the tenant's own rate has room again, in whole seconds.
func retryAfter(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64((wait+time.Second-1)/time.Second)), 10))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		writeFault(w, fault.New(fault.Internal))
		return
	}
	writeBody(w, status, b)
}

// writeBody sends a JSON body. That a client has left shows elsewhere.
func writeBody(w http.ResponseWriter, status int, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// readiness says whether any model has an engine that can serve.
func (g *Gateway) readiness(w http.ResponseWriter, id string) {
	for _, m := range g.models {
		if m.group.Ready() {
			writeJSON(w, http.StatusOK, map[string]bool{"ready": true})
			return
		}
	}
	writeFault(w, fault.New(fault.NoPairReady).WithID(id))
}

// card is one line of /v1/models.
type card struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen *int64 `json:"max_model_len,omitempty"`
}

// nothingAt is the error of a path that is not served: by name, if it is one that clients
// of such APIs know.
func nothingAt(path string) *fault.Error {
	for _, known := range [...]struct {
		path string
		name fault.Arg
	}{
		{"/v1/responses", fault.Fixed("/v1/responses")}, {"/v1/messages", fault.Fixed("/v1/messages")}, {"/v1/embeddings", fault.Fixed("/v1/embeddings")},
		{"/v1/rerank", fault.Fixed("/v1/rerank")}, {"/v1/score", fault.Fixed("/v1/score")}, {"/v1/classify", fault.Fixed("/v1/classify")},
		{"/v1/moderations", fault.Fixed("/v1/moderations")}, {"/v1/files", fault.Fixed("/v1/files")}, {"/v1/batches", fault.Fixed("/v1/batches")},
		{"/v1/audio/", fault.Fixed("/v1/audio")}, {"/v1/images/", fault.Fixed("/v1/images")}, {"/api/", fault.Fixed("/api")},
		{"/generate", fault.Fixed("/generate")}, {"/completion", fault.Fixed("/completion")},
	} {
		if path == known.path || strings.HasSuffix(known.path, "/") && strings.HasPrefix(path, known.path) {
			return fault.New(fault.PathNotServed, known.name)
		}
	}
	return fault.New(fault.PathNotFound)
}

// caller authenticates who asks for models; nil after it has answered with an error.
func (g *Gateway) caller(w http.ResponseWriter, r *http.Request, id string) *tenant {
	t, fail := g.door.tenant(r.Header, g.clock.Now())
	if fail == nil {
		fail = checkHeaders(r.Header)
	}
	if fail != nil {
		writeFault(w, fail.WithID(id))
		return nil
	}
	return t
}

// card is what a model of the caller's is shown as. The length is the least that any of its
// engines serves; it is left out while it is not known.
func (t *tenant) card(name string) card {
	c := card{ID: name, Object: "model", OwnedBy: "bulkhead"}
	if n, known := t.routes[name].model.group.Advertised().Value(); known {
		c.MaxModelLen = &n
	}
	return c
}

// list lists the models of the caller.
func (g *Gateway) list(w http.ResponseWriter, r *http.Request, id string) {
	t := g.caller(w, r, id)
	if t == nil {
		return
	}
	cards := make([]card, 0, len(t.names))
	for _, name := range t.names {
		cards = append(cards, t.card(name))
	}
	writeJSON(w, http.StatusOK, struct {
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{"list", cards})
}

// retrieve tells of one model. One that is unknown and one that is somebody else's are the
// same (G-13).
func (g *Gateway) retrieve(w http.ResponseWriter, r *http.Request, id, name string) {
	t := g.caller(w, r, id)
	if t == nil {
		return
	}
	if !slices.Contains(t.names, name) {
		writeFault(w, fault.New(fault.ModelNotFound, fault.Field("model")).WithID(id))
		return
	}
	writeJSON(w, http.StatusOK, t.card(name))
}

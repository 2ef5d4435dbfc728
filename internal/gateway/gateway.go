package gateway

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Gateway is an http.Handler. [Gateway.Run] must run beside it.
type Gateway struct {
	models map[string]*model
	door   *door
	passer Passer
	events Events
	clock  Clock
	bounds Bounds
	seats  *budget
	bytes  *budget

	drawing sync.Mutex // guards random, which need not be safe for concurrent use
	random  io.Reader

	looking sync.Mutex // guards looked, and lets one look run at a time
	looked  time.Time

	tasks sync.WaitGroup // aborts that are under way
}

// New checks a configuration and makes a gateway of it.
func New(c Config) (*Gateway, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Bounds = c.Bounds.WithDefaults()
	g := &Gateway{
		models: map[string]*model{}, passer: c.Passer, events: c.Events, clock: c.Clock, bounds: c.Bounds,
		random: c.Random, seats: newBudget(int64(c.Bounds.InFlight)), bytes: newBudget(c.Bounds.Bytes),
	}
	for _, m := range c.Models {
		g.models[m.Name] = newModel(m, c.Bounds)
	}
	g.door = newDoor(c, g.models)
	return g, nil
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
	headerVerdict = "X-Bulkhead-Verdict"
	headerDropped = "X-Bulkhead-Dropped"
)

// ServeHTTP serves one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if r.ContentLength != 0 {
		// Whoever is refused early must not keep the connection by never sending its body.
		_ = http.NewResponseController(w).SetReadDeadline(g.clock.Now().Add(g.bounds.BodyGrace))
	}
	ids, err := g.draw()
	if err != nil {
		writeFault(w, fault.New(fault.Internal))
		return
	}
	id := "req-" + ids.public
	h.Set(headerID, id)
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
		writeFault(w, fault.New(fault.PathNotFound).WithID(id))
		return
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
	case fault.TooManyRequests, fault.TenantBytes:
		h.Set("Retry-After", "1") // the tenant's own budget; of the gateway's it says nothing (G-8)
	case fault.MissingKey, fault.InvalidKey:
		h.Set("WWW-Authenticate", "Bearer")
	}
	writeBody(w, e.Status, e.Body())
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

// readiness says whether any model has a pair that can serve.
func (g *Gateway) readiness(w http.ResponseWriter, id string) {
	if !g.Status().Ready {
		writeFault(w, fault.New(fault.NoPairReady).WithID(id))
		return
	}
	writeJSON(w, http.StatusOK, map[string]bool{"ready": true})
}

// card is one line of /v1/models.
type card struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen *int64 `json:"max_model_len,omitempty"`
}

// list lists the models of the caller. The length is the least that any pair serves; it
// is left out while it is not known.
func (g *Gateway) list(w http.ResponseWriter, r *http.Request, id string) {
	t, fail := g.door.tenant(r.Header)
	if fail == nil {
		fail = checkHeaders(r.Header)
	}
	if fail != nil {
		writeFault(w, fail.WithID(id))
		return
	}
	cards := make([]card, 0, len(t.names))
	for _, name := range t.names {
		c := card{ID: name, Object: "model", OwnedBy: "bulkhead"}
		if n, known := t.models[name].advertised().Value(); known {
			c.MaxModelLen = &n
		}
		cards = append(cards, c)
	}
	writeJSON(w, http.StatusOK, struct {
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{"list", cards})
}

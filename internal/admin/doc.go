// Package admin is what the operator of a gateway can ask it: its readiness, one
// request, the state of its rules, and what a control in shadow let pass. It has the
// JSON shapes, the handler that serves them, the client that asks, and their text for a
// terminal.
//
// It promises that a shape is only ever added to within its number, that what is not
// known is null and never zero, and that nothing which an engine or a client wrote
// reaches a terminal unprintable. What must not come in: the listener, keys, text of
// prompts or answers, and anything that changes the gateway.
package admin

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"
)

// Names of the shapes.
const (
	ReadySchema   = "bulkhead.ready/v1"
	ExplainSchema = "bulkhead.explain/v1"
	PostureSchema = "bulkhead.posture/v1"
	ShadowSchema  = "bulkhead.shadow/v1"
	errorSchema   = "bulkhead.error/v1"
)

// Readiness is the state of the gateway and of every engine.
type Readiness struct {
	Schema        string       `json:"schema"`
	Ready         bool         `json:"ready"` // some model takes requests, and no drain is under way
	Draining      bool         `json:"draining"`
	Configuration int          `json:"configuration"` // counts those taken over, from 1
	Earlier       int          `json:"earlier"`       // configurations before it with requests in progress
	ReloadWaits   bool         `json:"reload_waits"`  // until one of those has none
	InFlight      int64        `json:"in_flight"`     // requests in progress
	Models        []ModelState `json:"models"`
	Nodes         []NodeState  `json:"nodes"`
}

// ModelState is one model in it.
type ModelState struct {
	Model      string `json:"model"`
	Engine     string `json:"engine"`
	Ready      bool   `json:"ready"`
	Waiting    int    `json:"waiting"`           // requests that wait for room
	Advertised *int64 `json:"advertised_tokens"` // prompt and answer together: the least of all engines
}

// NodeState is one engine in it. Tokens are of one request, except those in flight.
type NodeState struct {
	Model  string `json:"model"`
	Node   string `json:"node"`
	Role   string `json:"role"`
	State  string `json:"state"` // what the operator wants of it
	Ready  bool   `json:"ready"`
	Why    string `json:"why"`    // what keeps it from taking requests
	Hint   string `json:"hint"`   // what to look at then
	Misfit string `json:"misfit"` // why it works with none of its partners
	// SourceFailed says that its source, such as a name in DNS, gives no usable list now.
	SourceFailed bool     `json:"source_failed"`
	Age          *float64 `json:"look_age_seconds"`
	Breaker      string   `json:"breaker"`
	Misses       int      `json:"probe_misses"`
	Weight       float64  `json:"weight"` // slow start included
	Tokens       int64    `json:"tokens_in_flight"`
	Requests     int64    `json:"requests_in_flight"`
	Pool         *int64   `json:"pool_tokens"`
	Window       *int64   `json:"window_tokens"`
	Prompt       *int64   `json:"prompt_tokens"` // the longest prompt
	Version      string   `json:"version"`       // as the engine tells it
	Findings     []string `json:"findings"`      // faults of its set-up
	Router       string   `json:"router"`        // the kind of router that answers in its place
	Alarms       []Alarm  `json:"alarms"`
}

// Alarm is something that an engine itself counts of what went wrong, such as expired
// leases.
type Alarm struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
}

// Explanation is one request.
type Explanation struct {
	Schema     string    `json:"schema"`
	ID         string    `json:"id"`
	Client     string    `json:"client_id"` // the client's own id, as it was echoed
	Tenant     string    `json:"tenant"`
	Model      string    `json:"model"`
	Domain     string    `json:"domain"` // a short keyed hash, to compare two requests
	Path       string    `json:"path"`
	Stream     bool      `json:"stream"`
	Probe      bool      `json:"probe"` // the gateway's own question
	Start      time.Time `json:"start"`
	Verdict    string    `json:"verdict"`
	Status     *int      `json:"status"`
	Code       string    `json:"code"`      // of the error that the client got
	Agreement  string    `json:"agreement"` // what the comparison of the legs said
	Late       bool      `json:"late"`      // it was made at the end only
	Count      string    `json:"count"`     // who counted the prompt for admission
	Prompt     *int64    `json:"prompt_tokens"`
	Completion *int64    `json:"completion_tokens"`
	From       string    `json:"completion_from"` // reported or observed
	MaxTokens  *int64    `json:"max_tokens"`      // what each sequence was asked for
	Sequences  int       `json:"sequences"`
	Attempts   int       `json:"attempts"`
	Body       int64     `json:"body_bytes"`
	First      *float64  `json:"first_byte_ms"`
	Committed  *float64  `json:"committed_ms"` // of a stream whose header left before the verdict
	Total      float64   `json:"total_ms"`
	Held       float64   `json:"held_ms"`
	Queued     float64   `json:"queued_ms"`
	Lease      *Lease    `json:"lease"`
	Target     string    `json:"target"` // node or pair of the last attempt
	Attempt    string    `json:"attempt"`
	Legs       []Leg     `json:"legs"`
	Oddities   string    `json:"oddities"`
	Shadowed   []string  `json:"shadowed"` // fields that passed because a control is in shadow
}

// Lease is what an engine keeps a prefill for, and how much of it had passed at decode's
// first token.
type Lease struct {
	Of   float64 `json:"of_ms"`
	Used float64 `json:"used_ms"`
}

// Leg is one call to an engine.
type Leg struct {
	Role       string   `json:"role"`
	Node       string   `json:"node"`
	ID         string   `json:"id"`
	Sequence   int      `json:"sequence"`
	Status     *int     `json:"status"`
	Prompt     *int64   `json:"prompt_tokens"`
	Completion *int64   `json:"completion_tokens"`
	Cached     *int64   `json:"cached_tokens"`
	First      *float64 `json:"first_ms"`
	Took       float64  `json:"took_ms"`
}

// Posture is the state of each rule on each route.
type Posture struct {
	Schema string `json:"schema"`
	// Whole says that every rule that applies is enforced.
	Whole   bool     `json:"whole"`
	Stances []Stance `json:"stances"`
}

// Stance is one rule on one route.
type Stance struct {
	Route  string     `json:"route"` // a model, or empty for all
	Rule   string     `json:"rule"`
	Title  string     `json:"title"`
	State  string     `json:"state"` // enforced, shadow, off, unknown or not applicable
	Until  *time.Time `json:"until"`
	Reason string     `json:"reason"`
}

// Shadow is what passed only because a control is in shadow.
type Shadow struct {
	Schema string        `json:"schema"`
	Since  time.Time     `json:"since"`
	Counts []ShadowCount `json:"counts"`
	Grant  string        `json:"grant"` // YAML to paste
}

// ShadowCount is one field of one tenant.
type ShadowCount struct {
	Field  string `json:"field"`
	Tenant string `json:"tenant"`
	Model  string `json:"model"`
	Count  int64  `json:"count"`
	// Grantable says that a grant would let it pass. What no engine knows cannot be granted.
	Grantable bool `json:"grantable"`
}

// failure is an error of this listener.
type failure struct {
	Schema  string `json:"schema"`
	Message string `json:"message"`
}

// Answers are where a [Handler] gets what it serves.
type Answers struct {
	Metrics http.Handler
	Ready   func() Readiness
	Explain func(id string) (Explanation, bool)
	Posture func() Posture
	Shadow  func() Shadow
	// Profiles are served too.
	Profiles bool
}

// maxID bounds the id of a request that is asked for, in bytes.
const maxID = 128

// Handler serves the operator. It has nothing that changes anything.
func Handler(a Answers) http.Handler {
	mux := routes(a)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !meant(req) {
			write(w, http.StatusMisdirectedRequest, failure{errorSchema, "this listener is asked by its address, or as localhost"})
			return
		}
		mux.ServeHTTP(w, req)
	})
}

func routes(a Answers) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		paths := "/metrics\n/readyz\n/v1/explain/{id}\n/v1/posture\n/v1/shadow\n"
		if a.Profiles {
			paths += "/debug/pprof/\n"
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, paths) // whoever asks may leave
	})
	mux.Handle("GET /metrics", a.Metrics)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := a.Ready()
		status := http.StatusOK
		if !r.Ready {
			status = http.StatusServiceUnavailable
		}
		write(w, status, r)
	})
	mux.HandleFunc("GET /v1/explain/{id}", func(w http.ResponseWriter, req *http.Request) {
		id := req.PathValue("id")
		if e, found := a.Explain(id); found && len(id) <= maxID {
			write(w, http.StatusOK, e)
			return
		}
		write(w, http.StatusNotFound, failure{errorSchema, "no such request is remembered: it never was, or others have taken its place"})
	})
	mux.HandleFunc("GET /v1/posture", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, a.Posture()) })
	mux.HandleFunc("GET /v1/shadow", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, a.Shadow()) })
	if a.Profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// meant says whether a request is meant for this listener. To one on loopback nobody comes
// by a name, but a page in a browser on this machine whose name was made to lead here.
func meant(req *http.Request) bool {
	at, known := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !known {
		return true
	}
	if own, err := netip.ParseAddrPort(at.String()); err != nil || !own.Addr().Unmap().IsLoopback() {
		return true
	}
	host := req.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost")
}

func write(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(body) // the client may be gone; there is nothing to tell it
}

// printable is a text without what a terminal would act on.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}

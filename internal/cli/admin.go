package cli

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/gateway"
)

// readiness is what the admin listener tells about the gateway. What is not known
// is null.
type readiness struct {
	Ready         bool        `json:"ready"` // some pair takes requests, and no drain is under way
	Draining      bool        `json:"draining"`
	Configuration int         `json:"configuration"` // counts those taken over, from 1
	Earlier       int         `json:"earlier"`       // configurations before it with requests in progress
	InFlight      int64       `json:"in_flight"`     // requests in progress
	Pairs         []pairState `json:"pairs"`
}

// pairState is one pair in it. Tokens are of one request.
type pairState struct {
	Model   string   `json:"model"`
	Pair    string   `json:"pair"`
	Ready   bool     `json:"ready"`
	Look    string   `json:"look"` // what the last look at its workers found
	Age     *float64 `json:"look_age_seconds"`
	Busy    int64    `json:"busy"` // attempts in progress
	Window  *int64   `json:"window_tokens"`
	Prompt  *int64   `json:"prompt_tokens"` // the longest prompt
	Decode  *int64   `json:"decode_tokens"` // prompt and answer in decode's pool
	Overall *int64   `json:"advertised_tokens"`
}

// status is the state of the server now.
func (s *server) status() readiness {
	now, f := time.Now(), s.front.Status()
	r := readiness{
		Ready: f.Ready && !s.draining.Load(), Draining: s.draining.Load(),
		Configuration: f.Configuration, Earlier: f.Earlier, InFlight: f.InFlight, Pairs: []pairState{},
	}
	for _, p := range f.Pairs {
		r.Pairs = append(r.Pairs, pairStateOf(p, now))
	}
	return r
}

func pairStateOf(p gateway.PairStatus, now time.Time) pairState {
	known := func(t admit.Tokens) *int64 {
		if n, ok := t.Value(); ok {
			return &n
		}
		return nil
	}
	s := pairState{
		Model: p.Model, Pair: p.Pair, Ready: p.Ready, Look: p.Why.String(), Busy: p.Busy,
		Window: known(p.Limits.Window), Prompt: known(admit.Min(p.Limits.Prefill, p.Limits.DecodePrompt)),
		Decode: known(p.Limits.Decode), Overall: known(p.Limits.Advertised()),
	}
	if !p.Seen.IsZero() {
		age := now.Sub(p.Seen).Seconds()
		s.Age = &age
	}
	return s
}

// adminHandler serves the operator: metrics, the state, and profiles if asked for.
func adminHandler(metrics http.Handler, status func() readiness, profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s := status()
		w.Header().Set("Content-Type", "application/json")
		if !s.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(s) // the client may be gone; there is nothing to tell it
	})
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

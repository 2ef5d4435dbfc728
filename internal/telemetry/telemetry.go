// Package telemetry turns events into log lines and metrics, and sends the metrics to
// a collector. It is the only package that logs and the only one that imports a metrics
// library.
//
// What it promises: a label is one of a fixed set of words, a number, a name of the
// configuration or an id that Bulkhead minted, and of each kind there is a bounded
// number. What must not come in: a body, a prompt, an answer, a key, or free text of a
// client or an engine.
package telemetry

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Set is one process's metrics and log.
type Set struct {
	role     string
	log      *slog.Logger
	registry *prometheus.Registry

	events     *prometheus.CounterVec
	attempts   *prometheus.CounterVec
	requests   *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	agreements *prometheus.CounterVec
	counts     *prometheus.CounterVec
	tokens     *prometheus.CounterVec
	late       *prometheus.CounterVec
	seconds    *prometheus.CounterVec
	byTenant   *prometheus.CounterVec
	tokensOf   *prometheus.CounterVec
	shadowed   *prometheus.CounterVec
	odd        *prometheus.CounterVec
	failed     *prometheus.CounterVec
	first      *prometheus.HistogramVec
	whole      *prometheus.HistogramVec
	held       *prometheus.HistogramVec
	queued     *prometheus.HistogramVec
	lease      *prometheus.HistogramVec

	tenants tenants // that have metrics of their own
}

// New makes the metrics of one process. role is gateway, prefill or decode.
func New(role string, log *slog.Logger) *Set {
	labels := prometheus.Labels{"role": role}
	counter := func(name, help string, by ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "bulkhead", Name: name, Help: help, ConstLabels: labels,
		}, by)
	}
	histogram := func(name, help string, buckets []float64, by ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "bulkhead", Name: name, Help: help, ConstLabels: labels, Buckets: buckets,
		}, by)
	}
	times := prometheus.ExponentialBuckets(0.001, 2, 18)
	s := &Set{
		role: role, log: log, registry: prometheus.NewRegistry(), tenants: tenants{seen: map[[2]string]bool{}},
		events:     counter("events_total", "Events by kind.", "kind"),
		attempts:   counter("attempts_total", "Attempts that ended, by code.", "code"),
		requests:   counter("requests_total", "Requests that ended, by path, status and verdict.", "path", "status", "verdict"),
		refusals:   counter("refusals_total", "Requests that ended with an error, by its code.", "code"),
		agreements: counter("agreements_total", "Comparisons of the legs of a request, by result.", "result"),
		counts:     counter("counts_total", "Prompts by who counted them for admission.", "how"),
		tokens:     counter("tokens_total", "Tokens, by direction: prompt or output.", "direction"),
		late:       counter("late_agreements_total", "Answers whose counts could be compared only at their end."),
		seconds:    counter("second_attempts_total", "Attempts after the first one of a request."),
		byTenant:   counter("tenant_requests_total", "Requests that ended, by tenant, model and verdict.", "tenant", "model", "verdict"),
		tokensOf:   counter("tenant_tokens_total", "Tokens of requests, by tenant, model and direction: prompt or output.", "tenant", "model", "direction"),
		shadowed:   counter("shadowed_total", "Fields that passed only because a control is in shadow."),
		odd:        counter("oddities_total", "Requests of which something was not as it should be, answered or not."),
		failed:     counter("export_failures_total", "Exports of metrics that a collector did not take."),
		first:      histogram("first_byte_seconds", "Seconds from a request to the first byte of its answer.", times, "path"),
		whole:      histogram("request_seconds", "Seconds from a request to the end of its answer.", times, "path"),
		held:       histogram("held_seconds", "Seconds that an answer was kept back until its legs agreed.", times, "path"),
		queued:     histogram("queued_seconds", "Seconds that a request waited for a node with room.", times),
		lease: histogram("lease_used_ratio", "Part of the lease that had passed when decode's first token came.",
			[]float64{0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}),
	}
	s.registry.MustRegister(s.events, s.attempts, s.requests, s.refusals, s.agreements, s.counts, s.tokens, s.late,
		s.seconds, s.byTenant, s.tokensOf, s.shadowed, s.odd, s.failed, s.first, s.whole, s.held, s.queued, s.lease)
	for _, alone := range []*prometheus.CounterVec{s.late, s.seconds, s.shadowed, s.odd, s.failed} {
		alone.WithLabelValues() // shown from the start: an alert needs to see it rise
	}
	return s
}

// Handler serves the metrics in Prometheus' text format.
func (s *Set) Handler() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
}

// Gauge registers a gauge that read is asked for at every scrape.
func (s *Set) Gauge(name, help string, read func() float64) {
	s.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "bulkhead", Name: name, Help: help,
	}, read))
}

// Borrowed registers a gauge under another program's name and labels, for dashboards and
// routers that look for those.
func (s *Set) Borrowed(name, help string, labels map[string]string, read func() float64) {
	labels = maps.Clone(labels)
	for name, value := range labels {
		labels[name] = label(value)
	}
	s.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, read))
}

// Event counts and logs something that an operator may want to know. kind is one of a
// fixed set of words.
func (s *Set) Event(kind string, attrs ...slog.Attr) {
	s.events.WithLabelValues(kind).Inc()
	s.line(levelOf(kind), kind, attrs...)
}

// levelOf is that of an event: a warning is something that an operator should look at.
func levelOf(kind string) slog.Level {
	for _, ill := range [...]string{"_down", "_failed", "_refused", "_waits", "_opened", "_dropped"} {
		if strings.HasSuffix(kind, ill) {
			return slog.LevelWarn
		}
	}
	return slog.LevelInfo
}

// line writes a line of the log, without the words that are empty.
func (s *Set) line(level slog.Level, kind string, attrs ...slog.Attr) {
	attrs = slices.DeleteFunc(attrs, func(a slog.Attr) bool { return a.Value.Kind() == slog.KindString && a.Value.String() == "" })
	s.log.LogAttrs(context.Background(), level, kind, attrs...)
}

// Attempt counts an attempt that ended at a worker.
func (s *Set) Attempt(code string, prompt, output int) {
	s.attempts.WithLabelValues(code).Inc()
	s.count(int64(prompt), int64(output))
}

func (s *Set) count(prompt, output int64) {
	s.tokens.WithLabelValues("prompt").Add(float64(max(prompt, 0)))
	s.tokens.WithLabelValues("output").Add(float64(max(output, 0)))
}

// Request is one request that ended at the gateway. A word that is empty and a time
// that is zero are of something that did not come to pass.
type Request struct {
	ID     string
	Tenant string
	Model  string
	Target string
	Path   string // of a fixed set
	Status string
	// Verdict, Code, Agreement and Count are of fixed sets.
	Verdict, Code, Agreement, Count string
	Prompt, Output                  int64 // tokens, as far as they were told
	Attempts                        int
	Late                            bool // the counts were compared at the end only
	Shadowed                        int  // fields that passed because a control is in shadow
	Odd                             string
	First                           time.Duration // to the first byte that was sent
	Whole                           time.Duration
	Held                            time.Duration
	Queued                          time.Duration
	Lease, Used                     time.Duration // Lease 0: there is none
	Probe                           bool          // the gateway's own question
}

// Request counts and logs a request. One of the gateway's own costs tokens and is
// counted among those, but it is no request of a client.
func (s *Set) Request(r Request) {
	s.count(r.Prompt, r.Output)
	if r.Probe {
		s.events.WithLabelValues("probe").Inc()
		s.line(r.level(), "probe", slog.String("id", r.ID), slog.String("model", r.Model), slog.String("target", r.Target),
			slog.String("verdict", r.Verdict), slog.String("code", r.Code), slog.Int64("prompt", r.Prompt), slog.Int64("output", r.Output))
		return
	}
	s.requests.WithLabelValues(r.Path, r.Status, r.Verdict).Inc()
	if tenant, model, shown := s.tenants.shown(r.Tenant, r.Model); shown {
		s.byTenant.WithLabelValues(tenant, model, r.Verdict).Inc()
		s.tokensOf.WithLabelValues(tenant, model, "prompt").Add(float64(max(r.Prompt, 0)))
		s.tokensOf.WithLabelValues(tenant, model, "output").Add(float64(max(r.Output, 0)))
	}
	for _, c := range []struct {
		of   *prometheus.CounterVec
		word string
	}{{s.refusals, r.Code}, {s.agreements, r.Agreement}, {s.counts, r.Count}} {
		if c.word != "" {
			c.of.WithLabelValues(c.word).Inc()
		}
	}
	if r.Late {
		s.late.WithLabelValues().Inc()
	}
	if r.Odd != "" {
		s.odd.WithLabelValues().Inc()
	}
	s.seconds.WithLabelValues().Add(float64(max(r.Attempts-1, 0)))
	s.shadowed.WithLabelValues().Add(float64(r.Shadowed))
	if r.First > 0 {
		s.first.WithLabelValues(r.Path).Observe(r.First.Seconds())
		s.held.WithLabelValues(r.Path).Observe(r.Held.Seconds())
	}
	if r.Attempts > 0 {
		s.queued.WithLabelValues().Observe(r.Queued.Seconds())
	}
	if r.Lease > 0 && r.Used > 0 {
		s.lease.WithLabelValues().Observe(float64(r.Used) / float64(r.Lease))
	}
	s.whole.WithLabelValues(r.Path).Observe(r.Whole.Seconds())
	s.line(r.level(), "request",
		slog.String("id", r.ID), slog.String("tenant", r.Tenant), slog.String("model", r.Model), slog.String("target", r.Target),
		slog.String("path", r.Path), slog.String("status", r.Status), slog.String("verdict", r.Verdict), slog.String("code", r.Code),
		slog.Int64("prompt", r.Prompt), slog.Int64("output", r.Output), slog.String("odd", r.Odd), slog.Duration("total", r.Whole))
}

// level is that of a request's line: what was refused is the client's matter, what
// failed is the operator's.
func (r Request) level() slog.Level {
	if r.Verdict == "served" || r.Verdict == "refused" || r.Verdict == "left" {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// maxTenants is how many tenants metrics show with each model; what is beyond is shown
// together.
const maxTenants = 1000

// others stands for tenants and models beyond those that are shown.
const others = "(others)"

// tenants are the pairs of tenant and model that metrics show.
type tenants struct {
	mu   sync.Mutex
	seen map[[2]string]bool
}

// shown is under which tenant and model a request is counted; a caller whose key is not
// known is under none.
func (t *tenants) shown(tenant, model string) (string, string, bool) {
	if tenant == "" {
		return "", "", false
	}
	tenant, model = label(tenant), label(model)
	t.mu.Lock()
	defer t.mu.Unlock()
	pair := [2]string{tenant, model}
	switch {
	case t.seen[pair]:
	case len(t.seen) >= maxTenants:
		return others, others, true
	default:
		t.seen[pair] = true
	}
	return tenant, model, true
}

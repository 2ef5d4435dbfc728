// Package telemetry turns events into log lines and metrics. It is the only
// package that logs and the only one that imports a metrics library.
//
// What it promises: a label is one of a fixed set of words, a number or an id
// that Bulkhead minted. What must not come in: a body, a prompt, an answer, a
// key, or free text of a client.
package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Set is one process's metrics and log.
type Set struct {
	log      *slog.Logger
	registry *prometheus.Registry

	events   *prometheus.CounterVec
	attempts *prometheus.CounterVec
	requests *prometheus.CounterVec
	tokens   *prometheus.CounterVec
	first    *prometheus.HistogramVec
	whole    *prometheus.HistogramVec
}

// New makes the metrics of one process. role is gateway, prefill or decode.
func New(role string, log *slog.Logger) *Set {
	labels := prometheus.Labels{"role": role}
	counter := func(name, help string, by ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "bulkhead", Name: name, Help: help, ConstLabels: labels,
		}, by)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "bulkhead", Name: name, Help: help, ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}, []string{"path"})
	}
	s := &Set{
		log: log, registry: prometheus.NewRegistry(),
		events:   counter("events_total", "Events by kind.", "kind"),
		attempts: counter("attempts_total", "Attempts that ended, by code.", "code"),
		requests: counter("requests_total", "Requests that ended, by path, status and verdict.", "path", "status", "verdict"),
		tokens:   counter("tokens_total", "Tokens, by direction: prompt or output.", "direction"),
		first:    seconds("first_byte_seconds", "Seconds from a request to the first byte of its answer."),
		whole:    seconds("request_seconds", "Seconds from a request to the end of its answer."),
	}
	s.registry.MustRegister(s.events, s.attempts, s.requests, s.tokens, s.first, s.whole)
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

// Event counts and logs something that an operator may want to know.
func (s *Set) Event(kind string, attrs ...slog.Attr) {
	s.events.WithLabelValues(kind).Inc()
	s.log.LogAttrs(context.Background(), slog.LevelInfo, kind, attrs...)
}

// Attempt counts an attempt that ended at a worker.
func (s *Set) Attempt(code string, prompt, output int) {
	s.attempts.WithLabelValues(code).Inc()
	s.tokens.WithLabelValues("prompt").Add(float64(prompt))
	s.tokens.WithLabelValues("output").Add(float64(output))
}

// Request is one request that ended at the gateway.
type Request struct {
	ID      string
	Tenant  string
	Path    string // of a fixed set
	Status  string
	Verdict string
	Code    string
	First   time.Duration // 0: no byte was sent
	Whole   time.Duration
}

// Request counts and logs a request.
func (s *Set) Request(r Request) {
	s.requests.WithLabelValues(r.Path, r.Status, r.Verdict).Inc()
	if r.First > 0 {
		s.first.WithLabelValues(r.Path).Observe(r.First.Seconds())
	}
	s.whole.WithLabelValues(r.Path).Observe(r.Whole.Seconds())
	s.log.LogAttrs(context.Background(), slog.LevelInfo, "request",
		slog.String("id", r.ID), slog.String("tenant", r.Tenant), slog.String("path", r.Path),
		slog.String("status", r.Status), slog.String("verdict", r.Verdict), slog.String("code", r.Code),
		slog.Duration("whole", r.Whole))
}

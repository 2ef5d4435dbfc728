package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	metrics "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// receiver is an OTLP collector.
type receiver struct {
	mu     sync.Mutex
	status int // what it answers
	reply  []byte
	got    []*collector.ExportMetricsServiceRequest
	header http.Header
	path   string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header, r.path = req.Header, req.URL.Path
	z, err := gzip.NewReader(req.Body)
	if err != nil {
		http.Error(w, "no gzip", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(z)
	var m collector.ExportMetricsServiceRequest
	if err != nil || proto.Unmarshal(body, &m) != nil {
		http.Error(w, "no protobuf", http.StatusBadRequest)
		return
	}
	r.got = append(r.got, &m)
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.WriteHeader(r.status)
	_, _ = w.Write(r.reply)
}

// named finds a metric.
func named(t *testing.T, m *collector.ExportMetricsServiceRequest, name string) *metrics.Metric {
	t.Helper()
	for _, one := range m.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		if one.Name == name {
			return one
		}
	}
	t.Fatalf("no %s", name)
	return nil
}

// TestExport: a collector gets what a scrape shows, over HTTP, as OTLP has it.
func TestExport(t *testing.T) {
	r := &receiver{status: http.StatusOK}
	srv := httptest.NewServer(r)
	defer srv.Close()
	s := New("gateway", slog.New(slog.DiscardHandler))
	s.State(func() State { return State{InFlight: 4} })
	s.Request(Request{Path: "/v1/completions", Status: "200", Verdict: "served", First: 3 * time.Millisecond, Whole: 40 * time.Millisecond})
	s.Request(Request{Path: "/v1/completions", Status: "200", Verdict: "served", First: time.Hour, Whole: time.Hour})
	start := time.Unix(1_000_000, 0)
	e := Export{
		URL: srv.URL + "/v1/metrics", Key: "planted-key", Version: "1.2", Instance: "abc", Start: start,
		Now: func() time.Time { return start.Add(time.Minute) }, Client: srv.Client(),
	}
	if err := s.post(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if r.path != "/v1/metrics" || r.header.Get("Content-Type") != "application/x-protobuf" || r.header.Get("Authorization") != "Bearer planted-key" {
		t.Errorf("%s %v", r.path, r.header)
	}
	got := r.got[0]
	names := map[string]string{}
	for _, a := range got.ResourceMetrics[0].Resource.Attributes {
		names[a.Key] = a.Value.GetStringValue()
	}
	if names["service.name"] != "bulkhead" || names["service.version"] != "1.2" || names["service.instance.id"] != "abc" {
		t.Errorf("%v", names)
	}
	sum := named(t, got, "bulkhead_requests_total").GetSum()
	p := sum.GetDataPoints()[0]
	if !sum.IsMonotonic || sum.AggregationTemporality != metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE ||
		p.GetAsDouble() != 2 || p.StartTimeUnixNano != uint64(start.UnixNano()) || p.TimeUnixNano != uint64(start.Add(time.Minute).UnixNano()) {
		t.Errorf("%v", sum)
	}
	labels := map[string]string{}
	for _, a := range p.Attributes {
		labels[a.Key] = a.Value.GetStringValue()
	}
	if labels["path"] != "/v1/completions" || labels["status"] != "200" || labels["verdict"] != "served" || labels["role"] != "gateway" {
		t.Errorf("%v", labels)
	}
	if g := named(t, got, "bulkhead_requests_in_flight").GetGauge(); g.GetDataPoints()[0].GetAsDouble() != 4 {
		t.Errorf("%v", g)
	}
	h := named(t, got, "bulkhead_first_byte_seconds").GetHistogram().GetDataPoints()[0]
	if h.GetCount() != 2 || len(h.GetBucketCounts()) != len(h.GetExplicitBounds())+1 || h.GetSum() < 3600 {
		t.Fatalf("%v", h)
	}
	var total uint64
	for i, n := range h.GetBucketCounts() {
		total += n
		if n == 1 && i < len(h.ExplicitBounds) && h.ExplicitBounds[i] != 0.004 {
			t.Errorf("3 ms are in the bucket up to %v", h.ExplicitBounds[i])
		}
	}
	if last := h.BucketCounts[len(h.BucketCounts)-1]; total != 2 || last != 1 {
		t.Errorf("an hour is not above all bounds: %v", h.BucketCounts)
	}
}

// TestExportRefused: whatever is not taken is an error that holds neither key nor URL.
func TestExportRefused(t *testing.T) {
	r := &receiver{status: http.StatusOK}
	srv := httptest.NewServer(r)
	defer srv.Close()
	s := New("gateway", slog.New(slog.DiscardHandler))
	e := Export{URL: srv.URL, Key: "planted-key", Now: time.Now, Client: srv.Client()}
	if err := s.post(t.Context(), e); err != nil {
		t.Fatalf("the good one: %v", err)
	}
	partial, err := proto.Marshal(&collector.ExportMetricsServiceResponse{PartialSuccess: &collector.ExportMetricsPartialSuccess{RejectedDataPoints: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		status int
		reply  []byte
		url    string
		says   string
	}{
		"unavailable": {503, nil, srv.URL, "status 503"},
		"redirected":  {307, nil, srv.URL, "status 307"},
		"partial":     {200, partial, srv.URL, "3 data points"},
		"nobody":      {200, nil, "http://127.0.0.1:1", "no answer"},
		"no url":      {200, nil, "http://planted host/", "the URL is none"},
	} {
		r.status, r.reply, e.URL = c.status, c.reply, c.url
		err := s.post(t.Context(), e)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "planted") || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestExportEvery: it exports at its times and once at the end, and tells a run of
// failures once.
func TestExportEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := New("gateway", slog.New(slog.NewTextHandler(&log, nil)))
		var times []time.Duration
		var down atomic.Bool
		began := time.Now()
		client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			times = append(times, time.Since(began))
			if down.Load() {
				return nil, errors.New("down")
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Export(ctx, Export{URL: "http://c", Every: 15 * time.Second, Now: time.Now, Client: client})
		}()
		step := func(d time.Duration) {
			synctest.Wait()
			t.Helper()
			<-time.NewTimer(d).C
			synctest.Wait()
		}
		step(16 * time.Second) // one
		down.Store(true)
		step(30 * time.Second) // two that fail
		down.Store(false)
		step(15 * time.Second) // and one
		cancel()
		<-done // and the last
		if len(times) != 5 || times[0] != 15*time.Second || times[4] != 61*time.Second {
			t.Errorf("%v", times)
		}
		if f, r := strings.Count(log.String(), "export_failed"), strings.Count(log.String(), "export_recovered"); f != 1 || r != 1 {
			t.Errorf("failures told %d times, recoveries %d:\n%s", f, r, log.String())
		}
		if !strings.Contains(scrape(t, s), `bulkhead_export_failures_total{role="gateway"} 2`) {
			t.Error("failures are not counted")
		}
	})
}

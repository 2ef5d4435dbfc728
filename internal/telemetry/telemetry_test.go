package telemetry

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestSet counts and logs one of each, and reads them back as an operator does.
func TestSet(t *testing.T) {
	var log bytes.Buffer
	s := New("gateway", slog.New(slog.NewTextHandler(&log, nil)))
	s.Gauge("pages_free", "Free pages.", func() float64 { return 7 })
	s.Event("link_up", slog.String("peer", "decode-0"))
	s.Attempt("ok", 100, 5)
	s.Request(Request{
		ID: "req-1", Tenant: "t", Path: "/v1/completions", Status: "200", Verdict: "served",
		First: 20 * time.Millisecond, Whole: 40 * time.Millisecond,
	})
	s.Request(Request{ID: "req-2", Path: "/v1/completions", Status: "400", Verdict: "refused", Code: "too_long"})
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`bulkhead_events_total{kind="link_up",role="gateway"} 1`,
		`bulkhead_attempts_total{code="ok",role="gateway"} 1`,
		`bulkhead_tokens_total{direction="prompt",role="gateway"} 100`,
		`bulkhead_tokens_total{direction="output",role="gateway"} 5`,
		`bulkhead_requests_total{path="/v1/completions",role="gateway",status="200",verdict="served"} 1`,
		`bulkhead_requests_total{path="/v1/completions",role="gateway",status="400",verdict="refused"} 1`,
		`bulkhead_first_byte_seconds_count{path="/v1/completions",role="gateway"} 1`, // the refused one sent none
		`bulkhead_request_seconds_count{path="/v1/completions",role="gateway"} 2`,
		`bulkhead_pages_free 7`,
	} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, rec.Body)
		}
	}
	for _, want := range []string{"link_up", "peer=decode-0", "id=req-1", "tenant=t", "code=too_long"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log:\n%s", want, log.String())
		}
	}
}

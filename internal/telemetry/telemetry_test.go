package telemetry

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestSet counts and logs one of each, and reads them back as an operator does.
func TestSet(t *testing.T) {
	var log bytes.Buffer
	s := New("gateway", slog.New(slog.NewTextHandler(&log, nil)))
	s.Gauge("pages_free", "Free pages.", func() float64 { return 7 })
	s.Borrowed("sglang:token_usage", "Usage.", map[string]string{"model_name": "m"}, func() float64 { return 0.5 })
	s.Event("link_up", slog.String("peer", "decode-0"))
	s.Attempt("ok", 100, 5)
	s.Request(Request{
		ID: "req-1", Tenant: "t", Model: "m", Path: "/v1/completions", Status: "200", Verdict: "served",
		First: 20 * time.Millisecond, Whole: 40 * time.Millisecond, Held: 5 * time.Millisecond, Queued: time.Second,
		Agreement: "agreed", Count: "engine", Prompt: 20, Output: 7, Attempts: 2, Late: true, Odd: "no usage", Shadowed: 3,
		Lease: 30 * time.Second, Used: 12 * time.Second,
	})
	s.Request(Request{ID: "req-2", Path: "/v1/completions", Status: "400", Verdict: "refused", Code: "too_long"})
	s.Event("node_down")
	s.Request(Request{ID: "req-3", Path: "/v1/completions", Status: "200", Verdict: "served", Prompt: 3, Output: 1, Attempts: 1, Probe: true})
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`bulkhead_events_total{kind="link_up",role="gateway"} 1`,
		`bulkhead_attempts_total{code="ok",role="gateway"} 1`,
		`bulkhead_tokens_total{direction="prompt",role="gateway"} 123`,
		`bulkhead_tokens_total{direction="output",role="gateway"} 13`,
		`bulkhead_requests_total{path="/v1/completions",role="gateway",status="200",verdict="served"} 1`,
		`bulkhead_requests_total{path="/v1/completions",role="gateway",status="400",verdict="refused"} 1`,
		`bulkhead_tenant_requests_total{model="m",role="gateway",tenant="t",verdict="served"} 1`,
		`bulkhead_tenant_tokens_total{direction="prompt",model="m",role="gateway",tenant="t"} 20`,
		`bulkhead_tenant_tokens_total{direction="output",model="m",role="gateway",tenant="t"} 7`,
		`bulkhead_first_byte_seconds_count{path="/v1/completions",role="gateway"} 1`, // the refused one sent none
		`bulkhead_request_seconds_count{path="/v1/completions",role="gateway"} 2`,
		`bulkhead_pages_free 7`,
		`sglang:token_usage{model_name="m"} 0.5`,
		`bulkhead_events_total{kind="probe",role="gateway"} 1`, // which is no request of a client
		`bulkhead_refusals_total{code="too_long",role="gateway"} 1`,
		`bulkhead_agreements_total{result="agreed",role="gateway"} 1`,
		`bulkhead_counts_total{how="engine",role="gateway"} 1`,
		`bulkhead_late_agreements_total{role="gateway"} 1`,
		`bulkhead_second_attempts_total{role="gateway"} 1`,
		`bulkhead_shadowed_total{role="gateway"} 3`,
		`bulkhead_oddities_total{role="gateway"} 1`,
		`bulkhead_export_failures_total{role="gateway"} 0`,
		`bulkhead_held_seconds_sum{path="/v1/completions",role="gateway"} 0.005`,
		`bulkhead_queued_seconds_sum{role="gateway"} 1`,
		`bulkhead_lease_used_ratio_bucket{role="gateway",le="0.3"} 0`,
		`bulkhead_lease_used_ratio_bucket{role="gateway",le="0.4"} 1`,
	} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, rec.Body)
		}
	}
	for _, want := range []string{
		"level=INFO msg=link_up", "peer=decode-0", "level=INFO msg=request id=req-1 tenant=t model=m path=",
		"msg=request id=req-2 path=", "code=too_long", "level=WARN msg=node_down", "level=INFO msg=probe",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log:\n%s", want, log.String())
		}
	}
}

// TestLevels: what failed is a warning, what a client did is none.
func TestLevels(t *testing.T) {
	for verdict, want := range map[string]slog.Level{
		"served": slog.LevelInfo, "refused": slog.LevelInfo, "left": slog.LevelInfo,
		"failed": slog.LevelWarn, "void": slog.LevelWarn, "broken": slog.LevelWarn,
	} {
		if got := (Request{Verdict: verdict}).level(); got != want {
			t.Errorf("%s: %s, want %s", verdict, got, want)
		}
	}
	for kind, want := range map[string]slog.Level{
		"node_up": slog.LevelInfo, "reloaded": slog.LevelInfo, "attempt_ended": slog.LevelInfo,
		"node_down": slog.LevelWarn, "reload_refused": slog.LevelWarn, "reload_waits": slog.LevelWarn, "breaker_opened": slog.LevelWarn, "export_failed": slog.LevelWarn,
	} {
		if got := levelOf(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}

// TestTenantsAreBounded: beyond a number of tenants the rest is counted together.
func TestTenantsAreBounded(t *testing.T) {
	s := New("gateway", slog.New(slog.DiscardHandler))
	for i := range maxTenants + 5 {
		s.Request(Request{Tenant: strconv.Itoa(i), Model: "m", Verdict: "served"})
	}
	s.Request(Request{Verdict: "refused"}) // of nobody
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if got := strings.Count(rec.Body.String(), "\nbulkhead_tenant_requests_total{"); got != maxTenants+1 {
		t.Errorf("%d series, want %d", got, maxTenants+1)
	}
	if want := `bulkhead_tenant_requests_total{model="(others)",role="gateway",tenant="(others)",verdict="served"} 5`; !strings.Contains(rec.Body.String(), want) {
		t.Errorf("no %s", want)
	}
}

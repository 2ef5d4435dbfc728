package telemetry

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

func scrape(t *testing.T, s *Set) string {
	t.Helper()
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return rec.Body.String()
}

// TestState: what is read is shown as it is at the time of the scrape, and nothing that
// is not known has a number.
func TestState(t *testing.T) {
	s := New("gateway", slog.New(slog.DiscardHandler))
	age, pool, left, ready := 1.5, int64(512), 3600.0, false
	s.State(func() State {
		return State{
			InFlight: 4, Stances: map[string]int{"enforced": 12, "unknown": 1}, KeysLeft: &left, KeysEnded: 2, Generation: 3,
			Queues: []Queue{{Model: "m", Waiting: 5, Ready: true}},
			Nodes: []Node{
				{Model: "m", Node: "p", Role: "prefill", Ready: ready, Why: "cannot be reached", Breaker: "open", Misses: 2},
				{Model: "m", Node: "d", Role: "decode", Ready: true, Age: &age, Pool: &pool, Tokens: 100, Requests: 2, Breaker: "closed",
					Alarms: map[string]float64{"expired_leases": 7}},
				{Model: "m", Node: "d", Role: "decode", Ready: false, Why: "twice"},
			},
		}
	})
	text := scrape(t, s)
	for _, want := range []string{
		`bulkhead_requests_in_flight 4`, `bulkhead_rules{state="enforced"} 12`, `bulkhead_next_key_expiry_seconds 3600`,
		`bulkhead_keys_expired 2`, `bulkhead_configuration 3`, `bulkhead_queue_waiting{model="m"} 5`, `bulkhead_model_ready{model="m"} 1`,
		`bulkhead_node_ready{engine_role="prefill",model="m",node="p"} 0`,
		`bulkhead_node_down{engine_role="prefill",model="m",node="p",why="cannot be reached"} 1`,
		`bulkhead_node_breaker_open{engine_role="prefill",model="m",node="p"} 1`,
		`bulkhead_node_probe_misses{engine_role="prefill",model="m",node="p"} 2`,
		`bulkhead_node_ready{engine_role="decode",model="m",node="d"} 1`,
		`bulkhead_node_look_age_seconds{engine_role="decode",model="m",node="d"} 1.5`,
		`bulkhead_node_pool_tokens{engine_role="decode",model="m",node="d"} 512`,
		`bulkhead_node_tokens_in_flight{engine_role="decode",model="m",node="d"} 100`,
		`bulkhead_node_alarms_total{alarm="expired_leases",engine_role="decode",model="m",node="d"} 7`,
		`bulkhead_nodes_not_shown 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for _, not := range []string{`look_age_seconds{engine_role="prefill"`, `pool_tokens{engine_role="prefill"`, `why="twice"`} {
		if strings.Contains(text, not) {
			t.Errorf("%s is shown", not)
		}
	}
	ready = true
	if text := scrape(t, s); !strings.Contains(text, `bulkhead_node_ready{engine_role="prefill",model="m",node="p"} 1`) || strings.Contains(text, `why="cannot`) {
		t.Errorf("the state of before is shown:\n%s", text)
	}
}

// TestManyNodes: what is shown is bounded, and how many are not shown is told.
func TestManyNodes(t *testing.T) {
	s := New("gateway", slog.New(slog.DiscardHandler))
	s.State(func() State {
		var all []Node
		for i := range maxNodes + 3 {
			all = append(all, Node{Model: "m", Node: fmt.Sprint("n", i), Role: "plain", Ready: true})
		}
		return State{Nodes: all}
	})
	text := scrape(t, s)
	if n := strings.Count(text, "bulkhead_node_ready{"); n != maxNodes || !strings.Contains(text, "bulkhead_nodes_not_shown 3\n") {
		t.Errorf("%d nodes are shown", n)
	}
}

// TestNoText: a label that is no text is shown quoted, and takes nothing else from the
// metrics.
func TestNoText(t *testing.T) {
	s := New("gateway", slog.New(slog.DiscardHandler))
	s.State(func() State {
		return State{
			Queues: []Queue{{Model: "m\xff"}},
			Nodes: []Node{
				{Model: "m\xff", Node: "pool/\xff:80", Role: "plain", Why: "\xff", Alarms: map[string]float64{"\xff": 1}},
				{Model: "m\xff", Node: "pool/\xfe:80", Role: "plain", Ready: true}, {Model: "m", Node: "a", Role: "plain", Ready: true},
			},
		}
	})
	s.Borrowed("borrowed", "A gauge.", map[string]string{"model": "m\xff"}, func() float64 { return 1 })
	s.Request(Request{Tenant: "t\xff", Model: "m\xff", Verdict: "served"})
	text := scrape(t, s)
	for _, want := range []string{
		`bulkhead_node_ready{engine_role="plain",model="m",node="a"} 1`,
		`bulkhead_node_ready{engine_role="plain",model="\"m\\xff\"",node="\"pool/\\xff:80\""} 0`,
		`bulkhead_node_ready{engine_role="plain",model="\"m\\xff\"",node="\"pool/\\xfe:80\""} 1`,
		`borrowed{model="\"m\\xff\""} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

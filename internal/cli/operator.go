package cli

import (
	"encoding/hex"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/admin"
	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/telemetry"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// gatewayEvents passes the gateway's events to telemetry.
type gatewayEvents struct{ tel *telemetry.Set }

// Request implements gateway.Events.
func (e gatewayEvents) Request(r gateway.RequestEvent) {
	prompt, _ := r.Prompt.Value()
	output, _ := r.Completion.Value()
	t := telemetry.Request{
		ID: r.ID, Tenant: r.Tenant, Model: r.Model, Target: r.Target, Path: r.Path, Status: strconv.Itoa(r.Status),
		Verdict: r.Verdict.String(), Code: string(r.Code), Count: r.Count.String(), Prompt: prompt, Output: output,
		Attempts: r.Attempts, Late: r.Late, Shadowed: len(r.Shadowed), Odd: r.Oddities.String(), First: r.FirstByte, Whole: r.Total,
		Held: r.Held, Queued: r.Queued, Lease: r.Lease.Of, Used: r.Lease.Used, Probe: r.Probe,
	}
	if r.Attempts > 0 {
		t.Agreement = agreement(r.Agreement, r.Verdict)
	}
	e.tel.Request(t)
}

// agreement says what the comparison of the legs said. An answer that was served without
// one had a single leg.
func agreement(a upstream.Agreement, v gateway.Verdict) string {
	if a == upstream.Open && v == gateway.Served {
		return "one leg"
	}
	return a.String()
}

// Fleet takes what happens to the engines.
func (e gatewayEvents) Fleet(x fleet.Event) {
	attrs := []slog.Attr{slog.String("model", x.Model), slog.String("node", x.Node), slog.String("engine_role", string(x.Role))}
	if x.Kind == fleet.NodeDown {
		attrs = append(attrs, slog.String("why", x.Why.String()))
	}
	e.tel.Event(x.Kind.String(), attrs...)
}

// pointer is a number that is shown as null where it is not known.
func pointer(t admit.Tokens) *int64 {
	if n, ok := t.Value(); ok {
		return &n
	}
	return nil
}

func counted(c upstream.Count) *int64 {
	if c.Known {
		return &c.N
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func known[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// ageOf is how many seconds ago something was seen; nil if never.
func ageOf(seen, now time.Time) *float64 {
	if seen.IsZero() {
		return nil
	}
	age := now.Sub(seen).Seconds()
	return &age
}

// status is the state of the server now.
func (s *server) status() admin.Readiness {
	now, f := time.Now(), s.front.Status()
	r := admin.Readiness{
		Schema: admin.ReadySchema, Ready: f.Ready && !s.draining.Load(), Draining: s.draining.Load(),
		Configuration: f.Configuration, Earlier: f.Earlier, ReloadWaits: s.waits.Load(), InFlight: f.InFlight, Models: []admin.ModelState{}, Nodes: nodeStates(f.Nodes, now),
	}
	for _, m := range f.Models {
		r.Models = append(r.Models, admin.ModelState{
			Model: m.Name, Engine: m.Dialect.String(), Ready: m.Ready, Waiting: m.Waiting, Advertised: known(m.Advertised),
		})
	}
	return r
}

func nodeStates(nodes []fleet.NodeStatus, now time.Time) []admin.NodeState {
	all := []admin.NodeState{}
	for _, n := range nodes {
		alarms := []admin.Alarm{}
		for _, a := range n.Info.Alarms {
			alarms = append(alarms, admin.Alarm{Name: a.Name, Count: a.Count})
		}
		all = append(all, admin.NodeState{
			Model: n.Model, Node: n.Name, Role: string(n.Role), State: n.State.String(), Ready: n.Ready, Why: why(n),
			Hint: hint(n), Misfit: misfit(n), SourceFailed: n.SourceFailed, Age: ageOf(n.Seen, now), Breaker: n.Breaker, Misses: n.Misses, Weight: n.Weight,
			Tokens: n.Tokens, Requests: n.Requests, Pool: pointer(n.Pool), Window: counted(n.Info.Window), Prompt: counted(n.Info.MaxInput),
			Version: n.Info.Version, Findings: append([]string{}, n.Findings...), Router: n.Info.Router, Alarms: alarms,
		})
	}
	return all
}

// state is what metrics show of the server.
func (s *server) state() telemetry.State {
	now, f := time.Now(), s.front.Status()
	t := telemetry.State{InFlight: f.InFlight, Generation: f.Configuration, Stances: map[string]int{}}
	for _, m := range f.Models {
		t.Queues = append(t.Queues, telemetry.Queue{Model: m.Name, Waiting: m.Waiting, Ready: m.Ready})
	}
	for _, n := range f.Nodes {
		alarms := map[string]float64{}
		for _, a := range n.Info.Alarms {
			alarms[a.Name] = float64(a.Count)
		}
		t.Nodes = append(t.Nodes, telemetry.Node{
			Model: n.Model, Node: n.Name, Role: string(n.Role), Ready: n.Ready, Why: why(n), Age: ageOf(n.Seen, now),
			Tokens: n.Tokens, Requests: n.Requests, Pool: pointer(n.Pool), Breaker: n.Breaker, Misses: n.Misses, Alarms: alarms,
		})
	}
	for _, stance := range s.front.Posture() {
		t.Stances[strings.ToLower(stance.State.String())]++
	}
	for _, at := range *s.keys.Load() {
		left := at.Sub(now).Seconds()
		switch {
		case left <= 0:
			t.KeysEnded++
		case t.KeysLeft == nil || left < *t.KeysLeft:
			t.KeysLeft = &left
		}
	}
	return t
}

// explain looks up one request.
func (s *server) explain(id string) (admin.Explanation, bool) {
	r, found := s.front.Explain(id)
	if !found {
		return admin.Explanation{}, false
	}
	e := admin.Explanation{
		Schema: admin.ExplainSchema, ID: r.ID, Client: r.Client, Tenant: r.Tenant, Model: r.Model, Domain: r.Domain, Path: r.Path,
		Stream: r.Streaming == upstream.Streamed, Probe: r.Probe, Start: r.Start.UTC(), Verdict: r.Verdict.String(), Status: known(r.Status),
		Code: string(r.Code), Late: r.Late, Count: r.Count.String(), Prompt: pointer(r.Prompt), Completion: pointer(r.Completion),
		From: r.From.String(), MaxTokens: known(r.MaxTokens), Sequences: r.Sequences, Attempts: r.Attempts, Body: r.BodyBytes,
		Total: milliseconds(r.Total), Held: milliseconds(r.Held), Queued: milliseconds(r.Queued), Target: r.Target,
		Legs: []admin.Leg{}, Oddities: r.Oddities.String(), Shadowed: append([]string{}, r.Shadowed...),
	}
	if r.Attempts > 0 {
		e.Agreement, e.Attempt = agreement(r.Agreement, r.Verdict), hex.EncodeToString(r.Attempt[:])
	}
	if r.FirstByte > 0 {
		first := milliseconds(r.FirstByte)
		e.First = &first
	}
	if r.Committed > 0 {
		committed := milliseconds(r.Committed)
		e.Committed = &committed
	}
	if r.Lease.Of > 0 {
		e.Lease = &admin.Lease{Of: milliseconds(r.Lease.Of), Used: milliseconds(r.Lease.Used)}
	}
	for _, l := range r.Legs {
		e.Legs = append(e.Legs, admin.Leg{
			Role: string(l.Role), Node: l.Node, ID: l.ID, Sequence: l.Sequence, Status: known(l.Status), Prompt: pointer(l.Prompt),
			Completion: pointer(l.Completion), Cached: pointer(l.Cached), First: known(milliseconds(l.First)), Took: milliseconds(l.Took),
		})
	}
	return e, true
}

// posture is the state of each rule on each route.
func (s *server) posture() admin.Posture {
	p := admin.Posture{Schema: admin.PostureSchema, Whole: true, Stances: []admin.Stance{}}
	for _, x := range s.front.Posture() {
		stance := admin.Stance{
			Route: x.Route, Rule: x.Rule, Title: admin.Title(x.Rule), State: strings.ToLower(x.State.String()), Reason: x.Reason,
		}
		if !x.Until.IsZero() {
			until := x.Until.UTC()
			stance.Until = &until
		}
		p.Whole = p.Whole && (x.State == gateway.Enforced || x.State == gateway.NotApplicable)
		p.Stances = append(p.Stances, stance)
	}
	return p
}

// shadow is what passed only because a control is in shadow, and the grants for it.
func (s *server) shadow() admin.Shadow {
	r := admin.Shadow{Schema: admin.ShadowSchema, Since: s.since.UTC(), Counts: []admin.ShadowCount{}}
	grants := map[string][]string{}
	for _, c := range s.front.Shadow() {
		r.Counts = append(r.Counts, admin.ShadowCount{Field: c.Field, Tenant: c.Tenant, Model: c.Model, Count: c.Count, Grantable: c.Grantable})
		if c.Grantable && !slices.Contains(grants[c.Tenant], c.Field) {
			grants[c.Tenant] = append(grants[c.Tenant], c.Field)
		}
	}
	r.Grant = admin.Grants(grants)
	return r
}

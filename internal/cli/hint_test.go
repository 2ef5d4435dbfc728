package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/admin"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// TestHints: an engine that takes no requests is told with what to look at, in our words.
func TestHints(t *testing.T) {
	seen := time.Unix(1, 0)
	for _, c := range []struct {
		node              fleet.NodeStatus
		why, hint, misfit string
	}{
		{fleet.NodeStatus{Why: fleet.NodeReady, Seen: seen}, "ready", "", ""},
		{fleet.NodeStatus{Why: fleet.Unseen}, "not looked at yet", "", ""},
		{fleet.NodeStatus{Why: fleet.Unseen, Seen: seen}, "has no partner that answers", "", ""},
		{fleet.NodeStatus{Why: fleet.Away}, "cannot be reached", "is the engine up", ""},
		{fleet.NodeStatus{Why: fleet.Declines, Dialect: upstream.VLLM}, "says that it cannot serve", "not with 200 as vllm does", ""},
		{fleet.NodeStatus{Why: fleet.Quiet, Dialect: upstream.SGLang}, "gives no usable answer", "http in place of https", ""},
		{fleet.NodeStatus{Why: fleet.Unmatched, Misfit: "upstream: match: the server serves another model"}, "fits no partner or serves another model", "", "the server serves another model"},
		{fleet.NodeStatus{Why: fleet.Unmatched, Misfit: "upstream: match pair: the prefill leg has another role"}, "fits no partner or serves another model", "", "the prefill leg has another role"},
	} {
		if got := why(c.node); got != c.why {
			t.Errorf("why: %q, want %q", got, c.why)
		}
		if got := hint(c.node); !strings.Contains(got, c.hint) || (got == "") != (c.hint == "") {
			t.Errorf("%s: hint %q, want %q", c.why, got, c.hint)
		}
		if got := misfit(c.node); got != c.misfit {
			t.Errorf("misfit: %q, want %q", got, c.misfit)
		}
	}
}

// TestNodeStates: what is wrong with a pair and with a source is shown, not only what an
// engine tells of itself.
func TestNodeStates(t *testing.T) {
	pair := fleet.NodeStatus{Name: "pair", Info: upstream.Info{Findings: []string{"own"}}, Findings: []string{"own", "of the pair"}}
	nodes := nodeStates([]fleet.NodeStatus{pair, {Name: "lost", SourceFailed: true}}, time.Unix(1, 0))
	if got := nodes[0]; strings.Join(got.Findings, ", ") != "own, of the pair" || got.SourceFailed || !nodes[1].SourceFailed {
		t.Errorf("%+v", nodes)
	}
	var text bytes.Buffer
	if err := admin.NodesText(&text, nil, nodes); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"of the pair", "its source gives no usable list"} {
		if strings.Count(text.String(), want) != 1 {
			t.Errorf("%q stands not once in\n%s", want, &text)
		}
	}
}

// TestHelp: the help of every command fits a terminal of 80 columns, and goes to standard
// output; a wrong flag is one line on the other.
func TestHelp(t *testing.T) {
	for _, c := range commands() {
		if c.name == "version" {
			continue
		}
		code, out, said := run(t, nil, c.name, "-h")
		if code != exitOK || said != "" || !strings.HasPrefix(out, "bulkhead "+c.name+": ") {
			t.Errorf("%s -h: exit %d, %q", c.name, code, said)
		}
		for line := range strings.Lines(out) {
			if line = strings.TrimRight(line, "\n"); len(line) > helpWidth || strings.HasPrefix(line, "  -") && !strings.HasPrefix(line, "  --") {
				t.Errorf("%s -h: %q", c.name, line)
			}
		}
		if _, again, _ := run(t, nil, "help", c.name); again != out {
			t.Errorf("help %s is not %s -h", c.name, c.name)
		}
		code, out, said = run(t, nil, c.name, "--no-such-flag")
		if code != exitUsage || out != "" || strings.Count(said, "\n") != 1 || !strings.Contains(said, "--no-such-flag") {
			t.Errorf("%s: exit %d, %q %q", c.name, code, out, said)
		}
	}
	var wrapped bytes.Buffer
	printWrapped(&wrapped, "  ", strings.Repeat("word ", 40))
	if got := strings.Count(wrapped.String(), "\n"); got != 3 || strings.Count(wrapped.String(), "word") != 40 {
		t.Errorf("%d lines:\n%s", got, &wrapped)
	}
}

// TestNotServed: an adapter that an engine does not list is found before a client asks for it.
func TestNotServed(t *testing.T) {
	node := fleet.NodeStatus{Model: "m", Why: fleet.NodeReady, Info: upstream.Info{Models: []string{"base", "lora"}}}
	tenants := []gateway.Tenant{{ID: "t", Aliases: map[string]gateway.Alias{
		"good": {Model: "m", Served: "lora"}, "plain": {Model: "m"}, "other": {Model: "x", Served: "none"}, "bad": {Model: "m", Served: "lost"},
	}}}
	if got := notServed(node, tenants); len(got) != 1 || got[0] != "it does not list lost, which the alias bad of tenant t stands for" {
		t.Errorf("%q", got)
	}
	node.Info.Models = nil
	if got := notServed(node, tenants); len(got) != 0 {
		t.Errorf("an engine that lists nothing: %q", got)
	}
}

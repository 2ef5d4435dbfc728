package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/gateway"
)

// hint says what to look at where an engine takes no requests; empty where the reason
// says it all.
func hint(n fleet.NodeStatus) string {
	switch n.Why {
	case fleet.Away:
		return "nobody takes a connection there: is the engine up, and are host and port right?"
	case fleet.Declines:
		return fmt.Sprintf("something answers, but not with 200 as %s does: is it still loading, does it want a key (or another one), is it another engine?", n.Dialect)
	case fleet.Quiet:
		return fmt.Sprintf("what answers is not %s as the URL says: http in place of https or the other way round, a certificate that nobody vouches for (worker_ca, ca), another engine?", n.Dialect)
	case fleet.Slow, fleet.Stale:
		return "it is overloaded or starting, or bounds.probe is too short for it"
	case fleet.TwoFaced:
		return "give each engine an address of its own, and no balancer in between"
	case fleet.Twin, fleet.Duplicate:
		return "name each engine once"
	case fleet.Unwell:
		return "its answer to probe.prompt fails, or does not contain probe.want"
	}
	return ""
}

// why says what keeps an engine from taking requests. One that answered, and of whose
// partners none did, lacks a partner.
func why(n fleet.NodeStatus) string {
	if n.Why == fleet.Unseen && !n.Seen.IsZero() {
		return "has no partner that answers"
	}
	return n.Why.String()
}

// misfit is why an engine fits no partner, without the name of who found out.
func misfit(n fleet.NodeStatus) string {
	text := n.Misfit
	for _, who := range [...]string{"upstream: match pair: ", "upstream: match: "} {
		text = strings.TrimPrefix(text, who)
	}
	return text
}

// firstLook is how often it is asked whether every engine was looked at.
const firstLook = 100 * time.Millisecond

// sayMissing says, once after each start and reload, which engines take no requests and
// why: no event tells of one that was never up. It waits for the first look at all.
func (s *server) sayMissing(ctx context.Context, b gateway.Bounds) {
	limit := time.NewTimer(2*(b.Connect+b.Probe) + b.Refresh)
	defer limit.Stop()
	tick := time.NewTicker(firstLook)
	defer tick.Stop()
	for waits := true; waits; {
		select {
		case <-tick.C:
			waits = s.unseen()
		case <-limit.C:
			waits = false
		case <-ctx.Done():
			return
		}
	}
	for _, n := range s.front.Status().Nodes {
		if n.Ready || n.Why == fleet.Drains || n.Why == fleet.Gone {
			continue
		}
		line := fmt.Sprintf("model %s, %s node %s takes no requests: %s", n.Model, n.Role, n.Name, why(n))
		for _, more := range [...]string{misfit(n), hint(n)} {
			if more != "" {
				line += "; " + more
			}
		}
		s.note([]string{line})
	}
}

// unseen says whether some engine was not looked at yet.
func (s *server) unseen() bool {
	for _, n := range s.front.Status().Nodes {
		if n.Why == fleet.Unseen && n.Seen.IsZero() {
			return true
		}
	}
	return false
}

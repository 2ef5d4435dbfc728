package telemetry

import (
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// State is what is asked for at every scrape.
type State struct {
	InFlight   int64 // requests in progress
	Nodes      []Node
	Queues     []Queue
	Stances    map[string]int // how many rules of routes are in each state; the words are of a fixed set
	KeysLeft   *float64       // seconds until the next API key expires; nil if none does
	KeysEnded  int            // API keys that have expired
	Generation int            // configurations taken over
}

// Node is one engine. Its name is of the configuration, with an address where a source
// names several.
type Node struct {
	Model, Node, Role string
	Ready             bool
	Why               string   // of a fixed set
	Age               *float64 // seconds since its last answer to a look; nil if there was none
	Tokens, Requests  int64    // in flight
	Pool              *int64   // tokens; nil if it does not tell
	Breaker           string   // closed, open or half-open
	Misses            int      // known answers in a row that did not come
	Alarms            map[string]float64
}

// Queue is the requests of one model that wait for room.
type Queue struct {
	Model   string
	Waiting int
	Ready   bool // some node takes requests
}

// maxNodes bounds how many nodes are shown. How many are not is a metric.
const maxNodes = 512

// states shows a State at every scrape.
type states struct {
	read  func() State
	descs [numDescs]*prometheus.Desc
}

// The metrics of a State.
const (
	inFlight = iota
	nodeReady
	nodeDown
	nodeAge
	nodeTokens
	nodeRequests
	nodePool
	nodeBreaker
	nodeMisses
	nodeAlarms
	nodesHidden
	modelReady
	waiting
	stances
	keysLeft
	keysEnded
	generation
	numDescs
)

// State registers what read is asked for at every scrape. It is called once.
func (s *Set) State(read func() State) {
	c := &states{read: read}
	node := []string{"model", "node", "engine_role"}
	with := func(word string) []string { return append([]string{word}, node...) }
	for i, d := range [numDescs]struct {
		name, help string
		by         []string
	}{
		inFlight:     {"requests_in_flight", "Requests in progress.", nil},
		nodeReady:    {"node_ready", "1 if the node takes requests.", node},
		nodeDown:     {"node_down", "1 for what keeps a node from taking requests.", with("why")},
		nodeAge:      {"node_look_age_seconds", "Seconds since the node last answered a look.", node},
		nodeTokens:   {"node_tokens_in_flight", "Tokens that are estimated to be in flight at the node.", node},
		nodeRequests: {"node_requests_in_flight", "Requests in progress at the node.", node},
		nodePool:     {"node_pool_tokens", "Tokens that the node's pool holds.", node},
		nodeBreaker:  {"node_breaker_open", "1 if the node is left alone for failing.", node},
		nodeMisses:   {"node_probe_misses", "Known answers in a row that the node did not give.", node},
		nodeAlarms:   {"node_alarms_total", "What the node itself counts of failures, such as expired leases.", with("alarm")},
		nodesHidden:  {"nodes_not_shown", "Nodes beyond the number that metrics show.", nil},
		modelReady:   {"model_ready", "1 if some node of the model takes requests.", []string{"model"}},
		waiting:      {"queue_waiting", "Requests that wait for a node with room.", []string{"model"}},
		stances:      {"rules", "Rules of routes by state: enforced, shadow, off, unknown or not applicable.", []string{"state"}},
		keysLeft:     {"next_key_expiry_seconds", "Seconds until the next API key expires.", nil},
		keysEnded:    {"keys_expired", "API keys of the configuration that have expired.", nil},
		generation:   {"configuration", "Configurations that were taken over, the first included.", nil},
	} {
		c.descs[i] = prometheus.NewDesc("bulkhead_"+d.name, d.help, d.by, nil)
	}
	s.registry.MustRegister(c)
}

// Describe implements prometheus.Collector.
func (c *states) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *states) Collect(to chan<- prometheus.Metric) {
	gauge := func(which int, v float64, by ...string) {
		for i := range by {
			by[i] = label(by[i])
		}
		to <- prometheus.MustNewConstMetric(c.descs[which], prometheus.GaugeValue, v, by...)
	}
	s := c.read()
	gauge(inFlight, float64(s.InFlight))
	gauge(keysEnded, float64(s.KeysEnded))
	gauge(generation, float64(s.Generation))
	if s.KeysLeft != nil {
		gauge(keysLeft, *s.KeysLeft)
	}
	for state, n := range s.Stances {
		gauge(stances, float64(n), state)
	}
	for _, q := range s.Queues {
		gauge(waiting, float64(q.Waiting), q.Model)
		gauge(modelReady, one(q.Ready), q.Model)
	}
	gauge(nodesHidden, float64(max(len(s.Nodes)-maxNodes, 0)))
	seen := map[[3]string]bool{} // a repeated one would make the whole scrape fail
	for _, n := range s.Nodes[:min(len(s.Nodes), maxNodes)] {
		by := [3]string{label(n.Model), label(n.Node), label(n.Role)}
		if seen[by] {
			continue
		}
		seen[by] = true
		c.node(to, gauge, n, by[:])
	}
}

func (c *states) node(to chan<- prometheus.Metric, gauge func(int, float64, ...string), n Node, by []string) {
	gauge(nodeReady, one(n.Ready), by...)
	if !n.Ready {
		gauge(nodeDown, 1, append([]string{n.Why}, by...)...)
	}
	if n.Age != nil {
		gauge(nodeAge, *n.Age, by...)
	}
	gauge(nodeTokens, float64(n.Tokens), by...)
	gauge(nodeRequests, float64(n.Requests), by...)
	if n.Pool != nil {
		gauge(nodePool, float64(*n.Pool), by...)
	}
	gauge(nodeBreaker, one(n.Breaker == "open"), by...)
	gauge(nodeMisses, float64(n.Misses), by...)
	for alarm, v := range n.Alarms {
		to <- prometheus.MustNewConstMetric(c.descs[nodeAlarms], prometheus.CounterValue, v, append([]string{label(alarm)}, by...)...)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// label is a text as the value of a label. One that is no UTF-8 is shown quoted, for
// the metrics library panics at it.
func label(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strconv.Quote(text)
}

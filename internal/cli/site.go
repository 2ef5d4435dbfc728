package cli

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/upstream"
	"bulkhead.dev/bulkhead/wire"
)

// workerBody is the longest body, in bytes, that a leg to our own workers can carry: a
// worker takes 8 MiB, and a leg is a little longer than what the client sent.
const workerBody = 8<<20 - 4<<10

// asUsage makes an error of a configuration file one of wrong usage.
func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return exit{exitUsage, err}
}

// readServe reads a configuration file of bulkhead serve, and fills in every default.
// It reads no secret.
func readServe(path string) (config.Serve, *config.Document, error) {
	file, err := os.Open(path)
	if err != nil {
		return config.Serve{}, nil, exit{exitUsage, err}
	}
	defer file.Close()
	c, doc, err := config.ReadServe(file, time.Now())
	if err != nil {
		return c, nil, asUsage(err)
	}
	fill(&c)
	if c.Bounds.Fresh <= c.Bounds.Refresh {
		return c, nil, asUsage(doc.Wrong("bounds.fresh", "must be longer than bounds.refresh"))
	}
	return c, doc, nil
}

// fill puts the defaults of the gateway and of the fleet in place of what was not
// written.
func fill(c *config.Serve) {
	ours := false
	for i := range c.Models {
		ours = ours || c.Models[i].Dialect() == upstream.Bulkhead
		fillModel(&c.Models[i])
	}
	if c.Bounds.Body == 0 && ours {
		c.Bounds.Body = workerBody
	}
	c.Bounds = boundsOf(bounds(c.Bounds).WithDefaults())
	if c.Records == 0 {
		c.Records = 4096
	}
	for i := range c.Tenants {
		t := &c.Tenants[i]
		g := gateway.Tenant{InFlight: int(t.InFlight), Bytes: int64(t.Bytes), Uncollected: int64(t.Uncollected)}.WithDefaults()
		t.InFlight, t.Bytes, t.Uncollected = config.Number(g.InFlight), config.Size(g.Bytes), config.Number(g.Uncollected)
	}
}

func fillModel(m *config.Model) {
	g := gateway.Model{Name: m.Name, Served: m.Served, Dialect: m.Dialect(), DefaultMaxTokens: int64(m.DefaultMaxTokens)}
	if m.Probe != nil {
		g.Probe = gateway.Probe{MaxTokens: int64(m.Probe.MaxTokens), Every: time.Duration(m.Probe.Every)}
	}
	g = g.WithDefaults()
	m.Served, m.DefaultMaxTokens = g.Served, config.Number(g.DefaultMaxTokens)
	if m.Sizes == nil && g.Sizes != (gateway.Sizes{}) {
		m.Sizes = &config.Sizes{}
	}
	if m.Sizes != nil && m.Sizes.PerMessage == 0 {
		m.Sizes.PerMessage = config.Number(g.Sizes.PerMessage)
	}
	if m.Sizes != nil && m.Sizes.PerRequest == 0 {
		m.Sizes.PerRequest = config.Number(g.Sizes.PerRequest)
	}
	if m.Probe != nil {
		m.Probe.MaxTokens, m.Probe.Every = config.Number(g.Probe.MaxTokens), config.Duration(g.Probe.Every)
	}
	if m.MaxSchema == 0 {
		m.MaxSchema = 64 << 10
	}
	if m.MaxSequences == 0 {
		m.MaxSequences = 16
	}
	s := spread(*m).WithDefaults()
	m.SlowStart, m.Overcommit = config.Duration(s.SlowStart), config.Percent(100*s.Overcommit)
	m.Affinity.Slack = config.Percent(100 * s.Affinity.Slack)
	m.Breaker = config.Breaker{
		Failures: config.Number(s.Breaker.Failures), Rate: config.Percent(100 * s.Breaker.Rate), Least: config.Number(s.Breaker.Least),
		Window: config.Duration(s.Breaker.Window), Open: config.Duration(s.Breaker.Open),
	}
	m.Queue = config.Queue{
		PerTenant: config.Number(s.Queue.PerTenant), Total: config.Number(s.Queue.Total), Wait: config.Duration(s.Queue.Wait),
	}
}

// spread is how requests are spread over a model's engines, without the engines.
func spread(m config.Model) fleet.Spec {
	return fleet.Spec{
		SlowStart: time.Duration(m.SlowStart), Overcommit: float64(m.Overcommit) / 100,
		Affinity: fleet.Affinity{Slack: float64(m.Affinity.Slack) / 100},
		Breaker: fleet.Breaker{
			Failures: int(m.Breaker.Failures), Rate: float64(m.Breaker.Rate) / 100, Least: int(m.Breaker.Least),
			Window: time.Duration(m.Breaker.Window), Open: time.Duration(m.Breaker.Open),
		},
		Queue: fleet.QueueBounds{PerTenant: int(m.Queue.PerTenant), Total: int(m.Queue.Total), Wait: time.Duration(m.Queue.Wait)},
	}
}

// bounds is the gateway's form of what a file writes.
func bounds(b config.Bounds) gateway.Bounds {
	return gateway.Bounds{
		Body: int64(b.Body), Bytes: int64(b.Bytes), InFlight: int(b.InFlight),
		BodyGrace: time.Duration(b.BodyGrace), BodyRate: int64(b.BodyRate),
		FirstByte: time.Duration(b.FirstByte), Idle: time.Duration(b.Idle), Write: time.Duration(b.Write),
		Event: int(b.Event), Held: int(b.Held), Answer: int64(b.Answer), PassLife: time.Duration(b.PassLife),
		Refresh: time.Duration(b.Refresh), Fresh: time.Duration(b.Fresh), Probe: time.Duration(b.Probe),
		Connect: time.Duration(b.Connect), Resolve: time.Duration(b.Resolve), Abort: time.Duration(b.Abort),
		Count: time.Duration(b.Count), Counts: int(b.Counts), CountBytes: int64(b.CountBytes), Sequences: int(b.Sequences),
		RetryPercent: int(b.RetryPercent),
	}
}

// boundsOf is the other way round.
func boundsOf(g gateway.Bounds) config.Bounds {
	return config.Bounds{
		Body: config.Size(g.Body), Bytes: config.Size(g.Bytes), InFlight: config.Number(g.InFlight),
		BodyGrace: config.Duration(g.BodyGrace), BodyRate: config.Size(g.BodyRate),
		FirstByte: config.Duration(g.FirstByte), Idle: config.Duration(g.Idle), Write: config.Duration(g.Write),
		Event: config.Size(g.Event), Held: config.Size(g.Held), Answer: config.Size(g.Answer), PassLife: config.Duration(g.PassLife),
		Refresh: config.Duration(g.Refresh), Fresh: config.Duration(g.Fresh), Probe: config.Duration(g.Probe),
		Connect: config.Duration(g.Connect), Resolve: config.Duration(g.Resolve), Abort: config.Duration(g.Abort),
		Count: config.Duration(g.Count), Counts: config.Number(g.Counts), CountBytes: config.Size(g.CountBytes),
		Sequences: config.Number(g.Sequences), RetryPercent: config.Number(g.RetryPercent),
	}
}

// site is a configuration of bulkhead serve with its secrets read.
type site struct {
	config  config.Serve
	gateway gateway.Config
	cert    *tls.Certificate // nil: plain HTTP
	otlp    string           // bearer token of the collector
	keys    []time.Time      // when API keys expire, of those that do
	open    string           // the key of a caller without one; empty: callers need one
	notes   []string         // what an operator should know at start
}

// loadSite reads a configuration file and its secrets and checks everything that can
// be checked without the network.
func loadSite(sys System, path string, events gateway.Events) (*site, error) {
	c, doc, err := readServe(path)
	if err != nil {
		return nil, err
	}
	r := &secretReader{sys: sys, Problems: config.Problems{Doc: doc}}
	s := &site{config: c, gateway: gatewayConfig(c, r, events), cert: r.certificate("tls", c.TLS), notes: notes(c, time.Now())}
	if c.Telemetry != nil {
		s.otlp = r.optional("telemetry.key", c.Telemetry.Key)
	}
	if err := r.Err(); err != nil {
		return nil, asUsage(err)
	}
	if err := s.sound(doc); err != nil {
		return nil, err
	}
	s.keys = expiries(c)
	return s, nil
}

// sound has the gateway check its configuration. Its errors name the setting as the
// file does.
func (s *site) sound(doc *config.Document) error {
	if _, err := gateway.New(s.gateway); err != nil {
		path, what, _ := strings.Cut(strings.TrimPrefix(err.Error(), "gateway: configure: "), ": ")
		if model, engines := strings.CutSuffix(path, ".engines"); engines { // the fleet's, whose settings are the model's here
			path = model
			inner, rest, found := strings.Cut(what, ": ")
			if setting, more, several := strings.Cut(inner, ", "); several && !strings.Contains(more, ".") {
				inner = setting[:max(0, strings.LastIndexByte(setting, '.'))] // one of several: the node has them
			}
			if found && inner != "" && !strings.Contains(inner, " ") {
				path, what = model+"."+inner, rest
			}
		}
		return asUsage(doc.Wrong(path, "%s", what))
	}
	return nil
}

// expiries are the moments at which API keys expire.
func expiries(c config.Serve) []time.Time {
	var all []time.Time
	for _, t := range c.Tenants {
		for _, k := range t.Keys {
			if at, err := k.Expires.Time(); err == nil && !at.IsZero() {
				all = append(all, at)
			}
		}
	}
	return all
}

// gatewayConfig is the configuration as the gateway takes it. After an error that r
// collected it is of no use.
func gatewayConfig(c config.Serve, r *secretReader, events gateway.Events) gateway.Config {
	g := gateway.Config{
		Pepper: r.key("pepper", c.Pepper), DomainKey: r.key("domain_key", c.DomainKey), DomainEpoch: c.DomainEpoch,
		Events: events, Random: rand.Reader, Clock: gateway.SystemClock{}, Bounds: bounds(c.Bounds),
		Records: int(c.Records), Modes: modes(c.Modes),
	}
	var control string
	if c.PassKey != "" {
		if key := r.key("pass_key", c.PassKey); key != nil {
			passer, err := wire.NewPasser(key)
			if err != nil {
				r.Add("pass_key", "%v", err)
			}
			g.Passer = passer
		}
		control = r.control("control_key", c.ControlKey)
	}
	vouch := r.authorities("worker_ca", c.WorkerCA)
	for i, m := range c.Models {
		g.Models = append(g.Models, modelConfig(m, r, "models["+strconv.Itoa(i)+"]", control, vouch))
	}
	for i, t := range c.Tenants {
		g.Tenants = append(g.Tenants, tenantConfig(t, r, "tenants["+strconv.Itoa(i)+"]", g.Pepper))
	}
	return g
}

func modes(m config.Modes) map[gateway.Control]gateway.Mode {
	all := map[gateway.Control]gateway.Mode{}
	m.Each(func(control string, mode config.Mode) {
		until, _ := mode.Until.Time() // a wrong one was refused before
		state := map[string]gateway.ModeState{"shadow": gateway.Shadow, "off": gateway.Off}[mode.Mode]
		all[gateway.Control(control)] = gateway.Mode{State: state, Until: until}
	})
	return all
}

func modelConfig(m config.Model, r *secretReader, path, control string, vouch *tls.Config) gateway.Model {
	g := gateway.Model{
		Name: m.Name, Served: m.Served, Dialect: m.Dialect(), Window: int64(m.Window), Lease: time.Duration(m.Lease),
		DefaultMaxTokens: int64(m.DefaultMaxTokens), Grants: m.Grants, URLs: m.URLs, MaxSchema: int(m.MaxSchema),
		MaxSequences: int(m.MaxSequences), Engines: spread(m),
		Hold: gateway.Hold{Bytes: int(m.Hold.Bytes), CommitAfter: time.Duration(m.Hold.CommitAfter)},
	}
	if m.SafetyID {
		g.SafetyID = gateway.Pseudonym
	}
	if m.Probe != nil {
		g.Probe = gateway.Probe{
			Prompt: m.Probe.Prompt, Want: m.Probe.Want, MaxTokens: int64(m.Probe.MaxTokens), Every: time.Duration(m.Probe.Every),
		}
	}
	switch m.Tokenizer {
	case "recall":
		g.Sizes, g.Counter = recallSizes(), recallCounter{}
	case "none":
		// An engine that cannot count has no counter anyway. There the bytes must do for what
		// bytes bound badly, such as tools: one that refuses all of it would refuse every tool.
		if t := g.Dialect.Traits(); t.Tokenizes || g.Dialect == upstream.Bulkhead {
			g.Counter = noCounter{}
		}
	}
	if m.Sizes != nil {
		g.Sizes = gateway.Sizes{
			BytesPerToken: int64(m.Sizes.BytesPerToken), PerMessage: int64(m.Sizes.PerMessage), PerRequest: int64(m.Sizes.PerRequest),
		}
	}
	vouch = engineTLS(m, r, path, vouch)
	nodes := func(key string, from []config.Node) (all []fleet.Source) {
		for i, n := range from {
			all = append(all, node(n, r, path+"."+key+"["+strconv.Itoa(i)+"]", vouch))
		}
		return all
	}
	g.Engines.Plain, g.Engines.Prefill, g.Engines.Decode = nodes("nodes", m.Nodes), nodes("prefill", m.Prefill), nodes("decode", m.Decode)
	for _, p := range m.Pairs {
		leg := func(url config.URL) fleet.Source {
			return fleet.Source{URL: string(url), ControlKey: control, TLS: vouch}
		}
		host, port, _ := p.Bootstrap.Split()
		g.Engines.Pairs = append(g.Engines.Pairs, fleet.PairSpec{
			Name: p.Name, BootstrapHost: host, BootstrapPort: port, Prefill: leg(p.Prefill), Decode: leg(p.Decode),
		})
	}
	return g
}

// engineTLS is for https to a model's engines; nil is the system's. vouch is that of
// worker_ca.
func engineTLS(m config.Model, r *secretReader, path string, vouch *tls.Config) *tls.Config {
	switch {
	case m.CA != "":
		return r.authorities(path+".ca", m.CA)
	case m.Dialect().Traits().Hosted:
		return nil // it is somebody else's, behind a public authority
	}
	return vouch
}

// node is one source of engines. A wrong word in it was refused before.
func node(n config.Node, r *secretReader, path string, vouch *tls.Config) fleet.Source {
	state, _ := fleet.ParseState(n.State)
	host, port, _ := n.Bootstrap.Split()
	return fleet.Source{
		Name: n.Name, URL: string(n.URL), DNS: string(n.DNS), File: n.File, BootstrapHost: host, BootstrapPort: port,
		State: state, Share: float64(n.Share) / 100, Weight: float64(n.Weight), TLS: vouch,
		Key: r.optional(path+".key", n.Key), ControlKey: r.optional(path+".control_key", n.ControlKey),
	}
}

func tenantConfig(t config.Tenant, r *secretReader, path string, pepper []byte) gateway.Tenant {
	g := gateway.Tenant{
		ID: t.ID, Models: t.Models, Domain: t.Domain, Narrow: t.Narrow, InFlight: int(t.InFlight), Bytes: int64(t.Bytes),
		RequestsPerMinute: int64(t.RequestsPerMinute), TokensPerMinute: int64(t.TokensPerMinute), Budget: int64(t.Budget),
		Uncollected: int64(t.Uncollected), Grants: t.Grants, Private: t.Private, RetryPercent: int(t.RetryPercent),
	}
	if t.Priority != nil {
		g.Priority = upstream.Count{N: *t.Priority, Known: true}
	}
	for name, a := range t.Aliases {
		if g.Aliases == nil {
			g.Aliases = map[string]gateway.Alias{}
		}
		g.Aliases[name] = gateway.Alias{Model: a.Model, Served: a.Served}
	}
	for i, k := range t.Keys {
		at := path + ".keys[" + strconv.Itoa(i) + "]"
		expires, _ := k.Expires.Time() // a wrong one was refused before
		hash, err := keyHash(k, r, at, pepper)
		if errors.Is(err, errNoKey) {
			continue
		}
		if err != nil {
			if at += ".hash"; k.Key != "" {
				at = path + ".keys[" + strconv.Itoa(i) + "].key"
			}
			r.Add(at, "%s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "account: "), "hash key: "))
		}
		g.Keys = append(g.Keys, gateway.Key{Hash: hash, Expires: expires})
	}
	return g
}

// errNoKey says that a key could not be read, for a reason that was collected.
var errNoKey = errors.New("cli: no key")

// errManyLines says that a file of a key holds more than the key.
var errManyLines = errors.New("account: it has several lines; of what bulkhead key prints, the first alone is the key")

// keyHash is the hash of a key of the configuration.
func keyHash(k config.Key, r *secretReader, path string, pepper []byte) (account.KeyHash, error) {
	if k.Key == "" {
		return account.ParseKeyHash(k.Hash)
	}
	text := r.text(path+".key", k.Key)
	if text == "" || pepper == nil {
		return account.KeyHash{}, errNoKey
	}
	if strings.Contains(text, "\n") {
		return account.KeyHash{}, errManyLines
	}
	return account.HashKey(pepper, text)
}

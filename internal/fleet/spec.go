package fleet

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// Spec says which engines serve one model. Engines with one leg are in Plain. Engines
// with two are in Prefill and Decode, of which any may work with any, or in Pairs.
type Spec struct {
	// Dialect is how all of them are asked.
	Dialect upstream.Dialect
	// Served is what the engines call the model.
	Served string
	// Window caps the context length, in tokens; 0 means what the engines say.
	Window int64
	// Plain, Prefill and Decode are where the engines are.
	Plain, Prefill, Decode []Source
	// Pairs are prefill and decode engines that work with each other only.
	Pairs []PairSpec
	// Lease is how long a prefill engine holds what decode has not fetched. Leased
	// dialects need it; it must equal what the engines were started with.
	Lease time.Duration
	// Affinity says how far a session or a prefix may unbalance the load.
	Affinity Affinity
	// SlowStart is how long an engine that came back takes to reach its weight; 0 means
	// 10 seconds, less than 0 at once.
	SlowStart time.Duration
	// Breaker says when an engine that keeps failing is left alone.
	Breaker Breaker
	// Queue bounds the requests that wait for room.
	Queue QueueBounds
	// Overcommit is how many times its pool the estimated tokens in flight of an engine
	// may be; 0 means 1. A single request never exceeds the pool.
	Overcommit float64
	// Question tells the question with a known answer from other such questions (G-9); 0
	// means that none is asked. What it showed holds under the next configuration only if
	// that asks the same.
	Question uint64
}

// Affinity bounds the load of the target that a session or a prefix prefers.
type Affinity struct {
	// Slack is by which share of the mean a preferred target may be busier than it; 0
	// means 0.5.
	Slack float64
}

// Breaker says when an engine is left alone. A zero value means the default beside it.
type Breaker struct {
	Failures int           // failures one after another: 5
	Rate     float64       // or this share of the calls within Window: 0.5
	Least    int           // if they were at least so many: 20
	Window   time.Duration // 30 s
	Open     time.Duration // how long it is left alone before one request tries it: 10 s
}

// QueueBounds bounds the requests that wait. A zero value means the default beside it.
type QueueBounds struct {
	PerTenant int           // of one tenant: 64
	Total     int           // of all: 1024
	Wait      time.Duration // for each of them: 30 s
}

// State is what an operator wants of an engine.
type State uint8

const (
	// Active takes requests. It is the zero value.
	Active State = iota
	// Draining takes no new requests; what is in progress goes on to its end. What may
	// follow is the end of the engine, or Active.
	Draining
	// Private takes only requests that name it.
	Private
	// Canary takes its share of the requests, and never more.
	Canary
)

// String returns the state as configurations write it.
func (s State) String() string {
	names := [...]string{"active", "draining", "private", "canary"}
	if int(s) < len(names) {
		return names[s]
	}
	return "no state"
}

// ParseState reads a state that String wrote; the empty text is Active.
func ParseState(name string) (State, error) {
	if name == "" {
		return Active, nil
	}
	for s := Active; s <= Canary; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, errors.New("fleet: parse state: want active, draining, private or canary")
}

// Source says where engines are: exactly one of URL, DNS and File is set.
type Source struct {
	// Name names the engine, or the engines together with their address; empty means the
	// address.
	Name string
	// URL is one engine: scheme and host, for hosted dialects also a path.
	URL string
	// DNS is scheme, name and port; every address of the name is an engine. It is
	// resolved again and again.
	DNS string
	// File is the path of a file with one URL a line, empty lines and lines that begin
	// with # left out. It is read again when it changes.
	File string
	// BootstrapHost and BootstrapPort are where decode meets a prefill engine; empty means
	// the host of its URL, 0 means 8998.
	BootstrapHost string
	BootstrapPort int
	// State is what the operator wants of the engines.
	State State
	// Share is the part of the requests that a canary takes, above 0 and at most 1.
	Share float64
	// Weight is the part of the load that each engine takes against others; 0 means 1.
	Weight float64
	// Key is the bearer token for the engine, ControlKey the one for its control endpoints.
	// Empty: none, and Key.
	Key, ControlKey string
	// TLS is used for https; nil means the system's defaults.
	TLS *tls.Config
}

// PairSpec is one prefill and one decode engine that work with each other only.
type PairSpec struct {
	// Name names the pair; empty means its bootstrap label.
	Name string
	// BootstrapHost and BootstrapPort are the label under which decode knows prefill
	// (H-13). Port 0 means 8998.
	BootstrapHost string
	BootstrapPort int
	// Prefill and Decode are one engine each, by URL.
	Prefill, Decode Source
}

// Bounds limits what engines can make us hold or wait for. A zero value means the
// default that stands beside it.
type Bounds struct {
	Refresh  time.Duration // between two looks at the engines: 2 s
	Fresh    time.Duration // how long a look holds: 7 s
	Probe    time.Duration // for one look: 2 s
	Connect  time.Duration // for a connection to an engine: 2 s
	Resolve  time.Duration // between two resolutions of a name: 10 s
	InFlight int           // idle connections kept for each engine: 256
	Look     int64         // bytes of one answer to a look: 4 MiB
	Nodes    int           // engines of one model: 256
	Targets  int           // combinations of two engines of one model: 4096
}

// WithDefaults returns the bounds with the default in place of each zero.
func (b Bounds) WithDefaults() Bounds {
	setDefault(&b.Refresh, 2*time.Second)
	setDefault(&b.Fresh, 7*time.Second)
	setDefault(&b.Probe, 2*time.Second)
	setDefault(&b.Connect, 2*time.Second)
	setDefault(&b.Resolve, 10*time.Second)
	setDefault(&b.InFlight, 256)
	setDefault(&b.Look, 4<<20)
	setDefault(&b.Nodes, 256)
	setDefault(&b.Targets, 4096)
	return b
}

// WithDefaults returns the specification with the default in place of each zero that
// has one, those of its sources included.
func (s Spec) WithDefaults() Spec {
	setDefault(&s.Affinity.Slack, 0.5)
	setDefault(&s.SlowStart, 10*time.Second)
	setDefault(&s.Overcommit, 1)
	setDefault(&s.Breaker.Failures, 5)
	setDefault(&s.Breaker.Rate, 0.5)
	setDefault(&s.Breaker.Least, 20)
	setDefault(&s.Breaker.Window, 30*time.Second)
	setDefault(&s.Breaker.Open, 10*time.Second)
	setDefault(&s.Queue.PerTenant, 64)
	setDefault(&s.Queue.Total, 1024)
	setDefault(&s.Queue.Wait, 30*time.Second)
	s.Plain, s.Prefill, s.Decode = defaults(s.Plain), defaults(s.Prefill), defaults(s.Decode)
	pairs := make([]PairSpec, len(s.Pairs))
	for i, p := range s.Pairs {
		pairs[i] = p.withDefaults()
	}
	s.Pairs = pairs
	return s
}

func defaults(from []Source) []Source {
	to := make([]Source, len(from))
	for i, s := range from {
		to[i] = s.withDefaults()
	}
	return to
}

func (s Source) withDefaults() Source {
	setDefault(&s.Weight, 1)
	setDefault(&s.BootstrapPort, defaultBootstrap)
	if s.Name == "" {
		s.Name = s.URL + s.DNS + s.File
	}
	if s.ControlKey == "" {
		s.ControlKey = s.Key
	}
	return s
}

func (p PairSpec) withDefaults() PairSpec {
	if p.BootstrapHost == "" {
		p.BootstrapHost = p.Prefill.BootstrapHost
	}
	setDefault(&p.BootstrapPort, p.Prefill.BootstrapPort)
	setDefault(&p.BootstrapPort, defaultBootstrap)
	p.Prefill.BootstrapHost, p.Prefill.BootstrapPort = p.BootstrapHost, p.BootstrapPort
	p.Prefill, p.Decode = p.Prefill.withDefaults(), p.Decode.withDefaults()
	if p.Name == "" {
		p.Name = net.JoinHostPort(p.BootstrapHost, strconv.Itoa(p.BootstrapPort))
	}
	return p
}

// defaultBootstrap is the port at which engines meet unless told otherwise.
const defaultBootstrap = 8998

func setDefault[T int | int64 | float64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Check says what is wrong with a specification, with the path of the setting. It holds
// no address and no key.
func (s Spec) Check() error {
	s = s.WithDefaults()
	if s.Served == "" {
		return errors.New("served: empty")
	}
	if s.Window < 0 || s.Lease < 0 || s.Overcommit <= 0 || s.Affinity.Slack < 0 || s.Queue.PerTenant < 0 || s.Queue.Total < 0 || s.Queue.Wait < 0 {
		return errors.New("window, lease, overcommit, affinity or queue: negative")
	}
	if b := s.Breaker; b.Failures < 0 || b.Rate <= 0 || b.Rate > 1 || b.Least < 0 || b.Window < 0 || b.Open < 0 {
		return errors.New("breaker: a number out of range")
	}
	traits := s.Dialect.Traits()
	if traits.Leased && s.Lease == 0 {
		return errors.New("lease: required with " + s.Dialect.String())
	}
	two := len(s.Prefill) > 0 || len(s.Decode) > 0
	switch {
	case traits.Legs == upstream.One && (two || len(s.Pairs) > 0 || len(s.Plain) == 0):
		return errors.New(s.Dialect.String() + " has one leg: name its nodes, and no prefill, decode or pairs")
	case traits.Legs != upstream.One && len(s.Plain) > 0:
		return errors.New(s.Dialect.String() + " has two legs: name prefill and decode nodes, or pairs")
	case traits.Legs != upstream.One && two == (len(s.Pairs) > 0):
		return errors.New("either pairs, or prefill and decode nodes")
	case two && (len(s.Prefill) == 0 || len(s.Decode) == 0):
		return errors.New("prefill and decode: at least one node each")
	}
	return s.checkSources(traits)
}

func (s Spec) checkSources(traits upstream.Traits) error {
	urls := map[string]bool{}
	for _, list := range []struct {
		path string
		of   []Source
	}{{"nodes", s.Plain}, {"prefill", s.Prefill}, {"decode", s.Decode}} {
		shares := 0.0
		for i, src := range list.of {
			if err := src.check(traits, urls); err != nil {
				return fmt.Errorf("%s[%d].%w", list.path, i, err)
			}
			shares += src.Share
		}
		if shares > 1 {
			return fmt.Errorf("%s: the shares are more than 1 together", list.path)
		}
	}
	shares := 0.0
	for i, p := range s.Pairs {
		if p.BootstrapHost == "" && traits.Bootstrap {
			return fmt.Errorf("pairs[%d].bootstrap: required", i)
		}
		for _, src := range []Source{p.Prefill, p.Decode} {
			if src.URL == "" {
				return fmt.Errorf("pairs[%d]: both nodes have a url", i)
			}
			if err := src.check(traits, urls); err != nil {
				return fmt.Errorf("pairs[%d].%w", i, err)
			}
		}
		shares += max(p.Prefill.Share, p.Decode.Share)
	}
	if shares > 1 {
		return errors.New("pairs: the shares are more than 1 together")
	}
	return nil
}

// check says what is wrong with one source. It notes its address in seen.
func (s Source) check(traits upstream.Traits, seen map[string]bool) error {
	set := 0
	for _, v := range []string{s.URL, s.DNS, s.File} {
		if v != "" {
			set++
		}
	}
	if set != 1 {
		return errors.New("url, dns, file: exactly one")
	}
	if seen[s.URL+s.DNS+s.File] {
		return errors.New("url, dns, file: the address is used twice")
	}
	seen[s.URL+s.DNS+s.File] = true
	if s.URL != "" {
		if _, err := parseURL(s.URL, traits); err != nil {
			return fmt.Errorf("url: %w", err)
		}
	}
	if s.DNS != "" {
		if u, err := parseURL(s.DNS, traits); err != nil || u.Port() == "" {
			return errors.New("dns: want scheme, name and port: http://name:port")
		}
	}
	if s.BootstrapPort < 0 || s.BootstrapPort > 65535 {
		return errors.New("bootstrap: port from 1 to 65535")
	}
	if s.State > Canary {
		return errors.New("state: there is no such state")
	}
	if canary := s.State == Canary; canary != (s.Share > 0) || s.Share < 0 || s.Share > 1 {
		return errors.New("share: above 0 and at most 1 for a canary, and for no other state")
	}
	if s.Weight <= 0 || s.Weight > 1000 {
		return errors.New("weight: above 0, at most 1000")
	}
	for _, key := range []string{s.Key, s.ControlKey} {
		if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("key: printable ASCII without spaces")
		}
	}
	return nil
}

// errURL says what an address must be. It does not repeat it: it may hold a password.
var errURL = errors.New("want scheme and host: http://host:port")

// parseURL reads the address of an engine. Hosted dialects may have a path.
func parseURL(text string, traits upstream.Traits) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !isHost(u.Hostname()) || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" || u.User != nil || u.Opaque != "" || u.Path != "" && !traits.Hosted || strings.HasSuffix(u.Path, "/") {
		return nil, errURL
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, errURL
		}
	}
	return u, nil
}

// isHost says whether a text can be the name or the address of a host: it stands in the
// names of nodes, which logs and metrics show.
func isHost(text string) bool {
	odd := func(r rune) bool {
		return r != '-' && r != '.' && r != '_' && !unicode.In(r, unicode.L, unicode.M, unicode.N)
	}
	if _, err := netip.ParseAddr(text); err == nil {
		return !strings.ContainsFunc(text, func(r rune) bool { return odd(r) && r != ':' && r != '%' })
	}
	return text != "" && !strings.ContainsFunc(text, odd)
}

package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/route"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Node is one engine as an HTTP server. Requests have connections of its own, without
// cookies, redirects, proxy and compression.
type Node struct {
	base      *url.URL // url, parsed; never changed
	agent     []string // the User-Agent of every request; never changed
	group     *Group
	source    *source
	name, url string
	host      string // the Host header; empty: that of the URL
	addr      string // host and port of the URL
	role      upstream.Role
	bootHost  string
	transport *http.Transport

	// What the engine need not answer, as it was answered last; the engine's epoch then, and
	// how many looks ago, extraEvery where it is to be asked at the next one; odd tells one
	// look from the next. The holder of looking owns them.
	extra []upstream.Seen
	epoch string
	since int
	odd   bool

	// The board's lock guards what follows.
	meter *meter
	// found is what the last look found; told says that one ever found an engine, info is
	// what that said, at seen.
	found Why
	told  bool
	seen  time.Time
	info  upstream.Info
	// barred is a reason that lies not in the engine: Duplicate, Surplus, Gone.
	barred Why
	// twin says that an earlier node is the same engine.
	twin bool
	// face is who answered last, faces who did before; steady counts looks that met the
	// same one; twoFaced says that one came back.
	face     string
	faces    []string
	steady   int
	twoFaced bool
	// up says that it was told to be up; fit that the last judgement found it ready.
	up, fit bool
}

func newNode(g *Group, s *source, u *url.URL) *Node {
	traits := g.spec.Dialect.Traits()
	n := &Node{group: g, source: s, name: s.Name, url: u.String(), base: u, agent: []string{"bulkhead"}, role: s.role, bootHost: s.BootstrapHost}
	config := s.TLS
	if s.URL == "" {
		if s.Name == s.DNS+s.File {
			n.name = n.url
		} else {
			n.name = s.Name + "/" + u.Host
		}
	}
	if s.DNS != "" {
		if named, err := parseURL(s.DNS, traits); err == nil {
			n.host = named.Host
			if u.Scheme == "https" {
				config = withName(config, named.Hostname())
			}
		}
	}
	if n.bootHost == "" {
		n.bootHost = u.Hostname()
	}
	n.addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]))
	if u.Scheme == "https" && traits.IDs == upstream.Steady {
		config = withName(config, u.Hostname()) // what KeepApart writes is no name of the engine
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	b := g.bounds
	n.transport = &http.Transport{
		DialContext:            n.dial,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    b.Connect,
		DisableCompression:     true,
		MaxIdleConns:           b.InFlight,
		MaxIdleConnsPerHost:    b.InFlight,
		IdleConnTimeout:        idleTime(traits),
		MaxResponseHeaderBytes: 64 << 10,
		Protocols:              protocols,
	}
	return n
}

// idleTime is how long a connection is kept idle: less than the 5 s after which SGLang, vLLM
// and llama.cpp close it, for a request that crosses that close is lost and must not be
// sent twice.
func idleTime(t upstream.Traits) time.Duration {
	if t.Hosted {
		return time.Minute // it is far away, and behind servers that keep connections for longer
	}
	return 4 * time.Second
}

// Name is what the configuration calls the engine.
func (n *Node) Name() string { return n.name }

// URL is scheme and host, for hosted engines with a path.
func (n *Node) URL() string { return n.url }

// Bootstrap is where decode meets this prefill engine.
func (n *Node) Bootstrap() (host string, port int) { return n.bootHost, n.source.BootstrapPort }

// Info is what the engine last said about itself.
func (n *Node) Info() upstream.Info {
	n.group.board.lock()
	defer n.group.board.unlock()
	return n.info
}

// EngineID is the id by which decode knows this prefill engine; empty if there is none.
func (n *Node) EngineID() string { return n.Info().EngineID }

// NewRequest makes a request to a path of the engine, with its key.
func (n *Node) NewRequest(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	if strings.ContainsAny(path, "?#%") {
		return n.request(ctx, method, n.url+path, n.source.Key, body)
	}
	// The address is known already, and this path needs no parsing.
	req, err := n.request(ctx, method, "", n.source.Key, body)
	if err != nil {
		return nil, err
	}
	u := *n.base
	u.Path += path
	if req.URL = &u; n.host == "" {
		req.Host = u.Host
	}
	return req, nil
}

// NewControl is NewRequest with the key for control endpoints.
func (n *Node) NewControl(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	return n.request(ctx, method, n.url+path, n.source.ControlKey, body)
}

func (n *Node) request(ctx context.Context, method, target, key string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, fmt.Errorf("fleet: make request: %w", err)
	}
	if n.host != "" {
		req.Host = n.host
	}
	req.Header["User-Agent"] = n.agent
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return req, nil
}

// apart ends the host under which the transport keeps the connections of one tenant.
const apart = ".tenant.invalid"

// KeepApart makes a request of a tenant go over connections that carry that tenant's alone,
// where the engine's answers bear no id of ours: an answer that is off by one on a kept
// connection could not be told from the right one there (G-12). An engine to which kept
// connections are dear gets a new one for each.
func (n *Node) KeepApart(r *http.Request, tenant string) {
	switch t := n.group.spec.Dialect.Traits(); {
	case t.IDs != upstream.Steady:
	case t.Threaded:
		r.Close = true
	default:
		r.URL.Host = hex.EncodeToString([]byte(tenant)) + apart
	}
}

// dial connects to the engine, or to where a prefill engine is met.
func (n *Node) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if host, _, err := net.SplitHostPort(addr); err == nil && strings.HasSuffix(host, apart) {
		addr = n.addr
	}
	return n.group.dial(ctx, network, addr)
}

// RoundTrip sends a request that NewRequest or NewControl made. Redirects are answers.
func (n *Node) RoundTrip(r *http.Request) (*http.Response, error) { return n.transport.RoundTrip(r) }

// errDeclines says that an engine answered a look with another status than 200.
var errDeclines = errors.New("fleet: look at engine: unexpected status")

// errLong says that an answer to a look is longer than the bound.
var errLong = errors.New("fleet: look at engine: answer too long")

// extraEvery is how many looks may pass until what an engine need not answer is asked
// again.
const extraEvery = 15

// look asks the engine about itself. Each question has a connection of its own: behind
// one that is kept, two engines at one address would look like one. What it need not
// answer is asked rarely while the rest stays the same, and where it gets no answer then,
// what was answered last stands. The caller is the holder of looking.
func (n *Node) look(ctx context.Context) (upstream.Info, error) {
	d := n.group.spec.Dialect
	looks := upstream.Looks(d, n.role)
	needed, err := n.askNeeded(ctx, looks)
	if err != nil {
		n.since = extraEvery // the rest may be another one's
		return upstream.Info{}, err
	}
	same := len(needed) == 0
	if n.extra != nil && !same {
		info, err := upstream.ReadInfo(d, n.role, slices.Concat(needed, n.extra))
		if same = err == nil && info.Epoch == n.epoch; same && n.since < extraEvery {
			n.since++
			return info, nil
		}
	}
	last := n.extra
	if !same {
		last = nil
	}
	extra, whole, err := n.askOptional(ctx, looks, last)
	if err != nil && len(needed) == 0 {
		return upstream.Info{}, err // there is nothing that it must answer, and it answers nothing
	}
	info, err := upstream.ReadInfo(d, n.role, slices.Concat(needed, extra))
	if err != nil {
		n.since = extraEvery
		return upstream.Info{}, err
	}
	n.extra, n.epoch, n.since = extra, info.Epoch, 0
	if !whole {
		n.since = extraEvery
	}
	return info, nil
}

// chain is a question, and those that are asked in its place if it is not answered.
type chain struct {
	looks []upstream.Look
	seen  upstream.Seen
	err   error
	// missed says that one of them got no answer that tells anything of the engine.
	missed bool
}

// chains are the questions that are needed, or those that are not.
func chains(looks []upstream.Look, kind upstream.Optionality) []*chain {
	var all []*chain
	in := false
	for _, l := range looks {
		if l.Optional != upstream.Instead {
			in = l.Optional == kind
			if in {
				all = append(all, &chain{})
			}
		}
		if in {
			last := all[len(all)-1]
			last.looks = append(last.looks, l)
		}
	}
	return all
}

// askAll asks several questions at the same time.
func (n *Node) askAll(ctx context.Context, all []*chain) {
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			for _, l := range c.looks {
				c.seen, c.err = n.ask(ctx, l)
				c.missed = c.missed || c.err != nil || !tells(c.seen.Status)
				if c.err != nil || c.seen.Status == http.StatusOK {
					return
				}
			}
		})
	}
	wg.Wait()
}

// tells says whether an answer with this status tells something of the engine: that it
// has what was asked for, or that it has not. Others only say that it was not to be had
// this time.
func tells(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	case http.StatusNotImplemented:
		return true
	}
	return status < http.StatusInternalServerError
}

// askNeeded asks what the engine must answer.
func (n *Node) askNeeded(ctx context.Context, looks []upstream.Look) ([]upstream.Seen, error) {
	all := chains(looks, upstream.Needed)
	// A balancer deals connections out in turn. One more in every second look, and the same
	// question does not meet the same engine for ever.
	if n.odd = !n.odd; n.odd && len(all) > 1 {
		_, _ = n.ask(ctx, all[0].looks[0])
	}
	n.askAll(ctx, all)
	var seen []upstream.Seen
	var first error
	for _, c := range all {
		switch {
		case c.err != nil:
			if first == nil {
				first = c.err
			}
		case c.seen.Status != http.StatusOK:
			return nil, errDeclines
		default:
			seen = append(seen, c.seen)
		}
	}
	return seen, first
}

// askOptional asks what the engine need not answer. In place of what got no answer stands
// the last one, if there is any; whole says that nothing is missing. The error is that of
// an engine that answers nothing.
func (n *Node) askOptional(ctx context.Context, looks []upstream.Look, last []upstream.Seen) (seen []upstream.Seen, whole bool, err error) {
	all := chains(looks, upstream.Optional)
	n.askAll(ctx, all)
	seen, whole = []upstream.Seen{}, true
	answered := len(all) == 0
	for _, c := range all {
		if answered = answered || c.err == nil; err == nil {
			err = c.err
		}
		ok := c.err == nil && c.seen.Status == http.StatusOK
		if c.missed && !ok {
			whole = false
			if i := slices.IndexFunc(last, c.answeredBy); i >= 0 {
				seen = append(seen, last[i])
				continue
			}
		}
		if c.err == nil {
			seen = append(seen, c.seen)
		}
	}
	if answered {
		err = nil
	}
	return seen, whole, err
}

// answeredBy says whether an answer is to one of the chain's questions.
func (c *chain) answeredBy(s upstream.Seen) bool {
	return s.Status == http.StatusOK && slices.ContainsFunc(c.looks, func(l upstream.Look) bool { return l.Path == s.Path })
}

// ask asks one question.
func (n *Node) ask(ctx context.Context, l upstream.Look) (upstream.Seen, error) {
	seen := upstream.Seen{Path: l.Path}
	base, key := n.url, n.source.Key
	if l.Bootstrap {
		base, key = "http://"+net.JoinHostPort(n.bootHost, strconv.Itoa(n.source.BootstrapPort)), ""
	}
	req, err := n.request(ctx, http.MethodGet, base+l.Path, key, nil)
	if err != nil {
		return seen, err
	}
	req.Close = true
	resp, err := n.transport.RoundTrip(req)
	if err != nil {
		return seen, fmt.Errorf("fleet: look at engine: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, n.group.bounds.Look+1))
	switch {
	case err != nil:
		return seen, fmt.Errorf("fleet: look at engine: %w", err)
	case int64(len(body)) > n.group.bounds.Look:
		return seen, errLong
	}
	seen.Status, seen.Body = resp.StatusCode, body
	return seen, nil
}

// foundBy names what an error of a look means.
func foundBy(err error) Why {
	var op *net.OpError
	switch {
	case err == nil:
		return NodeReady
	case errors.Is(err, errDeclines):
		return Declines
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return Slow
	case errors.As(err, &op) && op.Op == "dial":
		return Away
	default:
		return Quiet
	}
}

// note takes in what a look found, under the board's lock. An engine that is only slow
// stays as it was until its last answer is too old; other failures count at once.
func (n *Node) note(info upstream.Info, err error, now time.Time) {
	why := foundBy(err)
	if why == Slow && n.found == NodeReady {
		return
	}
	n.found = why
	if why != NodeReady {
		return
	}
	n.info, n.told, n.seen = info, true, now
	if !n.group.spec.Dialect.Traits().Hosted {
		n.meet(face(info)) // behind one address of an API there are many servers, and all are it
	}
	n.resize()
}

// resize sets what the engine may have in flight to what it said, and where several models
// have it, to the least of that.
func (n *Node) resize() {
	if !n.group.leads() {
		return
	}
	limit := n.limit()
	if n.meter.nodes > 1 {
		for _, g := range n.group.fleet.groups {
			for _, other := range g.nodes {
				if other.meter == n.meter && other.told {
					of := other.limit()
					limit = route.Size{Tokens: min(limit.Tokens, of.Tokens), Requests: min(limit.Requests, of.Requests)}
				}
			}
		}
	}
	n.meter.pool.Resize(limit)
}

// limit is what the engine may have in flight by what it said last.
func (n *Node) limit() route.Size {
	limit := route.Size{Tokens: route.Unbounded, Requests: route.Unbounded}
	if p := n.info.Pool; p.Known {
		limit.Tokens = int64(float64(p.N) * n.group.spec.Overcommit)
	}
	if s := n.info.Slots; s.Known && s.N > 0 {
		limit.Requests = s.N
	}
	return limit
}

// face is who an engine says that it is: its life, or where it tells nothing of that,
// what it is.
func face(i upstream.Info) string {
	if i.Incarnation != "" || i.EngineID != "" {
		return i.Incarnation + " " + i.EngineID
	}
	return i.Epoch
}

const (
	// maxFaces is how many earlier engines at one address are remembered.
	maxFaces = 8
	// steadyLooks is how many looks in a row must meet the same engine until those before
	// it are forgotten.
	steadyLooks = 30
)

// meet notes who answered. A restart gives a new engine at an address, once; an earlier
// one that comes back means that there are two behind it.
func (n *Node) meet(face string) {
	if n.face == face {
		if n.steady++; n.steady >= steadyLooks {
			n.twoFaced, n.faces = false, nil
		}
		return
	}
	if n.face != "" {
		n.twoFaced = n.twoFaced || slices.Contains(n.faces, face)
		if !slices.Contains(n.faces, n.face) {
			n.faces = append(n.faces, n.face)
			n.faces = n.faces[max(0, len(n.faces)-maxFaces):]
		}
		n.tell(Reborn, n.found)
		if n.group.leads() {
			n.meter.up = false // it starts slowly
		}
		// Connections to an earlier life answer nothing any more.
		n.transport.CloseIdleConnections()
	}
	n.face, n.steady = face, 1
}

// why is what keeps the engine by itself from taking requests.
func (n *Node) why(now time.Time) Why {
	switch {
	case n.barred != Unseen:
		return n.barred
	case n.found != NodeReady:
		return n.found
	case now.Sub(n.seen) > n.group.fresh():
		return Stale
	case n.twoFaced:
		return TwoFaced
	case n.twin:
		return Twin
	case n.meter.misses >= maxMisses:
		return Unwell
	case !n.meter.breaker.Allows(route.Time(now.Sub(n.group.board.start)), n.group.rule):
		return Broken
	case n.source.State == Draining:
		return Drains
	}
	return NodeReady
}

// weight is its part of the load, as far as it has started.
func (n *Node) weight(now route.Time) float64 {
	if !n.meter.up {
		return n.source.Weight
	}
	return n.source.Weight * route.Ramp(now, n.meter.since, route.Time(n.group.spec.SlowStart))
}

// tell tells what happened once the lock is free.
func (n *Node) tell(k EventKind, why Why) {
	n.group.tell(Event{Node: n.name, Role: n.role, Kind: k, Why: why})
}

// withName is a TLS configuration for the name behind whose addresses the engines are.
func withName(c *tls.Config, name string) *tls.Config {
	if c == nil {
		c = new(tls.Config)
	}
	c = c.Clone()
	if c.ServerName == "" {
		c.ServerName = name
	}
	return c
}

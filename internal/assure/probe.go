package assure

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// Probe is what a case has in its hands: one way to one site.
type Probe struct {
	Way    Way
	Site   *Site
	client *client
	cage   *cage
	faults map[string]func(context.Context) error
	// patience is how long an engine may take for what it is to do at once.
	patience time.Duration
}

// Caller calls as one tenant, on the way of its probe.
type Caller struct {
	probe  *Probe
	tenant int
}

// Tenant returns the caller for tenant i, from 0. Straight at the engines, and through a
// router, all tenants look alike: that is what is put to the test.
func (p *Probe) Tenant(i int) Caller { return Caller{probe: p, tenant: i} }

// Canary mints a secret of this run that belongs to a tenant. It consists of words that
// small models repeat well.
func (p *Probe) Canary(tenant int) string { return p.cage.mint(tenant) }

// Fingerprint is the keyed fingerprint of a text: equal texts of one run have the same.
func (p *Probe) Fingerprint(text string) string { return p.cage.fingerprint(text) }

// Foreign returns what an answer, its text or its raw body, holds of the canaries that
// tenant mine does not own.
func (p *Probe) Foreign(a Answer, mine int) []Hit {
	if hits := p.cage.find(a.Text, mine); len(hits) > 0 {
		return hits
	}
	return p.cage.find(string(a.Body), mine)
}

// ForeignText is [Probe.Foreign] of a text.
func (p *Probe) ForeignText(text string, mine int) []Hit { return p.cage.find(text, mine) }

// Fault does something to an engine that no request can do, such as "kill", if the one
// who runs the case can do that. ok false: nobody can.
func (p *Probe) Fault(ctx context.Context, name string) (ok bool, err error) {
	do, ok := p.faults[name]
	if !ok {
		return false, nil
	}
	return true, do(ctx)
}

// Post sends one request and reads its answer. body is a map, to which the model's name
// is added if it has none, or any other value, or bytes that are sent as they are.
// Straight at a pair it is sent as a naive client of the dialect does.
func (c Caller) Post(ctx context.Context, path string, headers map[string]string, body any) Answer {
	return c.Open(ctx, path, headers, body).Rest()
}

// Get asks for a path.
func (c Caller) Get(ctx context.Context, path string, headers map[string]string) Answer {
	return c.Do(ctx, http.MethodGet, path, headers, nil)
}

// Do sends one request to one server: the gateway, the router, or straight at the engine
// that answers clients, which is decode in a pair.
func (c Caller) Do(ctx context.Context, method, path string, headers map[string]string, body any) Answer {
	return c.one(ctx, method, path, headers, body).Rest()
}

// Open sends one request and leaves its answer to be read bit by bit.
func (c Caller) Open(ctx context.Context, path string, headers map[string]string, body any) *Stream {
	if c.probe.Way == Direct && c.probe.Site.Dialect.Traits().Legs != upstream.One {
		return c.naive(ctx, path, headers, c.name(body))
	}
	return c.one(ctx, http.MethodPost, path, headers, body)
}

// one sends one request to the front of the way.
func (c Caller) one(ctx context.Context, method, path string, headers map[string]string, body any) *Stream {
	p := c.probe
	data, err := encode(c.name(body))
	if err != nil {
		return (&Stream{read: newReader()}).fail(errors.New("assure: call: the body is not JSON"))
	}
	q := call{method: method, path: path, headers: headers, body: data}
	switch p.Way {
	case Bulkhead:
		q.base = p.Site.Gateway
		if c.tenant < len(p.Site.Keys) {
			q.headers = bearer(headers, p.Site.Keys[c.tenant])
		}
	case Router:
		q.base = p.Site.Router
	default:
		if q.base = p.Site.Plain; q.base == "" {
			q.base = p.Site.Decode
		}
		q.headers = bearer(headers, p.Site.EngineKey)
	}
	return p.client.open(ctx, q)
}

// bearer adds a key to headers that have none.
func bearer(headers map[string]string, key string) map[string]string {
	const name = "Authorization"
	if _, given := headers[name]; given || key == "" {
		return headers
	}
	more := map[string]string{name: "Bearer " + key}
	maps.Copy(more, headers)
	return more
}

// name adds the model's name to a body that is a map without one.
func (c Caller) name(body any) any {
	m, ok := body.(map[string]any)
	if !ok {
		return body
	}
	if _, named := m["model"]; named {
		return body
	}
	m = maps.Clone(m)
	m["model"] = c.probe.Site.Served
	if c.probe.Way == Bulkhead {
		m["model"] = c.probe.Site.Model
	}
	return m
}

// Raw calls an address of the site by its name: "plain", "prefill", "decode", "router",
// "gateway", or one of Site.Engines. It is for cases that are straight at the engines,
// and for a look at their state.
func (p *Probe) Raw(ctx context.Context, name, method, path string, headers map[string]string, body any) Answer {
	return p.OpenRaw(ctx, name, method, path, headers, body).Rest()
}

// OpenRaw is [Probe.Raw] with an answer that is read bit by bit.
func (p *Probe) OpenRaw(ctx context.Context, name, method, path string, headers map[string]string, body any) *Stream {
	address, ok := p.Site.named()[name]
	if !ok {
		return (&Stream{read: newReader()}).fail(errElsewhere)
	}
	data, err := encode(body)
	if err != nil {
		return (&Stream{read: newReader()}).fail(errors.New("assure: call: the body is not JSON"))
	}
	if name != "gateway" && name != "router" {
		headers = bearer(headers, p.Site.EngineKey)
	}
	return p.client.open(ctx, call{method: method, base: address, path: path, headers: headers, body: data})
}

package assure

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// Site is one model as the caller runs it. Its addresses are the only ones that are
// ever called.
type Site struct {
	Dialect upstream.Dialect
	// Model is the name at the gateway; Served the one at the engines and the router.
	Model, Served string
	// Plain is the base URL of the engine where the dialect has one leg; Prefill and
	// Decode where it has two, and then Bootstrap is the second address of prefill:
	// host:port for SGLang, a URL for vLLM with Mooncake.
	Plain, Prefill, Decode, Bootstrap string
	// Engines are further base URLs by name, of metrics and such.
	Engines map[string]string
	// Router and Gateway are base URLs; empty: that way is not tried.
	Router, Gateway string
	// Keys are API keys of the gateway, one for each tenant, two at least. They appear in
	// no report.
	Keys []string
	// EngineKey is the bearer that the engines want, if any. It goes to them only, and
	// appears in no report.
	EngineKey string
	// EngineTLS and GatewayTLS are for https to the engines and to the gateway. Nil means
	// the system's authorities, who also vouch for the router.
	EngineTLS, GatewayTLS *tls.Config
	// Lease is how long prefill holds what decode has not fetched, where it is leased.
	Lease time.Duration
	// Facts is what the caller knows besides, such as "prefill_pool": "512".
	Facts map[string]string
}

// named returns the base URLs of the site under the names that [Probe.Raw] takes.
func (s *Site) named() map[string]string {
	all := map[string]string{}
	add := func(name, address string) {
		if address != "" {
			all[name] = address
		}
	}
	add("plain", s.Plain)
	add("prefill", s.Prefill)
	add("decode", s.Decode)
	if s.Dialect == upstream.VLLMMooncake {
		add("bootstrap", s.Bootstrap)
	}
	add("router", s.Router)
	add("gateway", s.Gateway)
	for name, address := range s.Engines {
		add(name, address)
	}
	return all
}

// Ways returns the ways that the site can be tried on, Direct first.
func (s *Site) Ways() []Way {
	ways := []Way{Direct}
	if s.Router != "" {
		ways = append(ways, Router)
	}
	if s.Gateway != "" {
		ways = append(ways, Bulkhead)
	}
	return ways
}

// check refuses a site that cannot be tried.
func (s *Site) check() error {
	if s.Model == "" || s.Served == "" {
		return errors.New("assure: check site: it has no name of a model")
	}
	if s.Dialect.Traits().Legs == upstream.One {
		if s.Plain == "" {
			return errors.New("assure: check site: it names no engine")
		}
	} else if s.Prefill == "" || s.Decode == "" {
		return errors.New("assure: check site: it names no prefill and decode engine")
	}
	if s.Gateway != "" {
		if len(s.Keys) < 2 {
			return errors.New("assure: check site: two keys of two tenants are needed")
		}
		if len(slices.Compact(slices.Sorted(slices.Values(s.Keys)))) != len(s.Keys) {
			return errors.New("assure: check site: two tenants have one key")
		}
	}
	for name, address := range s.named() {
		if _, err := base(address); err != nil {
			return fmt.Errorf("assure: check site: address of %s: %w", name, err)
		}
	}
	return nil
}

// base reads a base URL. Errors do not hold it: it may carry a credential.
func base(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("not an http or https URL")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("a base URL has no user, query or fragment")
	}
	return u, nil
}

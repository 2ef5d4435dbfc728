package cli

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/config"
)

// soon is how long before its end a key is spoken of.
const soon = 14 * 24 * time.Hour

// notes says what an operator should know at start: what is open or readable that need
// not be, what is relaxed, and what ends soon.
func notes(c config.Serve, now time.Time) []string {
	var all []string
	note := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !loopback(string(c.Listen)) {
		note("listen: %s is open to your network", c.Listen)
		if c.TLS == nil {
			note("listen: without tls, keys, prompts and answers travel readable to it")
		}
	}
	if c.Admin.Listen != config.Off && !loopback(string(c.Admin.Listen)) {
		note("admin.listen: %s is open to your network, and asks for no key", c.Admin.Listen)
	}
	c.Modes.Each(func(control string, m config.Mode) {
		switch m.Mode {
		case "shadow":
			note("modes.%s: in shadow until %s: what it would refuse passes (bulkhead shadow report)", control, m.Until)
		case "off":
			note("modes.%s: it is off", control)
		}
	})
	for i, m := range c.Models {
		for j, p := range m.Pairs {
			readable(note, fmt.Sprintf("models[%d].pairs[%d].prefill", i, j), p.Prefill)
			readable(note, fmt.Sprintf("models[%d].pairs[%d].decode", i, j), p.Decode)
		}
		for _, list := range m.Lists() {
			for j, n := range list.Nodes {
				readable(note, fmt.Sprintf("models[%d].%s[%d]", i, list.Key, j), n.URL+n.DNS)
			}
		}
	}
	for i, t := range c.Tenants {
		for j, k := range t.Keys {
			switch at, err := k.Expires.Time(); {
			case err != nil || at.IsZero() || at.Sub(now) > soon:
			case !at.After(now):
				note("tenants[%d].keys[%d]: it has expired and opens nothing", i, j)
			default:
				note("tenants[%d].keys[%d]: it expires at %s", i, j, at.Format(time.RFC3339))
			}
		}
	}
	return all
}

// readable notes that text travels readable to another host.
func readable(note func(string, ...any), path string, url config.URL) {
	if addr, plain := strings.CutPrefix(string(url), "http://"); plain && !loopback(addr) {
		note("%s: prompts and answers travel readable to %s", path, url)
	}
}

// loopback says whether an address, with or without a port, stays on this machine.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

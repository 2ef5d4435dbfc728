package assure

import (
	"context"
	"maps"
	"net"
	"net/http"
	"strconv"
)

// bootstrap is the triple with which both legs of SGLang find each other. ok false: the
// site has no bootstrap address of the form host:port.
func (p *Probe) bootstrap(room any) (fields map[string]any, ok bool) {
	host, port, err := net.SplitHostPort(p.Site.Bootstrap)
	if err != nil {
		return nil, false
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, false
	}
	return map[string]any{"bootstrap_host": host, "bootstrap_port": number, "bootstrap_room": room}, true
}

// inRoom is a body with the triple and the served name.
func (p *Probe) inRoom(body map[string]any, room any) map[string]any {
	all := maps.Clone(body)
	if _, named := all["model"]; !named {
		all["model"] = p.Site.Served
	}
	fields, _ := p.bootstrap(room)
	maps.Copy(all, fields)
	return all
}

// twoLegs sends a body to both servers of the pair in one room, as a naive router does,
// and returns what each of them said. What the client of such a router gets is decode's
// answer; prefill's is returned so that a report can hold the two side by side. When
// decode has answered, prefill is given no more time.
func (p *Probe) twoLegs(ctx context.Context, path string, body map[string]any) (prefill, decode Answer) {
	body = p.inRoom(body, room())
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan Answer, 1)
	go func() { done <- p.Raw(inner, "prefill", http.MethodPost, path, nil, body) }()
	decode = p.Raw(ctx, "decode", http.MethodPost, path, nil, body)
	select {
	case prefill = <-done:
	default:
		cancel()
		prefill = <-done
	}
	return prefill, decode
}

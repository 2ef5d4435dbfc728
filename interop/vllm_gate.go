package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// gate stands before an engine and passes everything on. It can hold one request back,
// which is how a decode leg comes to be late: a full queue, a slow network.
type gate struct {
	url    string
	server *http.Server
	engine http.RoundTripper
	base   *url.URL

	mu     sync.Mutex
	armed  bool
	held   chan struct{} // closed when the request is here
	opened chan struct{} // closed when it may go on
}

// newGate listens on loopback before the engine at base.
func newGate(base string) (*gate, error) {
	target, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("interop: make a gate: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("interop: make a gate: %w", err)
	}
	g := &gate{url: "http://" + l.Addr().String(), base: target, engine: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	g.server = &http.Server{Handler: g}
	go func() { _ = g.server.Serve(l) }() // ends when it is closed
	return g, nil
}

// ServeHTTP passes a request on, at once or when the gate is opened.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/") {
		if opened := g.take(); opened != nil {
			body, err := io.ReadAll(r.Body) // the server sees a client leave once its body is read
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			select {
			case <-opened:
			case <-r.Context().Done():
				return
			}
		}
	}
	g.pass(w, r)
}

// pass sends a request on and its answer back, bit by bit as it comes. An answer that
// breaks off breaks off here too.
func (g *gate) pass(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = g.base.Scheme, g.base.Host, g.base.Host, ""
	answer, err := g.engine.RoundTrip(out)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	flush := http.NewResponseController(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := answer.Body.Read(buffer)
		if _, gone := w.Write(buffer[:n]); gone != nil {
			return
		}
		_ = flush.Flush() // who is gone shows at the next write
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// take says whether a request is to be held, and until when.
func (g *gate) take() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.armed {
		return nil
	}
	g.armed = false
	close(g.held)
	return g.opened
}

// hold makes the gate hold the next request.
func (g *gate) hold(context.Context) error {
	_ = g.release(context.Background())
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.held, g.opened = true, make(chan struct{}), make(chan struct{})
	return nil
}

// wait waits until a request is held.
func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	held := g.held
	g.mu.Unlock()
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release lets the request go on, and holds no other.
func (g *gate) release(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = false
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
	return nil
}

func (g *gate) close() {
	_ = g.release(context.Background())
	_ = g.server.Close()
}

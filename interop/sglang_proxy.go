package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// tamper stands before prefill and, while it is armed, gives it another prompt than the
// gateway sent. All else goes through as it is.
type tamper struct {
	url   string
	armed atomic.Bool
	cut   atomic.Int64 // prompts that were replaced
	// strike is called once, when the next leg has come and is about to be handed on.
	strike atomic.Pointer[func()]
	server *http.Server
	done   chan struct{}
}

// tamperWith starts a proxy on loopback before a server.
func tamperWith(target string) (*tamper, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("interop: start proxy: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("interop: start proxy: %w", err)
	}
	t := &tamper{url: "http://" + l.Addr().String(), done: make(chan struct{})}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		if r.Out.Method == http.MethodPost && strings.HasPrefix(r.Out.URL.Path, "/v1/") {
			if do := t.strike.Swap(nil); do != nil {
				go (*do)()
			}
		}
		t.alter(r.Out)
	}, ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
		// What ends the connection behind ends the one before, without an answer.
		panic(http.ErrAbortHandler)
	}}
	t.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Else who answers before the proxy saw the body's end is cut off.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})}
	go func() {
		defer close(t.done)
		_ = t.server.Serve(l) // until end
	}()
	return t, nil
}

// arm makes it give prefill other prompts from now on.
func (t *tamper) arm() error {
	t.cut.Store(0)
	t.armed.Store(true)
	return nil
}

// disarm makes it leave prompts alone. An error: it has changed none since it was armed.
func (t *tamper) disarm() error {
	t.armed.Store(false)
	if t.cut.Load() == 0 {
		return errors.New("interop: change prompt: none came")
	}
	return nil
}

// alter replaces the prompt of a request by one word.
func (t *tamper) alter(r *http.Request) {
	if !t.armed.Load() || r.Method != http.MethodPost || r.Body == nil {
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var body map[string]json.RawMessage
	if json.Unmarshal(data, &body) == nil {
		changed := false
		for name, value := range map[string]string{"prompt": `"Hello"`, "messages": `[{"role":"user","content":"Hello"}]`} {
			if _, has := body[name]; has {
				body[name] = json.RawMessage(value)
				changed = true
			}
		}
		if again, err := json.Marshal(body); changed && err == nil {
			data = again
			t.cut.Add(1)
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	r.ContentLength = int64(len(data))
}

// end stops the proxy and waits for it.
func (t *tamper) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if t.server.Shutdown(ctx) != nil {
		_ = t.server.Close()
	}
	<-t.done
}

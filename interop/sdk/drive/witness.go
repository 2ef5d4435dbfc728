package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// A witness stands between the gateway and the engine, passes everything on unchanged, and
// remembers each completion that the engine was asked for. Below /witness/ it tells them,
// forgets them, and can be told to fail some in the engine's place.
type witness struct {
	proxy  *httputil.ReverseProxy
	server *http.Server
	url    string

	mu    sync.Mutex
	calls []*call
	fail  int    // completions that are still to fail
	way   string // how: "busy" with 503, "reset" by cutting the connection
}

// call is one completion as the engine was asked for it.
type call struct {
	Path string          `json:"path"`
	Body json.RawMessage `json:"body"`
	// Open says that it has not ended, Left that the gateway ended it before the engine did.
	Open bool `json:"open"`
	Left bool `json:"left"`
}

// maxCall bounds what is remembered of one call, in bytes.
const maxCall = 1 << 20

// newWitness listens on loopback in front of an engine.
func newWitness(engine *url.URL) (*witness, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // llama.cpp closes a connection after a stream without having said so
	w := &witness{
		url: "http://" + listener.Addr().String(),
		proxy: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(engine) },
			Transport:     transport,
			FlushInterval: -1,
			ErrorLog:      log.New(io.Discard, "", 0),
			ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		},
	}
	w.server = &http.Server{Handler: w, ErrorLog: log.New(io.Discard, "", 0)}
	go w.server.Serve(listener) // ends with close
	return w, nil
}

func (w *witness) close() error { return w.server.Close() }

func (w *witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/witness/"):
		w.control(rw, r)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/completions"):
		w.complete(rw, r)
	default:
		w.proxy.ServeHTTP(rw, r)
	}
}

func (w *witness) complete(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxCall))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	c := &call{Path: r.URL.Path, Body: body, Open: true}
	if !json.Valid(body) {
		c.Body = json.RawMessage("null")
	}
	w.mu.Lock()
	w.calls = append(w.calls, c)
	failing, way := w.fail > 0, w.way
	if failing {
		w.fail--
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		c.Open, c.Left = false, r.Context().Err() != nil
	}()
	switch {
	case failing && way == "reset":
		panic(http.ErrAbortHandler)
	case failing:
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(rw, `{"error":{"message":"busy","type":"unavailable_error","code":503}}`)
		return
	}
	w.proxy.ServeHTTP(rw, r)
}

func (w *witness) control(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.Method + " " + r.URL.Path {
	case "GET /witness/calls":
		rw.Header().Set("Content-Type", "application/json")
		json.NewEncoder(rw).Encode(append([]*call{}, w.calls...))
	case "DELETE /witness/calls":
		w.calls = nil
	case "PUT /witness/fail":
		n, err := strconv.Atoi(r.URL.Query().Get("times"))
		if err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		w.fail, w.way = n, r.URL.Query().Get("way")
	default:
		rw.WriteHeader(http.StatusNotFound)
	}
}

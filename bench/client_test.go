package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serve runs a handler and returns a target that posts "{}" to it.
func serve(t *testing.T, h http.HandlerFunc) target {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return post(s.Listener.Addr().String(), "key", []byte("{}"))
}

func TestCaller(t *testing.T) {
	long := strings.Repeat("x", 99_999) + "}"
	for _, c := range []struct {
		name string
		do   http.HandlerFunc
		want string
	}{
		{"whole", func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != "{}" || r.Header.Get("Authorization") != "Bearer key" || r.URL.Path != "/v1/chat/completions" {
				w.WriteHeader(http.StatusBadRequest)
			}
			_, _ = io.WriteString(w, "answer}")
		}, "answer}"},
		{"long", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			_, _ = io.WriteString(w, long)
		}, long},
		{"chunked", func(w http.ResponseWriter, _ *http.Request) {
			for _, s := range []string{"one", "two", long, "}"} {
				_, _ = io.WriteString(w, s)
				_ = http.NewResponseController(w).Flush()
			}
		}, "onetwo" + long + "}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := serve(t, c.do)
			x, err := to.dial()
			if err != nil {
				t.Fatal(err)
			}
			defer x.conn.Close()
			for range 3 { // on one connection
				if err := x.call(); err != nil || string(x.body) != c.want {
					t.Fatalf("%.40q..., %v", x.body, err)
				}
			}
			w, err := to.load(4, span{calls: 3}, "}")
			if err != nil || w.p50 <= 0 || w.rate <= 0 || w.calls != 16 {
				t.Errorf("load: %+v, %v", w, err)
			}
		})
	}
}

// TestCallerRefuses holds that no broken answer is counted as one.
func TestCallerRefuses(t *testing.T) {
	status := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	if _, err := status.load(1, span{calls: 1}, ""); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("a wrong status: %v", err)
	}
	cut := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if _, err := cut.load(1, span{calls: 1}, ""); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut answer: %v", err)
	}
	other := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "data: {\"error\":{}}\n\n") })
	if _, err := other.load(1, span{calls: 1}, endsStream); !errors.Is(err, errShape) {
		t.Errorf("a stream without its end: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := (target{addr: l.Addr().String()}).load(1, span{calls: 1}, ""); err == nil {
		t.Error("nobody listens, and it went well")
	}
}

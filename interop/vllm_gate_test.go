package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestGate(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.URL.Path+" "+string(body))
	}))
	defer engine.Close()
	g, err := newGate(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	ask := func(ctx context.Context, path, body string) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		got, err := io.ReadAll(response.Body)
		return string(got), err
	}
	if got, err := ask(t.Context(), "/v1/x", "open"); err != nil || got != "/v1/x open" {
		t.Fatalf("%q, %v", got, err)
	}
	if err := g.hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers := make(chan string, 1)
	go func() {
		got, _ := ask(t.Context(), "/v1/x", "held")
		answers <- got
	}()
	if err := g.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t.Context(), "/v1/x", "other"); err != nil || got != "/v1/x other" {
		t.Fatalf("while one is held another gets %q, %v", got, err)
	}
	select {
	case got := <-answers:
		t.Fatalf("the held request was answered: %q", got)
	default:
	}
	_ = g.release(t.Context())
	if got := <-answers; got != "/v1/x held" {
		t.Fatalf("released: %q", got)
	}
	// One that leaves while it is held takes nothing with it.
	_ = g.hold(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := ask(ctx, "/v1/x", "left")
		left <- err
	}()
	if err := g.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-left; err == nil {
		t.Fatal("a request that was given up was answered")
	}
	_ = g.release(t.Context())
	if got, err := ask(t.Context(), "/v1/x", "after"); err != nil || got != "/v1/x after" {
		t.Fatalf("afterwards %q, %v", got, err)
	}
}

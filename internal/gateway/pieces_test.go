package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// countedConn counts what is written to it.
type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// TestOneWrite holds that a body in one piece leaves with its headers, in one write; one
// in several pieces does not.
func TestOneWrite(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer server.Close()
	for _, c := range []struct {
		pieces [][]byte
		want   int64
	}{
		{[][]byte{[]byte("one piece")}, 1},
		{[][]byte{[]byte("two "), []byte("pieces")}, 2},
	} {
		var writes atomic.Int64
		transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return countedConn{conn, &writes}, err
		}}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		o := outgoing{pieces: c.pieces}
		o.give(req)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		closeBody(resp)
		if err != nil || !strings.HasSuffix(string(got), string(o.whole())) || int64(len(got)) != req.ContentLength {
			t.Fatalf("the body is %q, %v", got, err)
		}
		if n := writes.Load(); n != c.want {
			t.Errorf("%d pieces left in %d writes, want %d", len(c.pieces), n, c.want)
		}
	}
}

package gateway

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"syscall"
	"testing"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// noDelay says whether a connection sends small packets at once.
func noDelay(t *testing.T, c net.Conn) bool {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	on := 0
	var failed error
	if err := raw.Control(func(fd uintptr) {
		on, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY)
	}); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return on == 1
}

// TestNoDelay holds that neither side waits to fill a packet: an event of a stream leaves
// when it came.
func TestNoDelay(t *testing.T) {
	r := rigOf(t, upstream.VLLM, nil)
	seen := make(chan bool, 8)
	front := httptest.NewUnstartedServer(nil)
	front.Config = Server(r.g)
	front.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		seen <- noDelay(t, c)
		return ctx
	}
	front.Start()
	resp, err := front.Client().Get(front.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	closeBody(resp)
	if !<-seen {
		t.Error("connections of clients delay")
	}
	front.Close()

	node := r.g.models["recall"].group.Counter()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { seen <- noDelay(t, i.Conn) }})
	req, err := node.NewRequest(ctx, http.MethodGet, "/version", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err = node.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	closeBody(resp)
	if !<-seen {
		t.Error("connections to engines delay")
	}
}

package gateway

import (
	"context"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestShutdownCuts holds that an answer which is cut at the end of a drain says so, and
// breaks visibly (H-14): its client did not leave.
func TestShutdownCuts(t *testing.T) {
	r := newRig(t, nil)
	f, err := NewFront(r.config())
	if err != nil {
		t.Fatal(err)
	}
	base, cut := context.WithCancelCause(context.Background())
	r.front.Close()
	r.front = httptest.NewUnstartedServer(nil)
	r.front.Config = Server(f)
	r.front.Config.BaseContext = func(net.Listener) context.Context { return base }
	r.front.Start()
	let := make(chan struct{})
	resp, in := r.paused(let)
	defer resp.Body.Close()
	cut(ErrShutdown)
	rest, err := io.ReadAll(resp.Body)
	all := string(in.buf[in.from:in.to]) + string(rest)
	if err == nil || strings.Contains(all, "[DONE]") || !strings.Contains(all, `"code":"shutting_down"`) {
		t.Errorf("the stream ended with %v after %s", err, all)
	}
	close(let)
	r.front.Close()
	f.Close()
}

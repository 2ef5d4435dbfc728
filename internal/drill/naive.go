package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// naive is the router that the incident had: it sends both legs at once, never
// looks at prefill's answer, and relays decode's. The drills run it with the
// guards off; tests run it in front of guarded workers, which must not leak
// even then.
type naive struct {
	prefill string // base URL
	decode  string
	label   string // of prefill at decode: host of bootstrap_host
	port    int
	passes  *wire.Passer
	now     func() time.Time
	next    func() (handoff.Attempt, int64) // attempt and room of a request
	domain  kv.Domain
	client  *http.Client
}

// body adds what a PD pair needs to a client's body.
func (n *naive) body(client map[string]any, room int64, more map[string]any) ([]byte, error) {
	b := map[string]any{}
	for k, v := range client {
		b[k] = v
	}
	b["bootstrap_host"], b["bootstrap_port"], b["bootstrap_room"] = n.label, n.port, room
	b["rid"] = fmt.Sprintf("naive-%d", room)
	for k, v := range more {
		b[k] = v
	}
	return json.Marshal(b)
}

func (n *naive) post(ctx context.Context, base, path string, attempt handoff.Attempt, room int64, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Bulkhead-Pass", n.passes.Mint(attempt, n.domain, n.now().Add(time.Minute), room, body))
	return n.client.Do(req)
}

// do serves one request as such a router does, and returns decode's answer. What
// prefill said is dropped unread, whatever it was.
func (n *naive) do(ctx context.Context, path string, client map[string]any) (int, []byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	attempt, room := n.next()
	pre, err := n.body(client, room, map[string]any{"max_tokens": 1, "stream": false})
	if err != nil {
		cancel()
		return 0, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := n.post(ctx, n.prefill, path, attempt, room, pre); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}()
	defer func() {
		cancel()
		<-done
	}()
	dec, err := n.body(client, room, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := n.post(ctx, n.decode, path, attempt, room, dec)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, answer, err
}

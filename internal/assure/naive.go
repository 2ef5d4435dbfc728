package assure

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"strconv"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// naive calls a pair as a simple router does: it makes the legs that the protocol wants
// and hands on what decode says. Of prefill's answer it takes only what decode needs;
// that is the mistake that the cases are about.
func (c Caller) naive(ctx context.Context, path string, headers map[string]string, body any) *Stream {
	fields, ok := body.(map[string]any)
	if !ok {
		return c.bad("the body of a call to a pair is not a map")
	}
	switch c.probe.Site.Dialect {
	case upstream.SGLangPD, upstream.Bulkhead:
		return c.naiveRoom(ctx, path, headers, fields)
	case upstream.VLLMNixl:
		return c.naiveHandle(ctx, path, headers, fields)
	case upstream.VLLMMooncake:
		return c.naiveTransfer(ctx, path, headers, fields)
	}
	return c.bad("this dialect is not one of a pair")
}

func (c Caller) bad(why string) *Stream {
	return (&Stream{read: newReader()}).fail(errors.New("assure: call: " + why))
}

// leg sends one leg.
func (c Caller) leg(ctx context.Context, address, path string, headers map[string]string, fields map[string]any) *Stream {
	data, err := encode(fields)
	if err != nil {
		return c.bad("the body is not JSON")
	}
	return c.probe.client.open(ctx, call{method: http.MethodPost, base: address, path: path,
		headers: bearer(headers, c.probe.Site.EngineKey), body: data})
}

// both sends prefill and decode at the same time. Prefill's answer is read by a
// goroutine that ends before decode's answer counts as ended.
func (c Caller) both(ctx context.Context, path string, headers map[string]string, prefill, decode map[string]any) *Stream {
	s := c.probe.Site
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.leg(ctx, s.Prefill, path, headers, prefill).Rest()
	}()
	answer := c.leg(ctx, s.Decode, path, headers, decode)
	answer.after = func() {
		cancel()
		<-done
	}
	if answer.ended {
		answer.after()
	}
	return answer
}

// naiveRoom: SGLang's legs meet in a room.
func (c Caller) naiveRoom(ctx context.Context, path string, headers map[string]string, fields map[string]any) *Stream {
	host, port, err := net.SplitHostPort(c.probe.Site.Bootstrap)
	if err != nil {
		return c.bad("the site has no bootstrap address of the form host:port")
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return c.bad("the port of the bootstrap address is no number")
	}
	fields = maps.Clone(fields)
	for name, value := range map[string]any{"bootstrap_host": host, "bootstrap_port": number, "bootstrap_room": room()} {
		if _, given := fields[name]; !given {
			fields[name] = value
		}
	}
	return c.both(ctx, path, headers, fields, fields)
}

// room draws a room from 1 to 2^63-1.
func room() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(binary.BigEndian.Uint64(b[:])>>1) | 1
}

// handleKey is the field in which vLLM's legs pass on what belongs to the transfer.
const handleKey = "kv_transfer_params"

// naiveHandle: vLLM over NIXL. Decode gets the handle of prefill's answer if there is
// one; if there is none it gets the client's body as it is.
func (c Caller) naiveHandle(ctx context.Context, path string, headers map[string]string, fields map[string]any) *Stream {
	first := maps.Clone(fields)
	first["stream"] = false
	first["max_tokens"] = 1
	delete(first, "stream_options")
	delete(first, "max_completion_tokens")
	first[handleKey] = map[string]any{"do_remote_decode": true, "do_remote_prefill": false}
	prefill := c.leg(ctx, c.probe.Site.Prefill, path, headers, first).Rest()
	var said struct {
		Handle json.RawMessage `json:"kv_transfer_params"`
	}
	second := maps.Clone(fields)
	if json.Unmarshal(prefill.Body, &said) == nil && len(said.Handle) > 0 && string(said.Handle) != "null" {
		second[handleKey] = said.Handle
	}
	return c.leg(ctx, c.probe.Site.Decode, path, headers, second)
}

// naiveTransfer: vLLM over Mooncake. The legs meet under a transfer id; the engine's id
// is asked for at the bootstrap address.
func (c Caller) naiveTransfer(ctx context.Context, path string, headers map[string]string, fields map[string]any) *Stream {
	s := c.probe.Site
	query := c.probe.client.open(ctx, call{method: http.MethodGet, base: s.Bootstrap, path: "/query"}).Rest()
	var ranks map[string]struct {
		Engine string `json:"engine_id"`
	}
	if json.Unmarshal(query.Body, &ranks) != nil || ranks["0"].Engine == "" {
		return c.bad("the bootstrap address does not tell prefill's id")
	}
	var bits [16]byte
	rand.Read(bits[:])
	transfer := "xfer-" + hex.EncodeToString(bits[:])
	first := maps.Clone(fields)
	first["stream"] = false
	first["max_tokens"] = 1
	delete(first, "stream_options")
	delete(first, "max_completion_tokens")
	first[handleKey] = map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": transfer}
	second := maps.Clone(fields)
	second[handleKey] = map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": transfer,
		"remote_bootstrap_addr": s.Bootstrap, "remote_engine_id": ranks["0"].Engine,
	}
	return c.both(ctx, path, headers, first, second)
}

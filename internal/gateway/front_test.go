package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fleet"
)

// fronted is a rig with a front before it, under the configuration that it returns.
func fronted(t *testing.T) (*rig, *Front, Config) {
	t.Helper()
	r := newRig(t, nil)
	c := r.config()
	f, err := NewFront(c)
	if err != nil {
		t.Fatal(err)
	}
	r.front.Close()
	r.front = httptest.NewUnstartedServer(nil)
	r.front.Config = Server(f)
	r.front.Start()
	t.Cleanup(func() {
		seats := f.current.gateway.seats
		r.front.Close()
		f.Close()
		if n := seats.Held(); n != 0 {
			t.Errorf("%d seats are taken at rest", n)
		}
	})
	return r, f, c
}

// paused makes decode stop in mid-stream until it is let on, and starts a stream. It
// returns the answer after its first event.
func (r *rig) paused(let <-chan struct{}) (*http.Response, *eventReader) {
	r.t.Helper()
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		chunks := decodeChunks(chatPath, c.id)
		events(w, chunks[:2]...)
		select {
		case <-let:
		case <-req.Context().Done(): // it was told to end
			return
		}
		events(w, append(chunks[2:], "[DONE]")...)
	})
	resp, err := r.front.Client().Do(r.request("POST", chatPath, chatBody(`,"stream":true`)))
	if err != nil {
		r.t.Fatal(err)
	}
	in := &eventReader{r: resp.Body, max: 1 << 16}
	if data, err := in.next(); err != nil || resp.StatusCode != 200 {
		r.t.Fatalf("%d %s, %v", resp.StatusCode, data, err)
	}
	r.decode.set(honestDecode)
	return resp, in
}

// finishes holds that a paused stream ends whole once it is let on.
func finishes(t *testing.T, resp *http.Response, in *eventReader) {
	t.Helper()
	defer closeBody(resp)
	last := ""
	for {
		data, err := in.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = string(data)
	}
	if last != "[DONE]" {
		t.Errorf("the stream ended with %s", last)
	}
}

// TestExchange: a new configuration holds for the next request, an earlier one for the
// requests that began under it, and it ends with them.
func TestExchange(t *testing.T) {
	r, f, c := fronted(t)
	let := make(chan struct{})
	resp, in := r.paused(let)
	old := f.current
	ended := make(chan struct{})
	end := old.end
	old.end = sync.OnceFunc(func() { end(); close(ended) })

	next := c
	next.Tenants = []Tenant{{ID: "tenant-b", Keys: c.Tenants[1].Keys, Models: []string{"recall"}}}
	if err := f.Exchange(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if s := f.Status(); !s.Ready || s.Configuration != 2 || s.Earlier != 1 || s.InFlight != 1 {
		t.Errorf("%+v: the new one must know its workers, and count the request in progress", s)
	}
	r.refused(r.chat(""), 401, "invalid_api_key")
	gone := r.key
	r.key = r.other
	if a := r.chat(""); a.status != 200 {
		t.Errorf("the tenant that was added: %d %s", a.status, a.body)
	}
	r.event()
	select {
	case <-ended:
		t.Error("the old gateway ended before its request")
	default:
	}
	close(let)
	finishes(t, resp, in)
	if e := r.event(); e.Verdict != Served || e.Tenant != "tenant-a" {
		t.Errorf("%+v", e)
	}
	soon, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-ended:
	case <-soon.Done():
		t.Error("the old gateway did not end")
	}
	r.key = gone
	r.refused(r.chat(""), 401, "invalid_api_key")
}

// TestExchangeRefused: a wrong configuration changes nothing.
func TestExchangeRefused(t *testing.T) {
	r, f, c := fronted(t)
	wrong := c
	wrong.Pepper = nil
	if err := f.Exchange(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "pepper") {
		t.Errorf("%v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Exchange(gone, c); err == nil {
		t.Error("exchanged for a caller that has gone")
	}
	if s := f.Status(); s.Configuration != 1 || s.Earlier != 0 {
		t.Errorf("%+v", s)
	}
	if a := r.chat(""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.event()
}

// TestExchangeKeepsBudgets: what a request holds counts under the next configuration,
// whose limits hold.
func TestExchangeKeepsBudgets(t *testing.T) {
	one := int64(copies * len(chatBody(`,"stream":true`)))
	for _, tc := range []struct {
		name         string
		tight, roomy func(*Config)
		status       int
		code         string
	}{
		{"tenant's requests", func(c *Config) { c.Tenants[0].InFlight = 1 }, func(c *Config) { c.Tenants[0].InFlight = 2 }, 429, "too_many_requests"},
		{"all requests", func(c *Config) { c.Bounds.InFlight = 1 }, func(c *Config) { c.Bounds.InFlight = 2 }, 503, "overloaded"},
		{"tenant's bytes", func(c *Config) { c.Tenants[0].Bytes = 2*one - 64 }, func(c *Config) { c.Tenants[0].Bytes = 2 * one }, 429, "tenant_bytes_exceeded"},
		{"all bytes", func(c *Config) { c.Bounds.Bytes = 2*one - 64 }, func(c *Config) { c.Bounds.Bytes = 2 * one }, 503, "overloaded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, f, c := fronted(t)
			let := make(chan struct{})
			resp, in := r.paused(let)
			exchange := func(change func(*Config)) {
				next := c
				next.Tenants = append([]Tenant(nil), c.Tenants...)
				change(&next)
				if err := f.Exchange(t.Context(), next); err != nil {
					t.Fatal(err)
				}
			}
			exchange(tc.tight)
			r.refused(r.chat(`,"stream":true`), tc.status, tc.code)
			exchange(tc.roomy)
			if a := r.chat(`,"stream":true`); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
			r.event()
			close(let)
			finishes(t, resp, in)
			r.event()
		})
	}
}

// TestExchangesAreBounded: earlier configurations with requests cannot pile up.
func TestExchangesAreBounded(t *testing.T) {
	r, f, c := fronted(t)
	let := make(chan struct{})
	type stream struct {
		resp *http.Response
		in   *eventReader
	}
	var streams []stream
	for range maxEarlier {
		resp, in := r.paused(let)
		streams = append(streams, stream{resp, in})
		if err := f.Exchange(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Exchange(t.Context(), c); err != ErrEarlier {
		t.Errorf("%v", err)
	}
	select {
	case <-f.Eased():
		t.Error("nothing has ended")
	default:
	}
	_ = streams[0].resp.Body.Close()
	r.event()
	<-f.Eased()
	if s := f.Status(); s.Earlier != maxEarlier-1 || s.Configuration != maxEarlier+1 {
		t.Errorf("%+v", s)
	}
	if err := f.Exchange(t.Context(), c); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	streams = streams[1:]
	close(let)
	for _, s := range streams {
		finishes(t, s.resp, s.in)
		r.event()
	}
}

// TestExchangeOfProbe: a question that the next configuration does not ask keeps no engine
// from work, and the earlier one asks it no more, whatever it still serves.
func TestExchangeOfProbe(t *testing.T) {
	r, f, plain := fronted(t)
	asking := plain
	asking.Models = append([]Model(nil), plain.Models...)
	asking.Models[0].Probe = Probe{Prompt: "What is the answer?", Want: "something else", Every: time.Minute}
	if err := f.Exchange(t.Context(), asking); err != nil {
		t.Fatal(err)
	}
	if e := r.event(); !e.Probe {
		t.Fatalf("%+v", e)
	}
	let := make(chan struct{})
	on := sync.OnceFunc(func() { close(let) })
	resp, in := r.paused(let)
	defer on()
	earlier := f.current.gateway
	for range 3 {
		target := earlier.models["recall"].group.Probe(0)
		earlier.fleet.SetHealth(target, fleet.Wrong)
		target.Release(fleet.Cancelled)
	}
	if f.Status().Ready {
		t.Fatal("ready after three misses")
	}
	if err := f.Exchange(t.Context(), asking); err != nil || f.Status().Ready {
		t.Fatalf("%v, ready %t: it is asked the same", err, f.Status().Ready)
	}
	if err := f.Exchange(t.Context(), plain); err != nil || !f.Status().Ready {
		t.Fatalf("%v, ready %t: it is asked nothing any more", err, f.Status().Ready)
	}
	if earlier.models["recall"].group.Probe(0) != nil {
		t.Error("the earlier one goes on asking")
	}
	on()
	finishes(t, resp, in)
	r.event()
}

// TestFrontClose: it waits for the request in progress, and takes none afterwards.
func TestFrontClose(t *testing.T) {
	r := newRig(t, nil)
	f, err := NewFront(r.config())
	if err != nil {
		t.Fatal(err)
	}
	began, let := make(chan struct{}), make(chan struct{})
	r.prefill.set(func(w http.ResponseWriter, req *http.Request, c call) {
		close(began)
		<-let
		honestPrefill(w, req, c)
	})
	srv := httptest.NewServer(f)
	defer srv.Close()
	req := r.request("POST", chatPath, chatBody(""))
	req.URL.Host = strings.TrimPrefix(srv.URL, "http://")
	status := make(chan int, 1)
	go func() {
		resp, err := srv.Client().Do(req)
		if err != nil {
			status <- 0
			return
		}
		closeBody(resp)
		status <- resp.StatusCode
	}()
	<-began
	closed := make(chan struct{})
	go func() { f.Close(); close(closed) }()
	// While it closes, a new request gets no answer at all.
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for range look.C {
		resp, err := srv.Client().Get(srv.URL + "/healthz")
		if err != nil {
			break
		}
		closeBody(resp)
	}
	select {
	case <-closed:
		t.Error("closed before the request ended")
	default:
	}
	close(let)
	if s := <-status; s != 200 {
		t.Errorf("the request in progress: %d", s)
	}
	<-closed
	if s := f.Status(); s.Configuration != 0 || s.Ready {
		t.Errorf("%+v", s)
	}
	if err := f.Exchange(t.Context(), r.config()); err != errClosed {
		t.Errorf("%v", err)
	}
	r.event()
}

// TestHashKey: a key that a tenant brought along finds its tenant like any other.
func TestHashKey(t *testing.T) {
	c := sound()
	const key = "sk-brought-along-0123"
	hash, err := account.HashKey(c.Pepper, key)
	if err != nil {
		t.Fatal(err)
	}
	c.Tenants[0].Keys = []Key{{Hash: hash}}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, fail := g.door.tenant(http.Header{"Authorization": {"Bearer " + key}}, time.Now()); fail != nil || got.ID != c.Tenants[0].ID {
		t.Errorf("%v, %v", got, fail)
	}
	for _, bad := range []string{"", "sk-short", strings.Repeat("k", account.MaxKey+1), "sk-with a space in", "sk-with-a-newline\n", "sk-ключ-ключ-ключ"} {
		if _, err := account.HashKey(c.Pepper, bad); err == nil || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

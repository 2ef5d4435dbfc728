package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
	"unsafe"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/record"
)

// undispatched holds that no leg has been called.
func (r *rig) undispatched() {
	r.t.Helper()
	if p, d := len(r.prefill.got()), len(r.decode.got()); p+d != 0 {
		r.t.Errorf("%d prefill and %d decode calls", p, d)
	}
}

// TestBadBodies is what the scan refuses, seen from outside. The scan's own tests have
// every case; here is that each kind reaches the client and no leg.
func TestBadBodies(t *testing.T) {
	r := newRig(t, nil)
	for _, tc := range []struct{ name, body, code, param string }{
		{"empty", "", "malformed_json", ""},
		{"malformed", chatBody("") + "}", "trailing_bytes", ""},
		{"deep", chatBody(`,"metadata":` + strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70)), "json_too_deep", ""},
		{"repeated", chatBody(`,"model":"recall"`), "repeated_field", "model"},
		{"unknown", chatBody(`,"` + secret + ` x":1`), "unknown_field", "(a field whose name has 23 bytes)"},
		{"unknown nested", chatBody(`,"stream_options":{"x":1}`), "unknown_field", "stream_options.x"},
		{"reserved", chatBody(`,"bootstrap_room":5`), "reserved_field", "bootstrap_room"},
		{"wrong type", chatBody(`,"max_tokens":"` + secret + `"`), "wrong_type", "max_tokens"},
		{"absurd temperature", chatBody(`,"temperature":1e300`), "value_out_of_range", "temperature"},
		{"absurd length", chatBody(`,"max_tokens":99999999999999999999`), "value_out_of_range", "max_tokens"},
		{"zero length", chatBody(`,"max_tokens":0`), "value_out_of_range", "max_tokens"},
		{"no text", `{"model":"recall","messages":[{"role":"user","content":""}]}`, "empty_prompt", "messages"},
		{"byte order mark", "\xef\xbb\xbf" + chatBody(""), "byte_order_mark", ""},
		{"invalid UTF-8", strings.Replace(chatBody(""), "hello", "\xff", 1), "invalid_utf8", ""},
		{"lone surrogate", strings.Replace(chatBody(""), "hello", `\ud800`, 1), "lone_surrogate", ""},
		{"several choices", chatBody(`,"n":3`), "value_out_of_range", "n"},
		{"tools", chatBody(`,"tools":[{"name":"` + secret + `"}]`), "unsupported_field", "tools"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := r.send(r.request("POST", chatPath, tc.body))
			e := r.refused(a, 400, tc.code)
			if e.Verdict != record.Refused || e.Attempts != 0 || tc.param != "" && !strings.Contains(a.body, `"param":"`+tc.param+`"`) {
				t.Errorf("%s, event %+v", a.body, e)
			}
		})
	}
	r.undispatched()
	if a := r.chat(""); a.status != 200 {
		t.Errorf("after all that, a good request gets %d %s", a.status, a.body)
	}
}

func TestUnknownAndForbiddenModelsAreTheSame(t *testing.T) {
	r := newRig(t, nil)
	unknown := r.send(r.request("POST", chatPath, strings.Replace(chatBody(""), "recall", "gpt-9", 1)))
	r.refused(unknown, 404, "model_not_found")
	req := r.request("POST", chatPath, chatBody(""))
	req.Header.Set("Authorization", "Bearer "+r.other)
	forbidden := r.send(req)
	r.refused(forbidden, 404, "model_not_found")
	strip := func(a answer) string { return strings.ReplaceAll(a.body, a.header.Get(headerID), "") }
	if strip(unknown) != strip(forbidden) {
		t.Errorf("told apart: %s %s", unknown.body, forbidden.body)
	}
	for _, name := range []string{"Recall", "recall ", "served", ""} {
		r.refused(r.send(r.request("POST", chatPath, strings.Replace(chatBody(""), "recall", name, 1))), 404, "model_not_found")
	}
	r.undispatched()
}

func TestBadHeaders(t *testing.T) {
	r := newRig(t, nil)
	for _, tc := range []struct {
		name, value, code string
		status            int
	}{
		{"Authorization", "", "missing_api_key", 401},
		{"Authorization", "Bearer bk-00000000000000000000000000000000", "invalid_api_key", 401},
		{"Content-Encoding", "gzip", "content_encoding", 400},
		{"Content-Encoding", "identity", "content_encoding", 400},
		{"Content-Type", "text/plain", "content_type", 415},
		{"Content-Type", "application/json; charset", "content_type", 415},
		{"X-Bulkhead-Pass", "v1.x", "reserved_header", 400},
		{"X-Prefiller-Host-Port", "h:1", "reserved_header", 400},
		{"x-prefiller-url", "h:1", "reserved_header", 400},
		{"X-Tenant-Id", "tenant-b", "reserved_header", 400},
		{"X-Data-Parallel-Rank", "1", "reserved_header", 400},
		{"X-Encoder-Hosts-Ports", "1", "reserved_header", 400},
		{"X-Override-Rid", "1", "reserved_header", 400},
		{"X-Sglext-Return-Input-Ids", "1", "reserved_header", 400},
		{"X-Smg-Routing-Key", "1", "reserved_header", 400},
		{"X-Conversation-Id", "1", "reserved_header", 400},
	} {
		t.Run(tc.name+" "+tc.value, func(t *testing.T) {
			req := r.request("POST", chatPath, chatBody(""))
			req.Header.Set(tc.name, tc.value)
			if tc.value == "" {
				req.Header.Del(tc.name)
			}
			r.refused(r.send(req), tc.status, tc.code)
		})
	}
	r.undispatched()
	req := r.request("POST", chatPath, chatBody(""))
	req.Header.Add("Authorization", "Bearer "+r.key)
	r.refused(r.send(req), 401, "invalid_api_key") // twice
	req = r.request("POST", chatPath, chatBody(""))
	const own = "client-s-own-id-91"
	req.Header.Set("X-Request-Id", own)
	req.Header.Set("Idempotency-Key", secret)
	req.Header.Set("X-Session-Affinity", secret)
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	if a := r.send(req); a.status != 200 || a.header.Get(headerClient) != own {
		t.Errorf("harmless headers: %d %s %v", a.status, a.body, a.header)
	}
	r.event()
	for _, c := range append(r.prefill.got(), r.decode.got()...) {
		if text := fmt.Sprint(c.header); strings.Contains(text, secret) || strings.Contains(text, own) {
			t.Errorf("a client's header reached a leg: %v", c.header)
		}
	}
}

// raw sends bytes to the front and reads whatever comes back until the end.
func (r *rig) raw(text string, halfClose halfClose) string {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.front.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		r.t.Fatal(err)
	}
	if halfClose == closeWrite {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(conn)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		r.t.Fatalf("%v after %q", err, b)
	}
	return string(b)
}

type halfClose uint8

const (
	keepOpen halfClose = iota
	closeWrite
)

func (r *rig) head(length string) string {
	return "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nAuthorization: Bearer " + r.key + "\r\n" + length + "\r\n\r\n"
}

// TestClientIDIsACopy holds that what is remembered of a client's id is not a part of a
// header of up to 64 KiB, which no byte budget counts (G-14).
func TestClientIDIsACopy(t *testing.T) {
	long := strings.Repeat("l", maxHeader)
	id := clientID(http.Header{"X-Request-Id": {long}})
	if id != long[:maxClientID] || unsafe.StringData(id) == unsafe.StringData(long) {
		t.Errorf("%d bytes of the header itself are kept", len(id))
	}
}

func TestBodyLimits(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Clock = SystemClock{} // deadlines of connections are real
		c.Bounds.Body = 4096
		c.Bounds.BodyGrace = 50 * time.Millisecond
		c.Bounds.BodyRate = 1 << 30
	})
	long := chatBody(`,"user":"` + strings.Repeat("u", 4096) + `"`)
	r.refused(r.send(r.request("POST", chatPath, long)), 413, "body_too_large")
	chunked := r.request("POST", chatPath, "")
	chunked.Body, chunked.ContentLength = io.NopCloser(strings.NewReader(long)), -1
	r.refused(r.send(chunked), 413, "body_too_large")
	exact := chatBody(`,"user":"` + strings.Repeat("u", 4096-len(chatBody(`,"user":""`))) + `"`)
	for _, length := range []int64{int64(len(exact)), -1} {
		req := r.request("POST", chatPath, "")
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(exact)), length
		if a := r.send(req); a.status != 200 {
			t.Errorf("just the limit, length %d: %d %s", length, a.status, a.body)
		}
		r.event()
	}
	r.prefill.mu.Lock()
	r.prefill.calls = nil
	r.prefill.mu.Unlock()

	// A body that does not come is told so, and the connection is closed.
	if got := r.raw(r.head("Content-Length: 100")+`{"model":`, keepOpen); !strings.Contains(got, "408 ") || !strings.Contains(got, "body_too_slow") {
		t.Errorf("slow body: %q", got)
	}
	r.event()
	if got := r.raw(r.head("Transfer-Encoding: chunked")+"5\r\n{\"mod", keepOpen); !strings.Contains(got, "body_too_slow") {
		t.Errorf("slow chunked body: %q", got)
	}
	r.event()
	// Nobody may keep a connection by being refused and never sending the body.
	if got := r.raw(strings.NewReplacer(r.key, "bk-x", "Connection: close\r\n", "").Replace(r.head("Content-Length: 100")), keepOpen); !strings.Contains(got, "401 ") {
		t.Errorf("refused without a body: %q", got)
	}
	r.event()
	if got := r.raw(r.head("Content-Length: 100")+`{"model":`, closeWrite); strings.Contains(got, "200 OK") {
		t.Errorf("cut body: %q", got)
	}
	if e := r.event(); e.Verdict != record.Left && e.Code != fault.BodyIncomplete {
		t.Errorf("event: %+v", e)
	}
	if got := r.raw(r.head("Transfer-Encoding: chunked")+"zz\r\n", keepOpen); !strings.Contains(got, "body_incomplete") {
		t.Errorf("bad chunk: %q", got)
	}
	r.event()
	if n := len(r.prefill.got()); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// TestLongBodyOfUnknownLength holds that every byte is taken from the budget, also if
// nobody said how many would come, and that a body which it will never have room for is
// told so: to come again later would not help.
func TestLongBodyOfUnknownLength(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tenants[0].Bytes = copies * 300_000 })
	budget := r.g.door.byID["tenant-a"].bytes
	for _, tc := range []struct {
		size, want int
		held       int64 // by other requests
	}{{200_000, 200, 0}, {299_800, 200, 0}, {200_000, 429, 450_000}, {400_000, 413, 0}} {
		for _, length := range []int64{-1, 0} {
			req := r.request("POST", chatPath, "")
			body := chatBody(`,"user":"` + strings.Repeat("u", tc.size) + `"`)
			if length == 0 {
				length = int64(len(body))
			}
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), length
			budget.Take(tc.held)
			a := r.send(req)
			if e := r.event(); a.status != tc.want || tc.want == 200 && e.BodyBytes != int64(len(body)) {
				t.Errorf("%+v, length %d: %d %s", tc, length, a.status, a.body)
			}
			budget.Give(tc.held)
		}
	}
}

// TestDeadlinesAreForOneStep holds that neither the body's deadline nor the last write's
// ends a request that merely takes long.
func TestDeadlinesAreForOneStep(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Clock = SystemClock{}
		c.Bounds.BodyGrace, c.Bounds.Write = 100*time.Millisecond, 100*time.Millisecond
	})
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		beyond, cancel := context.WithTimeout(req.Context(), 150*time.Millisecond)
		defer cancel()
		<-beyond.Done()
		honestDecode(w, req, c)
	})
	for mode, members := range modes() {
		if a := r.chat(members); a.status != 200 || a.err != nil {
			t.Errorf("%s: %d %s %v", mode, a.status, a.body, a.err)
		}
		if e := r.event(); e.Verdict != Served {
			t.Errorf("%s, event: %+v", mode, e)
		}
	}
}

// TestHalfClosed is a client that sends no more and still reads. It counts as gone, and
// must not be told 200.
func TestHalfClosed(t *testing.T) {
	r := newRig(t, nil)
	r.prefill.set(hanging(nil))
	r.decode.set(hanging(nil))
	body := chatBody("")
	if got := r.raw(r.head(fmt.Sprintf("Content-Length: %d", len(body)))+body, closeWrite); got != "" {
		t.Errorf("told %q", got)
	}
	if e := r.event(); e.Verdict != record.Left || e.Status != 0 {
		t.Errorf("event: %+v", e)
	}
}

func TestHTTP10(t *testing.T) {
	r := newRig(t, nil)
	send := func(body string) string {
		return r.raw(fmt.Sprintf("POST %s HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", chatPath, r.key, len(body), body), keepOpen)
	}
	if got := send(chatBody(`,"stream":true`)); !strings.Contains(got, " 400 ") || !strings.Contains(got, "stream_needs_http_1_1") {
		t.Errorf("stream: %q", got)
	}
	r.event()
	r.undispatched()
	if got := send(chatBody("")); !strings.Contains(got, " 200 ") || !strings.Contains(got, "The answer") {
		t.Errorf("whole: %q", got)
	}
	r.event()
}

// TestSlowReader is a client that stops reading: the write ends, and so does decode.
func TestSlowReader(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Clock = SystemClock{} // deadlines of connections are real
		c.Bounds.Write = 50 * time.Millisecond
		c.Models[0].DefaultMaxTokens = 600
		c.Models[0].Sizes = Sizes{}
		c.Models[0].Counter = counter(func() (int, error) { return 10, nil })
	})
	ended := make(chan struct{})
	r.decode.set(func(w http.ResponseWriter, req *http.Request, c call) {
		defer close(ended)
		w.Header().Set("Content-Type", "text/event-stream")
		for req.Context().Err() == nil {
			if _, err := fmt.Fprintf(w, "data: %s\n\n", chunk(chatPath, c.id, "The"+strings.Repeat("x", 100_000), "", promptTokens, 1)); err != nil {
				return
			}
		}
	})
	conn, err := net.Dial("tcp", r.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	body := chatBody(`,"stream":true`)
	if _, err := io.WriteString(conn, r.head(fmt.Sprintf("Content-Length: %d", len(body)))+body); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	if err != nil || !strings.Contains(line, "200 OK") {
		t.Fatalf("%q, %v", line, err)
	}
	<-ended
	if e := r.event(); e.Verdict != record.Left || e.Status != 200 {
		t.Errorf("event: %+v", e)
	}
	r.decode.aborted(t)
	if b, err := io.ReadAll(conn); bytes.Contains(b, []byte("[DONE]")) || bytes.HasSuffix(b, []byte("\r\n0\r\n\r\n")) {
		t.Errorf("the answer ended well: %v", err)
	}
}

// counter is a Counter.
type counter func() (int, error)

func (c counter) Count(_ context.Context, path string, body []byte) (int, error) {
	if path != chatPath || !bytes.Contains(body, []byte(secret)) {
		return 0, errors.New("not the client's request")
	}
	return c()
}

func TestAdmission(t *testing.T) {
	text := func(n int) string {
		return `{"model":"recall","messages":[{"role":"user","content":"` + secret + strings.Repeat("x", n-len(secret)) + `"}]`
	}
	// Limits of the rig: window 1024, prompts up to 600, decode pool 640; a prompt of n
	// bytes is n to n+16 tokens.
	for _, tc := range []struct {
		name    string
		body    string
		counter Counter
		status  int
		code    string
		numbers []string
		max     int64
	}{
		{"fits", text(500) + `,"max_tokens":100`, nil, 200, "", nil, 100},
		{"default", text(500), nil, 200, "", nil, 20},
		{"over prefill's limit", text(601), nil, 400, "prompt_exceeds_pool", []string{"at least 601", "600"}, 0},
		{"between pool and window", text(1000), nil, 400, "prompt_exceeds_pool", []string{"at least 1000", "600"}, 0},
		{"over the window", text(1025), nil, 400, "context_length_exceeded", []string{"at least 1025", "1024"}, 0},
		{"output over decode's pool", text(500) + `,"max_tokens":200`, nil, 400, "output_exceeds_pool", []string{"at least 500", "200", "640"}, 0},
		{"output over the window", text(100) + `,"max_tokens":5000`, nil, 400, "output_exceeds_window", []string{"at least 100", "5000", "1024"}, 0},
		{"band, counted and fits", text(590), counter(func() (int, error) { return 600, nil }), 200, "", nil, 20},
		{"band, counted and too long", text(590), counter(func() (int, error) { return 601, nil }), 400, "prompt_exceeds_pool", []string{"has 601", "600"}, 0},
		{"band, what is left", text(500) + `,"max_tokens":140`, counter(func() (int, error) { return 501, nil }), 400, "output_exceeds_pool", []string{"has 501", "140", "640"}, 0},
		{"band, no counter", text(590), nil, 503, "token_count_unavailable", nil, 0},
		{"band, counter down", text(590), counter(func() (int, error) { return 0, errors.New(secret) }), 503, "token_count_unavailable", nil, 0},
		{"band, counter nonsense", text(590), counter(func() (int, error) { return -1, nil }), 503, "token_count_unavailable", nil, 0},
		{"counted to nothing", text(590), counter(func() (int, error) { return 0, nil }), 400, "empty_prompt", nil, 0},
	} {
		for mode, members := range modes() {
			t.Run(tc.name+"/"+mode, func(t *testing.T) {
				r := newRig(t, func(c *Config) { c.Models[0].Counter = tc.counter })
				a := r.send(r.request("POST", chatPath, tc.body+members+"}"))
				if tc.status == 200 {
					if e := r.event(); a.status != 200 || e.MaxTokens != tc.max || r.decode.got()[0].max != tc.max {
						t.Errorf("%d %s, max_tokens %d", a.status, a.body, e.MaxTokens)
					}
					return
				}
				if e := r.refused(a, tc.status, tc.code); e.Verdict != record.Refused {
					t.Errorf("event: %+v", e)
				}
				r.undispatched()
				for _, n := range tc.numbers {
					if !strings.Contains(a.body, n) {
						t.Errorf("%s lacks %q", a.body, n)
					}
				}
			})
		}
	}
	t.Run("default is what is left", func(t *testing.T) {
		r := newRig(t, func(c *Config) {
			c.Models[0].DefaultMaxTokens = 200
			c.Models[0].Counter = counter(func() (int, error) { return 590, nil })
		})
		r.send(r.request("POST", chatPath, text(590)+"}"))
		if e := r.event(); e.MaxTokens != 50 {
			t.Errorf("max_tokens %d, 640-590 are left", e.MaxTokens)
		}
	})
}

func TestBudgets(t *testing.T) {
	began, let := make(chan struct{}, 8), make(chan struct{})
	wait := func(w http.ResponseWriter, req *http.Request, c call) {
		began <- struct{}{}
		<-let
		honestPrefill(w, req, c)
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		status int
		code   string
	}{
		{"tenant's requests", func(c *Config) { c.Tenants[0].InFlight = 1 }, 429, "too_many_requests"},
		{"all requests", func(c *Config) { c.Bounds.InFlight = 1 }, 503, "overloaded"},
		{"tenant's bytes", func(c *Config) { c.Tenants[0].Bytes = int64(4 * len(chatBody(""))) }, 429, "tenant_bytes_exceeded"},
		{"all bytes", func(c *Config) { c.Bounds.Bytes = int64(4 * len(chatBody(""))) }, 503, "overloaded"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.change)
			r.prefill.set(wait)
			first := make(chan answer, 1)
			go func() { first <- r.chat("") }()
			<-began
			a := r.chat("")
			e := r.refused(a, tc.status, tc.code)
			if (tc.status == 429) != (a.header.Get("Retry-After") != "") || e.Verdict != record.Refused {
				t.Errorf("%v, event %+v", a.header, e)
			}
			let <- struct{}{}
			if a := <-first; a.status != 200 {
				t.Errorf("the first request: %d %s", a.status, a.body)
			}
			r.event()
			r.prefill.set(honestPrefill)
			if a := r.chat(""); a.status != 200 {
				t.Errorf("afterwards: %d %s", a.status, a.body)
			}
			r.event()
		})
	}
}

func TestNoSecretInDropped(t *testing.T) {
	r := newRig(t, nil)
	a := r.chat(`,"user":"` + secret + `","metadata":{"` + secret + `":1}`)
	r.event()
	if a.header.Get(headerDropped) != "user, metadata" || a.status != 200 {
		t.Errorf("%d %v", a.status, a.header)
	}
}

func TestEventReader(t *testing.T) {
	text := "data: a\n\n: comment\n\ndata: b\r\n\r\n" + "data: " + strings.Repeat("c", 5000) + "\n\n"
	for size := 1; size < len(text); size = size*3/2 + 1 {
		in := eventReader{r: &pieces{text: text, size: size}, max: 1 << 13}
		for _, want := range []string{"a", "b", strings.Repeat("c", 5000)} {
			if got, err := in.next(); err != nil || string(got) != want {
				t.Fatalf("pieces of %d: %q, %v", size, got, err)
			}
		}
		if _, err := in.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("end: %v", err)
		}
	}
	for _, tc := range []struct {
		text string
		want error
	}{{"data: half\n", io.ErrUnexpectedEOF}, {"data: " + strings.Repeat("x", 1<<13) + "\n\n", errEvent}, {"", io.EOF}} {
		in := eventReader{r: &pieces{text: tc.text, size: 100}, max: 1 << 13}
		if got, err := in.next(); !errors.Is(err, tc.want) {
			t.Errorf("%.20q: %q, %v", tc.text, got, err)
		}
	}
}

// pieces gives a text in pieces.
type pieces struct {
	text string
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.size)], p.text)
	p.text = p.text[n:]
	return n, nil
}

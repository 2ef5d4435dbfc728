package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/fault"
)

// raw sends a body as it stands, with a pass for a room.
func (p *pair) raw(s *side, path string, room int64, body []byte) reply {
	p.t.Helper()
	c := p.call(path, nil)
	req, err := http.NewRequest(http.MethodPost, s.http.URL+path, bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set(PassHeader, p.passes.Mint(c.attempt, c.domain, c.expiry, room, body))
	return read(p.client.Do(req))
}

// TestBodies sends bodies that are no request. None is served, none makes an
// attempt, and each is told why.
func TestBodies(t *testing.T) {
	p := newPair(t, func(c *Config) { c.BodyBytes = 4096 })
	ok := `"model":"recall","prompt":"x","max_tokens":1,"rid":"r","bootstrap_host":"prefill.test","bootstrap_room":5`
	deep := strings.Repeat(`[`, 70) + strings.Repeat(`]`, 70)
	for _, c := range []struct {
		name, body, code string
		status           int
	}{
		{"empty", ``, "malformed_json", 400},
		{"not JSON", `hello`, "malformed_json", 400},
		{"a list", `[1]`, "malformed_json", 400},
		{"cut short", `{` + ok, "malformed_json", 400},
		{"NaN", `{` + ok + `,"temperature":NaN}`, "malformed_json", 400},
		{"a comment", `{` + ok + `/* */}`, "malformed_json", 400},
		{"a byte order mark", "\ufeff{" + ok + `}`, "byte_order_mark", 400},
		{"invalid UTF-8", "{" + ok + ",\"user\":\"\xff\"}", "invalid_utf8", 400},
		{"half a surrogate pair", `{` + ok + `,"user":"\ud83d"}`, "lone_surrogate", 400},
		{"a bracket after it", `{` + ok + `}}`, "trailing_bytes", 400},
		{"another object after it", `{` + ok + `}{}`, "trailing_bytes", 400},
		{"deep in a field that is not read", `{` + ok + `,"x":` + deep + `}`, "json_too_deep", 400},
		{"deep and cut short", strings.Repeat(`{"a":`, 2000/5), "json_too_deep", 400},
		{"a field twice", `{` + ok + `,"prompt":"y"}`, "repeated_field", 400},
		{"a field twice, spelled in two ways", `{` + ok + `,"\u0070rompt":"y"}`, "repeated_field", 400},
		{"no room", `{"model":"recall","prompt":"x","rid":"r"}`, "missing_field", 400},
		{"another case of the room", `{"model":"recall","prompt":"x","rid":"r","Bootstrap_Room":5}`, "missing_field", 400},
		{"null for a room", `{"bootstrap_room":null}`, "missing_field", 400},
		{"a room in words", `{"bootstrap_room":"5"}`, "wrong_type", 400},
		{"half a room", `{"bootstrap_room":5.5}`, "wrong_type", 400},
		{"a room as a float", `{"bootstrap_room":5e0}`, "wrong_type", 400},
		{"a list of rooms", `{"bootstrap_room":[5]}`, "wrong_type", 400},
		{"a negative room", `{"bootstrap_room":-1}`, "value_out_of_range", 400},
		{"2^63", `{"bootstrap_room":9223372036854775808}`, "value_out_of_range", 400},
		{"too large", `{` + ok + `,"x":"` + strings.Repeat("x", 4096) + `"}`, "body_too_large", 413},
	} {
		for _, s := range []*side{p.prefill, p.decode} {
			r := p.raw(s, "/v1/completions", 5, []byte(c.body))
			refused(t, c.name, r, c.code)
			if r.status != c.status {
				t.Errorf("%s: %d", c.name, r.status)
			}
		}
	}
	if p.prefill.Status().Attempts+p.decode.Status().Attempts+p.prefill.Status().Stones+p.decode.Status().Stones != 0 {
		t.Errorf("prefill %+v, decode %+v", p.prefill.Status(), p.decode.Status())
	}
	p.serves()
}

// TestRooms takes rooms that a float64 cannot hold as they are.
func TestRooms(t *testing.T) {
	p := newPair(t)
	for _, room := range []int64{0, 1, 1<<53 + 1, 1<<62 + 1, 1<<63 - 1} {
		c := p.complete(shipPrompt, 12)
		c.room = room
		for _, s := range []*side{p.prefill, p.decode} {
			// A pass for the next room is for another one, also where the two are one float.
			other := c
			other.room = room ^ 1
			req := p.request(context.Background(), s, c)
			req.Header.Set(PassHeader, p.passes.Mint(c.attempt, c.domain, c.expiry, other.room, c.bytes(t)))
			refused(t, "another room's pass", read(p.client.Do(req)), "bad_pass")
		}
		if pre, dec := p.both(c); text(dec) != shipAnswer {
			t.Errorf("room %d: prefill %d %s, decode %d %s", room, pre.status, pre.body, dec.status, dec.body)
		}
	}
	p.whole()
}

// TestFields sends values that are wrong in one field, on both legs. Where it
// says served, the value is odd and right.
func TestFields(t *testing.T) {
	p := newPair(t)
	chat := func(messages any) map[string]any { return map[string]any{"prompt": nil, "messages": messages} }
	user := func(content any) any { return map[string]any{"role": "user", "content": content} }
	const served = ""
	for _, c := range []struct {
		edit map[string]any
		code string
	}{
		{map[string]any{"model": "Recall"}, "model_not_found"}, {map[string]any{"model": nil}, "model_not_found"}, {map[string]any{"model": 5}, "model_not_found"},
		{map[string]any{"prompt": nil}, "missing_field"}, {map[string]any{"prompt": ""}, "empty_prompt"}, {map[string]any{"prompt": []int{}}, "empty_prompt"},
		{map[string]any{"prompt": 5}, "wrong_type"}, {map[string]any{"prompt": []string{"a", "b"}}, "wrong_type"}, {map[string]any{"prompt": []int{-1}}, "wrong_type"},
		{map[string]any{"prompt": []int{65, 262}}, "value_out_of_range"}, {map[string]any{"prompt": []int{256, 65}}, served}, {map[string]any{"prompt": []string{"a"}}, served},
		{map[string]any{"temperature": -0.1}, "value_out_of_range"}, {map[string]any{"temperature": 2.1}, "value_out_of_range"}, {map[string]any{"temperature": "1"}, "wrong_type"},
		{map[string]any{"temperature": json.Number("1e999")}, "wrong_type"}, {map[string]any{"top_p": 1.1}, "value_out_of_range"}, {map[string]any{"top_p": -1}, "value_out_of_range"},
		{map[string]any{"top_p": 0}, served}, {map[string]any{"temperature": 2}, served}, {map[string]any{"seed": -1}, served},
		{map[string]any{"seed": 1.5}, "wrong_type"}, {map[string]any{"seed": json.Number("9223372036854775808")}, "value_out_of_range"},
		{map[string]any{"stop": []string{"a", "b", "c", "d", "e"}}, "too_many_values"}, {map[string]any{"stop": ""}, "value_out_of_range"},
		{map[string]any{"stop": strings.Repeat("x", 257)}, "value_out_of_range"}, {map[string]any{"stop": 5}, "wrong_type"}, {map[string]any{"stop": []any{}}, served},
		{map[string]any{"stream_options": []int{}}, "wrong_type"}, {map[string]any{"stream_options": map[string]any{"include_usage": 1}}, "wrong_type"},
		{map[string]any{"rid": ""}, "missing_field"}, {map[string]any{"rid": "a b"}, "wrong_type"}, {map[string]any{"rid": strings.Repeat("r", 129)}, "wrong_type"}, {map[string]any{"rid": 5}, "wrong_type"},
		{map[string]any{"bootstrap_port": "8998"}, "wrong_type"}, {map[string]any{"bootstrap_port": 65536}, "value_out_of_range"}, {map[string]any{"bootstrap_port": nil}, served},
		{map[string]any{"bootstrap_port": json.RawMessage("null")}, served},
		{map[string]any{"whatever": map[string]any{"a": 1}}, served},
		{chat(nil), "missing_field"}, {chat([]any{}), "empty_prompt"}, {chat("x"), "wrong_type"}, {chat([]any{5}), "wrong_type"}, {chat([]any{user(nil)}), "empty_prompt"},
		{chat([]any{user("")}), "empty_prompt"}, {chat([]any{map[string]any{"role": "boss", "content": "x"}}), "wrong_type"}, {chat([]any{map[string]any{"content": "x"}}), "wrong_type"},
		{chat([]any{user([]any{map[string]any{"type": "image_url"}})}), "wrong_type"}, {chat([]any{user([]any{map[string]any{"type": "text", "text": "x"}})}), served},
		{chat([]any{map[string]any{"Role": "user", "content": "x"}}), "wrong_type"},
	} {
		call := p.complete("x", 1).with(c.edit)
		if call.body["messages"] != nil || c.edit["prompt"] == nil && len(c.edit) == 2 {
			call.path = "/v1/chat/completions"
		}
		pre, dec := p.both(call)
		if c.code == served {
			if pre.status != 200 || dec.status != 200 {
				t.Errorf("%v: prefill %d %s, decode %d %s", c.edit, pre.status, pre.body, dec.status, dec.body)
			}
			continue
		}
		refused(t, fmt.Sprintf("%v at prefill", c.edit), pre, c.code)
		refused(t, fmt.Sprintf("%v at decode", c.edit), dec, c.code)
	}
	p.whole()
	p.serves()
}

// TestMaxTokens has values that prefill never sees, for its leg has one of its own.
func TestMaxTokens(t *testing.T) {
	p := newPair(t)
	for v, want := range map[any]string{
		0: "value_out_of_range", -1: "value_out_of_range", 1 << 25: "value_out_of_range", json.Number("1e30"): "wrong_type",
		json.Number("99999999999999999999"): "value_out_of_range", "5": "wrong_type", 1.5: "wrong_type", 1 << 24: "pool_exceeded", 2000: "pool_exceeded",
	} {
		pre, dec := p.both(p.complete("x", 1).with(map[string]any{"max_tokens": v}))
		refused(t, fmt.Sprintf("%v at decode", v), dec, want)
		other := "bad_input"
		if want == "pool_exceeded" {
			other = want
		}
		refused(t, fmt.Sprintf("%v at prefill", v), pre, other)
	}
	_, dec := p.both(p.complete("x", 1).with(map[string]any{"max_tokens": nil}))
	if u := parseAnswer(dec.body).Usage; dec.status != 200 || u.Completion != defaultOutput {
		t.Errorf("no max_tokens: %d %s", dec.status, dec.body)
	}
	p.whole()
}

// TestPasses sends legs whose authorisation does not hold. None makes an attempt.
func TestPasses(t *testing.T) {
	p := newPair(t)
	c := p.complete(shipPrompt, 12)
	body := c.bytes(t)
	good := p.passes.Mint(c.attempt, c.domain, c.expiry, c.room, body)
	forged := []byte(good)
	forged[len(forged)-1] ^= 1
	for name, x := range map[string]struct{ pass, code string }{
		"no pass":           {"", "bad_pass"},
		"not a pass":        {"v1.x.y.z", "bad_pass"},
		"a forged one":      {string(forged), "bad_pass"},
		"one for a body":    {p.passes.Mint(c.attempt, c.domain, c.expiry, c.room, append(body, ' ')), "bad_pass"},
		"one for a room":    {p.passes.Mint(c.attempt, c.domain, c.expiry, c.room+1, body), "bad_pass"},
		"one that ran out":  {p.passes.Mint(c.attempt, c.domain, time.Now().Add(-time.Second), c.room, body), "expired_pass"},
		"one for too long":  {p.passes.Mint(c.attempt, c.domain, time.Now().Add(2*maxPassLife), c.room, body), "bad_pass"},
		"a very long value": {strings.Repeat("v1.", 1000), "bad_pass"},
	} {
		for _, s := range []*side{p.prefill, p.decode} {
			req := p.request(context.Background(), s, c)
			req.Header.Set(PassHeader, x.pass)
			r := read(p.client.Do(req))
			refused(t, name, r, x.code)
			if r.status != 403 {
				t.Errorf("%s: %d", name, r.status)
			}
		}
	}
	p.eventually("each was told", func() bool { return len(p.prefill.events.of(PassRefused)) == 8 })
	if st := p.decode.Status(); st.Attempts+st.Stones != 0 {
		t.Errorf("decode %+v", st)
	}
	if _, dec := p.both(c); text(dec) != shipAnswer { // the control: only the pass was wrong
		t.Errorf("decode %d %s", dec.status, dec.body)
	}
}

// TestReplay sends a leg twice: while its attempt lives, after it, and after the
// connection that remembers the attempt has gone.
func TestReplay(t *testing.T) {
	p := newPair(t)
	c := p.complete(shipPrompt, 12)
	again := func(when string) {
		t.Helper()
		for _, s := range []*side{p.prefill, p.decode} {
			r := p.leg(context.Background(), s, c.forPrefill())
			if s == p.decode {
				r = p.leg(context.Background(), s, c)
			}
			refused(t, when, r, "duplicate_attempt")
			if r.status != 409 {
				t.Errorf("%s: %d", when, r.status)
			}
		}
	}
	pre := p.beginPrefill(c)
	p.reaches(p.prefill, c)
	refused(t, "while it waits", p.leg(context.Background(), p.prefill, c.forPrefill()), "duplicate_attempt")
	on(p.prefill, func(w *Worker) { w.passes = passes{seen: map[handoff.Attempt]struct{}{}} }) // as if it had run out
	another := c.forPrefill().with(map[string]any{"rid": "another"})
	refused(t, "while it lives for longer than its pass", p.leg(context.Background(), p.prefill, another), "duplicate_attempt")
	on(p.prefill, func(w *Worker) { w.passes.use(c.attempt, c.expiry, time.Now()) })
	dec := p.beginDecode(c)
	if a, b := <-pre.done, <-dec.done; text(a) != " " || text(b) != shipAnswer {
		t.Errorf("prefill %s, decode %s: a replay disturbed it", a.body, b.body)
	}
	again("after it ended")
	on(p.decode, func(w *Worker) { w.peers[0].current.link.Close(nil) })
	p.eventually("nothing is remembered", func() bool { return p.prefill.Status().Stones == 0 && p.decode.Status().Stones == 0 })
	p.linked()
	again("after the connection closed")
	p.serves()
	p.whole()
}

// TestSameID has two live attempts with one request id: the second is refused, and
// an abort by that id ends the first alone.
func TestSameID(t *testing.T) {
	p := newPair(t)
	first, second := p.complete(shipPrompt, 12), p.complete(shipPrompt, 12).with(map[string]any{"rid": "mine"})
	first = first.with(map[string]any{"rid": "mine"})
	pre := p.beginPrefill(first)
	p.reaches(p.prefill, first)
	refused(t, "the second", p.leg(context.Background(), p.prefill, second.forPrefill()), "duplicate_attempt")
	for _, other := range []string{"min", "mine2", "MINE", "*"} {
		p.abort(p.prefill, other)
	}
	on(p.prefill, func(w *Worker) {
		if w.rids["mine"] == nil {
			t.Error("an abort by another id ended it")
		}
	})
	p.abort(p.prefill, "mine")
	refused(t, "the first", <-pre.done, "cancelled")
	p.whole()
}

// TestAbortKey keeps /abort_request to whoever has the key.
func TestAbortKey(t *testing.T) {
	p := newPair(t, atDecode(func(c *Config) { c.Control = "" }))
	c := p.complete(shipPrompt, 12)
	pre := p.beginPrefill(c)
	p.reaches(p.prefill, c)
	call := func(s *side, auth, body string) reply {
		req, err := http.NewRequest(http.MethodPost, s.http.URL+"/abort_request", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if auth != "" {
			req.Header.Set("Authorization", auth)
		}
		return read(p.client.Do(req))
	}
	id := fmt.Sprintf(`{"rid":%q}`, c.rid())
	for _, auth := range []string{"", "Bearer ", "Bearer x", "Basic " + testControl, "Bearer " + testControl + "x"} {
		refused(t, "key "+auth, call(p.prefill, auth, id), "bad_pass")
	}
	refused(t, "no key is set", call(p.decode, "Bearer ", id), "bad_pass")
	key := "Bearer " + testControl
	for body, want := range map[string]string{
		``: "malformed_json", `{}`: "missing_field", `{"rid":5}`: "wrong_type", `{"rid":"a"}x`: "trailing_bytes",
		`{"rid":"` + strings.Repeat("r", 5000) + `"}`: "body_too_large",
	} {
		refused(t, body, call(p.prefill, key, body), want)
	}
	if r := call(p.prefill, key, id); r.status != 200 {
		t.Errorf("abort: %d %s", r.status, r.body)
	}
	refused(t, "the leg", <-pre.done, "cancelled")
	p.whole()
}

// TestUnknownPeer names a prefill worker that decode does not know. It is refused,
// and nobody is dialled.
func TestUnknownPeer(t *testing.T) {
	p := newPair(t)
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	called := make(chan struct{})
	go func() {
		if c, err := trap.Accept(); err == nil {
			_ = c.Close()
			close(called)
		}
	}()
	host, port, _ := net.SplitHostPort(trap.Addr().String())
	for _, edit := range []map[string]any{
		{"bootstrap_host": host, "bootstrap_port": json.Number(port)}, {"bootstrap_host": testHost, "bootstrap_port": testPort + 1},
		{"bootstrap_host": nil}, {"bootstrap_host": "2.2.2.2"},
	} {
		c := p.complete(shipPrompt, 12).with(edit)
		r := p.leg(context.Background(), p.decode, c)
		refused(t, fmt.Sprint(edit), r, "room_unknown_peer")
		p.whole()
	}
	select {
	case <-called:
		t.Error("decode dialled an address out of a request")
	default:
	}
	p.serves()
}

// TestHTTP10 refuses a stream over HTTP/1.0, where it could not break visibly,
// and serves a whole answer.
func TestHTTP10(t *testing.T) {
	p := newPair(t)
	old := func(s *side, c legCall) reply {
		conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		req := p.request(context.Background(), s, c)
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.0\r\nContent-Length: %d\r\n%s: %s\r\n\r\n%s", c.path, len(body), PassHeader, req.Header.Get(PassHeader), body)
		return read(http.ReadResponse(bufio.NewReader(conn), req))
	}
	c := p.complete(shipPrompt, 12)
	pre := p.beginPrefill(c)
	refused(t, "decode", old(p.decode, c.with(map[string]any{"stream": true})), "stream_needs_http_1_1")
	refused(t, "prefill", <-pre.done, "bad_input")
	c = p.complete(shipPrompt, 12)
	pre = p.beginPrefill(c)
	if r := old(p.decode, c); text(r) != shipAnswer {
		t.Errorf("decode %d %s", r.status, r.body)
	}
	<-pre.done
	p.whole()
}

// TestPaths has paths and methods that are not there, and what a gateway reads.
func TestPaths(t *testing.T) {
	p := newPair(t)
	call := func(method, path string) reply {
		req, err := http.NewRequest(method, p.decode.http.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		return read(p.client.Do(req))
	}
	refused(t, "no such path", call("GET", "/generate"), "path_not_found")
	refused(t, "the root", call("GET", "/"), "path_not_found")
	refused(t, "no metrics here", call("GET", "/metrics"), "path_not_found")
	refused(t, "another method", call("GET", "/v1/completions"), "method_not_allowed")
	refused(t, "another method", call("PUT", "/server_info"), "method_not_allowed")
	if r := call("GET", "/health"); r.status != 200 {
		t.Errorf("health: %d %s", r.status, r.body)
	}
	if r := call("GET", "/v1/models"); !strings.Contains(r.body, `"id":"recall"`) || !strings.Contains(r.body, `"max_model_len":1024`) {
		t.Errorf("models: %d %s", r.status, r.body)
	}
	r := call("GET", "/server_info")
	for _, want := range []string{
		`"disaggregation_mode":"decode"`, `"served_model_name":"recall"`, `"context_length":1024`, `"page_size":16`, `"max_total_num_tokens":1024`,
		`"max_req_input_len":1024`, `"pages_free":64`, `"pages_total":64`, `"quarantined_pages":0`, fmt.Sprintf(`"incarnation":"%016x"`, p.decode.Incarnation()),
	} {
		if !strings.Contains(r.body, want) {
			t.Errorf("server_info lacks %s: %s", want, r.body)
		}
	}
	p.prefill.stop()
	p.eventually("decode has noticed", func() bool { return p.decode.Linked() == 0 })
	refused(t, "health without a link", call("GET", "/health"), "peer_gone")
	refused(t, "server_info without a link", call("GET", "/server_info"), "peer_gone")
	refused(t, "a leg without a link", p.leg(context.Background(), p.decode, p.complete(shipPrompt, 12)), "peer_gone")
}

// slowly sends the head of a request to decode, and one byte of its body.
func (p *pair) slowly() net.Conn {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.decode.http.Listener.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	return conn
}

// TestSlowBody bounds the time of a body, and of nothing behind it.
func TestSlowBody(t *testing.T) {
	p := newPair(t, func(c *Config) { c.BodyTime = 50 * time.Millisecond })
	refused(t, "the slow one", read(http.ReadResponse(bufio.NewReader(p.slowly()), nil)), string(fault.BodyTooSlow))
	// A leg whose body came in time may wait for longer than that.
	c := p.complete(shipPrompt, 12)
	start := time.Now()
	pre := p.beginPrefill(c)
	p.eventually("the time of a body is over", func() bool { return time.Since(start) > 150*time.Millisecond })
	dec := p.beginDecode(c)
	if a, b := <-pre.done, <-dec.done; text(a) != " " || text(b) != shipAnswer {
		t.Errorf("prefill %d %s, decode %d %s", a.status, a.body, b.status, b.body)
	}
	p.whole()
}

// TestManyBodies bounds the bytes of all bodies that are being read.
func TestManyBodies(t *testing.T) {
	p := newPair(t, func(c *Config) { c.BodyBytes, c.BodyTotal = leastBody, leastBody })
	slow := p.slowly()
	refused(t, "beside a slow one", p.whenBusy(), "busy")
	if err := slow.Close(); err != nil {
		t.Fatal(err)
	}
	p.eventually("its bytes are given back", func() bool { return p.decode.bodies.take(leastBody) })
	p.decode.bodies.give(leastBody)
	p.serves()
	p.whole()
}

// whenBusy sends a leg to decode until it finds no room for its body.
func (p *pair) whenBusy() reply {
	var r reply
	p.eventually("decode has no room for a body", func() bool {
		r = p.raw(p.decode, "/v1/completions", 5, []byte(`x`))
		return code(r) == "busy"
	})
	return r
}

// TestSeats bounds the legs in progress. What is refused so makes no attempt.
func TestSeats(t *testing.T) {
	p := newPair(t, atPrefill(func(c *Config) { c.Attempts = 2 }))
	var legs []*pending
	for range 2 {
		legs = append(legs, p.beginPrefill(p.complete(shipPrompt, 12)))
	}
	p.eventually("both seats are taken", func() bool { return p.prefill.Status().Attempts == 2 })
	refused(t, "the third", p.leg(context.Background(), p.prefill, p.complete(shipPrompt, 12).forPrefill()), "busy")
	for _, l := range legs {
		l.leave()
		<-l.done
	}
	p.eventually("the seats are free", func() bool { return p.prefill.Status().Attempts == 0 && len(p.prefill.seats) == 0 })
	p.serves()
	p.whole()
}

package worker

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// planted is a secret that stands in prompts.
const planted = "cnry-7f3a9c51e2b84d06"

// shows reports in which form, if in any, a text holds the secret.
func shows(s string) string {
	low := strings.ToLower(s)
	for form, x := range map[string]string{
		"plain": planted, "hex": hex.EncodeToString([]byte(planted)), "base64": base64.StdEncoding.EncodeToString([]byte(planted)),
		"list of bytes": strings.Trim(fmt.Sprint([]byte(planted)), "[]"), "list of tokens": strings.ReplaceAll(strings.Trim(fmt.Sprint([]byte(planted)), "[]"), " ", ","),
	} {
		if strings.Contains(low, strings.ToLower(x)) {
			return form
		}
	}
	return ""
}

// TestSecret plants a secret in prompts, templates and fields of requests that
// are served and that fail in every way, and searches everything that comes out,
// but for the one answer that recites it to its owner.
func TestSecret(t *testing.T) {
	n := &naiveRun{}
	n.pair = newPair(t, append(alters(wire.RoleDecode, handoff.Notice, func(m *wire.Message) { m.Digests[0][0] ^= 1 })(n),
		func(c *Config) { c.Pages, c.Window = 64, 600 })...)
	prompt := "The secret is " + planted + ". The secret is"
	pre, dec := n.both(n.complete(prompt, 22))
	if shows(dec.body) == "" {
		t.Fatalf("the control does not recite the secret: %d %s", dec.status, dec.body)
	}
	replies := append(n.refusals(prompt), n.around()...)
	out := []string{fmt.Sprint(dec.header), n.brokenStream(prompt)}
	for _, r := range append(replies, pre) {
		out = append(out, r.body, fmt.Sprint(r.header), fmt.Sprint(r.err))
	}
	n.whole()
	for _, s := range []*side{n.prefill, n.decode} {
		s.events.mu.Lock()
		out = append(out, fmt.Sprintf("%+v", s.events.all), fmt.Sprintf("%+v", s.Status()))
		s.events.mu.Unlock()
	}
	for _, err := range []error{errTombstones, errQuarantine, errRetired, errWrite, errSend, errStopping, errLegTime} {
		out = append(out, err.Error())
	}
	for _, s := range out {
		if form := shows(s); form != "" {
			t.Errorf("the secret comes out (%s): %s", form, s)
		}
		if strings.Contains(s, testControl) || strings.Contains(s, "v1.") {
			t.Errorf("a key or a pass comes out: %s", s)
		}
	}
	if len(out) < 100 {
		t.Errorf("only %d texts were searched", len(out))
	}
}

// refusals are the answers to requests with the secret that are not served.
func (n *naiveRun) refusals(prompt string) (all []reply) {
	both := func(c legCall) {
		pre, dec := n.both(c)
		all = append(all, pre, dec)
	}
	for _, edit := range []map[string]any{
		{"prompt": strings.Repeat(prompt, 20)}, {"max_tokens": 5000}, {"temperature": 9}, {"stop": []string{strings.Repeat(planted, 20)}},
		{"model": planted}, {"rid": planted + "\n"}, {"bootstrap_port": planted}, {"seed": planted}, {"stream": planted},
		{"stream_options": planted}, {"max_tokens": planted}, {"prompt": []any{planted, planted}}, {planted + "\n": 1}, {"bootstrap_room": planted},
	} {
		both(n.complete(prompt, 12).with(edit))
	}
	for role, content := range map[string]string{planted: "x", "user": strings.Repeat(planted, 60), "system": planted} {
		both(n.call("/v1/chat/completions", map[string]any{"max_tokens": 1, "messages": []any{map[string]any{"role": role, "content": content}}}))
	}
	all = append(all, n.leg(context.Background(), n.decode, n.complete(prompt, 12).with(map[string]any{"bootstrap_host": planted})))
	n.armed.Store(true)
	both(n.complete(prompt, 12))
	both(n.complete(prompt, 12).with(map[string]any{"stream": true}))
	n.armed.Store(false)
	c := n.complete(prompt, 12)
	return append(all, apart(n, c.with(map[string]any{"prompt": planted}), c))
}

// around are the answers to what is no request, with the secret in it.
func (n *naiveRun) around() (all []reply) {
	for _, s := range []*side{n.prefill, n.decode} {
		all = append(all, n.raw(s, "/v1/completions", 5, []byte(`{"prompt":"`+planted)), n.raw(s, "/v1/completions", 5, []byte(`{"bootstrap_room":5}`+planted)),
			n.raw(s, "/"+planted, 5, nil), read(n.client.Get(s.http.URL+"/server_info")), read(n.client.Get(s.http.URL+"/v1/models")))
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.http.URL+"/abort_request", strings.NewReader(`{"rid":"`+planted+`"}`))
		if err != nil {
			n.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+planted)
		all = append(all, read(n.client.Do(req)))
	}
	return append(all, n.abort(n.decode, planted))
}

// brokenStream is the error event of a stream whose engine failed: what follows
// the text.
func (p *pair) brokenStream(prompt string) string {
	p.t.Helper()
	c := p.complete(strings.Repeat(prompt, 3), 300).with(map[string]any{"stream": true})
	pre := p.beginPrefill(c)
	resp, err := p.send(context.Background(), p.decode, c)
	if err != nil {
		p.t.Fatal(err)
	}
	<-pre.done
	p.chokeDecode(c)
	_, event, found := strings.Cut(read(resp, nil).body, `{"error"`)
	if !found {
		p.t.Error("no error event")
	}
	return event
}

// TestPanicsNameNoContent: what ends the process says what was broken, not with
// what.
func TestPanicsNameNoContent(t *testing.T) {
	defer func() {
		if got, want := fmt.Sprint(recover()), "worker: own invariant broken: kv: page life violated"; got != want {
			t.Errorf("panic %q, want %q", got, want)
		}
	}()
	broken(nil)
	broken(errors.Join(kv.ErrLife))
}

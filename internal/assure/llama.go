package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// llamaCases are what llama.cpp's server has been seen to do, in two builds.
func llamaCases() []Case {
	only := []upstream.Dialect{upstream.LlamaCPP}
	theft := func(route llamaRoute) Case {
		return Case{Name: "llama-slot-" + route.name, Title: "a request that names a slot reaches into another tenant's answer",
			Rules: []string{"G-1", "G-7"}, Dialects: only, Withheld: true,
			Run: func(ctx context.Context, p *Probe) Verdict { return llamaSlot(ctx, p, route) }}
	}
	var cases []Case
	for _, r := range llamaRoutes() {
		cases = append(cases, theft(r))
	}
	for _, c := range []Case{
		{Name: "llama-stream-read", Title: "whoever knows a conversation's id reads another tenant's answer",
			Rules: []string{"G-1", "G-13"}, Run: llamaRead},
		{Name: "llama-stream-replace", Title: "a request under another tenant's conversation id cuts that tenant's answer",
			Rules: []string{"G-1", "G-13"}, Run: llamaReplace},
		{Name: "llama-stream-kill", Title: "whoever knows a conversation's id ends another tenant's answer",
			Rules: []string{"G-1", "G-13"}, Run: llamaKill},
		{Name: "llama-cached-tokens", Title: "the answer tells how much of a prompt somebody else has sent before",
			Rules: []string{"G-7", "G-8"}, Run: llamaCached},
		{Name: "llama-cache-timing", Title: "the time of an answer tells whether somebody else has sent its prompt before",
			Rules: []string{"G-7"}, Run: llamaTiming},
		{Name: "llama-timings", Title: "the engine's timings and cache counts are in every answer",
			Rules: []string{"G-8"}, Run: llamaTimings},
		{Name: "llama-verbose", Title: "a body field makes the engine disclose slot, settings and its own prompt around the tenant's",
			Rules: []string{"G-1", "G-8"}, Run: llamaVerbose},
		{Name: "llama-fields", Title: "fields that command the engine are taken from a tenant",
			Rules: []string{"G-1"}, Run: llamaFields},
		{Name: "llama-template", Title: "a template variable replaces the conversation that was counted and admitted",
			Rules: []string{"G-1", "G-2"}, Withheld: true, Run: llamaTemplate},
		{Name: "llama-paths", Title: "a tenant reaches the engine's own paths: state, slots, adapters, streams",
			Rules: []string{"G-1", "G-8"}, Run: llamaPaths},
		{Name: "llama-malformed", Title: "malformed JSON is answered as a fault of the server",
			Rules: []string{"G-1"}, Run: llamaMalformed},
		{Name: "llama-overlength", Title: "a prompt longer than a slot is not refused before it costs anything",
			Rules: []string{"G-2"}, Run: llamaOverlength},
		{Name: "llama-usage", Title: "of two answers in one reply the tokens of one are counted",
			Rules: []string{"G-11"}, Run: llamaUsage},
		{Name: "llama-leave", Title: "the engine works on for a client that has left",
			Rules: []string{"G-6"}, Run: llamaLeave},
		{Name: "llama-cut", Title: "an answer that was cut when the engine died has no mark of it in the stream",
			Rules: []string{"G-5", "H-14"}, Kills: true, Run: llamaCut},
	} {
		c.Dialects = only
		cases = append(cases, c)
	}
	return cases
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// saying is a chat request with one message of the user, greedy, of at most n tokens.
func saying(text string, n int, more ...map[string]any) map[string]any {
	body := map[string]any{
		"messages":    []map[string]any{{"role": "user", "content": text}},
		"temperature": 0,
		"max_tokens":  n,
	}
	for _, m := range more {
		for name, value := range m {
			body[name] = value
		}
	}
	return body
}

// chanting is a prompt after which a small model says the text again.
func chanting(text string) string {
	return strings.TrimSuffix(strings.Repeat(text+"\n", 4), "\n")
}

// counting is the victim's prompt: it holds no secret and its answer is long. The mark
// keeps two runs apart.
func counting(mark string) string {
	return "Run " + mark + ". Count from one upwards, in words, one word after the other."
}

// streamed asks for a stream that runs to its limit.
func streamed() map[string]any { return map[string]any{"stream": true, "ignore_eos": true} }

// prose is text of about n tokens that nothing else begins with, and no secret.
func prose(n int) string {
	var b strings.Builder
	for b.Len() < 3*n {
		b.WriteString(strings.ReplaceAll(draw(), "-", " "))
		b.WriteByte(' ')
	}
	return b.String()
}

// works says why a plain request of tenant 0 is not answered, or "".
func (p *Probe) works(ctx context.Context) string {
	a := p.Tenant(0).Post(ctx, chatPath, nil, saying("Say the word apple.", 4))
	if !a.OK() || a.Text == "" {
		return "a plain request gets " + a.brief()
	}
	return ""
}

// brief says what came without saying what it says.
func (a *Answer) brief() string {
	var b strings.Builder
	if a.Status == 0 {
		b.WriteString("no answer")
	} else {
		fmt.Fprintf(&b, "%d", a.Status)
	}
	if code := a.Code(); code != "" {
		b.WriteString(" " + code)
	}
	if a.Events > 0 {
		fmt.Fprintf(&b, ", %d events", a.Events)
		if a.ErrorEvent {
			b.WriteString(", one of them an error")
		}
		if !a.Done {
			b.WriteString(", no [DONE]")
		}
	}
	if a.Err != nil {
		b.WriteString(", " + a.Err.Error())
	}
	return b.String()
}

// llamaMalformed: a body that is not JSON is the client's fault.
func llamaMalformed(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	const control = "the same request in whole JSON gets 200"
	var seen []string
	bad := false
	for _, body := range []string{`{"messages": [`, ``, `[]`, `{"messages":"x"} {`} {
		a := p.Tenant(0).Post(ctx, chatPath, nil, []byte(body))
		bad = bad || a.Status < 400 || a.Status >= 500
		seen = append(seen, a.brief())
	}
	if bad {
		return red(control, "four malformed bodies get: %s", strings.Join(seen, "; "))
	}
	return green(control, "four malformed bodies get: %s", strings.Join(seen, "; "))
}

// llamaOverlength: stream or not, 4xx before anything is generated.
func llamaOverlength(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	window := p.slotTokens(ctx)
	if window <= 0 {
		return skip("the engine does not tell how long a slot is (GET /props)")
	}
	long := strings.Repeat("red green blue ", int(window)/2)
	var seen []string
	bad := false
	for _, stream := range []bool{false, true} {
		a := p.Tenant(0).Post(ctx, chatPath, nil, saying(long, 4, map[string]any{"stream": stream}))
		bad = bad || a.Status < 400 || a.Status >= 500 || a.Text != ""
		seen = append(seen, a.brief())
	}
	control := "a short prompt gets 200"
	if bad {
		return red(control, "a prompt longer than a slot of %d tokens gets: %s", window, strings.Join(seen, "; "))
	}
	return green(control, "a prompt longer than a slot of %d tokens gets: %s", window, strings.Join(seen, "; "))
}

// slotTokens is the context of one slot, or 0.
func (p *Probe) slotTokens(ctx context.Context) int64 {
	a := p.Raw(ctx, "plain", http.MethodGet, "/props", nil, nil)
	var props struct {
		Settings struct {
			Context int64 `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if json.Unmarshal(a.Body, &props) != nil {
		return 0
	}
	return props.Settings.Context
}

// slot is what the engine says of one slot.
type slot struct {
	ID   int  `json:"id"`
	Busy bool `json:"is_processing"`
}

// slots asks the engine for its slots. ok false: it does not tell.
func (p *Probe) slots(ctx context.Context) (all []slot, ok bool) {
	a := p.Raw(ctx, "plain", http.MethodGet, "/slots", nil, nil)
	return all, a.Status == http.StatusOK && json.Unmarshal(a.Body, &all) == nil
}

// llamaUsage: what is counted must be what was said.
func llamaUsage(ctx context.Context, p *Probe) Verdict {
	const each = 4
	body := func(n int) map[string]any {
		return saying("Say the word apple.", each, map[string]any{"n": n, "ignore_eos": true})
	}
	one := p.Tenant(0).Post(ctx, chatPath, nil, body(1))
	if !one.OK() || one.Completion != each {
		return void("one answer of %d tokens gets %s and counts %d", each, one.brief(), one.Completion)
	}
	control := fmt.Sprintf("one answer of %d tokens counts %d", each, one.Completion)
	two := p.Tenant(0).Post(ctx, chatPath, nil, body(2))
	switch {
	case two.Status >= 400 && two.Status < 500:
		return green(control, "two answers in one reply are refused: %s", two.brief())
	case !two.OK() || len(two.Finish) != 2:
		return red(control, "two answers in one reply get %s", two.brief())
	case two.Completion != 2*each:
		return red(control, "two answers of %d tokens each count %d", each, two.Completion)
	}
	return green(control, "two answers of %d tokens each count %d", each, two.Completion)
}

// llamaLeave: a client that has left must not keep a slot.
func llamaLeave(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	if _, ok := p.slots(ctx); !ok {
		return skip("the engine does not tell its slots (GET /slots)")
	}
	s := p.Tenant(0).Open(ctx, chatPath, nil, saying(counting(p.Fingerprint(time.Now().String())), 1500, streamed()))
	if !s.Until(8) {
		a := s.Rest()
		return void("the stream did not begin: %s", a.brief())
	}
	before, _ := p.slots(ctx)
	s.Close()
	left := time.Now()
	if !busy(before) {
		return void("no slot was busy while the stream ran")
	}
	control := "a slot was busy until the client left"
	idle := p.wait(ctx, p.patience, func() bool {
		now, ok := p.slots(ctx)
		return ok && !busy(now)
	})
	if !idle {
		return red(control, "a slot is still busy %v after the client left", p.patience)
	}
	return green(control, "all slots are idle %d ms after the client left", time.Since(left).Milliseconds())
}

func busy(all []slot) bool {
	for _, s := range all {
		if s.Busy {
			return true
		}
	}
	return false
}

// wait asks until the answer is yes, the time is up or ctx ends.
func (p *Probe) wait(ctx context.Context, limit time.Duration, yes func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-ctx.Done():
			return yes() // the limit may be shorter than a tick
		case <-tick.C:
		}
	}
	return true
}

// llamaCut: a stream that the engine's death has cut must say so in the protocol, for
// the end of the connection is all that many clients never look at.
func llamaCut(ctx context.Context, p *Probe) Verdict {
	var s *Stream
	var a Answer
	began := false
	p.wait(ctx, 40*time.Second, func() bool {
		s = p.Tenant(0).Open(ctx, chatPath, nil, saying(counting("last"), 1500, streamed()))
		if began = s.Until(16); !began {
			a = s.Rest()
		}
		// The engine may still be coming back from when it was killed on another way.
		return began || a.Status != http.StatusServiceUnavailable
	})
	if !began {
		return void("the stream did not begin: %s", a.brief())
	}
	ok, err := p.Fault(ctx, "kill")
	if !ok {
		s.Close()
		return skip("nobody is there to kill the engine in mid-stream")
	}
	if err != nil {
		s.Close()
		return void("the engine could not be killed")
	}
	a = s.Rest()
	if _, err := p.Fault(ctx, "start"); err != nil {
		return void("the engine could not be started again")
	}
	back := time.Now()
	control := fmt.Sprintf("%d characters had come before the engine was killed", len(a.Text))
	if a.Done || !a.ErrorEvent {
		return red(control, "the cut stream reads as: %s", a.brief())
	}
	again := p.wait(ctx, 40*time.Second, func() bool { return p.works(ctx) == "" })
	if !again {
		return red(control, "the cut stream reads as: %s; but nothing is served after the engine is back", a.brief())
	}
	return green(control, "the cut stream reads as: %s; served again %.1f s after the engine was back", a.brief(), time.Since(back).Seconds())
}

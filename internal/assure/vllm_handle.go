package assure

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"
)

// vllmHandedOver: the hand-off works, with salts that differ between the legs. It is the
// control of all that follows.
func vllmHandedOver(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	body := p.secret(ctx, 0, victimLines)
	if body == nil {
		return void("the model does not say again what it is told")
	}
	taken, computed := p.handed(ctx)
	if taken < 0 || computed < 0 {
		return void("decode does not tell where its prompt tokens come from")
	}
	var a Answer
	how := "salts drawn for each leg"
	if p.Way == Direct && p.Site.Bootstrap == "" {
		h, err := p.handle(ctx, body, map[string]any{"cache_salt": salt()})
		if err != nil {
			return void("%v", err)
		}
		a = p.Raw(ctx, "decode", http.MethodPost, completionPath, nil,
			with(with(with(body, handleKey, h), "cache_salt", salt()), "model", p.Site.Served))
	} else {
		a = p.Tenant(0).Post(ctx, completionPath, nil, body)
		if p.Way == Direct {
			how = "no salt"
		}
	}
	if !a.OK() || a.Prompt <= 0 {
		return void("the request gets %s", a.brief())
	}
	after, own := p.handed(ctx)
	control := "decode counts where its prompt tokens come from"
	if !p.speaks(a.Text, 0) {
		return red(control, "%s: the answer is not the prompt's", how)
	}
	if int64(after-taken) != a.Prompt || own != computed {
		return red(control, "%s: of %d prompt tokens decode took over %.0f and computed %.0f", how, a.Prompt, after-taken, own-computed)
	}
	return green(control, "%s: all %d prompt tokens were taken over, and the answer is right", how, a.Prompt)
}

// salt draws a cache salt.
func salt() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// vllmTheft is what the cases of a forged handle have in common: a victim's prompt whose
// handle somebody else holds, and that somebody's own prompt.
type vllmTheft struct {
	victim, attacker map[string]any
	handle           json.RawMessage
	control          string
}

// takeHandle prepares a theft, or says why it would show nothing.
func (p *Probe) takeHandle(ctx context.Context) (vllmTheft, string) {
	if why := p.ready(ctx); why != "" {
		return vllmTheft{}, why
	}
	t := vllmTheft{victim: p.secret(ctx, 0, victimLines), attacker: p.secret(ctx, 1, attackerLines)}
	if t.victim == nil || t.attacker == nil {
		return vllmTheft{}, "the model does not say again what it is told"
	}
	p.level(ctx, &t.victim, &t.attacker)
	var err error
	if t.handle, err = p.handle(ctx, t.victim); err != nil {
		return vllmTheft{}, err.Error()
	}
	t.control = "the engine alone answers each prompt with its own secret"
	return t, ""
}

// judge says what an answer to the attacker means.
func (t *vllmTheft) judge(p *Probe, a Answer, what string) Verdict {
	if hits := p.Foreign(a, 1); len(hits) > 0 {
		return red(t.control, "%s: %s with %v", what, a.brief(), hits[0])
	}
	if a.refused() {
		return green(t.control, "%s: %s", what, a.brief())
	}
	return void("%s: %s, neither refused nor answered from the other's prompt", what, a.brief())
}

// vllmForged: the handle of a prompt that its owner has not fetched yet.
func vllmForged(ctx context.Context, p *Probe) Verdict {
	t, why := p.takeHandle(ctx)
	if why != "" {
		return void("%s", why)
	}
	return t.judge(p, p.Tenant(1).Do(ctx, http.MethodPost, completionPath, nil, with(t.attacker, handleKey, t.handle)), "a live handle")
}

// vllmStale: the handle of a prompt that its owner has fetched, so that its pages are
// free.
func vllmStale(ctx context.Context, p *Probe) Verdict {
	t, why := p.takeHandle(ctx)
	if why != "" {
		return void("%s", why)
	}
	own := p.Raw(ctx, "decode", http.MethodPost, completionPath, nil,
		with(with(t.victim, handleKey, t.handle), "model", p.Site.Served))
	if !own.OK() || !p.speaks(own.Text, 0) {
		return void("the owner of the handle gets %s", own.brief())
	}
	return t.judge(p, p.Tenant(1).Do(ctx, http.MethodPost, completionPath, nil, with(t.attacker, handleKey, t.handle)), "a stale handle")
}

// vllmPoisoned: after a forged handle, the same prompt without any.
func vllmPoisoned(ctx context.Context, p *Probe) Verdict {
	t, why := p.takeHandle(ctx)
	if why != "" {
		return void("%s", why)
	}
	forged := p.Tenant(1).Do(ctx, http.MethodPost, completionPath, nil, with(t.attacker, handleKey, t.handle))
	after := p.Tenant(1).Do(ctx, http.MethodPost, completionPath, nil, t.attacker)
	if hits := p.Foreign(after, 1); len(hits) > 0 {
		return red(t.control, "a plain request after one with a forged handle (%s): %s with %v, %d cached tokens",
			forged.brief(), after.brief(), hits[0], after.Cached)
	}
	if after.OK() && p.speaks(after.Text, 1) {
		return green(t.control, "a plain request after one with a forged handle (%s) gets its own answer", forged.brief())
	}
	return void("a plain request after one with a forged handle (%s) gets %s, which is not its answer", forged.brief(), after.brief())
}

// vllmTransfer: Mooncake's only key is the transfer id.
func vllmTransfer(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	engine, err := p.engineID(ctx)
	if err != nil {
		return void("%v", err)
	}
	id := "xfer-" + salt()
	owner, thief := p.secret(ctx, 0, victimLines), p.secret(ctx, 1, attackerLines)
	if owner == nil || thief == nil {
		return void("the model does not say again what it is told")
	}
	p.level(ctx, &owner, &thief)
	victim := with(owner, "ignore_eos", true)
	first := p.Raw(ctx, "prefill", http.MethodPost, completionPath, nil, with(with(with(victim, "max_tokens", 1), "model", p.Site.Served),
		handleKey, map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": id}))
	if !first.OK() {
		return void("the victim's prefill gets %s", first.brief())
	}
	attack := with(thief, handleKey, map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "transfer_id": id,
		"remote_bootstrap_addr": p.Site.Bootstrap, "remote_engine_id": engine,
	})
	t := vllmTheft{control: "the engine alone answers each prompt with its own secret"}
	inner, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	return t.judge(p, p.Tenant(1).Do(inner, http.MethodPost, completionPath, nil, attack), "another's transfer id")
}

// vllmList: one handle for two sequences.
func vllmList(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	first, second := p.secret(ctx, 0, attackerLines+2), p.secret(ctx, 1, attackerLines)
	if first == nil || second == nil {
		return void("the model does not say again what it is told")
	}
	p.level(ctx, &first, &second)
	prompts := []any{first["prompt"], second["prompt"]}
	inner, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	a := p.Tenant(0).Post(inner, completionPath, nil, map[string]any{"prompt": prompts, "temperature": 0, "max_tokens": 30})
	control := "the engine alone answers each prompt with its own secret"
	if a.refused() {
		return green(control, "a list of two prompts: %s", a.brief())
	}
	if !a.OK() {
		return red(control, "a list of two prompts: %s", a.brief())
	}
	var said struct {
		Choices []struct {
			Index int    `json:"index"`
			Text  string `json:"text"`
		} `json:"choices"`
	}
	if json.Unmarshal(a.Body, &said) != nil || len(said.Choices) != 2 {
		return red(control, "a list of two prompts: %s with %d answers", a.brief(), len(said.Choices))
	}
	for _, c := range said.Choices {
		if p.speaks(c.Text, 1-c.Index) {
			return red(control, "a list of two prompts: 200, and the answer to prompt %d is made of prompt %d", c.Index, 1-c.Index)
		}
		if !p.speaks(c.Text, c.Index) {
			return red(control, "a list of two prompts: 200, and the answer to prompt %d is not its own", c.Index)
		}
	}
	return green(control, "a list of two prompts: 200, each with its own answer, %d prompt tokens", a.Prompt)
}

// vllmRefused: prefill's limit is shorter than decode's.
func vllmRefused(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	window := p.window(ctx, "prefill")
	if window <= 0 || p.window(ctx, "decode") < window+window/4 {
		return skip("decode's window is not longer than prefill's, so prefill's refusal cannot be told apart")
	}
	line := p.Canary(0)
	each := len(p.tokenIDs(ctx, "prefill", line+"\n"))
	if each == 0 {
		return void("prefill does not count tokens")
	}
	long := chant(line, int(window)/each+4)
	first := p.Raw(ctx, "prefill", http.MethodPost, completionPath, nil, with(long, "model", p.Site.Served))
	if first.Status != http.StatusBadRequest {
		return void("prefill takes the prompt: %s", first.brief())
	}
	a := p.Tenant(0).Post(ctx, completionPath, nil, long)
	control := "prefill itself refuses the prompt with 400"
	if a.refused() {
		return green(control, "longer than prefill's %d tokens: %s", window, a.brief())
	}
	return red(control, "longer than prefill's %d tokens: %s", window, a.brief())
}

// window is the longest sequence that an engine says it takes, or 0.
func (p *Probe) window(ctx context.Context, engine string) int64 {
	a := p.Raw(ctx, engine, http.MethodGet, "/v1/models", nil, nil)
	var said struct {
		Data []struct {
			Window int64 `json:"max_model_len"`
		} `json:"data"`
	}
	if json.Unmarshal(a.Body, &said) != nil || len(said.Data) == 0 {
		return 0
	}
	return said.Data[0].Window
}

// vllmForeignHost: the address of the hand-off is ours.
func vllmForeignHost(ctx context.Context, p *Probe) Verdict {
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return void("no listener of our own")
	}
	called, done := make(chan string, 64), make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
			select {
			case called <- c.RemoteAddr().String():
			default: // 64 have called
			}
		}
	}()
	defer func() {
		l.Close()
		<-done
	}()
	// others calls the listener, and says whether somebody had called before: calls are
	// accepted in their order.
	others := func() (bool, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return false, err
		}
		defer c.Close()
		select {
		case who := <-called:
			return who != c.LocalAddr().String(), nil
		case <-done:
			return false, net.ErrClosed
		}
	}
	if some, err := others(); some || err != nil {
		return void("the listener cannot be reached by us alone")
	}
	control := "a connection of our own arrives at the listener"
	port := l.Addr().(*net.TCPAddr).Port
	field := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [][]int{{1, 2, 3, 4, 5}}, "remote_engine_id": salt(),
		"remote_request_id": "chatcmpl-x", "remote_host": "127.0.0.1", "remote_port": port, "tp_size": 1,
		"transfer_id": "xfer-" + salt(), "remote_bootstrap_addr": "http://" + l.Addr().String(),
	}
	inner, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	answered := make(chan Answer, 1)
	go func() {
		answered <- p.Tenant(1).Do(inner, http.MethodPost, completionPath, nil, with(chant(p.Canary(1), attackerLines), handleKey, field))
	}()
	var a Answer
	select {
	case <-called:
		cancel()
		<-answered
		return red(control, "the engine called the address in the request")
	case a = <-answered:
	}
	pause(ctx, p.patience/6) // an engine may answer first and call then
	some, err := others()
	if err != nil {
		return void("the listener cannot be reached any more")
	}
	if some {
		return red(control, "the engine called the address in the request, and answered %s", a.brief())
	}
	if a.refused() {
		return green(control, "%s, and nobody called", a.brief())
	}
	return void("neither refused nor called: %s", a.brief())
}

// vllmExpired: nobody attacks; the decode leg is only late.
func vllmExpired(ctx context.Context, p *Probe) Verdict {
	if p.Site.Lease <= 0 {
		return skip("the site does not say how long prefill's lease is")
	}
	if why := p.ready(ctx); why != "" {
		return void("%s", why)
	}
	const expired = "vllm:nixl_num_kv_expired_reqs_total"
	before := p.gauge(ctx, "prefill", expired, "")
	if before < 0 {
		return void("prefill does not count expired leases")
	}
	victim, other := p.secret(ctx, 0, victimLines), p.secret(ctx, 1, attackerLines)
	if victim == nil || other == nil {
		return void("the model does not say again what it is told")
	}
	p.level(ctx, &victim)
	length := len(p.tokenIDs(ctx, "prefill", victim["prompt"].(string)))
	if ok, err := p.Fault(ctx, "hold-decode"); !ok || err != nil {
		return skip("nobody can hold the decode leg back")
	}
	answered := make(chan Answer, 1)
	go func() { answered <- p.Tenant(0).Post(ctx, completionPath, nil, victim) }()
	if _, err := p.Fault(ctx, "decode-held"); err != nil {
		return void("the decode leg did not come: %v", (<-answered).Err)
	}
	others, wrong := 0, 0
	if pause(ctx, p.Site.Lease+p.patience/3) {
		for range 8 {
			text := p.lengthen(ctx, other["prompt"].(string), length)
			a := p.Tenant(1).Post(ctx, completionPath, nil, with(other, "prompt", text))
			others++
			if !a.OK() || !p.speaks(a.Text, 1) {
				wrong++
			}
		}
	}
	_, _ = p.Fault(ctx, "release-decode")
	a := <-answered
	rose := p.gauge(ctx, "prefill", expired, "") - before
	if rose < 1 || wrong > 2 {
		return void("leases that ended meanwhile: %.0f; of %d other requests %d went wrong", rose, others, wrong)
	}
	control := "prefill counts the lease as ended, and other tenants' requests ran meanwhile"
	again := p.Tenant(0).Post(ctx, completionPath, nil, victim)
	for _, one := range []*Answer{&a, &again} {
		if hits := p.Foreign(*one, 0); len(hits) > 0 {
			return red(control, "%s with %v", one.brief(), hits[0])
		}
		if one.OK() && !p.speaks(one.Text, 0) {
			return red(control, "%s, and the answer is not the prompt's", one.brief())
		}
	}
	if !again.OK() {
		return void("asked again: %s", again.brief())
	}
	return green(control, "%s after %.1f s; asked again: the right answer", a.brief(), a.Took.Seconds())
}

// engineID asks Mooncake's bootstrap address which engine prefill is.
func (p *Probe) engineID(ctx context.Context) (string, error) {
	a := p.Raw(ctx, "bootstrap", http.MethodGet, "/query", nil, nil)
	var ranks map[string]struct {
		Engine string `json:"engine_id"`
	}
	if json.Unmarshal(a.Body, &ranks) != nil || ranks["0"].Engine == "" {
		return "", errors.New("the bootstrap address does not tell prefill's id")
	}
	return ranks["0"].Engine, nil
}

package drill

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/internal/worker"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// tenant is one of the two.
type tenant uint8

const (
	tenantA tenant = iota
	tenantB
)

// ask is one request: a completion, greedy.
type ask struct {
	prompt string
	max    int // output tokens
}

func (a ask) tokens() int { return llm.Bytes{}.CountText(a.prompt) }

// smallPage is the page size of the drills that name none, in tokens.
const smallPage = 16

// shape is the size of a rig and the requests of its story.
type shape struct {
	pageTokens   int // 0 means smallPage
	prefillPages int
	decodePages  int
	router       bool   // the router stands in front even with the guards on
	a, b         ask    // the two tenants' requests
	secret       string // of tenant A
	wantA        string // tenant A's right answer begins with what it got
	wantB        string // tenant B's right answer, where it is served
}

// reply is what a tenant's client saw.
type reply struct {
	status       int
	body         string
	text         string
	promptTokens int
	code         string
	message      string
}

// rig is a pair of workers on loopback, with a router and a gateway before them.
type rig struct {
	guards  handoff.Guards
	shape   shape
	prefill *worker.Worker
	decode  *worker.Worker
	watch   *watch
	faults  *wire.Faults             // on what prefill sends
	stub    func(prompt string) bool // prompts that the legacy validator refuses
	router  *naive
	gateway string // base URL
	keys    [2]string
	room    int64
	client  *http.Client

	mu     sync.Mutex
	policy policy

	passes *wire.Passer
	cancel context.CancelFunc
	all    sync.WaitGroup
	errs   chan error
}

// newRig starts everything.
func newRig(ctx context.Context, g handoff.Guards, s shape) (*rig, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &rig{
		guards: g, shape: s, cancel: cancel, room: 1, errs: make(chan error, 8),
		stub: func(string) bool { return false }, client: &http.Client{Transport: &http.Transport{}},
	}
	if r.shape.pageTokens == 0 {
		r.shape.pageTokens = smallPage
	}
	key := make([]byte, 32)
	if _, err := io.ReadFull(rand.Reader, key); err != nil {
		cancel()
		return nil, err
	}
	passes, err := wire.NewPasser(key)
	if err == nil {
		r.passes = passes
		err = r.start(ctx)
	}
	if err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *rig) start(ctx context.Context) error {
	ca, err := wire.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		return err
	}
	r.watch = &watch{addr: make(chan string, 1)}
	r.prefill, err = r.worker(ca, wire.RolePrefill, "", r.shape.prefillPages)
	if err != nil {
		return err
	}
	r.all.Go(func() { r.fail(r.prefill.Run(ctx)) })
	var boot string
	select {
	case boot = <-r.watch.addr:
	case err := <-r.errs:
		return err
	}
	r.decode, err = r.worker(ca, wire.RoleDecode, boot, r.shape.decodePages)
	if err != nil {
		return err
	}
	r.all.Go(func() { r.fail(r.decode.Run(ctx)) })
	prefillURL, err := r.serve(ctx, &http.Server{Handler: r.legacy(r.prefill.Handler(nil))})
	if err != nil {
		return err
	}
	decodeURL, err := r.serve(ctx, &http.Server{Handler: r.decode.Handler(nil)})
	if err != nil {
		return err
	}
	host, portText, err := net.SplitHostPort(boot)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return err
	}
	r.router = &naive{
		prefill: prefillURL, decode: decodeURL, label: host, port: port, passes: r.passes,
		now: time.Now, next: r.next, client: r.client,
	}
	if err := r.until(ctx, "the workers are linked", func() bool { return r.prefill.Linked() > 0 && r.decode.Linked() > 0 }); err != nil {
		return err
	}
	return r.front(ctx, fleet.PairSpec{
		Name: "drill", BootstrapHost: host, BootstrapPort: port,
		Prefill: fleet.Source{URL: prefillURL, ControlKey: controlKey}, Decode: fleet.Source{URL: decodeURL, ControlKey: controlKey},
	})
}

// controlKey is of this process's own loopback workers.
const controlKey = "drill"

// worker makes one worker. Its transport counts completions; prefill's also
// goes through the faults of the story.
func (r *rig) worker(ca *wire.Authority, role wire.Role, boot string, pages int) (*worker.Worker, error) {
	cred, err := ca.Issue(time.Now(), time.Hour, wire.Identity{Role: role, Name: role.String()})
	if err != nil {
		return nil, err
	}
	c := worker.Config{
		Role: role, Name: role.String(), Model: llm.Recall(), ServedName: "recall",
		PageTokens: r.shape.pageTokens, Pages: pages, Window: r.shape.decodePages * r.shape.pageTokens,
		Passes: r.passes, Control: controlKey, Bootstrap: "127.0.0.1:0", Guards: r.guards,
		Transport: wire.TCP{Credential: cred, Protection: wire.PlainData},
		TickTime:  time.Hour, // nothing is repeated: with a guard off a repeat could meet the next attempt
	}
	if role == wire.RolePrefill {
		r.faults = &wire.Faults{Transport: c.Transport, Page: r.onPage, Message: r.onMessage}
		r.watch.Transport = r.faults
		c.Transport = r.watch
	} else {
		c.Peers = []worker.Peer{{Label: boot, Addr: boot}}
	}
	if r.guards != handoff.All {
		c.Unguarded = kv.NewUnguarded()
	}
	return worker.New(c)
}

func (r *rig) fail(err error) {
	if err != nil {
		select {
		case r.errs <- err:
		default:
		}
	}
}

// serve starts an HTTP server on loopback and returns its base URL.
func (r *rig) serve(ctx context.Context, srv *http.Server) (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	srv.ReadHeaderTimeout = 5 * time.Second
	r.all.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			r.fail(err)
		}
	})
	r.all.Go(func() {
		<-ctx.Done()
		r.fail(srv.Close())
	})
	return "http://" + ln.Addr().String(), nil
}

// front starts the gateway with two tenants.
func (r *rig) front(ctx context.Context, p fleet.PairSpec) error {
	pepper := make([]byte, 32)
	if _, err := io.ReadFull(rand.Reader, pepper); err != nil {
		return err
	}
	c := gateway.Config{
		Models: []gateway.Model{{Name: "recall", Engines: fleet.Spec{Pairs: []fleet.PairSpec{p}}, Counter: counter{},
			Sizes: gateway.Sizes{BytesPerToken: 1, PerMessage: 2, PerRequest: 1}}},
		Pepper: pepper, DomainKey: pepper, Passer: r.passes, Events: silent{}, Random: rand.Reader, Clock: gateway.SystemClock{},
	}
	for t, id := range [...]string{"a", "b"} {
		text, hash, err := account.NewKey(rand.Reader, pepper)
		if err != nil {
			return err
		}
		r.keys[t] = text
		c.Tenants = append(c.Tenants, gateway.Tenant{ID: id, Keys: []gateway.Key{{Hash: hash}}, Models: []string{"recall"}})
	}
	gw, err := gateway.New(c)
	if err != nil {
		return err
	}
	gw.Refresh(ctx)
	r.all.Go(func() { gw.Run(ctx) })
	r.gateway, err = r.serve(ctx, gateway.Server(gw))
	return err
}

type silent struct{}

func (silent) Request(gateway.RequestEvent) {}

// counter counts a completion's prompt for the gateway.
type counter struct{}

func (counter) Count(_ context.Context, _ string, body []byte) (int, error) {
	var b struct {
		Prompt string `json:"prompt"`
	}
	err := json.Unmarshal(body, &b)
	return llm.Bytes{}.CountText(b.Prompt), err
}

// next names the next attempt and room. A story may make a room come again.
func (r *rig) next() (handoff.Attempt, int64) {
	var a handoff.Attempt
	if _, err := io.ReadFull(rand.Reader, a[:]); err != nil {
		binary.LittleEndian.PutUint64(a[:], uint64(time.Now().UnixNano()))
	}
	return a, r.room
}

// stop ends everything and waits for it.
func (r *rig) stop() {
	r.cancel()
	r.all.Wait()
	r.client.CloseIdleConnections()
}

// guarded reports whether the gateway stands in front.
func (r *rig) guarded() bool { return r.guards == handoff.All && !r.shape.router }

// ask sends a tenant's request and returns what its client sees.
func (r *rig) ask(ctx context.Context, t tenant, a ask) (reply, error) {
	client := map[string]any{"model": "recall", "prompt": a.prompt, "max_tokens": a.max, "temperature": 0}
	if r.guarded() {
		return r.askGateway(ctx, t, client)
	}
	r.room++
	return r.askRouter(ctx, t, client)
}

// pending is a request in progress.
type pending struct {
	cancel context.CancelFunc
	done   chan struct{}
	reply  reply
	err    error
}

// begin sends a tenant's request of the story and does not wait.
func (r *rig) begin(ctx context.Context, t tenant) *pending {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	p := &pending{cancel: cancel, done: make(chan struct{})}
	a := r.shape.a
	if t == tenantB {
		a = r.shape.b
	}
	r.all.Go(func() {
		defer close(p.done)
		p.reply, p.err = r.ask(ctx, t, a)
	})
	return p
}

// wait returns the answer.
func (p *pending) wait() (reply, error) {
	<-p.done
	p.cancel()
	return p.reply, p.err
}

func (r *rig) askRouter(ctx context.Context, t tenant, client map[string]any) (reply, error) {
	router := *r.router
	router.domain = kv.Domain{byte(t) + 1}
	status, body, err := router.do(ctx, "/v1/completions", client)
	if err != nil {
		return reply{}, err
	}
	return parse(status, body), nil
}

func (r *rig) askGateway(ctx context.Context, t tenant, client map[string]any) (reply, error) {
	data, err := json.Marshal(client)
	if err != nil {
		return reply{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.gateway+"/v1/completions", bytes.NewReader(data))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.keys[t])
	resp, err := r.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return reply{}, err
	}
	return parse(resp.StatusCode, body), nil
}

func parse(status int, body []byte) reply {
	var v struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"usage"`
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	r := reply{status: status, body: string(body)}
	if json.Unmarshal(body, &v) != nil {
		return r
	}
	r.promptTokens, r.code, r.message = v.Usage.Prompt, v.Error.Code, v.Error.Message
	if len(v.Choices) > 0 {
		r.text = v.Choices[0].Text
	}
	return r
}

// Times of waiting for the workers. They bound a hang; nothing is decided by them.
const (
	waitTime = 10 * time.Second
	waitPoll = time.Millisecond
)

// until waits for something that the workers bring about.
func (r *rig) until(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case err := <-r.errs:
			return err
		case <-ctx.Done():
			return fmt.Errorf("this did not happen: %s", what)
		}
	}
	return nil
}

// rest waits until every page of both pools is free.
func (r *rig) rest(ctx context.Context) error {
	return r.until(ctx, "every page is free", func() bool { return free(r.prefill) && free(r.decode) })
}

// idle reports whether neither worker has an attempt that has not ended.
func (r *rig) idle() bool {
	return r.prefill.Status().Attempts == 0 && r.decode.Status().Attempts == 0
}

func free(w *worker.Worker) bool {
	c := w.Pool()
	return c.Free == c.Total
}

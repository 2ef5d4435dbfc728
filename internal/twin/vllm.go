package twin

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// blocks is the KV of a vLLM prefill server, which a decode server reads by block number:
// no owner, tenant, prompt or lease is looked at.
type blocks struct {
	engine string
	size   int // tokens of a block

	mu       sync.Mutex
	held     []string // text of each block; what was there stays until it is written again
	free     []int    // last in, first out
	leases   map[string]*lease
	expired  int                    // leases that ran out
	late     int                    // reads behind a lease
	there    func() bool            // whether the prefill server lives
	sent     map[string]chan string // by Mooncake's transfer id
	previous object                 // handle of the request before
}

type lease struct {
	blocks []int
	timer  *time.Timer
}

func newBlocks(o Options) *blocks {
	o = o.withDefaults()
	b := &blocks{engine: o.EngineID, size: o.Block, leases: map[string]*lease{}, sent: map[string]chan string{}}
	b.there = func() bool { return true }
	b.held = make([]string, o.Pool/o.Block)
	for i := len(b.held) - 1; i > 0; i-- { // block 0 is the null block
		b.free = append(b.free, i)
	}
	return b
}

// put writes a prompt to free blocks; nil if there are too few.
func (b *blocks) put(text string) []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := tokens(text)
	n := (len(all) + b.size - 1) / b.size
	if n > len(b.free) {
		return nil
	}
	var got []int
	for i := range n {
		k := b.free[len(b.free)-1]
		b.free = b.free[:len(b.free)-1]
		b.held[k] = strings.Join(all[i*b.size:min(len(all), (i+1)*b.size)], "")
		got = append(got, k)
	}
	return got
}

// hold keeps blocks for decode until they are collected or the lease ends.
func (b *blocks) hold(id string, list []int, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases[id] = &lease{list, time.AfterFunc(d, func() { b.release(id, true) })}
}

func (b *blocks) release(id string, ranOut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.leases[id]
	if l == nil {
		b.late++
		return
	}
	l.timer.Stop()
	delete(b.leases, id)
	for _, k := range slices.Backward(l.blocks) {
		b.free = append(b.free, k)
	}
	if ranOut {
		b.expired++
	}
}

func (b *blocks) giveBack(list []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = append(b.free, list...)
}

// read is what blocks hold now.
func (b *blocks) read(list []int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s strings.Builder
	for _, k := range list {
		if k >= 0 && k < len(b.held) {
			s.WriteString(b.held[k])
		}
	}
	return s.String()
}

// parcel is where a Mooncake transfer id leads.
func (b *blocks) parcel(id string) chan string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent[id] == nil {
		b.sent[id] = make(chan string, 1)
	}
	return b.sent[id]
}

// vllmEngine is a vLLM server.
type vllmEngine struct {
	t      *Twin
	blocks *blocks

	mu     sync.Mutex
	cached map[string]string // what the prefix cache holds for a salt and a prompt
	// Prompt tokens that came from the cache, were computed here, and came from prefill.
	hits, computed, fetched int
}

func newVLLM(t *Twin, b *blocks) *vllmEngine {
	return &vllmEngine{t: t, blocks: b, cached: map[string]string{}}
}

func (e *vllmEngine) serve(c *call) bool {
	switch c.r.URL.Path {
	case "/health":
		status := http.StatusOK
		if e.t.idle() {
			status = http.StatusServiceUnavailable
		}
		c.w.WriteHeader(status)
	case "/version":
		writeJSON(c.w, http.StatusOK, object{"version": e.t.profile.Version})
	case "/v1/models":
		writeJSON(c.w, http.StatusOK, object{"object": "list", "data": []object{{"id": e.t.face(), "object": "model", "created": 1, "owned_by": "vllm", "root": "/model", "parent": nil, "max_model_len": e.t.opts.Window, "permission": []object{}}}})
	case "/metrics":
		e.metrics(c)
	case "/query":
		if e.t.opts.Role != Prefill {
			return false
		}
		writeJSON(c.w, http.StatusOK, object{"0": object{"engine_id": e.blocks.engine, "worker_addr": object{"0": object{"0": "tcp://127.0.0.1:1"}}}})
	case "/tokenize":
		a := countable(c)
		if a.malformed {
			e.refuse(c, "1 validation error", nil)
			return true
		}
		writeJSON(c.w, http.StatusOK, object{"count": a.count(), "max_model_len": e.t.opts.Window, "tokens": make([]int, a.count()), "token_strs": nil})
	case "/v1/chat/completions", "/v1/completions":
		e.complete(c, c.r.URL.Path == "/v1/chat/completions")
	default:
		return false
	}
	return true
}

// metrics are those that a gateway reads.
func (e *vllmEngine) metrics(c *call) {
	e.blocks.mu.Lock()
	expired, late := e.blocks.expired, e.blocks.late
	e.blocks.mu.Unlock()
	n := e.t.pool() / e.t.opts.Block
	c.w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprintf(c.w, "vllm:cache_config_info{block_size=\"%d\",cache_dtype=\"auto\",engine=\"0\",kv_cache_size_tokens=\"%d\",num_gpu_blocks=\"%d\"} 1.0\n", e.t.opts.Block, n*e.t.opts.Block, n)
	fmt.Fprintf(c.w, "vllm:num_requests_running{engine=\"0\",model_name=\"%s\"} 0.0\nvllm:num_requests_waiting{engine=\"0\",model_name=\"%s\"} 0.0\n", e.t.opts.Model, e.t.opts.Model)
	e.mu.Lock()
	hits, computed, fetched := e.hits, e.computed, e.fetched
	e.mu.Unlock()
	fmt.Fprintf(c.w, "vllm:prefix_cache_hits_total{engine=\"0\"} %d.0\n", hits)
	for _, from := range []struct {
		source string
		n      int
	}{{"local_compute", computed}, {"local_cache_hit", hits}, {"external_kv_transfer", fetched}} {
		fmt.Fprintf(c.w, "vllm:prompt_tokens_by_source_total{engine=\"0\",source=\"%s\"} %d.0\n", from.source, from.n)
	}
	fmt.Fprintf(c.w, "vllm:nixl_num_kv_expired_reqs_total{engine=\"0\"} %d.0\nvllm:nixl_num_notifications_after_expiry_total{engine=\"0\"} %d.0\n", expired, late)
}

func (e *vllmEngine) refuse(c *call, message string, param any) {
	writeJSON(c.w, http.StatusBadRequest, object{"error": object{"message": message, "type": "BadRequestError", "param": param, "code": 400}})
}

func (e *vllmEngine) fail(c *call) {
	writeJSON(c.w, http.StatusInternalServerError, object{"error": object{"message": "Internal server error", "type": "InternalServerError", "param": nil, "code": 500}})
}

func (e *vllmEngine) complete(c *call, chat bool) {
	a := parse(chat, c.body)
	c.ask = a
	prefix := "cmpl-"
	if chat {
		prefix = "chatcmpl-"
	}
	for _, own := range []string{a.text("request_id"), c.r.Header.Get("X-Request-Id")} {
		if own != "" {
			c.id = own
		}
	}
	c.id = prefix + c.id
	limit := e.t.opts.Window
	switch {
	case a.malformed:
		e.refuse(c, "1 validation error", nil)
	case a.model != "" && a.model != e.t.opts.Model:
		writeJSON(c.w, http.StatusNotFound, object{"error": object{"message": fmt.Sprintf("The model `%s` does not exist.", a.model), "type": "NotFoundError", "param": "model", "code": 404}})
	case a.members["vllm_xargs"] != nil && strings.Contains(string(a.members["vllm_xargs"]), "kv_transfer_params"):
		writeJSON(c.w, http.StatusInternalServerError, object{"error": object{"message": "", "type": "InternalServerError", "param": nil, "code": 500}})
	case a.count() >= limit:
		e.refuse(c, fmt.Sprintf("This model's maximum context length is %d tokens. However, your prompt contains at least %d input tokens, which exceeds this limit.", limit, limit+1), "input_tokens")
	default:
		e.generate(c)
	}
}

// transfer is kv_transfer_params as the server reads them.
type transfer struct {
	RemotePrefill bool            `json:"do_remote_prefill"`
	RemoteDecode  bool            `json:"do_remote_decode"`
	Engine        *string         `json:"remote_engine_id"`
	Blocks        json.RawMessage `json:"remote_block_ids"`
	Request       string          `json:"remote_request_id"`
	Host          string          `json:"remote_host"`
	Port          int             `json:"remote_port"`
	Bootstrap     string          `json:"remote_bootstrap_addr"`
	TransferID    string          `json:"transfer_id"`
}

func (e *vllmEngine) generate(c *call) {
	var kv transfer
	_ = json.Unmarshal(c.ask.members["kv_transfer_params"], &kv) // the server ignores what it does not know
	switch {
	case kv.RemoteDecode && e.t.opts.Role == Prefill:
		e.prefill(c, kv)
	case kv.RemotePrefill && e.t.opts.Role == Decode:
		e.decode(c, kv)
	default:
		texts, cached := make([]string, len(c.ask.prompts)), 0
		for i, p := range c.ask.prompts {
			var n int
			texts[i], n = e.lookup(c.ask, p)
			cached += n
		}
		c.compute(c.ask.count() - cached)
		e.say(c, texts, cached)
	}
}

func (e *vllmEngine) key(a ask, prompt string) string {
	return strconv.Quote(a.text("cache_salt")) + prompt
}

// lookup takes a prompt from the prefix cache, or puts it there. What the cache holds is
// what was computed or received under that prompt, whatever it was.
func (e *vllmEngine) lookup(a ask, prompt string) (text string, cached int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.key(a, prompt)
	if held, ok := e.cached[k]; ok {
		n := len(tokens(prompt))
		e.hits += n - n%e.t.opts.Block
		e.computed += n % e.t.opts.Block
		return held, n - n%e.t.opts.Block
	}
	e.cached[k] = prompt
	e.computed += len(tokens(prompt))
	return prompt, 0
}

func (e *vllmEngine) say(c *call, texts []string, cached int) {
	c.answer(e.shape(c, texts, cached, nil))
}

// shape is the answer that speaks each text, with the handle that goes with it.
func (e *vllmEngine) shape(c *call, texts []string, cached int, handle any) shape {
	s := shape{id: c.id, prompt: c.ask.count(), cached: cached, extra: object{"kv_transfer_params": handle}}
	for _, text := range texts {
		for range max(1, c.ask.n) {
			s.choices = append(s.choices, speak(c.ask.limit, func() string { return text }))
		}
	}
	return s
}

func (e *vllmEngine) prefill(c *call, kv transfer) {
	text, cached := e.lookup(c.ask, c.ask.prompts[0])
	c.compute(len(tokens(text)) - cached)
	list := e.blocks.put(text)
	if list == nil {
		// Without blocks a request waits; a twin says so at once.
		writeJSON(c.w, http.StatusServiceUnavailable, object{"error": object{"message": "no blocks", "type": "ServiceUnavailable", "param": nil, "code": 503}})
		return
	}
	if kv.TransferID != "" {
		if !e.t.on("unmet") {
			select {
			case e.blocks.parcel(kv.TransferID) <- text:
			default:
			}
		}
		e.blocks.giveBack(list)
		e.say(c, []string{text}, cached)
		return
	}
	id := c.id + "-0a1b2c3d"
	e.blocks.hold(id, list, e.t.opts.Lease)
	engine := e.blocks.engine
	if e.t.on("unmet") {
		engine = "an engine that is not there"
	}
	handle := object{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [][]int{list}, "remote_engine_id": engine,
		"remote_request_id": id, "remote_host": "127.0.0.1", "remote_port": 5701, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
		"remote_num_tokens": len(tokens(text)), "remote_blocks_expiry_time": nil, "transfer_mode": "pull", "remote_prefill_cached_tokens": cached,
	}
	e.blocks.mu.Lock()
	before := e.blocks.previous
	e.blocks.previous = handle
	e.blocks.mu.Unlock()
	var told any = handle
	fault := e.t.draw()
	switch {
	case fault == "no-handle" || c.ask.stream:
		told = nil
	case fault == "old-handle" && before != nil:
		told = before
	case fault == "short-handle":
		handle["remote_num_tokens"] = len(tokens(text)) - 1
	}
	c.answerWith(e.shape(c, []string{text}, cached, told), fault)
}

// blockList reads the list of block lists that a handle carries.
func blockList(raw json.RawMessage) ([]int, bool) {
	var groups [][]int
	if json.Unmarshal(raw, &groups) != nil || len(groups) == 0 {
		return nil, false
	}
	return groups[0], true
}

func (e *vllmEngine) decode(c *call, kv transfer) {
	if kv.Engine != nil && *kv.Engine != e.blocks.engine {
		// The address in the request is called, whosever it is.
		at := net.JoinHostPort(kv.Host, strconv.Itoa(kv.Port))
		if u, err := url.Parse(kv.Bootstrap); kv.TransferID != "" && err == nil {
			at = u.Host
		}
		c.reach(at)
		e.fail(c)
		return
	}
	if kv.TransferID != "" {
		select {
		case text := <-e.blocks.parcel(kv.TransferID):
			e.received(c, text)
		case <-c.r.Context().Done():
			panic(http.ErrAbortHandler)
		}
		return
	}
	list, ok := blockList(kv.Blocks)
	if kv.Engine == nil || !ok || !e.blocks.there() {
		e.fail(c)
		return
	}
	need := (len(tokens(c.ask.prompts[0])) + e.t.opts.Block - 1) / e.t.opts.Block
	if need > len(list) {
		e.fail(c)
		return
	}
	text := e.blocks.read(list)
	e.blocks.release(kv.Request, false)
	e.received(c, text)
}

// received answers from KV that was read elsewhere, and caches it under the prompt.
func (e *vllmEngine) received(c *call, text string) {
	texts := make([]string, len(c.ask.prompts))
	e.mu.Lock()
	for i, p := range c.ask.prompts {
		texts[i] = text
		e.cached[e.key(c.ask, p)] = text
		e.fetched += len(tokens(p))
	}
	e.mu.Unlock()
	e.say(c, texts, 0)
}

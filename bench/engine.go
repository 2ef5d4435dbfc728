package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
)

// guarding says whether a request is served with the guards on.
type guarding int

const (
	guarded guarding = iota
	unguarded
)

// Sizes of the embedded engine, as a worker has them by default.
const (
	pageTokens  = 64
	chunkTokens = 256
)

// part is a part of a request's time.
type part int

const (
	partCompute part = iota // prefill's forward pass
	partDigest              // prefill's page digests
	partBind                // prefill's MAC over the notice
	partMove                // the reservation, and the pages' way to decode
	partSeal                // decode takes the write key away
	partVerify              // decode checks the MAC and digests every page
	partDecode              // decode's forward passes
	parts
)

// lap is time on the wall and on the processor.
type lap struct{ wall, cpu time.Duration }

// laps is where the time of one request went.
type laps [parts]lap

func (l *laps) sum(of ...part) (total lap) {
	for _, p := range of {
		total.wall += l[p].wall
		total.cpu += l[p].cpu
	}
	return total
}

// watch books time to parts. It belongs to one locked thread.
type watch struct {
	laps laps
	at   lap
	zero time.Time
}

func startWatch() *watch { return &watch{zero: time.Now(), at: lap{cpu: threadCPU()}} }

// lap books what passed since the last one.
func (w *watch) lap(p part) {
	now := lap{time.Since(w.zero), threadCPU()}
	w.laps[p].wall += now.wall - w.at.wall
	w.laps[p].cpu += now.cpu - w.at.cpu
	w.at = now
}

// half is one role: a pool and a runner.
type half struct {
	pool   *kv.Pool
	runner *llm.Runner
	item   []llm.Item // one
}

// step gives a sequence tokens and samples the next one.
func (h *half) step(s *kv.Sequence, tokens []llm.Token) error {
	h.item[0].Seq, h.item[0].Tokens = s, tokens
	h.runner.Step(h.item)
	return h.item[0].Err
}

// engine is the embedded engine in both roles, driven as the workers drive it, by
// one goroutine and with nothing else around it.
type engine struct {
	prefill, decode half
	alg             digest.Algorithm
	move            mover
	sampler         *llm.Sampler // greedy
	off             *kv.Unguarded
}

// mover brings the pages of a computed prompt to a reservation of the engine's
// decode pool.
type mover func(*engine, *kv.Sequence, *kv.Reservation) error

// newEngine makes an engine for requests of up to tokens, prompt and answer.
func newEngine(tokens int, alg digest.Algorithm, move mover) (*engine, error) {
	sampler, err := llm.NewSampler(llm.Sampling{})
	if err != nil {
		return nil, err
	}
	e := &engine{alg: alg, move: move, sampler: sampler, off: kv.NewUnguarded()}
	model := llm.Recall()
	for i, h := range [...]*half{&e.prefill, &e.decode} {
		layout := model.Layout(pageTokens)
		if h.pool, err = newPool(layout, layout.Pages(tokens), uint64(i+1)); err != nil {
			return nil, err
		}
		if h.runner, err = model.NewRunner(chunkTokens, 1); err != nil {
			return nil, err
		}
		h.item = []llm.Item{{Logits: make([]float32, model.Config().Vocab)}}
	}
	return e, nil
}

func newPool(layout kv.Layout, pages int, epoch uint64) (*kv.Pool, error) {
	return kv.New(kv.Config{Layout: layout, Pages: pages, Epoch: epoch, Keys: func() (k kv.Key) {
		_, _ = rand.Read(k[:]) // never fails
		return k
	}})
}

// computed is what prefill has of a request.
type computed struct {
	seq     *kv.Sequence
	first   llm.Token
	key     [32]byte
	digests []kv.Digest
	mac     [32]byte
}

// serve takes one request through prefill, hand-off and decode, and returns where
// the time went and the answer's tokens.
func (e *engine) serve(prompt []llm.Token, output int, g guarding) (laps, []llm.Token, error) {
	w := startWatch()
	c, err := e.compute(prompt, g, w)
	if err != nil {
		return laps{}, nil, err
	}
	r, err := e.decode.pool.Reserve(kv.Domain{1}, len(prompt), output, nil)
	if err != nil {
		return laps{}, nil, err
	}
	if g == guarded {
		c.mac = digest.Bind(c.key, e.statement(r, len(prompt), c))
	}
	w.lap(partBind)
	if err := e.move(e, c.seq, r); err != nil {
		return laps{}, nil, err
	}
	w.lap(partMove)
	v, err := e.prove(r, len(prompt), c, g, w)
	if err != nil {
		return laps{}, nil, err
	}
	answer, err := e.generate(v, c.first, output, w)
	if err == nil {
		err = e.prefill.pool.Release(c.seq)
	}
	if g == unguarded {
		e.decode.pool.Landing().Revoke(r.Key()) // so that the next block begins as this one did
	}
	return w.laps, answer, err
}

// compute is prefill: chunk by chunk, each page digested once, while it is hot.
func (e *engine) compute(prompt []llm.Token, g guarding, w *watch) (computed, error) {
	var c computed
	_, _ = rand.Read(c.key[:]) // never fails
	seq, err := e.prefill.pool.Local(kv.Domain{1}, len(prompt), nil)
	if err != nil {
		return c, err
	}
	c.seq = seq
	layout := seq.Layout()
	for at := 0; at < len(prompt); at += chunkTokens {
		end := min(at+chunkTokens, len(prompt))
		if err := e.prefill.step(seq, prompt[at:end]); err != nil {
			return c, err
		}
		w.lap(partCompute)
		if g == guarded {
			whole := end / pageTokens
			if end == len(prompt) {
				whole = layout.Pages(end)
			}
			d, err := digest.New(e.alg, c.key)
			if err != nil {
				return c, err
			}
			for len(c.digests) < whole {
				c.digests = append(c.digests, seq.Digest(d, len(c.digests)))
			}
		}
		w.lap(partDigest)
	}
	c.first, err = e.sampler.Next(e.prefill.item[0].Logits)
	w.lap(partCompute)
	return c, err
}

// statement is what the notice attests. Its fixed fields are of their real size
// and of no meaning.
func (e *engine) statement(r *kv.Reservation, tokens int, c computed) digest.Statement {
	return digest.Statement{
		Attempt: handoff.Attempt{1}, Generation: r.Generation(), Tokens: uint32(tokens), Pages: uint32(r.Pages()),
		Layout: 1, Domain: kv.Domain{1}, Algorithm: e.alg, First: uint32(c.first), Digests: c.digests,
	}
}

var errMAC = errors.New("bench: the notice's MAC does not hold")

// prove is what decode does between the notice and the first read.
func (e *engine) prove(r *kv.Reservation, tokens int, c computed, g guarding, w *watch) (kv.Verified, error) {
	if g == unguarded {
		v := e.off.Trust(e.decode.pool, r)
		w.lap(partSeal)
		w.lap(partVerify)
		return v, nil
	}
	s, err := e.decode.pool.Seal(r)
	if err != nil {
		return kv.Verified{}, err
	}
	w.lap(partSeal)
	if !digest.Check(c.key, e.statement(r, tokens, c), c.mac) {
		return kv.Verified{}, errMAC
	}
	d, err := digest.New(e.alg, c.key)
	if err != nil {
		return kv.Verified{}, err
	}
	v, err := e.decode.pool.Verify(s, d, c.digests)
	w.lap(partVerify)
	return v, err
}

// generate is decode: output tokens, of which prefill sampled the first.
func (e *engine) generate(v kv.Verified, first llm.Token, output int, w *watch) ([]llm.Token, error) {
	s, err := e.decode.pool.Open(v)
	if err != nil {
		return nil, err
	}
	answer := append(make([]llm.Token, 0, output), first)
	for len(answer) < output {
		if err := e.decode.step(s, answer[len(answer)-1:]); err != nil {
			return nil, err
		}
		next, err := e.sampler.Next(e.decode.item[0].Logits)
		if err != nil {
			return nil, err
		}
		answer = append(answer, next)
	}
	err = e.decode.pool.Release(s)
	w.lap(partDecode)
	return answer, err
}

// onWire is the bytes of one page on their way.
type onWire struct{ segments [][]byte }

// Read implements [kv.Source].
func (o *onWire) Read(p []byte) (int, error) {
	for len(o.segments) > 0 && len(o.segments[0]) == 0 {
		o.segments = o.segments[1:]
	}
	if len(o.segments) == 0 {
		return 0, io.EOF
	}
	n := copy(p, o.segments[0])
	o.segments[0] = o.segments[0][n:]
	return n, nil
}

// Interrupt implements [kv.Source].
func (*onWire) Interrupt() {}

// copyPages is a mover that lands every page from memory.
func copyPages(e *engine, s *kv.Sequence, r *kv.Reservation) error {
	for i := range r.Pages() {
		segments, rows := s.Segments(i)
		if _, err := e.decode.pool.Landing().Land(r.Key(), i, rows, &onWire{segments}); err != nil {
			return fmt.Errorf("bench: land page %d: %w", i, err)
		}
	}
	return nil
}

// cue is how much of a text is repeated at its end; recall then goes on from where
// it stood before.
const cue = 24

// recitation is a prompt of n tokens (BOS included) and the output bytes that
// recall must answer it with.
func recitation(n, output int, seed uint64) (text string, answer []byte) {
	rng := mathrand.New(mathrand.NewPCG(seed, 1))
	b := make([]byte, 0, n)
	for len(b) < n-1-cue {
		for range 2 + rng.IntN(8) {
			b = append(b, byte('a'+rng.IntN(26)))
		}
		b = append(b, ' ')
	}
	b = b[:n-1-cue]
	at := len(b) / 8
	answer = bytes.Clone(b[at+cue:][:min(output, len(b)-at-cue)])
	return string(append(b, b[at:at+cue]...)), answer
}

// recites says whether tokens begin with the bytes that were to be recited.
func recites(tokens []llm.Token, want []byte) bool {
	if len(tokens) < len(want) {
		return false
	}
	for i, b := range want {
		if tokens[i] != llm.Token(b) {
			return false
		}
	}
	return true
}

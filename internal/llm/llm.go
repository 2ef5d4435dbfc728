// Package llm is the embedded engine: a Llama forward pass in plain Go over
// paged KV, a byte tokenizer, sampling, and the built-in model recall.
//
// What it promises:
//
//   - K and V are read only through [kv.Sequence.Rows], once per layer and page,
//     and written only through [kv.Sequence.Write]. What a row may attend to is
//     bounded by the length of the slices, never by a mask: nothing behind the
//     token count is loaded.
//   - A page that no longer belongs to its reader fails that sequence alone, with
//     [kv.ErrTag]; the others of the batch get the same bits as without it.
//   - The logits of a token depend on the tokens before it, the weights, the page
//     size and what the pages hold. They do not depend on chunks, on batch mates
//     or on threads, to the bit.
//   - Bytes of a user never become a special token.
//
// What must not come in: clocks, sources of randomness (a seed is an argument),
// logs, files, the network, and anything about tenants or the protocol.
package llm

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"math"

	"bulkhead.dev/bulkhead/kv"
)

// Config is the shape of a Llama.
type Config struct {
	Name    string  // part of the digest
	Vocab   int     // tokens
	Dim     int     // width of the residual
	Layers  int     // transformer layers
	Heads   int     // query heads
	KVHeads int     // key and value heads; divides Heads
	HeadDim int     // values per head; even
	Hidden  int     // width of the MLP; 0: no layer has one
	Window  int     // largest number of tokens in a sequence
	Theta   float64 // base of the rotary embedding
	Eps     float64 // of RMSNorm
}

// Weights are the tensors of a Llama, row major, a row per output. The model
// keeps them: they must not change afterwards.
type Weights struct {
	Embed  []float32 // Vocab x Dim
	Layers []LayerWeights
	Norm   []float32 // Dim
	Head   []float32 // Vocab x Dim; nil: tied to Embed
}

// LayerWeights are the tensors of one layer.
//
// Rotary embedding turns the values 2p and 2p+1 of a head together (the
// original Llama's order, which GGUF files keep). Weights in the order of halves
// must be permuted before.
type LayerWeights struct {
	AttnNorm []float32 // Dim
	Q        []float32 // Heads*HeadDim x Dim
	K, V     []float32 // KVHeads*HeadDim x Dim
	O        []float32 // Dim x Heads*HeadDim
	// A layer with no MLP leaves these nil; that equals an MLP of zero weights.
	MLPNorm  []float32 // Dim
	Gate, Up []float32 // Hidden x Dim
	Down     []float32 // Dim x Hidden
}

// Model is a Llama, ready to run. It is immutable and safe for concurrent use.
type Model struct {
	config Config
	embed  []float32
	layers []layer
	norm   []float32
	head   matrix
	digest [32]byte
}

type layer struct {
	attnNorm, mlpNorm []float32
	q, k, v, o        matrix
	gate, up, down    matrix
	heads             []head
	mlp               int // width; 0: none
}

// head is a query head that can contribute. The ranges leave out the values
// that the weights fix to zero: their products are zero and change no sum.
type head struct {
	index    int // among the query heads
	group    int // the KV head that it reads
	qlo, qhi int // of the query-key product, in values of a head
	vlo, vhi int // of the value, in values of a head
}

// New makes a model. It refuses shapes that do not fit together and weights
// that are not finite.
func New(c Config, w Weights) (*Model, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	tensors, err := c.tensors(&w)
	if err != nil {
		return nil, err
	}
	m := &Model{config: c, embed: w.Embed, norm: w.Norm, digest: c.digest(tensors)}
	if w.Head == nil {
		w.Head = w.Embed
	}
	m.head = newMatrix(w.Head, c.Vocab, c.Dim)
	for i := range w.Layers {
		m.layers = append(m.layers, c.layer(&w.Layers[i]))
	}
	return m, nil
}

// Config returns the shape.
func (m *Model) Config() Config { return m.config }

// Digest is a SHA-256 over the shape and every weight. Two workers of a pair
// compare it (H-13).
func (m *Model) Digest() [32]byte { return m.digest }

// Layout is the shape of the pages that hold this model's KV. pageTokens is
// the page size in tokens.
func (m *Model) Layout(pageTokens int) kv.Layout {
	c := &m.config
	return kv.Layout{Layers: c.Layers, Heads: c.KVHeads, Dim: c.HeadDim, PageTokens: pageTokens}
}

func (c *Config) check() error {
	for _, f := range []struct {
		name    string
		n, most int
	}{
		{"vocab", c.Vocab, 1 << 24}, {"dim", c.Dim, 1 << 16}, {"layers", c.Layers, 1024},
		{"heads", c.Heads, 4096}, {"kv heads", c.KVHeads, 4096}, {"head dim", c.HeadDim, 4096},
		{"window", c.Window, 1 << 30},
	} {
		if f.n < 1 || f.n > f.most {
			return fmt.Errorf("llm: config: %s %d: want 1 to %d", f.name, f.n, f.most)
		}
	}
	switch {
	case c.HeadDim%2 != 0:
		return fmt.Errorf("llm: config: head dim %d is odd", c.HeadDim)
	case c.Heads%c.KVHeads != 0:
		return fmt.Errorf("llm: config: %d heads over %d kv heads", c.Heads, c.KVHeads)
	case c.Hidden < 0 || c.Hidden > 1<<20:
		return fmt.Errorf("llm: config: hidden %d out of range", c.Hidden)
	case !(c.Theta > 1) || math.IsInf(c.Theta, 0):
		return errors.New("llm: config: theta must be over 1 and finite")
	case !(c.Eps >= 0) || c.Eps > 1:
		return errors.New("llm: config: eps must be 0 to 1")
	}
	return nil
}

type tensor struct {
	name string
	w    []float32
}

// tensors lists the weights in the order of the digest, after checking them.
func (c *Config) tensors(w *Weights) ([]tensor, error) {
	if len(w.Layers) != c.Layers {
		return nil, fmt.Errorf("llm: weights: %d layers: want %d", len(w.Layers), c.Layers)
	}
	var all []tensor
	var failed error
	add := func(name string, t []float32, rows, cols int) {
		if err := checkTensor(t, rows*cols); err != nil && failed == nil {
			failed = fmt.Errorf("llm: weights: %s: %w", name, err)
		}
		all = append(all, tensor{name, t})
	}
	add("embed", w.Embed, c.Vocab, c.Dim)
	q, r := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	for i := range w.Layers {
		l, p := &w.Layers[i], fmt.Sprintf("layer %d ", i)
		add(p+"attn norm", l.AttnNorm, c.Dim, 1)
		add(p+"q", l.Q, q, c.Dim)
		add(p+"k", l.K, r, c.Dim)
		add(p+"v", l.V, r, c.Dim)
		add(p+"o", l.O, c.Dim, q)
		if !l.hasMLP() {
			continue
		}
		if c.Hidden == 0 {
			return nil, fmt.Errorf("llm: weights: layer %d has an MLP, the config has none", i)
		}
		add(p+"mlp norm", l.MLPNorm, c.Dim, 1)
		add(p+"gate", l.Gate, c.Hidden, c.Dim)
		add(p+"up", l.Up, c.Hidden, c.Dim)
		add(p+"down", l.Down, c.Dim, c.Hidden)
	}
	add("norm", w.Norm, c.Dim, 1)
	if w.Head != nil {
		add("head", w.Head, c.Vocab, c.Dim)
	}
	return all, failed
}

func (l *LayerWeights) hasMLP() bool {
	return l.MLPNorm != nil || l.Gate != nil || l.Up != nil || l.Down != nil
}

func checkTensor(t []float32, want int) error {
	if len(t) != want {
		return fmt.Errorf("%d values: want %d", len(t), want)
	}
	for _, x := range t {
		if x-x != 0 { // NaN and Inf
			return errors.New("a value is not finite")
		}
	}
	return nil
}

// digest hashes the shape and the tensors, each framed by name and length.
func (c *Config) digest(tensors []tensor) [32]byte {
	h := sha256.New()
	frame(h, "bulkhead-model-v1")
	frame(h, c.Name)
	var b [8]byte
	word := func(x uint64) {
		binary.LittleEndian.PutUint64(b[:], x)
		h.Write(b[:])
	}
	for _, n := range []int{c.Vocab, c.Dim, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.Hidden, c.Window} {
		word(uint64(n))
	}
	word(math.Float64bits(c.Theta))
	word(math.Float64bits(c.Eps))
	buf := make([]byte, 0, 4096)
	for _, t := range tensors {
		frame(h, t.name)
		word(uint64(len(t.w)))
		for _, x := range t.w {
			if buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(x)); len(buf) == cap(buf) {
				h.Write(buf)
				buf = buf[:0]
			}
		}
		h.Write(buf)
		buf = buf[:0]
	}
	return [32]byte(h.Sum(nil))
}

func frame(h hash.Hash, s string) {
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(s))))
	h.Write([]byte(s))
}

func (c *Config) layer(w *LayerWeights) layer {
	q, r := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	l := layer{
		attnNorm: w.AttnNorm,
		q:        newMatrix(w.Q, q, c.Dim), k: newMatrix(w.K, r, c.Dim), v: newMatrix(w.V, r, c.Dim),
		o: newMatrix(w.O, c.Dim, q),
	}
	if w.hasMLP() {
		l.mlp, l.mlpNorm = c.Hidden, w.MLPNorm
		l.gate, l.up = newMatrix(w.Gate, c.Hidden, c.Dim), newMatrix(w.Up, c.Hidden, c.Dim)
		l.down = newMatrix(w.Down, c.Dim, c.Hidden)
	}
	for i := range c.Heads {
		g := i / (c.Heads / c.KVHeads)
		h := head{index: i, group: g}
		a, b := l.q.rowSpan(i*c.HeadDim, c.HeadDim), l.k.rowSpan(g*c.HeadDim, c.HeadDim)
		h.qlo, h.qhi = max(a.lo, b.lo)&^1, (min(a.hi, b.hi)+1)&^1 // rotation mixes pairs
		a, b = l.v.rowSpan(g*c.HeadDim, c.HeadDim), l.o.colSpan(i*c.HeadDim, c.HeadDim)
		h.vlo, h.vhi = max(a.lo, b.lo), min(a.hi, b.hi)
		if h.qhi < h.qlo {
			h.qhi = h.qlo // every score is zero
		}
		if h.vlo < h.vhi { // else it adds nothing
			l.heads = append(l.heads, h)
		}
	}
	return l
}

package llm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

var domainA, domainB = kv.Domain{1}, kv.Domain{2}

// pool makes a pool whose free pages are in random order.
func pool(t testing.TB, m *Model, pageTokens, pages int) *kv.Pool {
	t.Helper()
	n := uint64(0)
	p, err := kv.New(kv.Config{Layout: m.Layout(pageTokens), Pages: pages, Epoch: 7, Keys: func() (k kv.Key) {
		n++
		binary.LittleEndian.PutUint64(k[:], n)
		return k
	}})
	if err != nil {
		t.Fatal(err)
	}
	seqs := make([]*kv.Sequence, pages)
	for i := range seqs {
		seqs[i] = local(t, p, domainA, 1)
	}
	rng(uint64(pages)).Shuffle(pages, func(i, j int) { seqs[i], seqs[j] = seqs[j], seqs[i] })
	for _, s := range seqs {
		release(t, p, s)
	}
	return p
}

func local(t testing.TB, p *kv.Pool, d kv.Domain, tokens int) *kv.Sequence {
	t.Helper()
	s, err := p.Local(d, tokens, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func release(t testing.TB, p *kv.Pool, s *kv.Sequence) {
	t.Helper()
	if err := p.Release(s); err != nil {
		t.Fatal(err)
	}
}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

func runner(t testing.TB, m *Model, rows, threads int) *Runner {
	t.Helper()
	r, err := m.NewRunner(rows, threads)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// step runs one item and fails the test if it fails.
func step(t testing.TB, r *Runner, s *kv.Sequence, toks []Token, logits []float32) {
	t.Helper()
	items := []Item{{Seq: s, Tokens: toks, Logits: logits}}
	r.Step(items)
	if items[0].Err != nil {
		t.Fatal(items[0].Err)
	}
}

// rows are the K and V of one sequence: of each layer, all K rows and all V
// rows.
type rows [][2][]float32

// lift copies the committed rows of a sequence.
func lift(t testing.TB, s *kv.Sequence) rows {
	t.Helper()
	l := s.Layout()
	out := make(rows, l.Layers)
	for layer := range out {
		for i := range l.Pages(s.Tokens()) {
			k, v, err := s.Rows(layer, i, s.Tokens())
			if err != nil {
				t.Fatal(err)
			}
			out[layer][0], out[layer][1] = append(out[layer][0], k...), append(out[layer][1], v...)
		}
	}
	return out
}

// paste appends the first n rows to a sequence that is empty.
func paste(t testing.TB, s *kv.Sequence, from rows, n int) {
	t.Helper()
	if err := s.Extend(n); err != nil {
		t.Fatal(err)
	}
	row := s.Layout().Row()
	for layer := range from {
		for i := range n {
			k, v, err := s.Write(layer, i)
			if err != nil {
				t.Fatal(err)
			}
			copy(k, from[layer][0][i*row:(i+1)*row])
			copy(v, from[layer][1][i*row:(i+1)*row])
		}
	}
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
}

// random makes a model of random weights. holes is the share of rows and columns
// that are zero.
func random(c Config, tied string, holes float64, seed uint64) (Config, Weights) {
	g := rng(seed)
	fill := func(rows, cols int) []float32 {
		w, dead := zeros(rows, cols), make([]bool, cols)
		for i := range dead {
			dead[i] = g.Float64() < holes
		}
		for r := range rows {
			if g.Float64() < holes {
				continue
			}
			for i := range cols {
				if !dead[i] {
					w[r*cols+i] = float32(g.NormFloat64() * 1.5 / math.Sqrt(float64(cols)))
				}
			}
		}
		return w
	}
	ones := func(n int) []float32 {
		w := zeros(n, 1)
		for i := range w {
			w[i] = 1 + float32(g.NormFloat64())/10
		}
		return w
	}
	q, r := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	w := Weights{Embed: fill(c.Vocab, c.Dim), Norm: ones(c.Dim)}
	for i := range w.Embed {
		w.Embed[i] += float32(g.NormFloat64()) // no token is all zero
	}
	if tied == "untied" {
		w.Head = fill(c.Vocab, c.Dim)
	}
	for i := range c.Layers {
		l := LayerWeights{AttnNorm: ones(c.Dim), Q: fill(q, c.Dim), K: fill(r, c.Dim), V: fill(r, c.Dim), O: fill(c.Dim, q)}
		if c.Hidden > 0 && i != 1 { // the second layer has no MLP
			l.MLPNorm, l.Gate, l.Up, l.Down = ones(c.Dim), fill(c.Hidden, c.Dim), fill(c.Hidden, c.Dim), fill(c.Dim, c.Hidden)
		}
		w.Layers = append(w.Layers, l)
	}
	return c, w
}

func small() Config {
	return Config{
		Name: "small", Vocab: 61, Dim: 24, Layers: 3, Heads: 6, KVHeads: 2, HeadDim: 10, Hidden: 40,
		Window: 512, Theta: 500, Eps: 1e-5,
	}
}

func model(t testing.TB, c Config, w Weights) *Model {
	t.Helper()
	m, err := New(c, w)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func tokens(n, vocab int, seed uint64) []Token {
	g := rng(seed)
	out := make([]Token, n)
	for i := range out {
		out[i] = Token(g.IntN(vocab))
	}
	return out
}

// reference is a Llama as a textbook has it: float64, no pages, no cache, no
// shared code. It returns the logits of every position.
func reference(c Config, w Weights, toks []Token) [][]float64 {
	xs := make([][]float64, len(toks))
	for i, tok := range toks {
		for d := range c.Dim {
			xs[i] = append(xs[i], float64(w.Embed[int(tok)*c.Dim+d]))
		}
	}
	for _, l := range w.Layers {
		var ks, vs [][]float64
		for i, x := range xs {
			n := bookNorm(c, x, l.AttnNorm)
			q, k := bookTimes(l.Q, n), bookTimes(l.K, n)
			bookTurn(c, q, i)
			bookTurn(c, k, i)
			ks, vs = append(ks, k), append(vs, bookTimes(l.V, n))
			for d, v := range bookTimes(l.O, bookAttend(c, q, ks, vs)) {
				x[d] += v
			}
			if l.Gate == nil {
				continue
			}
			n = bookNorm(c, x, l.MLPNorm)
			gate, up := bookTimes(l.Gate, n), bookTimes(l.Up, n)
			for d, g := range gate {
				up[d] *= g / (1 + math.Exp(-g))
			}
			for d, v := range bookTimes(l.Down, up) {
				x[d] += v
			}
		}
	}
	head := w.Head
	if head == nil {
		head = w.Embed
	}
	out := make([][]float64, len(xs))
	for i, x := range xs {
		out[i] = bookTimes(head, bookNorm(c, x, w.Norm))
	}
	return out
}

func bookTimes(m []float32, x []float64) []float64 {
	y := make([]float64, len(m)/len(x))
	for i := range m {
		y[i/len(x)] += float64(m[i]) * x[i%len(x)]
	}
	return y
}

func bookNorm(c Config, x []float64, g []float32) []float64 {
	ms := 0.0
	for _, v := range x {
		ms += v * v / float64(len(x))
	}
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i] / math.Sqrt(ms+c.Eps) * float64(g[i])
	}
	return y
}

func bookTurn(c Config, x []float64, pos int) {
	for i := 0; i < len(x); i += 2 {
		p := i % c.HeadDim / 2
		z := complex(x[i], x[i+1]) * complexExp(float64(pos)/math.Pow(c.Theta, float64(2*p)/float64(c.HeadDim)))
		x[i], x[i+1] = real(z), imag(z)
	}
}

func bookAttend(c Config, q []float64, ks, vs [][]float64) []float64 {
	att := make([]float64, len(q))
	for h := range c.Heads {
		g, sum := h*c.KVHeads/c.Heads*c.HeadDim, 0.0
		for j := range ks {
			dot := 0.0
			for d := range c.HeadDim {
				dot += q[h*c.HeadDim+d] * ks[j][g+d]
			}
			p := math.Exp(dot / math.Sqrt(float64(c.HeadDim)))
			sum += p
			for d := range c.HeadDim {
				att[h*c.HeadDim+d] += p * vs[j][g+d]
			}
		}
		for d := range c.HeadDim {
			att[h*c.HeadDim+d] /= sum
		}
	}
	return att
}

func complexExp(a float64) complex128 { return complex(math.Cos(a), math.Sin(a)) }

func TestForwardEqualsTextbook(t *testing.T) {
	wide := small()
	wide.Heads, wide.KVHeads, wide.HeadDim, wide.Hidden, wide.Eps = 4, 4, 6, 0, 0.3
	single := small()
	single.Heads, single.KVHeads, single.Dim, single.HeadDim = 5, 1, 33, 2
	seed := uint64(0)
	for _, c := range []Config{small(), wide, single} {
		for _, tied := range []string{"tied", "untied"} {
			for _, holes := range []float64{0, 0.4, 0.8} {
				for _, page := range []int{16, 64} {
					seed++
					c, w := random(c, tied, holes, seed)
					m, toks := model(t, c, w), tokens(150, c.Vocab, seed)
					want := reference(c, w, toks)
					r, p := runner(t, m, 32, 1), pool(t, m, page, 12)
					s, logits := local(t, p, domainA, 150), make([]float32, c.Vocab)
					for i := 0; i < len(toks); {
						n := min(1+i, len(toks)-i)
						step(t, r, s, toks[i:i+n], logits)
						i += n
						if d := distance(logits, want[i-1]); d > 2e-4 {
							t.Fatalf("heads %d/%d %s holes %v page %d: token %d: logits off by %g", c.Heads, c.KVHeads, tied, holes, page, i, d)
						}
					}
				}
			}
		}
	}
}

// distance is the largest difference, relative to the largest value.
func distance(got []float32, want []float64) float64 {
	diff, size := 0.0, 1e-9
	for i := range want {
		diff = math.Max(diff, math.Abs(float64(got[i])-want[i]))
		size = math.Max(size, math.Abs(want[i]))
	}
	if len(got) != len(want) || diff != diff {
		return math.Inf(1)
	}
	return diff / size
}

// Chunks, batch mates, passes and threads must not change a bit.
func TestSameBitsWhateverTheBatch(t *testing.T) {
	c, w := random(small(), "tied", 0.1, 3)
	m := model(t, c, w)
	const n = 5
	prompts := make([][]Token, n)
	for i := range prompts {
		prompts[i] = tokens(70+13*i, c.Vocab, uint64(i))
	}
	var want [n][]float32 // one sequence at a time, one token at a time
	p := pool(t, m, 16, 64)
	single := runner(t, m, 1, 1)
	for i, toks := range prompts {
		s := local(t, p, domainA, len(toks))
		want[i] = make([]float32, c.Vocab)
		for j := range toks {
			step(t, single, s, toks[j:j+1], want[i])
		}
		release(t, p, s)
	}
	if slices.Equal(want[0], want[1]) {
		t.Fatal("different prompts gave equal logits: the test is blind")
	}
	for _, rows := range []int{1, 7, 33, 256} {
		for _, threads := range []int{1, 3} {
			for _, chunk := range []int{1, 16, 50, 1000} {
				r, items, got := runner(t, m, rows, threads), make([]Item, n), make([][]float32, n)
				seqs := make([]*kv.Sequence, n)
				for i := range prompts {
					got[i], seqs[i] = make([]float32, c.Vocab), local(t, p, domainA, len(prompts[i]))
				}
				for at := 0; at < 200; at += chunk {
					items = items[:0]
					for i, toks := range prompts {
						if at < len(toks) {
							items = append(items, Item{Seq: seqs[i], Tokens: toks[at:min(at+chunk, len(toks))], Logits: got[i]})
						}
					}
					r.Step(items)
					for i := range items {
						if items[i].Err != nil {
							t.Fatal(items[i].Err)
						}
					}
				}
				for i := range prompts {
					if !slices.Equal(got[i], want[i]) {
						t.Fatalf("rows %d threads %d chunk %d: sequence %d has other bits", rows, threads, chunk, i)
					}
					release(t, p, seqs[i])
				}
			}
		}
	}
}

// A sequence whose pages go to another owner in the middle of a step fails, with
// ErrTag, alone (H-12), wherever the step is.
func TestStalePageFailsItsSequenceAlone(t *testing.T) {
	m := Recall()
	phases := []struct {
		p     phase
		layer int
	}{{(*Runner).embed, 0}, {(*Runner).project, 0}, {(*Runner).attend, 0}, {(*Runner).project, 1}, {(*Runner).attend, 1}}
	for _, threads := range []int{1, 3} {
		for fault := range len(phases) + 1 { // before this phase; the last one is never
			p, r := pool(t, m, 16, 32), runner(t, m, 0, threads)
			var items []Item
			for i := range 4 {
				s := local(t, p, domainA, 100)
				step(t, r, s, tokens(20, 256, uint64(i)), nil)
				items = append(items, Item{Seq: s, Tokens: tokens(30, 256, 9), Logits: slices.Repeat([]float32{7}, byteVocab)})
			}
			stale := items[1].Seq
			for i := range items {
				items[i].Err = r.admit(items, i)
			}
			r.items = items
			r.plan(0, 0)
			for i, ph := range phases {
				if i == fault {
					release(t, p, stale)
					thief := local(t, p, domainB, 100)
					step(t, runner(t, m, 0, 1), thief, tokens(100, 256, 77), nil)
				}
				r.each(ph.p, ph.layer)
			}
			r.each((*Runner).finish, 0)
			if never := fault == len(phases); never && items[1].Err != nil {
				t.Fatalf("control: no fault, and the sequence failed: %v", items[1].Err)
			} else if !never && !errors.Is(items[1].Err, kv.ErrTag) {
				t.Fatalf("threads %d, fault before phase %d: got %v, want %v", threads, fault, items[1].Err, kv.ErrTag)
			} else if !never && (slices.Max(items[1].Logits) != 7 || slices.Min(items[1].Logits) != 7) {
				t.Errorf("fault before phase %d: a failed item has logits", fault)
			}
			for i := range items {
				if i == 1 {
					continue
				}
				if items[i].Err != nil || !slices.Equal(items[i].Logits, alone(t, m, tokens(20, 256, uint64(i)), tokens(30, 256, 9))) {
					t.Errorf("threads %d, fault before phase %d: item %d was disturbed: %v", threads, fault, i, items[i].Err)
				}
			}
		}
	}
}

// alone computes the logits after some stretches of tokens, with nothing beside
// them.
func alone(t *testing.T, m *Model, stretches ...[]Token) []float32 {
	t.Helper()
	p, logits := pool(t, m, 16, 16), make([]float32, m.Config().Vocab)
	s := local(t, p, domainA, 256)
	for _, toks := range stretches {
		step(t, runner(t, m, 0, 1), s, toks, logits)
	}
	return logits
}

// A released sequence reads nothing.
func TestReleasedSequenceFails(t *testing.T) {
	m := Recall()
	p, r := pool(t, m, 16, 8), runner(t, m, 0, 1)
	s := local(t, p, domainA, 40)
	step(t, r, s, Bytes{}.Text("some text"), nil)
	release(t, p, s)
	items := []Item{{Seq: s, Tokens: []Token{65}}}
	r.Step(items)
	if items[0].Err == nil {
		t.Fatal("a released sequence was run")
	}
}

// poison fills n rows of a sequence after the committed ones with NaN.
func poison(t *testing.T, s *kv.Sequence, n int) {
	t.Helper()
	if err := s.Extend(n); err != nil {
		t.Fatal(err)
	}
	for layer := range s.Layout().Layers {
		for i := range n {
			k, v, err := s.Write(layer, s.Tokens()+i)
			if err != nil {
				t.Fatal(err)
			}
			for d := range k {
				k[d], v[d] = float32(math.NaN()), float32(math.NaN())
			}
		}
	}
}

// What stands behind the token count is never loaded; what stands before it is.
func TestRowsBehindTheCountAreNotRead(t *testing.T) {
	c, w := random(small(), "untied", 0, 9)
	random := model(t, c, w)
	for _, m := range []*Model{random, Recall()} {
		for _, n := range []int{1, 5, 15, 16, 17, 40} {
			p, r := pool(t, m, 16, 20), runner(t, m, 0, 1)
			toks, want := tokens(n, 61, 4), make([]float32, m.Config().Vocab)
			step(t, r, local(t, p, domainA, 96), toks, want)

			s, got := local(t, p, domainA, 96), make([]float32, len(want))
			poison(t, s, 96) // announced, never committed
			step(t, r, s, toks, got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d tokens: rows behind them changed the logits", m.Config().Name, n)
			}

			release(t, p, s)
			bad := local(t, p, domainA, 96)
			poison(t, bad, 1)
			if err := bad.Commit(); err != nil {
				t.Fatal(err)
			}
			step(t, r, bad, toks, got)
			g, _ := NewSampler(Sampling{})
			if _, err := g.Next(got); !errors.Is(err, ErrLogits) {
				t.Errorf("%s: control: a NaN row before %d tokens did not reach the logits: %v", m.Config().Name, n, err)
			}
		}
	}
}

// Folding page by page is the softmax of all pages, and a score that is NaN
// spoils it wherever it stands, also among weights that are zero.
func TestFold(t *testing.T) {
	g := rng(6)
	for _, size := range []float64{0.1, 3, 60, 5000} {
		const n, dim, page = 50, 3, 16
		scores, v := make([]float32, n), make([]float32, n*dim)
		for i := range scores {
			scores[i] = float32(g.NormFloat64() * size)
		}
		for i := range v {
			v[i] = float32(g.NormFloat64())
		}
		fold := func(scores []float32) []float32 {
			s, acc := newSoftmax(), make([]float32, dim)
			for i := 0; i < n; i += page {
				s.fold(scores[i:min(i+page, n)], acc, v[i*dim:], dim)
			}
			s.finish(acc)
			return acc
		}
		want, sum := make([]float64, dim), 0.0
		for i, x := range scores {
			p := math.Exp(float64(x) - float64(slices.Max(scores)))
			sum += p
			for d := range want {
				want[d] += p * float64(v[i*dim+d])
			}
		}
		for d := range want {
			want[d] /= sum
		}
		if d := distance(fold(scores), want); d > 1e-5 {
			t.Errorf("scores of size %v: off by %g", size, d)
		}
		for i := range scores {
			bad := slices.Clone(scores)
			bad[i] = float32(math.NaN())
			for d, x := range fold(bad) {
				if x == x {
					t.Errorf("size %v: NaN as score %d: value %d is %v", size, i, d, x)
				}
			}
		}
	}
}

func TestStepRefusesBadItems(t *testing.T) {
	c, w := random(small(), "tied", 0, 5)
	m := model(t, c, w)
	p, r := pool(t, m, 16, 64), runner(t, m, 0, 1)
	other := pool(t, Recall(), 16, 4)
	full := local(t, p, domainA, 16)
	step(t, r, full, tokens(16, c.Vocab, 1), nil)
	long := local(t, p, domainA, 600)
	for name, it := range map[string]Item{
		"no sequence":    {Tokens: []Token{1}},
		"no tokens":      {Seq: local(t, p, domainA, 16)},
		"foreign layout": {Seq: local(t, other, domainA, 16), Tokens: []Token{1}},
		"short logits":   {Seq: local(t, p, domainA, 16), Tokens: []Token{1}, Logits: make([]float32, 3)},
		"unknown token":  {Seq: local(t, p, domainA, 16), Tokens: []Token{1, Token(c.Vocab)}},
		"no room":        {Seq: full, Tokens: []Token{1}},
		"window":         {Seq: long, Tokens: tokens(513, c.Vocab, 1)},
	} {
		good := Item{Seq: local(t, p, domainA, 16), Tokens: []Token{1}, Logits: make([]float32, c.Vocab)}
		items := []Item{it, good}
		r.Step(items)
		if items[0].Err == nil {
			t.Errorf("%s: accepted", name)
		}
		if items[1].Err != nil || items[1].Seq.Tokens() != 1 || slices.Max(items[1].Logits) == 0 {
			t.Errorf("%s: the good item beside it failed: %v", name, items[1].Err)
		}
		release(t, p, good.Seq)
	}
	items := []Item{{Seq: long, Tokens: []Token{1}}, {Seq: long, Tokens: []Token{2}}}
	r.Step(items)
	if items[0].Err != nil || !errors.Is(items[1].Err, ErrItem) || long.Tokens() != 1 {
		t.Errorf("one sequence twice: %v, %v, %d tokens", items[0].Err, items[1].Err, long.Tokens())
	}
	// Err is of this step, not of an earlier one.
	items = []Item{{Seq: long, Tokens: []Token{1}, Err: errors.New("old")}}
	r.Step(items)
	if items[0].Err != nil {
		t.Errorf("an old error stayed: %v", items[0].Err)
	}
	r.Step(nil)
}

func TestStepAllocatesNothing(t *testing.T) {
	m := Recall()
	p, r := pool(t, m, 64, 16), runner(t, m, 64, 1)
	items := []Item{
		{Seq: local(t, p, domainA, 400), Tokens: []Token{65}, Logits: make([]float32, byteVocab)},
		{Seq: local(t, p, domainA, 400), Tokens: []Token{66}, Logits: make([]float32, byteVocab)},
	}
	g, err := NewSampler(Sampling{Temperature: 1, TopP: 0.9})
	if err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(100, func() {
		r.Step(items)
		for i := range items {
			if _, err := g.Next(items[i].Logits); err != nil || items[i].Err != nil {
				t.Fatal(err, items[i].Err)
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per step, want 0", n)
	}
}

func TestNewRefusesWhatDoesNotFit(t *testing.T) {
	good, w := random(small(), "untied", 0, 1)
	if _, err := New(good, w); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config, *Weights){
		"odd head dim":    func(c *Config, _ *Weights) { c.HeadDim = 9 },
		"heads":           func(c *Config, _ *Weights) { c.KVHeads = 4 },
		"no vocab":        func(c *Config, _ *Weights) { c.Vocab = 0 },
		"no window":       func(c *Config, _ *Weights) { c.Window = 0 },
		"theta":           func(c *Config, _ *Weights) { c.Theta = math.NaN() },
		"eps":             func(c *Config, _ *Weights) { c.Eps = -1 },
		"layers":          func(_ *Config, w *Weights) { w.Layers = w.Layers[1:] },
		"short query":     func(_ *Config, w *Weights) { w.Layers[1].Q = w.Layers[1].Q[1:] },
		"half an MLP":     func(_ *Config, w *Weights) { w.Layers[0].Down = nil },
		"unannounced MLP": func(c *Config, _ *Weights) { c.Hidden = 0 },
		"NaN weight":      func(_ *Config, w *Weights) { w.Embed[3] = float32(math.NaN()) },
		"Inf weight":      func(_ *Config, w *Weights) { w.Head[3] = float32(math.Inf(1)) },
	} {
		c, w := random(small(), "untied", 0, 1)
		spoil(&c, &w)
		if _, err := New(c, w); err == nil || !strings.HasPrefix(err.Error(), "llm: ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	m := Recall()
	for _, n := range [][2]int{{-1, 1}, {1 << 20, 1}, {1, -1}, {1, 1000}} {
		if _, err := m.NewRunner(n[0], n[1]); err == nil {
			t.Errorf("runner of %v: accepted", n)
		}
	}
}

func TestDigestCoversEverything(t *testing.T) {
	build := func(change func(*Config, *Weights)) [32]byte {
		c, w := random(small(), "untied", 0, 1)
		change(&c, &w)
		return model(t, c, w).Digest()
	}
	same := func(*Config, *Weights) {}
	seen := map[[32]byte]string{build(same): "same"}
	if _, ok := seen[build(same)]; !ok {
		t.Fatal("two builds of one model differ")
	}
	for name, change := range map[string]func(*Config, *Weights){
		"name":   func(c *Config, _ *Weights) { c.Name = "other" },
		"theta":  func(c *Config, _ *Weights) { c.Theta++ },
		"eps":    func(c *Config, _ *Weights) { c.Eps *= 2 },
		"window": func(c *Config, _ *Weights) { c.Window++ },
		"embed":  func(_ *Config, w *Weights) { w.Embed[0]++ },
		"last":   func(_ *Config, w *Weights) { w.Head[len(w.Head)-1]++ },
		"tied":   func(_ *Config, w *Weights) { w.Head = nil },
		"norm":   func(_ *Config, w *Weights) { w.Norm[5]++ },
		"down":   func(_ *Config, w *Weights) { w.Layers[2].Down[7]++ },
		"swap":   func(_ *Config, w *Weights) { w.Layers[0].K, w.Layers[0].V = w.Layers[0].V, w.Layers[0].K },
	} {
		d := build(change)
		if old, ok := seen[d]; ok {
			t.Errorf("%s has the digest of %s", name, old)
		}
		seen[d] = name
	}
	if again := Recall(); again.Digest() != Recall().Digest() {
		t.Error("two builds of recall differ")
	}
}

func BenchmarkPrefill(b *testing.B) {
	for _, n := range []int{1000, 8000} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%d/threads=%d", n, threads), func(b *testing.B) {
				m := Recall()
				p, r := pool(b, m, 64, n/64+1), runner(b, m, 0, threads)
				toks := tokens(n, 256, 1)
				for b.Loop() {
					s := local(b, p, domainA, n)
					step(b, r, s, toks, nil)
					release(b, p, s)
				}
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{1000, 8000} {
		for _, batch := range []int{1, 8} {
			b.Run(fmt.Sprintf("%d/batch=%d", n, batch), func(b *testing.B) {
				m := Recall()
				p, r := pool(b, m, 64, batch*(n/64+2)), runner(b, m, 0, 1)
				items := make([]Item, batch)
				s := local(b, p, domainA, n)
				step(b, r, s, tokens(n, 256, 1), nil)
				saved := lift(b, s)
				release(b, p, s)
				fresh := func() {
					for i := range items {
						release(b, p, items[i].Seq)
					}
					for i := range items {
						s := local(b, p, domainA, n+64)
						paste(b, s, saved, n)
						items[i] = Item{Seq: s, Tokens: []Token{65}, Logits: make([]float32, byteVocab)}
					}
				}
				fresh()
				for b.Loop() {
					r.Step(items)
					if items[0].Seq.Tokens() == n+64 { // stay at the length
						b.StopTimer()
						fresh()
						b.StartTimer()
					}
				}
				b.ReportMetric(float64(batch*b.N)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

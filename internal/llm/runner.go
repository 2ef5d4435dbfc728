package llm

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"bulkhead.dev/bulkhead/kv"
)

// tileRows is how many rows share a pass over weights and pages.
const tileRows = 16

// ErrItem says that an item of a step cannot be run as it is: a fault of the
// caller. Nothing was written.
var ErrItem = errors.New("llm: bad item")

// errShort says that a page gave fewer rows than the sequence holds (H-3).
var errShort = errors.New("a page is short of rows")

// Item is the part of one sequence in a step: tokens to append to it. A prefill
// chunk has many, a decode step has one.
type Item struct {
	Seq    *kv.Sequence // of the model's layout; in one item of a step only
	Tokens []Token      // at least one; they follow Seq.Tokens() earlier ones
	Logits []float32    // nil, or Vocab values: filled for the last token
	// Err is set by Step. It concerns this sequence alone: its rows were not
	// committed, its logits mean nothing, and it must be released.
	Err error
}

// Runner runs steps of one model. It holds the scratch memory, so that a step
// of one thread allocates nothing unless it fails. It belongs to the goroutine
// that owns the pool of the sequences.
type Runner struct {
	model *Model
	scale float32   // of a score
	turns []float64 // radians per token of each pair
	limit int       // rows in one pass
	items []Item    // of the step that runs

	runs  []run
	tiles []tile
	x     []float32 // rows x dim: residual
	q     []float32 // rows x heads*head dim
	att   []float32 // rows x heads*head dim
	cos   []float32 // rows x head dim/2
	sin   []float32

	lanes []lane
	next  atomic.Int64 // tile to take
	wait  sync.WaitGroup
}

// run is a stretch of one item's tokens in a pass.
type run struct {
	item, off int // tokens [off, off+n) of the item
	row, n    int // rows [row, row+n) of the pass
	pos       int // of its first token in the sequence
	err       error
}

// tile is a stretch of runs that are computed together.
type tile struct{ lo, hi, row, n int }

// lane is the scratch memory of one thread.
type lane struct {
	xn, out  []float32 // tile x dim
	k, v     []float32 // tile x row
	gate, up []float32 // tile x hidden
	scores   []float32 // page
	soft     []softmax // tile x heads
}

// phase is one part of a pass. It runs once per tile, on any lane.
type phase func(r *Runner, l *lane, t tile, layer int)

// NewRunner makes a runner. rows is how many tokens are computed in one pass
// over the layers (memory; 0 means 256; longer steps take more passes). threads
// is how many goroutines compute (0 means 1). Neither changes a result.
func (m *Model) NewRunner(rows, threads int) (*Runner, error) {
	if rows == 0 {
		rows = 256
	}
	if threads == 0 {
		threads = 1
	}
	if rows < 1 || rows > 1<<16 || threads < 1 || threads > 256 {
		return nil, fmt.Errorf("llm: runner of %d rows and %d threads: out of range", rows, threads)
	}
	c, half := &m.config, m.config.HeadDim/2
	wide, row := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	r := &Runner{
		model: m, limit: rows, scale: float32(1 / math.Sqrt(float64(c.HeadDim))),
		runs: make([]run, 0, rows), tiles: make([]tile, 0, rows),
		x: make([]float32, rows*c.Dim), q: make([]float32, rows*wide), att: make([]float32, rows*wide),
		cos: make([]float32, rows*half), sin: make([]float32, rows*half),
		turns: make([]float64, half), lanes: make([]lane, threads),
	}
	for p := range r.turns {
		r.turns[p] = turn(c.Theta, c.HeadDim, p)
	}
	for i := range r.lanes {
		r.lanes[i] = lane{
			xn: make([]float32, tileRows*c.Dim), out: make([]float32, tileRows*c.Dim),
			k: make([]float32, tileRows*row), v: make([]float32, tileRows*row),
			gate: make([]float32, tileRows*c.Hidden), up: make([]float32, tileRows*c.Hidden),
			scores: make([]float32, 64), soft: make([]softmax, tileRows*c.Heads),
		}
	}
	return r, nil
}

// turn is how far pair p turns per token, in radians.
func turn(theta float64, dim, p int) float64 {
	return math.Pow(theta, -2*float64(p)/float64(dim))
}

// Step appends the tokens of every item to its sequence, writes their K and V,
// fills the logits and commits. It sets the Err of every item.
func (r *Runner) Step(items []Item) {
	for i := range items {
		items[i].Err = r.admit(items, i)
	}
	r.items = items
	for item, off := 0, 0; item < len(items); {
		item, off = r.plan(item, off)
		r.pass()
	}
	for i := range items {
		if it := &items[i]; it.Err == nil {
			it.Err = it.Seq.Commit()
		}
	}
	r.items = nil
}

// admit checks one item and announces its rows.
func (r *Runner) admit(items []Item, i int) error {
	it, c := &items[i], &r.model.config
	if it.Seq == nil || len(it.Tokens) == 0 {
		return fmt.Errorf("%w: no sequence or no tokens", ErrItem)
	}
	if l := it.Seq.Layout(); l != r.model.Layout(l.PageTokens) || l.PageTokens > len(r.lanes[0].scores) {
		return fmt.Errorf("%w: pages are not of this model", ErrItem)
	}
	if it.Logits != nil && len(it.Logits) != c.Vocab {
		return fmt.Errorf("%w: %d logits: want %d", ErrItem, len(it.Logits), c.Vocab)
	}
	if have := it.Seq.Tokens(); have+len(it.Tokens) > c.Window {
		return fmt.Errorf("%w: %d tokens after %d: the window is %d", ErrItem, len(it.Tokens), have, c.Window)
	}
	for _, t := range it.Tokens {
		if int(t) >= c.Vocab {
			return fmt.Errorf("%w: a token is outside of the vocabulary", ErrItem)
		}
	}
	for j := range items[:i] {
		if items[j].Seq == it.Seq {
			return fmt.Errorf("%w: the sequence is in this step already", ErrItem)
		}
	}
	if err := it.Seq.Extend(len(it.Tokens)); err != nil {
		return fmt.Errorf("llm: extend: %w", err)
	}
	return nil
}

// plan fills the next pass, starting at token off of an item. It returns where
// the pass after it starts.
func (r *Runner) plan(item, off int) (int, int) {
	r.runs, r.tiles = r.runs[:0], r.tiles[:0]
	used := 0
	for item < len(r.items) && used < r.limit {
		it := &r.items[item]
		if it.Err != nil || off == len(it.Tokens) {
			item, off = item+1, 0
			continue
		}
		if used%tileRows == 0 {
			r.tiles = append(r.tiles, tile{lo: len(r.runs), row: used})
		}
		t := &r.tiles[len(r.tiles)-1]
		n := min(len(it.Tokens)-off, r.limit-used, tileRows-t.n)
		r.runs = append(r.runs, run{item: item, off: off, row: used, n: n, pos: it.Seq.Tokens() + off})
		used, off = used+n, off+n
		t.n, t.hi = t.n+n, len(r.runs)
	}
	return item, off
}

// pass computes the planned rows through all layers.
func (r *Runner) pass() {
	r.each((*Runner).embed, 0)
	for i := range r.model.layers {
		r.each((*Runner).project, i)
		r.each((*Runner).attend, i)
	}
	r.each((*Runner).finish, 0)
}

// each runs a phase on every tile and then takes note of what failed.
func (r *Runner) each(p phase, layer int) {
	r.next.Store(0)
	for i := 1; i < min(len(r.lanes), len(r.tiles)); i++ {
		r.wait.Add(1)
		go func() {
			defer r.wait.Done()
			r.work(&r.lanes[i], p, layer)
		}()
	}
	r.work(&r.lanes[0], p, layer)
	r.wait.Wait()
	for i := range r.runs {
		if run := &r.runs[i]; run.err != nil && r.items[run.item].Err == nil {
			r.items[run.item].Err = run.err
		}
	}
}

func (r *Runner) work(l *lane, p phase, layer int) {
	for {
		i := int(r.next.Add(1)) - 1
		if i >= len(r.tiles) {
			return
		}
		p(r, l, r.tiles[i], layer)
	}
}

// alive reports whether a run's item has not failed in an earlier phase.
func (r *Runner) alive(n *run) bool { return r.items[n.item].Err == nil }

// embed looks up the tokens of a tile and the angles of their positions.
func (r *Runner) embed(_ *lane, t tile, _ int) {
	dim, half := r.model.config.Dim, len(r.turns)
	for i := t.lo; i < t.hi; i++ {
		n := &r.runs[i]
		for j, tok := range r.items[n.item].Tokens[n.off : n.off+n.n] {
			row := n.row + j
			copy(r.x[row*dim:(row+1)*dim], r.model.embed[int(tok)*dim:])
			for p, w := range r.turns {
				sin, cos := math.Sincos(float64(n.pos+j) * w)
				r.cos[row*half+p], r.sin[row*half+p] = float32(cos), float32(sin)
			}
		}
	}
}

// project computes queries, keys and values of a tile, turns queries and keys,
// and writes keys and values to their pages.
func (r *Runner) project(l *lane, t tile, layer int) {
	c, w := &r.model.config, &r.model.layers[layer]
	half, wide, row := len(r.turns), c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	for i := range t.n {
		rmsNorm(l.xn[i*c.Dim:(i+1)*c.Dim], r.x[(t.row+i)*c.Dim:(t.row+i+1)*c.Dim], w.attnNorm, c.Eps)
	}
	q := r.q[t.row*wide : (t.row+t.n)*wide]
	w.q.mul(q, l.xn, t.n)
	w.k.mul(l.k, l.xn, t.n)
	w.v.mul(l.v, l.xn, t.n)
	for i := range t.n {
		cos, sin := r.cos[(t.row+i)*half:][:half], r.sin[(t.row+i)*half:][:half]
		for _, h := range w.heads {
			at := i*wide + h.index*c.HeadDim
			rotate(q[at+h.qlo:at+h.qhi], cos[h.qlo/2:], sin[h.qlo/2:])
		}
		for g := range c.KVHeads {
			at := i*row + g*c.HeadDim
			rotate(l.k[at:at+c.HeadDim], cos, sin)
		}
	}
	for i := t.lo; i < t.hi; i++ {
		if n := &r.runs[i]; r.alive(n) {
			n.err = r.store(l, n, n.row-t.row, layer)
		}
	}
}

// store writes the K and V of a run, which start at row at of the lane.
func (r *Runner) store(l *lane, n *run, at, layer int) error {
	row, seq := r.model.config.KVHeads*r.model.config.HeadDim, r.items[n.item].Seq
	for i := range n.n {
		k, v, err := seq.Write(layer, n.pos+i)
		if err != nil {
			return fmt.Errorf("llm: write layer %d: %w", layer, err)
		}
		copy(k, l.k[(at+i)*row:(at+i+1)*row])
		copy(v, l.v[(at+i)*row:(at+i+1)*row])
	}
	return nil
}

// attend adds attention and MLP of a layer to the residual of a tile.
func (r *Runner) attend(l *lane, t tile, layer int) {
	c, w := &r.model.config, &r.model.layers[layer]
	wide := c.Heads * c.HeadDim
	att, x := r.att[t.row*wide:(t.row+t.n)*wide], r.x[t.row*c.Dim:(t.row+t.n)*c.Dim]
	clear(att)
	for i := t.lo; i < t.hi; i++ {
		if n := &r.runs[i]; r.alive(n) && n.err == nil {
			n.err = r.read(l, n, layer)
		}
	}
	w.o.mul(l.out, att, t.n)
	add(x, l.out[:len(x)])
	if w.mlp == 0 {
		return
	}
	for i := range t.n {
		rmsNorm(l.xn[i*c.Dim:(i+1)*c.Dim], x[i*c.Dim:(i+1)*c.Dim], w.mlpNorm, c.Eps)
	}
	w.gate.mul(l.gate, l.xn, t.n)
	w.up.mul(l.up, l.xn, t.n)
	swiGLU(l.gate[:t.n*w.mlp], l.up)
	w.down.mul(l.out, l.gate, t.n)
	add(x, l.out[:len(x)])
}

// read attends the rows of a run to every page before and with them. It is the
// one place that reads K and V.
func (r *Runner) read(l *lane, n *run, layer int) error {
	seq, heads := r.items[n.item].Seq, r.model.layers[layer].heads
	for i := range l.soft[:n.n*len(heads)] {
		l.soft[i] = newSoftmax()
	}
	c := &r.model.config
	size, limit, row := seq.Layout().PageTokens, n.pos+n.n, c.KVHeads*c.HeadDim
	for i := 0; i*size < limit; i++ {
		k, v, err := seq.Rows(layer, i, limit)
		if err != nil {
			return fmt.Errorf("llm: read layer %d: %w", layer, err)
		}
		if want := min(size, limit-i*size) * row; len(k) != want || len(v) != want {
			return fmt.Errorf("llm: read layer %d: %w", layer, errShort)
		}
		r.page(l, n, heads, k, v, i*size)
	}
	for j := range n.n {
		for i, h := range heads {
			at := ((n.row+j)*c.Heads + h.index) * c.HeadDim
			l.soft[j*len(heads)+i].finish(r.att[at+h.vlo : at+h.vhi])
		}
	}
	return nil
}

// page folds the rows of one page, the first of which is at position first,
// into every query of the run. A query gets slices that end at its own row.
func (r *Runner) page(l *lane, n *run, heads []head, k, v []float32, first int) {
	c := &r.model.config
	row := c.KVHeads * c.HeadDim
	for j := range n.n {
		have := min(len(k)/row, n.pos+j+1-first)
		if have < 1 {
			continue
		}
		kj, vj, scores := k[:have*row], v[:have*row], l.scores[:have]
		for i, h := range heads {
			at, g := ((n.row+j)*c.Heads+h.index)*c.HeadDim, h.group*c.HeadDim
			dots(scores, r.q[at+h.qlo:at+h.qhi], kj[g+h.qlo:], row)
			for t := range scores {
				scores[t] *= r.scale
			}
			l.soft[j*len(heads)+i].fold(scores, r.att[at+h.vlo:at+h.vhi], vj[g+h.vlo:], row)
		}
	}
}

// finish computes the logits of the items whose last token is in the tile.
func (r *Runner) finish(l *lane, t tile, _ int) {
	c := &r.model.config
	for i := t.lo; i < t.hi; i++ {
		n := &r.runs[i]
		it := &r.items[n.item]
		if it.Err != nil || it.Logits == nil || n.off+n.n < len(it.Tokens) {
			continue
		}
		row := n.row + n.n - 1
		rmsNorm(l.xn[:c.Dim], r.x[row*c.Dim:(row+1)*c.Dim], r.model.norm, c.Eps)
		r.model.head.mul(it.Logits, l.xn[:c.Dim], 1)
	}
}

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// Sizes of the transfers: pages of 1 MiB, 64 in a reservation.
const (
	movePages   = 64
	moveStreams = 2 // at most
)

// transferLimit is how long the comparison may take.
const transferLimit = 40 * time.Second

func moveLayout() kv.Layout { return kv.Layout{Layers: 8, Heads: 4, Dim: 64, PageTokens: pageTokens} }

// way is one way to bring pages from one memory to another over loopback TCP.
type way struct {
	id, what string
	streams  int
	bare     bool // write and read, nothing around them
	protect  wire.Protection
	alg      digest.Algorithm // none: the wire alone
	alone    bool             // one hand-off after the other, none beside it
	budget   *budget          // on the wall, two streams
}

// ways begin with the references, one for each number of streams.
func ways() []way {
	held := func(limit, stretch float64) *budget { return &budget{atLeast, limit, stretch} }
	w := []way{{id: "bare", what: "bare Go copy", bare: true}}
	w = append(w,
		way{id: "plain", what: "wire, plain, no digest", protect: wire.PlainData},
		way{id: "xxh3", what: "wire, plain, xxh3 at both ends", protect: wire.PlainData, alg: digest.XXH3, budget: held(0.85, 0.95)},
		way{id: "xxh3_alone", what: "the same, one hand-off at a time", protect: wire.PlainData, alg: digest.XXH3, alone: true},
		way{id: "gmac", what: "wire, plain, gmac at both ends", protect: wire.PlainData, alg: digest.GMAC, budget: held(0.6, 0.6)},
		way{id: "tls", what: "wire, TLS, xxh3 at both ends", protect: wire.TLSAll, alg: digest.XXH3, budget: held(0.36, 0.40)},
	)
	var all []way
	for _, x := range w {
		for n := 1; n <= moveStreams; n++ {
			if x.streams = n; n < moveStreams {
				y := x
				y.budget = nil // the budget speaks of two streams
				all = append(all, y)
				continue
			}
			all = append(all, x)
		}
	}
	return all
}

// carrier moves pages one way.
type carrier interface {
	// carry moves n pages, a multiple of movePages.
	carry(n int) error
	close()
}

// transfer compares the ways, round by round, each against the bare copy with
// as many streams in the same round.
func transfer(ctx context.Context, s settings) ([]figure, error) {
	memory, err := newStore()
	if err != nil {
		return nil, err
	}
	all := ways()
	carriers := make([]carrier, len(all))
	defer func() {
		for _, c := range carriers {
			if c != nil {
				c.close()
			}
		}
	}()
	for i, w := range all {
		if carriers[i], err = memory.carrier(w); err != nil {
			return nil, err
		}
		if err := carriers[i].carry(2 * movePages); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", w.what, err)
		}
	}
	took := make([][]lap, len(all))
	pages := min(512, s.count(512)/movePages*movePages+movePages)
	err = repeat(ctx, s.count(11), transferLimit, func(round int) error {
		for k := range all {
			i := (k*5 + round) % len(all) // neighbours differ from round to round
			wall, cpu := time.Now(), processCPU()
			if err := carriers[i].carry(pages); err != nil {
				return fmt.Errorf("bench: %s: %w", all[i].what, err)
			}
			took[i] = append(took[i], lap{time.Since(wall), processCPU() - cpu})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return transferFigures(all, took, float64(pages)*float64(moveLayout().Bytes(pageTokens))), nil
}

func transferFigures(all []way, took [][]lap, size float64) []figure {
	var figures []figure
	for i, w := range all {
		id, what := fmt.Sprintf("transfer.%s_%d", w.id, w.streams), fmt.Sprintf("%s, streams: %d", w.what, w.streams)
		var rate, wall, cpu, spent []float64
		for r, t := range took[i] {
			bare := took[w.streams-1][r]
			rate = append(rate, size/1e9/t.wall.Seconds())
			spent = append(spent, t.cpu.Seconds()*1e3/(size/1e9))
			wall = append(wall, bare.wall.Seconds()/t.wall.Seconds())
			cpu = append(cpu, t.cpu.Seconds()/bare.cpu.Seconds())
		}
		if w.bare {
			figures = append(figures, newFigure(id+"_rate", what, gigabytes, bootstrap(rate)),
				newFigure(id+"_cpu_ms", what+", cpu for each GB, both ends", milliseconds, bootstrap(spent)))
			continue
		}
		i := bootstrap(wall)
		f := newFigure(id+"_wall", what+", rate", ratio, i).against("bare copy")
		if w.budget != nil {
			f = f.held(*w.budget, i, nil)
		}
		figures = append(figures, f, newFigure(id+"_cpu", what+", cpu", ratio, bootstrap(cpu)).against("bare copy"))
	}
	return figures
}

// store is the memory that all ways share.
type store struct {
	source, target *kv.Pool
	prompts        [2]*kv.Sequence // of movePages each
	from, to       []byte
}

func newStore() (*store, error) {
	l := moveLayout()
	m := &store{from: make([]byte, 2*movePages*l.Bytes(pageTokens)), to: make([]byte, 2*movePages*l.Bytes(pageTokens))}
	_, _ = rand.Read(m.from) // never fails
	var err error
	if m.source, err = newPool(l, 2*movePages, 1); err != nil {
		return nil, err
	}
	if m.target, err = newPool(l, 2*movePages, 2); err != nil {
		return nil, err
	}
	for i := range m.prompts {
		if m.prompts[i], err = filled(m.source, movePages*pageTokens, float32(i)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// filled is a sequence whose rows all hold something.
func filled(p *kv.Pool, tokens int, salt float32) (*kv.Sequence, error) {
	s, err := p.Local(kv.Domain{1}, tokens, nil)
	if err != nil {
		return nil, err
	}
	if err := s.Extend(tokens); err != nil {
		return nil, err
	}
	for layer := range p.Layout().Layers {
		for pos := range tokens {
			k, v, err := s.Write(layer, pos)
			if err != nil {
				return nil, err
			}
			for i := range k {
				k[i], v[i] = salt+float32(pos*7+i), salt-float32(layer*3+i)
			}
		}
	}
	return s, s.Commit()
}

func (m *store) carrier(w way) (carrier, error) {
	if w.bare {
		return newBareCopy(m, w.streams)
	}
	j, err := newJoint(w.streams, w.protect, moveLayout(), m.target.Landing(), 2*movePages)
	if err != nil {
		return nil, err
	}
	return &handOffs{way: w, store: m, joint: j}, nil
}

// bareCopy writes and reads with nothing around it.
type bareCopy struct {
	store   *store
	in, out []net.Conn
}

func newBareCopy(m *store, streams int) (*bareCopy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	b := &bareCopy{store: m}
	for range streams {
		out, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.close()
			return nil, err
		}
		b.out = append(b.out, out)
		in, err := l.Accept()
		if err != nil {
			b.close()
			return nil, err
		}
		b.in = append(b.in, in)
	}
	return b, nil
}

func (b *bareCopy) close() {
	for _, c := range append(b.in, b.out...) {
		_ = c.Close() // nothing is under way
	}
}

func (b *bareCopy) carry(n int) error {
	size, streams := moveLayout().Bytes(pageTokens), len(b.in)
	page := func(mem []byte, i int) []byte {
		at := i % (2 * movePages) * size
		return mem[at : at+size]
	}
	failed := make(chan error, 2*streams)
	for s := range streams {
		go func() {
			for i := s; i < n; i += streams {
				if _, err := b.out[s].Write(page(b.store.from, i)); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
		go func() {
			for i := s; i < n; i += streams {
				if _, err := io.ReadFull(b.in[s], page(b.store.to, i)); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	var all []error
	for range 2 * streams {
		all = append(all, <-failed)
	}
	return errors.Join(all...)
}

// handOffs hands reservations over as two workers do: prefill digests a page and
// writes it; when all are written decode seals, verifies and frees. Two are
// under way at a time, unless the way says one.
type handOffs struct {
	way   way
	store *store
	joint *joint
}

// handed is one reservation on its way.
type handed struct {
	half    int
	r       *kv.Reservation
	key     [32]byte
	digests []kv.Digest
	failed  error
}

func (c *handOffs) close() { c.joint.close() }

func (c *handOffs) carry(n int) error {
	granted, noticed := make(chan *handed, 2), make(chan *handed, 2)
	var prefill sync.WaitGroup
	prefill.Go(func() { c.send(granted, noticed) })
	free := []int{0, 1} // prompts that are not on their way; they may come back in any order
	if c.way.alone {
		free = free[:1]
	}
	depth, left := len(free), n/movePages
	var failed error
	for failed == nil && (left > 0 || len(free) < depth) {
		for ; left > 0 && len(free) > 0; left-- {
			r, err := c.store.target.Reserve(kv.Domain{1}, movePages*pageTokens, 0, nil)
			if err != nil {
				failed = err
				break
			}
			granted <- &handed{half: free[0], r: r}
			free = free[1:]
		}
		if failed == nil {
			h := <-noticed
			failed = c.receive(h)
			free = append(free, h.half)
		}
	}
	close(granted)
	prefill.Wait()
	return failed
}

// send is prefill's owner loop.
func (c *handOffs) send(granted <-chan *handed, noticed chan<- *handed) {
	var waiting []*handed
	open := [2]int{} // page writes, by half
	in := granted
	stuck := time.NewTimer(linkTime)
	defer stuck.Stop()
	for in != nil || len(waiting) > 0 {
		var err error
		select {
		case h, ok := <-in:
			if !ok {
				in = nil
				continue
			}
			if h.failed = c.post(h); h.failed != nil {
				noticed <- h
				continue
			}
			open[h.half] = movePages
			waiting = append(waiting, h)
		case x := <-c.joint.written:
			stuck.Reset(linkTime)
			open[x.id]--
			i := slices.IndexFunc(waiting, func(h *handed) bool { return h.half == int(x.id) })
			h := waiting[i]
			h.failed = errors.Join(h.failed, x.err)
			if open[x.id] == 0 {
				waiting = slices.Delete(waiting, i, i+1)
				noticed <- h
			}
		case err = <-c.joint.end.closed:
			c.joint.end.closed <- err // for close
		case <-stuck.C:
			err = errStuck
		}
		if err == nil {
			continue
		}
		for _, h := range waiting {
			h.failed = err
			noticed <- h
		}
		waiting = nil
	}
}

// post digests the pages of a reservation and writes them.
func (c *handOffs) post(h *handed) error {
	var d kv.Digester
	if c.way.alg != 0 {
		_, _ = rand.Read(h.key[:]) // never fails
		var err error
		if d, err = digest.New(c.way.alg, h.key); err != nil {
			return err
		}
	}
	seq := c.store.prompts[h.half]
	for i := range movePages {
		if d != nil {
			h.digests = append(h.digests, seq.Digest(d, i))
		}
		segments, rows := seq.Segments(i)
		if err := c.joint.Write(wire.PageWrite{ID: uint64(h.half), Key: h.r.Key(), Page: i, Rows: rows, Segments: segments}); err != nil {
			return err
		}
	}
	return nil
}

// receive is what decode does with a notice.
func (c *handOffs) receive(h *handed) error {
	if h.failed != nil {
		return h.failed
	}
	s, err := c.store.target.Seal(h.r)
	if err != nil {
		return err
	}
	if c.way.alg != 0 {
		d, err := digest.New(c.way.alg, h.key)
		if err != nil {
			return err
		}
		if _, err := c.store.target.Verify(s, d, h.digests); err != nil {
			return err
		}
	}
	return c.store.target.Free(h.r)
}

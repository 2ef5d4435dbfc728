package kv

import (
	"bytes"
	"math"
	"sync"
	"testing"
)

func local(t testing.TB, p *Pool, d Domain, tokens int) *Sequence {
	t.Helper()
	s, err := p.Local(d, tokens, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A kernel cannot read past the limit: the slices end there, their capacity too.
func TestRowsEndAtTheLimit(t *testing.T) {
	p := newPool(t, 4)
	s := receive(t, p, tenant('a'), "limits", 37, 11, nil)
	l := s.Layout()
	if s.Tokens() != 37 || s.Cap() != 48 || s.Domain() != tenant('a') {
		t.Fatalf("%d tokens of %d", s.Tokens(), s.Cap())
	}
	for layer := range l.Layers {
		for i := range 3 {
			for _, limit := range []int{math.MinInt, -1, 0, 1, 15, 16, 17, 32, 36, 37, 38, 48, 1000, math.MaxInt} {
				k, v, err := s.Rows(layer, i, limit)
				if err != nil {
					t.Fatal(err)
				}
				want := max(0, min(16, min(limit, 37)-i*16)) * l.Row()
				if limit < 0 {
					want = 0
				}
				if len(k) != want || cap(k) != want || len(v) != want || cap(v) != want {
					t.Fatalf("page %d, limit %d: K %d/%d, V %d/%d, want %d values", i, limit, len(k), cap(k), len(v), cap(v), want)
				}
			}
		}
	}
	if err := s.Extend(1); err != nil {
		t.Fatal(err)
	}
	k, v, err := s.Write(0, 37)
	if err != nil || len(k) != 2 || cap(k) != 2 || len(v) != 2 || cap(v) != 2 {
		t.Fatalf("%v: K %d/%d, V %d/%d", err, len(k), cap(k), len(v), cap(v))
	}
}

func TestRowsOutOfRangePanic(t *testing.T) {
	p := newPool(t, 2)
	s := receive(t, p, tenant('a'), "panics", 16, 0, nil)
	for _, c := range [][2]int{{0, -1}, {0, 1}, {-1, 0}, {2, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("layer %d, page %d: read", c[0], c[1])
				}
			}()
			_, _, _ = s.Rows(c[0], c[1], 16)
		}()
	}
}

func TestWriteRange(t *testing.T) {
	p := newPool(t, 8)
	s := receive(t, p, tenant('a'), "writes", 20, 30, nil)
	before := memory(p)
	bad := func(layer, pos int) {
		t.Helper()
		k, v, err := s.Write(layer, pos)
		if k != nil || v != nil {
			t.Fatalf("layer %d, row %d: got a row", layer, pos)
		}
		wants(t, err, ErrLife, "write")
	}
	bad(0, 20) // nothing announced
	if err := s.Extend(3); err != nil {
		t.Fatal(err)
	}
	for _, pos := range []int{math.MinInt, -1, 0, 15, 16, 19, 23, 48, math.MaxInt} {
		bad(0, pos)
	}
	bad(-1, 20)
	bad(2, 20)
	if !bytes.Equal(before, memory(p)) {
		t.Fatal("memory changed")
	}
	for layer := range 2 {
		for pos := 20; pos < 23; pos++ {
			if _, _, err := s.Write(layer, pos); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Commit(); err != nil || s.Tokens() != 23 {
		t.Fatalf("%v, %d tokens", err, s.Tokens())
	}
	bad(0, 22) // committed rows stay
}

func TestExtendBounds(t *testing.T) {
	p := newPool(t, 4)
	s := local(t, p, tenant('a'), 40)
	for _, n := range []int{0, -1, 49, math.MaxInt, math.MinInt} {
		if s.Extend(n) == nil {
			t.Errorf("extend by %d of 48", n)
		}
	}
	write(t, s, "a", 47)
	for _, n := range []int{2, math.MaxInt, math.MaxInt - 46} {
		if s.Extend(n) == nil {
			t.Errorf("extend by %d with one left", n)
		}
	}
	write(t, s, "a", 1)
	if s.Extend(1) == nil {
		t.Error("extend of a full sequence")
	}
	holds(t, s, "a")
	release(t, p, s)
	s = local(t, p, tenant('a'), 40)
	write(t, s, "a", 1)
	release(t, p, s)
	if s.Extend(1) == nil {
		t.Error("extend after release")
	}
	wants(t, s.Commit(), ErrLife, "commit after release")
	whole(t, p)
}

// writeAllBut asks for every row ahead but one, counted through the layers, and
// says which one that was.
func writeAllBut(t *testing.T, s *Sequence, skip int) (layer, pos int) {
	t.Helper()
	at := 0
	for j := range s.Layout().Layers {
		for i := s.tokens; i < s.tokens+s.ahead; i++ {
			if at++; at-1 == skip {
				layer, pos = j, i
				continue
			}
			if _, _, err := s.Write(j, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	return layer, pos
}

// Rows that were announced and not written hold what the page's last owner
// left: they are not readable and cannot be committed (H-4).
func TestUnwrittenRowsAreOutOfReach(t *testing.T) {
	for _, l := range []Layout{small(), {Layers: 3, Heads: 2, Dim: 2, PageTokens: 64}} {
		p := newPoolOf(t, l, 3, "x")
		n := 3 * l.PageTokens
		old := local(t, p, tenant('a'), n)
		write(t, old, "secret of a", n)
		release(t, p, old)
		s := local(t, p, tenant('b'), n)
		half := l.PageTokens/2 + 1
		write(t, s, "b", half)
		if err := s.Extend(n - half); err != nil {
			t.Fatal(err)
		}
		for skip := 0; skip < l.Layers*(n-half); skip += 7 {
			if err := s.Extend(n - half); err != nil { // forgets what was written
				t.Fatal(err)
			}
			layer, pos := writeAllBut(t, s, skip)
			wants(t, s.Commit(), ErrLife, "commit with a row missing")
			if s.Tokens() != half {
				t.Fatalf("%d tokens committed", s.Tokens())
			}
			page := pos / l.PageTokens
			_, _, err := s.Rows(layer, page, pos+1)
			wants(t, err, ErrLife, "the missing row")
			_, _, err = s.Rows(layer, page, math.MaxInt)
			wants(t, err, ErrLife, "rows behind the missing one")
			if k, _, err := s.Rows(layer, page, pos); err != nil || len(k) != (pos-page*l.PageTokens)*l.Row() {
				t.Fatalf("rows before the missing one: %d values, %v", len(k), err)
			}
			if k, _, err := s.Rows((layer+1)%l.Layers, page, pos+1); err != nil || len(k) == 0 {
				t.Fatalf("the row in another layer: %d values, %v", len(k), err)
			}
		}
		if err := s.Extend(n - half); err != nil {
			t.Fatal(err)
		}
		writeAllBut(t, s, -1)
		if err := s.Commit(); err != nil || s.Tokens() != n {
			t.Fatalf("positive control: %v, %d tokens", err, s.Tokens())
		}
		release(t, p, s)
		whole(t, p)
	}
}

// An Extend without Commit is forgotten: rows of a step that was given up are
// not read in the next.
func TestExtendTwice(t *testing.T) {
	p := newPool(t, 4)
	s := local(t, p, tenant('a'), 64)
	write(t, s, "a", 10)
	if err := s.Extend(20); err != nil {
		t.Fatal(err)
	}
	for pos := 10; pos < 30; pos++ {
		for layer := range 2 {
			if _, _, err := s.Write(layer, pos); err != nil {
				t.Fatal(err)
			}
		}
	}
	if k, _, err := s.Rows(0, 1, 30); err != nil || len(k) != 14*2 {
		t.Fatalf("rows of the step: %d values, %v", len(k), err)
	}
	if err := s.Extend(7); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.Rows(0, 0, 11)
	wants(t, err, ErrLife, "a row of the step before")
	wants(t, s.Commit(), ErrLife, "commit of rows of the step before")
	if k, _, err := s.Rows(0, 1, 30); len(k) != 0 {
		t.Fatalf("beyond the announced rows: %d values, %v", len(k), err)
	}
	_, _, err = s.Write(0, 17)
	wants(t, err, ErrLife, "a row of the step before, announced no more")
	write(t, s, "a", 3)
	if s.Tokens() != 13 {
		t.Fatalf("%d tokens", s.Tokens())
	}
	if err := s.Commit(); err != nil || s.Tokens() != 13 {
		t.Fatalf("commit of nothing: %v, %d tokens", err, s.Tokens())
	}
	holds(t, s, "a")
	if err := s.Extend(5); err != nil {
		t.Fatal(err)
	}
	release(t, p, s) // with rows ahead
	whole(t, p)
}

// After its release a sequence reads and writes nothing, whoever has the pages.
func TestStaleSequence(t *testing.T) {
	p := newPool(t, 3)
	chain := chainOf("mine", 1)
	s := receive(t, p, tenant('a'), "mine", 37, 11, nil)
	if p.Publish(s, chain) != 1 {
		t.Fatal("not published")
	}
	if err := s.Extend(2); err != nil {
		t.Fatal(err)
	}
	stale := func(when string) {
		t.Helper()
		for i := range 3 {
			for _, limit := range []int{0, 1, 37, 39} {
				k, v, err := s.Rows(0, i, limit)
				wants(t, err, ErrTag, when)
				if k != nil || v != nil {
					t.Fatalf("%s: rows of page %d", when, i)
				}
			}
			if segs, rows := s.Segments(i); segs != nil || rows != 0 {
				t.Fatalf("%s: %d rows to send of page %d", when, rows, i)
			}
		}
		k, v, err := s.Write(0, 37)
		wants(t, err, ErrTag, when)
		if k != nil || v != nil {
			t.Fatalf("%s: a row to write", when)
		}
		if n := p.Publish(s, chainOf("mine", 2)); n != 0 {
			t.Fatalf("%s: published %d pages", when, n)
		}
	}
	if _, _, err := s.Rows(0, 0, 37); err != nil {
		t.Fatalf("positive control: %v", err)
	}
	release(t, p, s)
	stale("pages free")
	if p.Counts().Cached != 1 {
		t.Fatal("the page is not cached")
	}
	r := reserve(t, p, tenant('b'), 48, 0, nil)
	stale("pages reserved by another")
	seal(t, p, r)
	free(t, p, r)
	other := receive(t, p, tenant('b'), "theirs", 37, 11, nil)
	stale("pages read by another")
	holds(t, other, "theirs")
	if err := other.Extend(2); err != nil {
		t.Fatal(err)
	}
	stale("rows ahead of another")
	release(t, p, other)
	whole(t, p)
}

// The tag is checked at each read, not only when the sequence was opened: a
// page that went to another owner by a fault of this worker is not read.
func TestRowsCheckTheTag(t *testing.T) {
	p := newPool(t, 2)
	s := receive(t, p, tenant('a'), "tags", 20, 12, nil)
	if err := s.Extend(1); err != nil {
		t.Fatal(err)
	}
	good := p.tags[s.pages[1]]
	for name, bad := range map[string]Tag{
		"free":       {},
		"generation": {Generation{good.Gen.Epoch, good.Gen.Counter + 1}, good.Domain},
		"epoch":      {Generation{good.Gen.Epoch + 1, good.Gen.Counter}, good.Domain},
		"domain":     {good.Gen, tenant('b')},
		"last byte":  {good.Gen, Domain{0: 'a', 15: 1}},
	} {
		p.tags[s.pages[1]] = bad
		_, _, err := s.Rows(1, 1, 20)
		wants(t, err, ErrTag, name)
		_, _, err = s.Write(1, 20)
		wants(t, err, ErrTag, name)
		if _, rows := s.Segments(1); rows != 0 {
			t.Errorf("%s: %d rows to send", name, rows)
		}
		if _, _, err := s.Rows(1, 0, 20); err != nil {
			t.Errorf("%s: the other page: %v", name, err)
		}
		p.tags[s.pages[1]] = good
		if _, _, err := s.Rows(1, 1, 20); err != nil {
			t.Errorf("%s: positive control: %v", name, err)
		}
	}
	p.life[s.pages[1]] = PageVerified // a page that is not Local takes no row
	_, _, err := s.Write(1, 20)
	wants(t, err, ErrTag, "write to a page that is not Local")
}

func TestSegments(t *testing.T) {
	s := source(t, small(), "segments", 37)
	total := 0
	for i, want := range []int{16, 16, 5} {
		segs, rows := s.Segments(i)
		n := 0
		for _, seg := range segs {
			if n += len(seg); cap(seg) != len(seg) {
				t.Errorf("page %d: a segment of %d bytes has room for %d", i, len(seg), cap(seg))
			}
		}
		if rows != want || n != small().Bytes(want) || (rows == 16) != (len(segs) == 1) {
			t.Errorf("page %d: %d rows, %d bytes in %d segments", i, rows, n, len(segs))
		}
		total += n
	}
	if total != small().Bytes(37) {
		t.Errorf("%d bytes in all", total)
	}
	for _, i := range []int{-1, 3, math.MaxInt} {
		if segs, rows := s.Segments(i); segs != nil || rows != 0 {
			t.Errorf("page %d: %d rows", i, rows)
		}
	}
}

// A sequence of this worker needs no proof; it is read while it is written, in
// chunks, and its bytes are those that the hand-off carries.
func TestLocalInChunks(t *testing.T) {
	p := newPool(t, 4)
	want := digests(source(t, small(), "chunks", 50), 0)
	for _, chunk := range []int{1, 3, 16, 17, 50} {
		s := local(t, p, tenant('a'), 50)
		for s.Tokens() < 50 {
			write(t, s, "chunks", min(chunk, 50-s.Tokens()))
			holds(t, s, "chunks")
		}
		for i, d := range digests(s, 0) {
			if d != want[i] {
				t.Errorf("chunks of %d: page %d has another digest", chunk, i)
			}
		}
		release(t, p, s)
	}
	whole(t, p)
}

// Kernels on several goroutines write the rows of a layer, then read them, while
// the owner works on other sequences and a connection reads whole pages.
func TestSequenceElsewhere(t *testing.T) {
	const workers, chunk, chunks = 3, 24, 4
	p := newPool(t, 16)
	s := local(t, p, tenant('a'), chunk*chunks)
	var sent [][]byte
	var connection sync.WaitGroup
	for range chunks {
		if err := s.Extend(chunk); err != nil {
			t.Fatal(err)
		}
		from := s.Tokens()
		var kernel sync.WaitGroup
		for layer := range 2 {
			for w := range workers { // not in the order of rows
				kernel.Go(func() {
					for pos := from + w; pos < from+chunk; pos += workers {
						if err := writeRow(s, "elsewhere", layer, pos); err != nil {
							t.Error(err)
						}
					}
				})
			}
			other := receive(t, p, tenant('b'), "beside", 40, 0, nil)
			release(t, p, other)
			kernel.Wait()
			for w := range workers {
				kernel.Go(func() {
					if k, _, err := s.Rows(layer, (from+w)/16, from+chunk); err != nil || len(k) == 0 {
						t.Error(len(k), err)
					}
				})
			}
			kernel.Wait()
		}
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
		for i := from / 16; i < s.Tokens()/16; i++ {
			segs, _ := s.Segments(i)
			connection.Go(func() {
				for _, seg := range segs {
					if len(seg) != 512 || bytes.Count(seg, []byte{0}) == len(seg) {
						t.Error("a page without content")
					}
				}
			})
			sent = append(sent, segs...)
		}
	}
	connection.Wait()
	if len(sent) != chunk*chunks/16 {
		t.Errorf("%d pages sent", len(sent))
	}
	holds(t, s, "elsewhere")
	release(t, p, s)
	whole(t, p)
}

func TestReadLoopAllocatesNothing(t *testing.T) {
	p := newPool(t, 8)
	s := receive(t, p, tenant('a'), "allocations", 60, 68, nil)
	write(t, s, "allocations", 1)
	n := testing.AllocsPerRun(60, func() { // one step of decode
		if s.Extend(1) != nil {
			t.Fatal("full")
		}
		pos := s.Tokens()
		for layer := range 2 {
			k, v, err := s.Write(layer, pos)
			if err != nil {
				t.Fatal(err)
			}
			k[0], v[0] = 1, 1
			for i := range pos/16 + 1 {
				if _, _, err := s.Rows(layer, i, pos+1); err != nil {
					t.Fatal(err)
				}
			}
		}
		if s.Commit() != nil {
			t.Fatal("not written")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// BenchmarkRows is what the tag check and the bounds cost, for one page and
// layer.
func BenchmarkRows(b *testing.B) {
	l := Layout{Layers: 30, Heads: 3, Dim: 64, PageTokens: 64}
	p := newPoolOf(b, l, 17, "x")
	s := local(b, p, tenant('a'), 17*64)
	write(b, s, "rows", 16*64)
	for name, limit := range map[string]int{"committed": 16 * 64, "ahead": 16*64 + 1} {
		b.Run(name, func(b *testing.B) {
			if err := s.Extend(1); err != nil {
				b.Fatal(err)
			}
			for layer := range l.Layers {
				if _, _, err := s.Write(layer, 16*64); err != nil {
					b.Fatal(err)
				}
			}
			for i := range b.N {
				if _, _, err := s.Rows(i%30, i/30%16, limit); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWrite is one row of one layer.
func BenchmarkWrite(b *testing.B) {
	l := Layout{Layers: 30, Heads: 3, Dim: 64, PageTokens: 64}
	p := newPoolOf(b, l, 16, "x")
	s := local(b, p, tenant('a'), 16*64)
	if err := s.Extend(16 * 64); err != nil {
		b.Fatal(err)
	}
	for i := range b.N {
		if _, _, err := s.Write(i%30, i/30%1024); err != nil {
			b.Fatal(err)
		}
	}
}

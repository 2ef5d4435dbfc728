package kv

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// small is a layout whose page is 512 bytes: 2 layers, rows of 2 values.
func small() Layout { return Layout{Layers: 2, Heads: 1, Dim: 2, PageTokens: 16} }

// keySource gives unguessable-looking keys that differ between names.
func keySource(name string) func() Key {
	n := uint64(0)
	return func() Key {
		n++
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", name, n))
		return Key(sum[:16])
	}
}

func newPool(t testing.TB, pages int) *Pool { return newPoolOf(t, small(), pages, "decode") }

func newPoolOf(t testing.TB, l Layout, pages int, name string) *Pool {
	t.Helper()
	p, err := New(Config{Layout: l, Pages: pages, Epoch: 7, Keys: keySource(name)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tenant returns a domain of its own for each letter.
func tenant(c byte) Domain { return Domain{c} }

// value is what the text named text has in one place of the cache.
func value(text string, layer, pos, half, j int) float32 {
	h := uint32(2166136261)
	for _, b := range []byte(text) {
		h = (h ^ uint32(b)) * 16777619
	}
	for _, x := range []int{layer, pos, half, j} {
		h = (h ^ uint32(x)) * 16777619
		h ^= h >> 15
	}
	return float32(h%(1<<20)) + 0.5 // exact, never 0, never NaN
}

// write computes rows of text: the committed length grows by n.
func write(t testing.TB, s *Sequence, text string, n int) {
	t.Helper()
	if err := s.Extend(n); err != nil {
		t.Fatal(err)
	}
	from := s.Tokens()
	for layer := range s.Layout().Layers {
		for pos := from; pos < from+n; pos++ {
			if err := writeRow(s, text, layer, pos); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
}

// writeRow computes one row of one layer.
func writeRow(s *Sequence, text string, layer, pos int) error {
	k, v, err := s.Write(layer, pos)
	for j := range k {
		k[j], v[j] = value(text, layer, pos, 0, j), value(text, layer, pos, 1, j)
	}
	return err
}

// differs returns the first place at which a sequence does not hold text, or
// "" if there is none.
func differs(s *Sequence, text string) string {
	l := s.Layout()
	for layer := range l.Layers {
		rows := 0
		for i := range l.Pages(s.Tokens()) {
			k, v, err := s.Rows(layer, i, s.Tokens())
			if err != nil {
				return err.Error()
			}
			for at := range k {
				pos, j := i*l.PageTokens+at/l.Row(), at%l.Row()
				if k[at] != value(text, layer, pos, 0, j) || v[at] != value(text, layer, pos, 1, j) {
					return fmt.Sprintf("layer %d, row %d", layer, pos)
				}
			}
			rows += len(k) / l.Row()
		}
		if rows != s.Tokens() {
			return fmt.Sprintf("layer %d: %d rows of %d", layer, rows, s.Tokens())
		}
	}
	return ""
}

func holds(t testing.TB, s *Sequence, text string) {
	t.Helper()
	if d := differs(s, text); d != "" {
		t.Fatalf("the sequence does not hold %q: %s", text, d)
	}
}

// hashing is a Digester for these tests: SHA-256 over index and bytes.
type hashing struct{ bytes int }

func (h *hashing) Page(index int, segments [][]byte) Digest {
	sum := sha256.New()
	sum.Write(binary.BigEndian.AppendUint64(nil, uint64(index)))
	for _, s := range segments {
		sum.Write(s)
		h.bytes += len(s)
	}
	return Digest(sum.Sum(nil)[:16])
}

// source is prefill's side of a hand-off: the text in a pool of its own.
func source(t testing.TB, l Layout, text string, tokens int) *Sequence {
	t.Helper()
	p := newPoolOf(t, l, l.Pages(tokens), "prefill")
	s, err := p.Local(tenant('p'), tokens, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, text, tokens)
	return s
}

// digests returns the digests of the pages of s from page first on.
func digests(s *Sequence, first int) []Digest {
	var d []Digest
	for i := first; i < s.Layout().Pages(s.Tokens()); i++ {
		d = append(d, s.Digest(&hashing{}, i))
	}
	return d
}

// frame returns the bytes of page i of s as they go on the wire.
func frame(s *Sequence, i int) (b []byte, rows int) {
	segs, rows := s.Segments(i)
	for _, seg := range segs {
		b = append(b, seg...)
	}
	return b, rows
}

// send lands page i of s as page i-first of the reservation that key opens.
func send(l *Landing, key Key, s *Sequence, first, i int) error {
	b, rows := frame(s, i)
	n, err := l.Land(key, i-first, rows, &stored{rest: b})
	if err == nil && n != len(b) {
		return fmt.Errorf("placed %d bytes of %d", n, len(b))
	}
	return err
}

// stored is a Source that never blocks. It counts what was taken from it.
type stored struct {
	rest        []byte
	taken       int
	interrupted bool
}

func (s *stored) Read(b []byte) (int, error) {
	if s.interrupted {
		s.interrupted = false
		return 0, ErrInterrupted
	}
	n := copy(b, s.rest)
	s.rest, s.taken = s.rest[n:], s.taken+n
	if n == 0 {
		return 0, errors.New("frame cut short")
	}
	return n, nil
}

func (s *stored) Interrupt() { s.interrupted = true }

func reserve(t testing.TB, p *Pool, d Domain, tokens, output int, x *Prefix) *Reservation {
	t.Helper()
	r, err := p.Reserve(d, tokens, output, x)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func seal(t testing.TB, p *Pool, r *Reservation) Sealed {
	t.Helper()
	s, err := p.Seal(r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// receive takes text through the whole hand-off into p.
func receive(t testing.TB, p *Pool, d Domain, text string, tokens, output int, x *Prefix) *Sequence {
	t.Helper()
	src := source(t, p.Layout(), text, tokens)
	first := x.Pages()
	r := reserve(t, p, d, tokens, output, x)
	for i := first; i < p.Layout().Pages(tokens); i++ {
		if err := send(p.Landing(), r.Key(), src, first, i); err != nil {
			t.Fatal(err)
		}
	}
	v, err := p.Verify(seal(t, p, r), &hashing{}, digests(src, first))
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Open(v)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, s, text)
	return s
}

func free(t testing.TB, p *Pool, r *Reservation) {
	t.Helper()
	if err := p.Free(r); err != nil {
		t.Fatal(err)
	}
}

func release(t testing.TB, p *Pool, s *Sequence) {
	t.Helper()
	if err := p.Release(s); err != nil {
		t.Fatal(err)
	}
}

func whole(t testing.TB, p *Pool) {
	t.Helper()
	p.Flush()
	if !p.Whole() {
		t.Fatalf("at rest not every page is free: %+v, %d keys open", p.Counts(), p.Landing().Open())
	}
}

func wants(t testing.TB, err, want error, what string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: %v, want %v", what, err, want)
	}
}

func TestLayoutCheck(t *testing.T) {
	ok := []Layout{small(), {1, 1, 1, 16}, {126, 8, 128, 64}, {1024, 8, 256, 64}}
	for _, l := range ok {
		if err := l.Check(); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	bad := []Layout{
		{}, {2, 1, 2, 0}, {2, 1, 2, 32}, {2, 1, 2, -16}, {0, 1, 2, 16}, {2, 0, 2, 16}, {2, 1, 0, 16}, {-1, 1, 2, 16},
		{1025, 1, 2, 16}, {2, 4097, 2, 16}, {2, 1, 4097, 16}, {math.MaxInt, 1, 2, 16},
		{1024, 4096, 4096, 64}, // 8 TiB a page
	}
	for _, l := range bad {
		if l.Check() == nil {
			t.Errorf("%+v passes", l)
		}
	}
}

func TestLayoutSizes(t *testing.T) {
	l := small()
	if l.Row() != 2 || l.Floats() != 128 || l.Bytes(16) != 512 || l.Bytes(1) != 32 {
		t.Errorf("row %d, page %d values, %d bytes; one row %d bytes", l.Row(), l.Floats(), l.Bytes(16), l.Bytes(1))
	}
	for tokens, pages := range map[int]int{0: 0, 1: 1, 15: 1, 16: 1, 17: 2, 32: 2, 33: 3, maxTokens: maxTokens / 16} {
		if l.Pages(tokens) != pages {
			t.Errorf("%d tokens take %d pages, want %d", tokens, l.Pages(tokens), pages)
		}
	}
	for i, rows := range []int{16, 16, 5, 0, 0} {
		if l.rows(37, i) != rows {
			t.Errorf("of 37 tokens %d fall into page %d, want %d", l.rows(37, i), i, rows)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := Config{Layout: small(), Pages: 4, Epoch: 1, Keys: keySource("x")}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"layout":           func(c *Config) { c.Layout.PageTokens = 17 },
		"no pages":         func(c *Config) { c.Pages = 0 },
		"negative pages":   func(c *Config) { c.Pages = -1 },
		"too many pages":   func(c *Config) { c.Pages = maxPages + 1 },
		"over 4 TiB":       func(c *Config) { c.Layout, c.Pages = Layout{1024, 8, 256, 64}, maxPages },
		"size wraps":       func(c *Config) { c.Layout, c.Pages = Layout{1024, 4096, 4096, 64}, maxPages },
		"no epoch":         func(c *Config) { c.Epoch = 0 },
		"no keys":          func(c *Config) { c.Keys = nil },
		"quarantine below": func(c *Config) { c.Quarantine = -1 },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil || !strings.HasPrefix(err.Error(), "kv: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGenerationsNeverRepeat(t *testing.T) {
	seen := map[Generation]bool{}
	for _, epoch := range []uint64{1, 2} { // two lives of the process
		p, err := New(Config{Layout: small(), Pages: 2, Epoch: epoch, Keys: keySource("x")})
		if err != nil {
			t.Fatal(err)
		}
		mint := func(g Generation) {
			t.Helper()
			if g == (Generation{}) || seen[g] || g.Epoch != epoch {
				t.Fatalf("generation %+v came twice, or is none, or of another epoch", g)
			}
			seen[g] = true
		}
		for range 50 {
			r := reserve(t, p, tenant('a'), 20, 0, nil)
			mint(r.Generation())
			seal(t, p, r)
			free(t, p, r)
			s, err := p.Local(tenant('a'), 20, nil)
			if err != nil {
				t.Fatal(err)
			}
			mint(s.want[0].Gen)
			release(t, p, s)
		}
		whole(t, p)
	}
}

// A page that was freed last is reused first, and in the same place: the
// shortest gap between two owners is the one that tests must live with.
func TestReuseIsLastInFirstOut(t *testing.T) {
	p := newPool(t, 8)
	order := func(tokens, output int) []int32 {
		r := reserve(t, p, tenant('a'), tokens, output, nil)
		got := append(append([]int32{}, r.pages...), r.output...)
		seal(t, p, r)
		free(t, p, r)
		return got
	}
	same := func(a, b []int32) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
	first := order(60, 30)
	if second := order(60, 30); len(first) != 6 || !same(first, second) {
		t.Errorf("reservation: pages %v, then %v", first, second)
	}
	if third := order(33, 0); !same(first[:3], third) {
		t.Errorf("smaller reservation: pages %v after %v", third, first)
	}
	s, err := p.Local(tenant('b'), 90, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !same(first, s.pages) {
		t.Errorf("local sequence: pages %v after %v", s.pages, first)
	}
	release(t, p, s)
	if last := order(60, 30); !same(first, last) {
		t.Errorf("after a release: pages %v, then %v", first, last)
	}
	whole(t, p)
}

func TestReserveBounds(t *testing.T) {
	p := newPool(t, 8)
	for _, c := range [][2]int{
		{0, 0}, {-1, 0}, {1, -1}, {maxTokens + 1, 0}, {1, maxTokens}, {maxTokens, 1}, {math.MaxInt, 0}, {1, math.MaxInt},
		{math.MaxInt, math.MaxInt}, {math.MinInt, 0}, {1, math.MinInt},
	} {
		r, err := p.Reserve(tenant('a'), c[0], c[1], nil)
		if r != nil || err == nil || errors.Is(err, ErrFull) || errors.Is(err, ErrNever) {
			t.Errorf("%d+%d tokens: %v", c[0], c[1], err)
		}
	}
	for _, n := range []int{0, -1, maxTokens + 1, math.MaxInt, math.MinInt} {
		if s, err := p.Local(tenant('a'), n, nil); s != nil || err == nil || errors.Is(err, ErrFull) {
			t.Errorf("local %d tokens: %v", n, err)
		}
	}
	_, err := p.Reserve(tenant('a'), maxTokens, 0, nil)
	wants(t, err, ErrNever, "a prompt larger than the pool")
	_, err = p.Reserve(tenant('a'), 8*16, 1, nil)
	wants(t, err, ErrNever, "prompt and output larger than the pool")
	_, err = p.Local(tenant('a'), 8*16+1, nil)
	wants(t, err, ErrNever, "a sequence larger than the pool")
	whole(t, p)
	s := receive(t, p, tenant('a'), "fits exactly", 7*16+1, 15, nil)
	release(t, p, s)
	whole(t, p)
}

// ErrFull leaves the pool and the prefix as they were.
func TestReserveFull(t *testing.T) {
	p := newPool(t, 8)
	text, chain := "shared prompt", chainOf("shared prompt", 2)
	s := receive(t, p, tenant('a'), text, 40, 0, nil)
	if n := p.Publish(s, chain); n != 2 {
		t.Fatalf("published %d pages", n)
	}
	release(t, p, s)
	idle := receive(t, p, tenant('b'), "idle", 16, 0, nil)
	p.Publish(idle, chainOf("idle", 1))
	release(t, p, idle)
	held, err := p.Local(tenant('c'), 3*16, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := p.Pin(tenant('a'), chain)
	before, freeBefore := p.Counts(), fmt.Sprint(p.free)
	if before != (Counts{Total: 8, Free: 2, Held: 3, Cached: 3, Idle: 1}) {
		t.Fatalf("set up wrongly: %+v", before)
	}
	// Two free and one idle page: four do not fit, and the idle one must not go for
	// nothing.
	_, err = p.Reserve(tenant('a'), 6*16, 0, x)
	wants(t, err, ErrFull, "reserve")
	_, err = p.Local(tenant('a'), 6*16, x)
	wants(t, err, ErrFull, "local")
	// With its prefix it is larger than the pool: waiting would not help.
	_, err = p.Reserve(tenant('a'), 7*16, 17, x)
	wants(t, err, ErrNever, "reserve with prefix")
	_, err = p.Local(tenant('a'), 8*16+1, x)
	wants(t, err, ErrNever, "local with prefix")
	if p.Counts() != before || fmt.Sprint(p.free) != freeBefore || p.Landing().Open() != 0 {
		t.Fatalf("refusals changed the pool: %+v, was %+v", p.Counts(), before)
	}
	// The pins are still ours: they serve the next try.
	r, err := p.Reserve(tenant('a'), 5*16, 0, x)
	if err != nil {
		t.Fatal(err)
	}
	if c := p.Counts(); c.Free != 0 || c.Cached != 2 || c.Idle != 0 {
		t.Fatalf("the idle page was not evicted: %+v", c)
	}
	seal(t, p, r)
	free(t, p, r)
	release(t, p, held)
	whole(t, p)
}

// A key source that repeats itself must not make one key open two
// reservations: revoking the first would then leave it open.
func TestReserveNeedsFreshKeys(t *testing.T) {
	keys := []Key{{1}, {1}, {}, {2}}
	p, err := New(Config{Layout: small(), Pages: 4, Epoch: 1, Keys: func() Key {
		k := keys[0]
		keys = keys[1:]
		return k
	}})
	if err != nil {
		t.Fatal(err)
	}
	a := reserve(t, p, tenant('a'), 16, 0, nil)
	for range 2 {
		before := p.Counts()
		if _, err := p.Reserve(tenant('b'), 16, 0, nil); err == nil || p.Counts() != before || p.Landing().Open() != 1 {
			t.Fatalf("error %v, pool %+v, was %+v", err, p.Counts(), before)
		}
	}
	b := reserve(t, p, tenant('b'), 16, 0, nil)
	for _, r := range []*Reservation{a, b} {
		seal(t, p, r)
		free(t, p, r)
	}
	whole(t, p)
}

func TestQuarantine(t *testing.T) {
	p, err := New(Config{Layout: small(), Pages: 8, Epoch: 1, Keys: keySource("x"), Quarantine: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		in, out, want int
		err           error
	}{
		{in: 2, want: 2}, {in: 1, want: 3}, {in: 1, want: 4, err: ErrQuarantine}, {in: 0, want: 4, err: ErrQuarantine},
		{out: 2, want: 2}, {in: -5, want: 2}, {out: -5, want: 2}, {out: 7, want: 0}, {in: 3, want: 3},
	} {
		var err error
		if step.out != 0 {
			p.Quiet(step.out)
		} else {
			err = p.Quarantine(step.in)
		}
		if !errors.Is(err, step.err) || p.Counts().Quarantined != step.want {
			t.Fatalf("%+v: error %v, %d pages", step, err, p.Counts().Quarantined)
		}
	}
	if p.Whole() {
		t.Error("whole with pages in quarantine")
	}
	p.Quiet(3)
	whole(t, p)
	if q := newPool(t, 8).quarantine; q != 2 {
		t.Errorf("a quarter of 8 pages is %d", q)
	}
	if q := newPool(t, 1).quarantine; q != 1 {
		t.Errorf("default budget of one page is %d", q)
	}
}

// Whole must see each way in which a pool is not at rest.
func TestWhole(t *testing.T) {
	for name, spoil := range map[string]func(*Pool){
		"page lost":        func(p *Pool) { p.free = p.free[1:] },
		"page freed twice": func(p *Pool) { p.free[0] = p.free[1] },
		"life":             func(p *Pool) { p.life[1] = PageLocal },
		"tag":              func(p *Pool) { p.tags[1].Gen.Counter = 1 },
		"reader":           func(p *Pool) { p.refs[1] = 1 },
		"key":              func(p *Pool) { p.landing.open(Key{1}, &slot{}) },
		"quarantine":       func(p *Pool) { p.quarantined = 1 },
		"cached":           func(p *Pool) { p.cache.entries[cacheKey{}] = &entry{} },
	} {
		p := newPool(t, 3)
		if !p.Whole() {
			t.Fatal("a new pool is not whole")
		}
		spoil(p)
		if p.Whole() {
			t.Errorf("%s: not seen", name)
		}
	}
}

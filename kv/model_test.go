package kv

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// random is a small generator (splitmix64): the same seed, the same run.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// holder is whatever holds pages: a reservation on its way, a sequence, or a
// pinned prefix.
type holder struct {
	domain Domain
	text   string
	r      *Reservation
	sealed Sealed
	proof  Verified
	torn   bool // not every page was sent as it should be
	seq    *Sequence
	prefix *Prefix
}

// model drives a pool by the bytes of a script and knows, simply, what must be
// true of it.
type model struct {
	t      *testing.T
	p      *Pool
	script []byte
	live   []*holder
	past   []*Sequence
	gens   map[Generation]bool
	did    map[string]int
}

const modelPages = 12

func runModel(t *testing.T, script []byte) map[string]int {
	m := &model{t: t, p: newPool(t, modelPages), script: script, gens: map[Generation]bool{}, did: map[string]int{}}
	for len(m.script) > 0 {
		m.step()
		m.check()
	}
	for len(m.live) > 0 {
		m.drop(0)
		m.check()
	}
	m.check()
	whole(t, m.p)
	return m.did
}

// pick takes a number below n from the script.
func (m *model) pick(n int) int {
	if len(m.script) == 0 || n == 0 {
		return 0
	}
	b := m.script[0]
	m.script = m.script[1:]
	return int(b) % n
}

// find takes a holder that fits from the script, or nil.
func (m *model) find(fits func(*holder) bool) *holder {
	from := m.pick(len(m.live))
	for i := range m.live {
		if h := m.live[(from+i)%len(m.live)]; fits(h) {
			return h
		}
	}
	return nil
}

func reserved(h *holder) bool { return h.r != nil && h.r.life == PageReserved }
func opened(h *holder) bool   { return h.seq != nil }

func (m *model) fresh(g Generation) {
	if m.gens[g] {
		m.t.Fatalf("generation %+v came twice", g)
	}
	m.gens[g] = true
}

func (m *model) step() {
	switch m.pick(12) {
	case 0, 1:
		m.reserve()
	case 2:
		m.local()
	case 3:
		if h := m.find(reserved); h != nil {
			m.sealOne(h)
		}
	case 4:
		if h := m.find(func(h *holder) bool { return h.r != nil && h.r.life == PageSealed }); h != nil {
			m.verifyOne(h)
		}
	case 5:
		if h := m.find(func(h *holder) bool { return h.r != nil && h.r.life == PageVerified }); h != nil {
			m.openOne(h)
		}
	case 6:
		if h := m.find(opened); h != nil && h.seq.Cap() > h.seq.Tokens() {
			write(m.t, h.seq, h.text, 1+m.pick(h.seq.Cap()-h.seq.Tokens()))
			m.did["write"]++
		}
	case 7:
		if h := m.find(opened); h != nil {
			before := h.seq.shared
			n := m.p.Publish(h.seq, chainOf(h.text, m.pick(4)))
			m.did["publish"] += n - before
		}
	case 8:
		d, text := m.someone()
		if x := m.p.Pin(d, chainOf(text, 1+m.pick(3))); x != nil {
			m.live = append(m.live, &holder{domain: d, text: text, prefix: x})
			m.did["pin"]++
		}
	case 9:
		m.did["flush"] += m.p.Flush()
	case 10:
		m.wrong()
	default:
		if len(m.live) > 0 {
			m.drop(m.pick(len(m.live)))
		}
	}
}

func (m *model) someone() (Domain, string) {
	d := []byte{'a', 'b'}[m.pick(2)]
	return tenant(d), fmt.Sprintf("text %d of %c", m.pick(2), d)
}

// pinned takes a prefix of the domain and text, sometimes one that is held
// already.
func (m *model) pinned(d Domain, text string) *Prefix {
	i := slices.IndexFunc(m.live, func(h *holder) bool { return h.prefix != nil && h.domain == d && h.text == text })
	if i >= 0 {
		x := m.live[i].prefix
		m.live = slices.Delete(m.live, i, i+1)
		return x
	}
	return m.p.Pin(d, chainOf(text, m.pick(3)))
}

// tokens takes a length, sometimes one that no pool of this size can hold.
func (m *model) tokens() int {
	n := 1 + m.pick(70)
	if m.pick(10) == 0 {
		n += 16 * modelPages
	}
	return n
}

func (m *model) reserve() {
	d, text := m.someone()
	tokens, output := m.tokens(), m.pick(40)
	x := m.pinned(d, text)
	if x.Tokens() >= tokens {
		m.p.Unpin(x)
		x = nil
	}
	before := m.p.Counts()
	r, err := m.p.Reserve(d, tokens, output, x)
	if err != nil {
		m.full(err, before, m.p.Layout().Pages(tokens+output), x)
		return
	}
	m.fresh(r.Generation())
	h := &holder{domain: d, text: text, r: r}
	src := source(m.t, m.p.Layout(), text, tokens)
	foreign := source(m.t, m.p.Layout(), "foreign text", tokens)
	wrong := m.pick(8) // sometimes a page holds something else
	for i := range r.Pages() {
		from := src
		if i == wrong {
			from, h.torn = foreign, true
		}
		if err := send(m.p.Landing(), r.Key(), from, x.Pages(), x.Pages()+i); err != nil {
			m.t.Fatal(err)
		}
	}
	m.live = append(m.live, h)
	m.did["reserve"]++
	if x != nil {
		m.did["reserve behind a prefix"]++
	}
}

func (m *model) local() {
	d, text := m.someone()
	tokens := m.tokens()
	x := m.pinned(d, text)
	if x.Tokens() > tokens {
		m.p.Unpin(x)
		x = nil
	}
	before := m.p.Counts()
	s, err := m.p.Local(d, tokens, x)
	if err != nil {
		m.full(err, before, m.p.Layout().Pages(tokens), x)
		return
	}
	m.live = append(m.live, &holder{domain: d, text: text, seq: s})
	m.did["local"]++
}

// full checks that a refusal was for lack of pages, and changed nothing.
func (m *model) full(err error, before Counts, total int, x *Prefix) {
	want := ErrFull
	if total > modelPages {
		want = ErrNever
	}
	if !errors.Is(err, want) || m.p.Counts() != before {
		m.t.Fatalf("%v, want %v; pool %+v, was %+v", err, want, m.p.Counts(), before)
	}
	if need := total - x.Pages(); want == ErrFull && before.Free+before.Idle >= need {
		m.t.Fatalf("refused %d pages: %+v", need, before)
	}
	m.p.Unpin(x)
	m.did[want.Error()]++
}

func (m *model) sealOne(h *holder) {
	h.sealed = seal(m.t, m.p, h.r)
	wants(m.t, send(m.p.Landing(), h.r.Key(), source(m.t, m.p.Layout(), "late", 16), 0, 0), ErrRefused, "a late frame")
	m.did["seal"]++
}

func (m *model) verifyOne(h *holder) {
	src := source(m.t, m.p.Layout(), h.text, h.r.tokens)
	v, err := m.p.Verify(h.sealed, &hashing{}, digests(src, h.r.prefix.Pages()))
	if h.torn {
		wants(m.t, err, ErrDigest, "verify of a torn reservation")
		m.did["torn"]++
		return
	}
	if err != nil {
		m.t.Fatal(err)
	}
	h.proof = v
	m.did["verify"]++
}

func (m *model) openOne(h *holder) {
	s, err := m.p.Open(h.proof)
	if err != nil {
		m.t.Fatal(err)
	}
	h.seq, h.r = s, nil
	m.did["open"]++
}

// wrong does what the lives do not allow.
func (m *model) wrong() {
	before := m.p.Counts()
	if h := m.find(func(h *holder) bool { return h.r != nil }); h != nil {
		if h.r.life == PageReserved {
			wants(m.t, m.p.Free(h.r), ErrLife, "free of a live reservation")
		} else {
			_, err := m.p.Seal(h.r)
			wants(m.t, err, ErrLife, "second seal")
		}
		if h.r.life != PageVerified {
			_, err := m.p.Open(Verified{})
			wants(m.t, err, ErrLife, "open of nothing")
		}
	}
	if h := m.find(opened); h != nil && h.proof.r != nil {
		_, err := m.p.Open(h.proof)
		wants(m.t, err, ErrLife, "second open")
		wants(m.t, m.p.Free(h.proof.r), ErrLife, "free of an open reservation")
	}
	if before != m.p.Counts() {
		m.t.Fatalf("wrong steps changed the pool: %+v, was %+v", m.p.Counts(), before)
	}
	m.did["wrong"]++
}

// drop ends a holder, in whatever way its life allows.
func (m *model) drop(i int) {
	h := m.live[i]
	m.live = slices.Delete(m.live, i, i+1)
	switch {
	case h.prefix != nil:
		m.p.Unpin(h.prefix)
	case h.seq != nil:
		release(m.t, m.p, h.seq)
		m.past = append(m.past, h.seq)
	default:
		if reserved(h) {
			m.sealOne(h)
		}
		free(m.t, m.p, h.r)
	}
	m.did["drop"]++
}

// census is what the holders say of each page.
type census struct {
	t       *testing.T
	p       *Pool
	owner   [modelPages]string
	readers [modelPages]int32
	open    int // keys
}

// claim gives a page its one owner.
func (c *census) claim(pg int32, who string, life ...Life) {
	if c.owner[pg] != "" {
		c.t.Fatalf("page %d belongs to %s and to %s", pg, c.owner[pg], who)
	}
	c.owner[pg] = who
	if !slices.Contains(life, c.p.life[pg]) {
		c.t.Fatalf("page %d of %s is %v", pg, who, c.p.life[pg])
	}
}

// reads counts one more reader of the pages of a prefix.
func (c *census) reads(x *Prefix, d Domain) {
	if x == nil {
		return
	}
	for _, e := range x.entries {
		c.readers[e.page]++
		if e.key.domain != d || e.tag.Domain != d {
			c.t.Fatalf("a page of domain %c in a prefix of %c", e.tag.Domain[0], d[0])
		}
	}
}

func (c *census) holder(h *holder) {
	switch {
	case h.prefix != nil:
		c.reads(h.prefix, h.domain)
	case h.r != nil:
		if reserved(h) {
			c.open++
		}
		for _, pg := range h.r.pages {
			c.claim(pg, "a reservation", h.r.life)
		}
		for _, pg := range h.r.output {
			c.claim(pg, "an output", PageLocal)
		}
		c.reads(h.r.prefix, h.domain)
	default:
		for i, pg := range h.seq.pages {
			if i < h.seq.shared {
				c.readers[pg]++
			} else {
				c.claim(pg, "a sequence", PageVerified, PageLocal)
			}
		}
		holds(c.t, h.seq, h.text)
	}
}

// check compares the pool with what the holders say of it.
func (m *model) check() {
	c := &census{t: m.t, p: m.p}
	for _, h := range m.live {
		c.holder(h)
	}
	idle := 0
	for _, e := range m.p.cache.entries {
		c.claim(e.page, "the cache", PageCached)
		if m.p.refs[e.page] != c.readers[e.page] {
			m.t.Fatalf("page %d has %d readers, counted as %d", e.page, c.readers[e.page], m.p.refs[e.page])
		}
		if c.readers[e.page] == 0 {
			idle++
		}
	}
	for e := m.p.cache.ring.next; e != &m.p.cache.ring; e = e.next {
		if idle--; c.readers[e.page] != 0 {
			m.t.Fatalf("page %d is idle and has a reader", e.page)
		}
	}
	for _, pg := range m.p.free {
		c.claim(pg, "the free list", PageFree)
		if m.p.tags[pg] != (Tag{}) || c.readers[pg] != 0 {
			m.t.Fatalf("free page %d has tag %+v, %d readers", pg, m.p.tags[pg], c.readers[pg])
		}
	}
	if i := slices.Index(c.owner[:], ""); i >= 0 {
		m.t.Fatalf("page %d belongs to nobody", i)
	}
	if idle != 0 || m.p.Landing().Open() != c.open {
		m.t.Fatalf("idle pages off by %d; %d keys open, want %d", idle, m.p.Landing().Open(), c.open)
	}
	m.checkPast()
}

// checkPast holds that what is over reads and publishes nothing.
func (m *model) checkPast() {
	for _, s := range m.past {
		_, _, err := s.Rows(0, len(s.pages)-1, 1<<20)
		wants(m.t, err, ErrTag, "a released sequence")
		if m.p.Publish(s, chainOf("past", 4)) != 0 {
			m.t.Fatal("a released sequence publishes")
		}
	}
}

// TestRandomLives drives pools by random scripts. Whatever happens, each page
// has one owner, each sequence reads its own text, and at the end every page is
// free.
func TestRandomLives(t *testing.T) {
	did := map[string]int{}
	for seed := range 120 {
		r := random(seed)
		script := make([]byte, 600)
		for i := range script {
			script[i] = byte(r.next())
		}
		for what, n := range runModel(t, script) {
			did[what] += n
		}
	}
	for _, what := range []string{
		"reserve", "reserve behind a prefix", "local", "seal", "verify", "torn", "open", "write", "publish", "pin", "flush",
		"wrong", "drop", ErrFull.Error(), ErrNever.Error(),
	} {
		if did[what] < 20 {
			t.Errorf("%q happened %d times: the scripts do not reach it", what, did[what])
		}
	}
}

func FuzzLives(f *testing.F) {
	f.Add([]byte{0, 0, 0, 60, 10, 9, 3, 0, 4, 0, 5, 0, 7, 0, 3, 11, 0, 1, 0, 0, 69, 0, 2})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 2000 {
			runModel(t, script)
		}
	})
}

package kv

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// chainOf is the chain of hashes of the first n pages of a text.
func chainOf(text string, n int) []Hash {
	var chain []Hash
	for i := range n {
		chain = append(chain, sha256.Sum256(fmt.Appendf(nil, "%s %d", text, i)))
	}
	return chain
}

// publish puts n pages of a text into the cache and releases its sequence.
func publish(t *testing.T, p *Pool, d Domain, text string, n int) {
	t.Helper()
	s := receive(t, p, d, text, n*16, 0, nil)
	if got := p.Publish(s, chainOf(text, n)); got != n {
		t.Fatalf("published %d pages of %d", got, n)
	}
	release(t, p, s)
}

// A cached page keeps the tag of its publisher; whoever pins it expects that tag
// and reads it after the publisher has gone.
func TestCachedPageKeepsItsTag(t *testing.T) {
	p := newPool(t, 8)
	a := receive(t, p, tenant('a'), "shared", 37, 11, nil)
	if n := p.Publish(a, chainOf("shared", 3)); n != 2 {
		t.Fatalf("published %d pages: only whole ones may be", n)
	}
	if n := p.Publish(a, chainOf("shared", 3)); n != 2 {
		t.Fatalf("published again: %d", n)
	}
	holds(t, a, "shared")
	write(t, a, "shared", 3) // the last prompt page is still Local
	b, err := p.Local(tenant('a'), 40, p.Pin(tenant('a'), chainOf("shared", 2)))
	if err != nil {
		t.Fatal(err)
	}
	if b.want[0] != a.want[0] || b.want[0].Gen == b.want[2].Gen || b.Tokens() != 32 {
		t.Fatalf("tags %+v and %+v, %d tokens", a.want, b.want, b.Tokens())
	}
	release(t, p, a)
	holds(t, b, "shared")
	write(t, b, "shared", 8)
	holds(t, b, "shared")
	for i := range 2 {
		if p.life[b.pages[i]] != PageCached {
			t.Errorf("page %d is %v", i, p.life[b.pages[i]])
		}
	}
	release(t, p, b)
	if c := p.Counts(); c.Cached != 2 || c.Idle != 2 || c.Free != 6 || c.Held != 0 {
		t.Errorf("%+v", c)
	}
	whole(t, p)
}

// The same tokens in another domain are another page (H-12).
func TestDomainsDoNotShare(t *testing.T) {
	p := newPool(t, 8)
	chain := chainOf("same prompt", 2)
	publish(t, p, tenant('a'), "same prompt", 2)
	if x := p.Pin(tenant('b'), chain); x != nil {
		t.Fatalf("b pinned %d pages of a", x.Pages())
	}
	x := p.Pin(tenant('a'), chain)
	if x.Pages() != 2 {
		t.Fatal("positive control: a did not find its own")
	}
	_, err := p.Reserve(tenant('b'), 40, 0, x)
	wants(t, err, ErrTag, "reserve with a prefix of another domain")
	_, err = p.Local(tenant('b'), 40, x)
	wants(t, err, ErrTag, "local with a prefix of another domain")
	s, err := p.Local(tenant('a'), 40, x)
	if err != nil {
		t.Fatalf("positive control: %v", err)
	}
	release(t, p, s)
	// b publishes its own copy under the same hashes.
	publish(t, p, tenant('b'), "same prompt", 2)
	if c := p.Counts(); c.Cached != 4 {
		t.Errorf("%d pages cached, want two of each", c.Cached)
	}
	whole(t, p)
}

// To forget the domain must not make one domain of all tenants.
func TestZeroDomainSharesWithNobody(t *testing.T) {
	p := newPool(t, 4)
	s := receive(t, p, Domain{}, "no domain", 32, 0, nil)
	if n := p.Publish(s, chainOf("no domain", 2)); n != 0 {
		t.Errorf("published %d pages", n)
	}
	release(t, p, s)
	if x := p.Pin(Domain{}, chainOf("no domain", 2)); x != nil {
		t.Errorf("pinned %d pages", x.Pages())
	}
	whole(t, p)
}

// A sequence that was released has no pages to publish: they are another
// tenant's by now, and would be found under this one's hashes.
func TestPublishAfterRelease(t *testing.T) {
	p := newPool(t, 2)
	a := receive(t, p, tenant('a'), "old", 32, 0, nil)
	release(t, p, a)
	b := receive(t, p, tenant('b'), "new", 32, 0, nil)
	if a.pages[0] != b.pages[0] {
		t.Fatal("the pages were not reused: this shows nothing")
	}
	if n := p.Publish(a, chainOf("old", 2)); n != 0 || p.Pin(tenant('a'), chainOf("old", 2)) != nil {
		t.Fatalf("published %d pages of another tenant", n)
	}
	if p.tags[b.pages[0]].Gen.Counter++; p.Publish(b, chainOf("new", 2)) != 0 {
		t.Error("published a page that is not the sequence's")
	}
	p.tags[b.pages[0]].Gen.Counter--
	if n := p.Publish(b, chainOf("new", 2)); n != 2 {
		t.Errorf("positive control: published %d pages", n)
	}
	release(t, p, b)
	whole(t, p)
}

func TestPublishStopsAtWhatIsThere(t *testing.T) {
	p := newPool(t, 12)
	publish(t, p, tenant('a'), "twin", 1)
	s := receive(t, p, tenant('a'), "twin", 48, 0, nil)
	if n := p.Publish(s, chainOf("twin", 3)); n != 0 {
		t.Errorf("published %d pages; the first is cached under another page", n)
	}
	holds(t, s, "twin")
	if n := p.Publish(s, nil); n != 0 {
		t.Errorf("published %d pages of no chain", n)
	}
	release(t, p, s)
	x := p.Pin(tenant('a'), chainOf("twin", 3))
	if x.Pages() != 1 {
		t.Fatalf("pinned %d pages", x.Pages())
	}
	s, err := p.Local(tenant('a'), 48, x)
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, "twin", 32)
	if n := p.Publish(s, chainOf("twin", 3)); n != 3 {
		t.Errorf("behind its prefix: %d pages shared", n)
	}
	if err := s.Extend(1); err == nil {
		t.Error("room in a full sequence")
	}
	release(t, p, s)
	if c := p.Counts(); c.Cached != 3 || c.Idle != 3 {
		t.Errorf("%+v", c)
	}
	whole(t, p)
}

// Pins pass on once. A prefix that is used twice, unpinned twice, or taken to
// another pool would leave pages pinned for ever or, worse, not at all.
func TestPrefixIsUsedOnce(t *testing.T) {
	p := newPool(t, 8)
	publish(t, p, tenant('a'), "once", 2)
	chain := chainOf("once", 2)
	idle := func(want int) {
		t.Helper()
		if got := p.Counts().Idle; got != want {
			t.Fatalf("%d pages idle, want %d", got, want)
		}
	}
	x := p.Pin(tenant('a'), chain)
	idle(0)
	other := newPool(t, 8)
	other.Unpin(x)
	_, err := other.Local(tenant('a'), 40, x)
	wants(t, err, ErrLife, "a prefix of another pool")
	_, err = other.Reserve(tenant('a'), 40, 0, x)
	wants(t, err, ErrLife, "a prefix of another pool")
	for _, tokens := range []int{1, 31, 32} { // a prefix is shorter than the prompt
		if _, err := p.Reserve(tenant('a'), tokens, 0, x); err == nil {
			t.Errorf("a prefix of 32 tokens for a prompt of %d", tokens)
		}
		if tokens < 32 {
			if _, err := p.Local(tenant('a'), tokens, x); err == nil {
				t.Errorf("a prefix of 32 tokens for a sequence of %d", tokens)
			}
		}
	}
	r := reserve(t, p, tenant('a'), 40, 0, x)
	if x.Pages() != 2 || x.Tokens() != 32 {
		t.Errorf("after use it says %d pages, %d tokens", x.Pages(), x.Tokens())
	}
	for range 2 {
		p.Unpin(x) // not ours any more
		idle(0)
		_, err = p.Reserve(tenant('a'), 40, 0, x)
		wants(t, err, ErrLife, "second use")
		_, err = p.Local(tenant('a'), 40, x)
		wants(t, err, ErrLife, "second use")
	}
	seal(t, p, r)
	idle(0)
	free(t, p, r)
	idle(2)
	y := p.Pin(tenant('a'), chain[:1])
	idle(1)
	for range 2 {
		p.Unpin(y)
		idle(2)
	}
	_, err = p.Reserve(tenant('a'), 40, 0, y)
	wants(t, err, ErrLife, "use after unpin")
	_, err = p.Reserve(tenant('a'), 40, 0, &Prefix{})
	wants(t, err, ErrLife, "a prefix made from nothing")
	var none *Prefix
	if none.Pages() != 0 || none.Tokens() != 0 || p.Pin(tenant('a'), nil) != nil {
		t.Error("the nil prefix is not empty")
	}
	whole(t, p)
}

// Pages that nobody reads are evicted, the longest unread first and of a run
// its end first; a page that has a reader never is.
func TestEviction(t *testing.T) {
	p := newPool(t, 8)
	publish(t, p, tenant('a'), "first", 3)
	publish(t, p, tenant('b'), "second", 3)
	x := p.Pin(tenant('a'), chainOf("first", 2)) // its third page stays idle
	have := func(text string, d Domain, n int) {
		t.Helper()
		y := p.Pin(d, chainOf(text, 3))
		if y.Pages() != n {
			t.Fatalf("%d pages of %q cached, want %d", y.Pages(), text, n)
		}
		p.Unpin(y)
	}
	take := func(n int) *Sequence {
		t.Helper()
		return local(t, p, tenant('c'), n*16)
	}
	s := take(3) // two free pages and one evicted: the oldest idle, the end of "first"
	have("first", tenant('a'), 2)
	have("second", tenant('b'), 3)
	s2 := take(2)
	have("second", tenant('b'), 1)
	have("first", tenant('a'), 2)
	_, err := p.Local(tenant('c'), 2*16, nil)
	wants(t, err, ErrFull, "two pages, where one is idle and two are pinned")
	have("second", tenant('b'), 1)
	s3 := take(1)
	have("second", tenant('b'), 0)
	if n := p.Flush(); n != 0 {
		t.Errorf("flushed %d pinned pages", n)
	}
	for _, s := range []*Sequence{s, s2, s3} {
		write(t, s, "overwrites", s.Cap())
	}
	b, err := p.Local(tenant('a'), 32, x)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, b, "first") // whole and unchanged
	release(t, p, b)
	for _, s := range []*Sequence{s, s2, s3} {
		release(t, p, s)
	}
	if n := p.Flush(); n != 2 {
		t.Errorf("flushed %d pages, want 2", n)
	}
	if !p.Whole() {
		t.Errorf("%+v", p.Counts())
	}
}

// Two readers of one page: it is idle when both have gone.
func TestReadersAreCounted(t *testing.T) {
	p := newPool(t, 8)
	chain := chainOf("counted", 2)
	a := receive(t, p, tenant('a'), "counted", 32, 0, nil)
	p.Publish(a, chain)
	x := p.Pin(tenant('a'), chain)
	y := p.Pin(tenant('a'), chain)
	b, err := p.Local(tenant('a'), 48, x)
	if err != nil {
		t.Fatal(err)
	}
	for i, leave := range []func(){
		func() { release(t, p, a) }, func() { p.Unpin(y) }, func() { p.Unpin(y) }, func() { release(t, p, a) },
	} {
		leave()
		if c := p.Counts(); c.Idle != 0 || p.Flush() != 0 {
			t.Fatalf("step %d: %+v while b reads", i, c)
		}
		holds(t, b, "counted")
	}
	release(t, p, b)
	if p.Counts().Idle != 2 {
		t.Errorf("%+v", p.Counts())
	}
	whole(t, p)
}

package kv

import (
	"bytes"
	"errors"
	"io"
	"math"
	"sync"
	"testing"
)

// pipe is a Source whose sender the test plays: a Read blocks until bytes or an
// interruption come.
type pipe struct {
	data    chan []byte
	stop    chan struct{} // holds one interruption
	waiting chan struct{} // one for each Read that found no byte
	rest    []byte
}

func newPipe() *pipe {
	return &pipe{data: make(chan []byte), stop: make(chan struct{}, 1), waiting: make(chan struct{}, 1<<10)}
}

func (p *pipe) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		p.waiting <- struct{}{}
		select {
		case d, ok := <-p.data:
			if !ok {
				return 0, io.EOF
			}
			p.rest = d
		case <-p.stop:
			return 0, ErrInterrupted
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *pipe) Interrupt() {
	select {
	case p.stop <- struct{}{}:
	default: // one is waiting already
	}
}

// landed is the result of a Land that runs on its own goroutine.
type landed struct {
	n   int
	err error
}

func landing(l *Landing, key Key, page, rows int, src Source) <-chan landed {
	done := make(chan landed, 1)
	go func() {
		n, err := l.Land(key, page, rows, src)
		done <- landed{n, err}
	}()
	return done
}

// memory is a copy of the bytes of a whole pool.
func memory(p *Pool) []byte { return bytes.Clone(floatBytes(p.mem)) }

// Frames that open nothing, or name what is not theirs, place no byte, take no
// byte, and leave every page as it is.
func TestLandRefuses(t *testing.T) {
	p := newPool(t, 9)
	gone := reserve(t, p, tenant('c'), 16, 0, nil)
	seal(t, p, gone)
	free(t, p, gone)
	mine := reserve(t, p, tenant('a'), 37, 16, nil)  // pages of 16, 16 and 5 rows
	other := reserve(t, p, tenant('b'), 48, 16, nil) // as many pages, all whole
	sealed := reserve(t, p, tenant('c'), 16, 0, nil)
	seal(t, p, sealed)
	before := memory(p)
	for name, c := range map[string]struct {
		key        Key
		page, rows int
	}{
		"zero key":            {Key{}, 0, 16},
		"unknown key":         {Key{1, 2, 3}, 0, 16},
		"key of a freed one":  {gone.Key(), 0, 16},
		"revoked key":         {sealed.Key(), 0, 16},
		"page below":          {mine.Key(), -1, 16},
		"page beyond":         {mine.Key(), 3, 16},
		"far page":            {mine.Key(), math.MaxInt, 16},
		"far below":           {mine.Key(), math.MinInt, 16},
		"no rows":             {mine.Key(), 0, 0},
		"fewer rows":          {mine.Key(), 0, 15},
		"more rows":           {mine.Key(), 0, 17},
		"negative rows":       {mine.Key(), 0, -16},
		"last page whole":     {mine.Key(), 2, 16},
		"last page short":     {mine.Key(), 2, 4},
		"first page as last":  {mine.Key(), 0, 5},
		"no rows beyond":      {mine.Key(), 3, 0},
		"rows of the other's": {other.Key(), 2, 5},
	} {
		src := &stored{rest: bytes.Repeat([]byte{0xee}, 1<<12)}
		n, err := p.Landing().Land(c.key, c.page, c.rows, src)
		if !errors.Is(err, ErrRefused) || n != 0 || src.taken != 0 {
			t.Errorf("%s: %v, %d bytes placed, %d taken", name, err, n, src.taken)
		}
	}
	if !bytes.Equal(before, memory(p)) {
		t.Fatal("a refused frame changed a page")
	}
	// Positive control: the same bytes under the right names land, and only there.
	n, err := p.Landing().Land(mine.Key(), 2, 5, &stored{rest: bytes.Repeat([]byte{0xee}, 1<<12)})
	if err != nil || n != small().Bytes(5) {
		t.Fatalf("%v, %d bytes", err, n)
	}
	changed := 0
	after := memory(p)
	for i := range after {
		if after[i] != before[i] {
			changed++
		}
	}
	size := small().Bytes(16)
	at := int(mine.pages[2]) * size
	if changed != small().Bytes(5) || bytes.Equal(before[at:at+size], after[at:at+size]) {
		t.Errorf("%d bytes changed", changed)
	}
}

// The bytes behind the token count of a partial page are not the peer's to
// write.
func TestLandPartialPage(t *testing.T) {
	p := newPool(t, 1)
	for i := range p.mem {
		p.mem[i] = -1
	}
	r := reserve(t, p, tenant('a'), 5, 0, nil)
	src := source(t, small(), "five", 5)
	if err := send(p.Landing(), r.Key(), src, 0, 0); err != nil {
		t.Fatal(err)
	}
	l := small()
	for at, x := range p.mem {
		row := at / l.Row() % l.PageTokens
		if (x == -1) != (row >= 5) {
			t.Fatalf("value %d of row %d is %v", at, row, x)
		}
	}
}

func TestLandTwice(t *testing.T) {
	p := newPool(t, 4)
	r := reserve(t, p, tenant('a'), 32, 0, nil)
	src := source(t, small(), "twice", 32)
	other := source(t, small(), "other bytes", 32)
	b, rows := frame(src, 0)
	connection := &stored{rest: b}
	if _, err := p.Landing().Land(r.Key(), 0, rows, connection); err != nil {
		t.Fatal(err)
	}
	before := memory(p)
	wants(t, send(p.Landing(), r.Key(), other, 0, 0), ErrRefused, "a second landing")
	wants(t, send(p.Landing(), r.Key(), src, 0, 0), ErrRefused, "a repeated landing")
	if !bytes.Equal(before, memory(p)) {
		t.Fatal("a second landing changed the page")
	}
	if err := send(p.Landing(), r.Key(), src, 0, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(seal(t, p, r), &hashing{}, digests(src, 0)); err != nil {
		t.Fatal(err)
	}
	if connection.interrupted {
		t.Error("a connection was interrupted after it had left the page")
	}
}

// A frame that looked its key up a moment before the revocation comes too late
// all the same, and its bytes stay with the caller.
func TestLandAsTheKeyIsRevoked(t *testing.T) {
	p := newPool(t, 1)
	r := reserve(t, p, tenant('a'), 16, 0, nil)
	found := p.landing.slots[r.Key()]
	seal(t, p, r)
	if found.enter(0, &stored{}) {
		t.Error("entered a page after the seal")
	}
}

// Two connections in one page: the second is refused and not read, whether or
// not the first one finishes. A page of which only a part came may come again.
func TestLandTwoPlacers(t *testing.T) {
	p := newPool(t, 2)
	r := reserve(t, p, tenant('a'), 32, 0, nil)
	src := source(t, small(), "two placers", 32)
	b, rows := frame(src, 0)
	first := newPipe()
	done := landing(p.Landing(), r.Key(), 0, rows, first)
	first.data <- b[:100]
	<-first.waiting // before the first byte
	<-first.waiting // 100 bytes are placed
	second := &stored{rest: b}
	n, err := p.Landing().Land(r.Key(), 0, rows, second)
	if wants(t, err, ErrRefused, "the second placer"); n != 0 || second.taken != 0 {
		t.Fatalf("%d bytes placed, %d taken", n, second.taken)
	}
	if err := send(p.Landing(), r.Key(), src, 0, 1); err != nil {
		t.Fatalf("another page meanwhile: %v", err)
	}
	close(first.data) // the connection breaks
	if got := <-done; !errors.Is(got.err, io.EOF) || got.n != 100 {
		t.Fatalf("broken frame: %+v", got)
	}
	if err := send(p.Landing(), r.Key(), src, 0, 0); err != nil {
		t.Fatalf("the page again: %v", err)
	}
	if _, err := p.Verify(seal(t, p, r), &hashing{}, digests(src, 0)); err != nil {
		t.Fatal(err)
	}
}

// A sender that stalls in mid-frame cannot delay a seal (H-6), and what it sends
// afterwards lands nowhere (H-5).
func TestRevokeWhileSenderStalls(t *testing.T) {
	for _, sent := range []int{0, 1, 100, 511} {
		p := newPool(t, 4)
		r := reserve(t, p, tenant('a'), 64, 0, nil)
		var pipes []*pipe
		var done []<-chan landed
		for page := range 3 { // three connections, all stalled; the fourth page never comes
			src := newPipe()
			pipes, done = append(pipes, src), append(done, landing(p.Landing(), r.Key(), page, 16, src))
			<-src.waiting
			if sent > 0 {
				src.data <- bytes.Repeat([]byte{0xaa}, sent)
				<-src.waiting
			}
		}
		seal(t, p, r) // must return although nobody sends
		after := memory(p)
		for i, d := range done {
			got := <-d
			if !errors.Is(got.err, ErrRevoked) || got.n != sent {
				t.Fatalf("%d bytes sent, connection %d: %+v", sent, i, got)
			}
		}
		for i, src := range pipes {
			n, err := p.Landing().Land(r.Key(), i, 16, src)
			if wants(t, err, ErrRefused, "a frame after the seal"); n != 0 {
				t.Fatalf("%d bytes placed", n)
			}
		}
		if !bytes.Equal(after, memory(p)) {
			t.Fatal("bytes landed after the seal")
		}
		if p.Landing().Open() != 0 {
			t.Error("a key is open")
		}
		free(t, p, r)
		whole(t, p)
	}
}

// An interruption that comes while no Read is blocked must not be lost: the
// placer is between two reads when the key is revoked.
func TestRevokeBetweenReads(t *testing.T) {
	p := newPool(t, 1)
	r := reserve(t, p, tenant('a'), 16, 0, nil)
	src := &revoker{l: p.Landing(), key: r.Key(), done: make(chan struct{})}
	n, err := p.Landing().Land(r.Key(), 0, 16, src)
	wants(t, err, ErrRevoked, "land")
	if n != 10 || !src.interrupted {
		t.Fatalf("%d bytes, interrupted %v", n, src.interrupted)
	}
	<-src.done
	seal(t, p, r)
	free(t, p, r)
	whole(t, p)
}

// revoker gives 10 bytes at a time and revokes the key inside the first Read,
// after the last moment at which the placer looked.
type revoker struct {
	l           *Landing
	key         Key
	reads       int
	interrupted bool
	told        chan struct{}
	done        chan struct{}
}

func (r *revoker) Read(b []byte) (int, error) {
	if r.reads++; r.reads > 1 {
		return 0, errors.New("read after the revocation")
	}
	r.told = make(chan struct{})
	go func() {
		r.l.Revoke(r.key)
		close(r.done)
	}()
	<-r.told
	return copy(b[:10], "0123456789"), nil
}

func (r *revoker) Interrupt() { r.interrupted = true; close(r.told) }

// Revoking one reservation while a connection is in a frame of another lets
// that frame go on, with the same bytes.
func TestRevokeOfAnother(t *testing.T) {
	p := newPool(t, 4)
	a := reserve(t, p, tenant('a'), 32, 0, nil)
	b := reserve(t, p, tenant('b'), 16, 0, nil)
	text := source(t, small(), "goes on", 16)
	bytesOfB, _ := frame(text, 0)
	stalled, src := newPipe(), newPipe()
	lost := landing(p.Landing(), a.Key(), 0, 16, stalled)
	done := landing(p.Landing(), b.Key(), 0, 16, src)
	<-stalled.waiting
	src.data <- bytesOfB[:200]
	<-src.waiting
	<-src.waiting
	seal(t, p, a)
	if got := <-lost; !errors.Is(got.err, ErrRevoked) {
		t.Fatalf("the revoked one: %+v", got)
	}
	src.Interrupt() // late, and meant for an earlier frame of this connection
	<-src.waiting
	src.data <- bytesOfB[200:]
	if got := <-done; got.err != nil || got.n != 512 {
		t.Fatalf("the other one: %+v", got)
	}
	v, err := p.Verify(seal(t, p, b), &hashing{}, digests(text, 0))
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Open(v)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, s, "goes on")
	release(t, p, s)
	free(t, p, a)
	whole(t, p)
}

// Whoever revokes: when the call returns, nothing lands, also if somebody else
// revoked the same key a moment before.
func TestRevokeTwiceAtOnce(t *testing.T) {
	p := newPool(t, 1)
	r := reserve(t, p, tenant('a'), 16, 0, nil)
	src := &slow{entered: make(chan struct{}), told: make(chan struct{}, 2), leave: make(chan struct{})}
	done := landing(p.Landing(), r.Key(), 0, 16, src)
	<-src.entered
	revoke := func() <-chan struct{} {
		returned := make(chan struct{})
		go func() {
			p.Landing().Revoke(r.Key())
			close(returned)
		}()
		return returned
	}
	first := revoke()
	<-src.told
	second := revoke()
	select {
	case <-src.told: // it came as far as the first one
	case <-second:
		t.Error("the second Revoke returned while a byte could land")
	}
	close(src.leave)
	<-first
	<-second
	if got := <-done; !errors.Is(got.err, ErrRevoked) {
		t.Fatalf("%+v", got)
	}
	if p.Landing().Open() != 0 {
		t.Error("a key is open")
	}
	p.Landing().Revoke(r.Key()) // unknown by now: nothing
	p.Landing().Revoke(Key{9})
	seal(t, p, r)
	free(t, p, r)
	whole(t, p)
}

// slow goes on placing after it was interrupted, until it is let go.
type slow struct{ entered, told, leave chan struct{} }

func (s *slow) Read(b []byte) (int, error) {
	close(s.entered) // it is read once
	<-s.leave
	b[0] = 1
	return 1, ErrInterrupted
}

func (s *slow) Interrupt() { s.told <- struct{}{} }

// failing is a source that returns what the test says, read by read.
type failing struct {
	reads []func(b []byte) (int, error)
	n     int
}

func (f *failing) Read(b []byte) (int, error) {
	f.n++
	if f.n > len(f.reads) {
		return f.reads[len(f.reads)-1](b)
	}
	return f.reads[f.n-1](b)
}

func (f *failing) Interrupt() {}

func TestLandErrorsOfTheSource(t *testing.T) {
	gone := errors.New("gone")
	fill := func(b []byte) (int, error) { return len(b), nil }
	some := func(err error) func([]byte) (int, error) {
		return func(b []byte) (int, error) { return 7, err }
	}
	last := func(err error) func([]byte) (int, error) {
		return func(b []byte) (int, error) { return len(b), err }
	}
	nothing := func(err error) func([]byte) (int, error) {
		return func(b []byte) (int, error) { return 0, err }
	}
	for name, c := range map[string]struct {
		reads []func([]byte) (int, error)
		n     int
		err   error
	}{
		"fails at once":             {[]func([]byte) (int, error){nothing(gone)}, 0, gone},
		"fails with some bytes":     {[]func([]byte) (int, error){some(gone)}, 7, gone},
		"fails with the last bytes": {[]func([]byte) (int, error){last(gone)}, 512, gone},
		"ends early":                {[]func([]byte) (int, error){some(io.EOF)}, 7, io.EOF},
		"ends with the last byte":   {[]func([]byte) (int, error){last(io.EOF)}, 512, nil},
		"interrupted with bytes":    {[]func([]byte) (int, error){some(ErrInterrupted), fill}, 512, nil},
		"interrupted at the end":    {[]func([]byte) (int, error){last(ErrInterrupted)}, 512, nil},
		"brings nothing for ever":   {[]func([]byte) (int, error){some(nil), nothing(nil)}, 7, io.ErrNoProgress},
		"interrupted for ever":      {[]func([]byte) (int, error){nothing(ErrInterrupted)}, 0, io.ErrNoProgress},
		"rests now and then":        {[]func([]byte) (int, error){nothing(nil), some(nil), nothing(nil), fill}, 512, nil},
	} {
		p := newPool(t, 1)
		r := reserve(t, p, tenant('a'), 16, 0, nil)
		n, err := p.Landing().Land(r.Key(), 0, 16, &failing{reads: c.reads})
		if n != c.n || !errors.Is(err, c.err) || (c.err == nil && err != nil) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		// What did not land whole may come again; what did may not.
		again := send(p.Landing(), r.Key(), source(t, small(), "again", 16), 0, 0)
		if (again == nil) != (c.err != nil) {
			t.Errorf("%s: the page again: %v", name, again)
		}
	}
}

// job is what a connection has to send: the pages of one reservation.
type job struct {
	key  Key
	done *sync.WaitGroup
}

// connect sends the three pages of each job, from another page on than the
// other connections. They race for the pages; a refusal is part of it.
func connect(l *Landing, text *Sequence, first int, jobs <-chan job) {
	for j := range jobs {
		for i := range 3 {
			_ = send(l, j.key, text, 0, (i+first)%3)
		}
		j.done.Done()
	}
}

// Many connections land pages of many reservations, some of them revoked in the
// middle, while the owner seals, verifies, reads and frees. Nothing of it is a
// data race, and nobody reads what is not theirs.
func TestLandBesideTheOwner(t *testing.T) {
	const connections, rounds = 4, 60
	p := newPool(t, 12)
	text := source(t, small(), "beside", 48)
	want := digests(text, 0)
	jobs := make(chan job)
	var all sync.WaitGroup
	for c := range connections {
		all.Go(func() { connect(p.Landing(), text, c, jobs) })
	}
	served, refused := 0, 0
	for round := range rounds {
		own, err := p.Local(tenant('l'), 16, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := reserve(t, p, tenant('a'), 48, 16, nil)
		var done sync.WaitGroup
		done.Add(2)
		for range 2 {
			jobs <- job{r.Key(), &done}
		}
		write(t, own, "own", 16)
		if round%2 == 0 {
			done.Wait() // else they are cut off somewhere
		}
		v, err := p.Verify(seal(t, p, r), &hashing{}, want)
		if err == nil {
			s, err := p.Open(v)
			if err != nil {
				t.Fatal(err)
			}
			holds(t, s, "beside")
			release(t, p, s)
			served++
		} else {
			wants(t, err, ErrDigest, "verify")
			free(t, p, r)
			refused++
		}
		holds(t, own, "own")
		release(t, p, own)
		done.Wait()
	}
	close(jobs)
	all.Wait()
	if served < rounds/2 {
		t.Errorf("served %d, refused %d", served, refused)
	}
	whole(t, p)
}

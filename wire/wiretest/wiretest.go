// Package wiretest is the suite that every transport of package wire must pass,
// with real pools at both ends. It promises nothing to production code, and only
// test files may import it.
package wiretest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// Names of the two workers; a transport with certificates has them in there.
const (
	PrefillName = "p.one"
	DecodeName  = "d.one"
)

// Fabric is a transport under test.
type Fabric struct {
	Prefill wire.Transport // of the side that listens
	Decode  wire.Transport // of the side that dials
	Addr    string         // to listen on
}

// Run holds a transport to its contract. fabric makes a new one with the options
// on both sides.
func Run(t *testing.T, fabric func(t *testing.T, o wire.Options) Fabric) {
	for _, c := range []struct {
		name string
		test func(*testing.T, func(*testing.T, wire.Options) Fabric)
	}{
		{"messages arrive whole and in order", testMessages},
		{"pages land in any order", testLanding},
		{"one stream, one page", testSmallest},
		{"refused pages disturb nobody", testRefused},
		{"revoke in mid-frame", testRevoke},
		{"many reservations at once", testMany},
		{"close is a fence", testFence},
		{"page writes are bounded", testWritesBounded},
		{"messages are bounded", testMessagesBounded},
		{"what is no message is refused", testMisuse},
		{"the reason of the end reaches the peer", testReason},
		{"a pair that must not be", testMismatch},
		{"the listener closes its links", testListenerClose},
		{"links are bounded", testLinksBounded},
		{"dial gives up", testDialGivesUp},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, fabric) })
	}
}

// patience is how long a test waits for what must happen at once, before it
// fails instead of hanging.
const patience = 20 * time.Second

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience) // t.Context has ended when clean-ups wait
	defer cancel()
	select {
	case v := <-c:
		return v
	case <-ctx.Done():
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// written is one completion.
type written struct {
	id  uint64
	err error
}

// End is a [wire.Handler] that records what it hears and fails the test when a
// call is out of order.
type End struct {
	T       *testing.T
	opened  chan wire.Link
	message chan wire.Message
	written chan written
	closed  chan error

	mu   sync.Mutex
	live map[wire.Link]bool // true after Opened, false after Closed
}

// NewEnd returns a handler for one test.
func NewEnd(t *testing.T) *End {
	return &End{
		T: t, live: map[wire.Link]bool{}, opened: make(chan wire.Link, 64), message: make(chan wire.Message, 8192),
		written: make(chan written, 8192), closed: make(chan error, 64),
	}
}

// Opened implements wire.Handler.
func (e *End) Opened(l wire.Link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, twice := e.live[l]; twice {
		e.T.Error("Opened twice")
	}
	e.live[l] = true
	e.opened <- l
}

func (e *End) check(l wire.Link, call string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.live[l] {
		e.T.Errorf("%s outside of Opened and Closed", call)
	}
}

// Receive implements wire.Handler.
func (e *End) Receive(l wire.Link, m wire.Message) {
	e.check(l, "Receive")
	e.message <- m
}

// Written implements wire.Handler.
func (e *End) Written(l wire.Link, id uint64, err error) {
	e.check(l, "Written")
	e.written <- written{id, err}
}

// Closed implements wire.Handler.
func (e *End) Closed(l wire.Link, cause error) {
	e.check(l, "Closed")
	e.mu.Lock()
	e.live[l] = false
	e.mu.Unlock()
	e.closed <- cause
}

// layout of the suite's pages: 4 KiB each.
func layout() kv.Layout { return kv.Layout{Layers: 2, Heads: 2, Dim: 8, PageTokens: 16} }

// PrefillHello and DecodeHello are the hellos of a pair that fits.
func PrefillHello() wire.Hello {
	return wire.Hello{Role: wire.RolePrefill, Name: PrefillName, Incarnation: 11, Model: [32]byte{1, 2, 3}, Layout: layout()}
}

// DecodeHello is the other side of [PrefillHello].
func DecodeHello() wire.Hello {
	h := PrefillHello()
	h.Role, h.Name, h.Incarnation = wire.RoleDecode, DecodeName, 22
	return h
}

// pair is a prefill and a decode worker and their link.
type pair struct {
	t               *testing.T
	source, pool    *kv.Pool
	prefill, decode *End
	p, d            wire.Link // as seen from prefill and from decode
	listener        wire.Listener
	ids             uint64
}

func newPool(t *testing.T, epoch uint64, pages int) *kv.Pool {
	t.Helper()
	var n uint64
	pool, err := kv.New(kv.Config{Layout: layout(), Pages: pages, Epoch: epoch, Keys: func() (k kv.Key) {
		n++
		binary.LittleEndian.PutUint64(k[:], n)
		k[15] = byte(epoch)
		return k
	}})
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func join(t *testing.T, f Fabric) *pair {
	t.Helper()
	p := &pair{t: t, source: newPool(t, 1, 512), pool: newPool(t, 2, 512), prefill: NewEnd(t), decode: NewEnd(t)}
	var err error
	if p.listener, err = f.Prefill.Listen(f.Addr, PrefillHello(), p.prefill, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.listener.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if p.d, err = f.Decode.Dial(ctx, p.listener.Addr(), DecodeHello(), p.decode, p.pool.Landing()); err != nil {
		t.Fatal(err)
	}
	if opened := wait(t, p.decode.opened, "decode's Opened"); opened != p.d {
		t.Fatal("Dial and Opened give different links")
	}
	p.p = wait(t, p.prefill.opened, "prefill's Opened")
	if p.p.Peer() != DecodeHello() || p.d.Peer() != PrefillHello() {
		t.Fatalf("peers: %+v and %+v", p.p.Peer(), p.d.Peer())
	}
	t.Cleanup(p.end)
	return p
}

// end closes both sides and waits for both fences, once.
func (p *pair) end() {
	p.d.Close(nil)
	p.p.Close(nil)
	if p.t.Failed() {
		return
	}
	p.fences()
}

// fences waits until both sides are Closed, however often that was seen before.
func (p *pair) fences() {
	for _, e := range []struct {
		end  *End
		link wire.Link
	}{{p.prefill, p.p}, {p.decode, p.d}} {
		e.end.mu.Lock()
		live := e.end.live[e.link]
		e.end.mu.Unlock()
		if live {
			wait(p.t, e.end.closed, "Closed")
		}
	}
}

// request is one prompt: computed at prefill, reserved at decode.
type request struct {
	from *kv.Sequence
	to   *kv.Reservation
	want []kv.Digest
}

// compute fills a local sequence of prefill's with values that no other seed gives.
func (p *pair) compute(tokens int, seed uint64) *kv.Sequence {
	p.t.Helper()
	seq, err := p.source.Local(kv.Domain{1}, tokens, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(seed, 7))
	if err := seq.Extend(tokens); err != nil {
		p.t.Fatal(err)
	}
	for layer := range layout().Layers {
		for pos := range tokens {
			k, v, err := seq.Write(layer, pos)
			if err != nil {
				p.t.Fatal(err)
			}
			for i := range k {
				k[i], v[i] = random.Float32(), random.Float32()
			}
		}
	}
	if err := seq.Commit(); err != nil {
		p.t.Fatal(err)
	}
	return seq
}

func (p *pair) request(tokens int, seed uint64) *request {
	p.t.Helper()
	r := &request{from: p.compute(tokens, seed)}
	var err error
	if r.to, err = p.pool.Reserve(kv.Domain{1}, tokens, 0, nil); err != nil {
		p.t.Fatal(err)
	}
	for i := range r.to.Pages() {
		r.want = append(r.want, r.from.Digest(hasher{}, i))
	}
	return r
}

// page is the write of one page of the request.
func (p *pair) page(r *request, i int) wire.PageWrite {
	segs, rows := r.from.Segments(i)
	p.ids++
	return wire.PageWrite{ID: p.ids, Key: r.to.Key(), Page: i, Rows: rows, Segments: segs}
}

// write posts a page and returns its id.
func (p *pair) write(w wire.PageWrite) uint64 {
	p.t.Helper()
	if err := p.p.Write(w); err != nil {
		p.t.Fatal(err)
	}
	return w.ID
}

// completions waits for n of them.
func (p *pair) completions(n int) map[uint64]error {
	p.t.Helper()
	got := map[uint64]error{}
	for range n {
		w := wait(p.t, p.prefill.written, fmt.Sprintf("completion %d of %d", len(got)+1, n))
		if _, twice := got[w.id]; twice {
			p.t.Fatalf("write %d completed twice", w.id)
		}
		got[w.id] = w.err
	}
	return got
}

// landed waits until all of ids completed without an error.
func (p *pair) landed(ids ...uint64) {
	p.t.Helper()
	got := p.completions(len(ids))
	for _, id := range ids {
		if err, ok := got[id]; !ok || err != nil {
			p.t.Fatalf("write %d: completed %v, %v", id, ok, err)
		}
	}
}

// verify seals the reservation and compares it with what prefill computed. want
// is the error that must come of it.
func (p *pair) verify(r *request, want error) {
	p.t.Helper()
	sealed, err := p.pool.Seal(r.to)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.pool.Verify(sealed, hasher{}, r.want); !errors.Is(err, want) {
		p.t.Fatalf("verify: %v, want %v", err, want)
	}
}

func (p *pair) free(r *request) {
	p.t.Helper()
	if err := p.pool.Free(r.to); err != nil {
		p.t.Fatal(err)
	}
}

// hasher is a digest that needs no other package.
type hasher struct{}

// Page implements kv.Digester.
func (hasher) Page(index int, segments [][]byte) kv.Digest {
	h := sha256.New()
	h.Write([]byte{byte(index), byte(index >> 8)})
	for _, s := range segments {
		h.Write(s)
	}
	return kv.Digest(h.Sum(nil)[:16])
}

// id makes an identity.
func id(n byte) handoff.ID {
	return handoff.ID{Attempt: handoff.Attempt{n, 1}, Gen: kv.Generation{Epoch: 5, Counter: uint64(n)}}
}

// Samples returns a message of every kind, with every part that the kind has.
func Samples() []wire.Message {
	view := handoff.View{
		Tokens: 130, Pages: 8, Prefix: 16, PrefixHash: kv.Hash{3}, Input: kv.Hash{4, 31: 5}, Layout: 1 << 63, Domain: kv.Domain{6},
	}
	out := make([]wire.Message, 0, 9)
	for kind := handoff.Ask; kind <= handoff.Quiet; kind++ {
		m := wire.Message{Msg: handoff.Msg{Kind: kind, Room: 1<<63 - 1, ID: id(byte(kind)), View: view}}
		switch kind {
		case handoff.Refuse:
			m.Code, m.Limit = handoff.TooLong, 681_280
		case handoff.Abort:
			m.Code = handoff.Cancelled
		case handoff.Grant:
			m.Key = kv.Key{9, 15: 1}
		case handoff.Notice:
			m.Algorithm, m.First, m.DigestKey, m.MAC = 2, 65, [32]byte{7}, [32]byte{31: 8}
			m.Digests = []kv.Digest{{1}, {15: 2}, {3}}
		}
		out = append(out, m)
	}
	return out
}

func testMessages(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	p := join(t, fabric(t, wire.Options{}))
	samples := Samples()
	const rounds = 200
	for i := range rounds * len(samples) {
		m := samples[i%len(samples)]
		m.Room = uint64(i)
		if err := errors.Join(p.p.Send(m), p.d.Send(m)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rounds * len(samples) {
		want := samples[i%len(samples)]
		want.Room = uint64(i)
		for _, e := range []*End{p.prefill, p.decode} {
			if got := wait(t, e.message, "a message"); !reflect.DeepEqual(got, want) {
				t.Fatalf("message %d is %v of room %d, want %v", i, got, got.Room, want)
			}
		}
	}
	longest := samples[handoff.Notice-handoff.Ask]
	longest.Digests = make([]kv.Digest, wire.MaxDigests)
	for i := range longest.Digests {
		binary.LittleEndian.PutUint32(longest.Digests[i][:], uint32(i)+1)
	}
	if err := p.p.Send(longest); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, p.decode.message, "the longest notice"); !reflect.DeepEqual(got, longest) {
		t.Fatal("the longest notice has changed")
	}
}

func testLanding(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	p := join(t, fabric(t, wire.Options{Streams: 3}))
	r := p.request(40*16+5, 1) // the last page is partial
	short := p.request(20, 2)
	var ids []uint64
	for _, i := range rand.New(rand.NewPCG(3, 3)).Perm(r.to.Pages()) {
		ids = append(ids, p.write(p.page(r, i)))
	}
	p.write(p.page(short, 0))
	p.landed(append(ids, p.ids)...)
	// The notice cannot overtake its pages: they are there now, and one is not.
	if err := p.p.Send(Samples()[handoff.Notice-handoff.Ask]); err != nil {
		t.Fatal(err)
	}
	wait(t, p.decode.message, "the notice")
	p.verify(r, nil)
	p.verify(short, kv.ErrDigest)
}

func testSmallest(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	p := join(t, fabric(t, wire.Options{Streams: 1}))
	r := p.request(1, 1)
	p.landed(p.write(p.page(r, 0)))
	p.verify(r, nil)
}

func testRefused(t *testing.T, fabric func(*testing.T, wire.Options) Fabric) {
	p := join(t, fabric(t, wire.Options{Streams: 2}))
	r, other := p.request(3*16+5, 1), p.request(2*16, 2)
	gone := p.request(16, 3)
	p.pool.Landing().Revoke(gone.to.Key())

	bad := map[uint64]string{}
	spoil := func(what string, change func(*wire.PageWrite)) {
		w := p.page(other, 0)
		change(&w)
		bad[p.write(w)] = what
	}
	spoil("unknown key", func(w *wire.PageWrite) { w.Key[7]++ })
	spoil("revoked key", func(w *wire.PageWrite) { w.Key = gone.to.Key() })
	spoil("page behind the last", func(w *wire.PageWrite) { w.Key, w.Page = r.to.Key(), r.to.Pages() })
	spoil("too many rows", func(w *wire.PageWrite) { w.Key, w.Page = r.to.Key(), r.to.Pages()-1 })
	part, rows := r.from.Segments(r.to.Pages() - 1)
	spoil("too few rows", func(w *wire.PageWrite) { w.Rows, w.Segments = rows, part })
	good := map[uint64]bool{}
	for i := range r.to.Pages() {
		good[p.write(p.page(r, i))] = true
	}
	for i := range other.to.Pages() {
		good[p.write(p.page(other, i))] = true
	}
	for id, err := range p.completions(len(bad) + len(good)) {
		switch {
		case good[id] && err != nil:
			t.Errorf("good page: %v", err)
		case !good[id] && !errors.Is(err, kv.ErrRefused):
			t.Errorf("%s: %v, want %v", bad[id], err, kv.ErrRefused)
		}
	}
	// A page lands once: the second is refused, whatever it holds.
	again := p.page(r, 0)
	again.Segments, _ = other.from.Segments(0)
	p.write(again)
	if err := p.completions(1)[again.ID]; !errors.Is(err, kv.ErrRefused) {
		t.Errorf("second landing: %v", err)
	}
	p.verify(r, nil)
	p.verify(other, nil)
}

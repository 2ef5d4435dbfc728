package wire_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"

	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
	"bulkhead.dev/bulkhead/wire/wiretest"
)

const (
	benchPages   = 64 // of one reservation
	benchStreams = 2
	benchWarm    = 4 // reservations
)

// BenchmarkTransfer moves pages of 1 MiB over loopback with two streams: a bare
// copy, then the transport. One iteration is one page.
func BenchmarkTransfer(b *testing.B) {
	b.Run("bare", benchBare)
	b.Run("plain", func(b *testing.B) { benchLink(b, tcp(wire.PlainData)) })
	b.Run("tls", func(b *testing.B) { benchLink(b, tcp(wire.TLSAll)) })
}

func benchLayout() kv.Layout { return kv.Layout{Layers: 8, Heads: 4, Dim: 64, PageTokens: 64} }

// benchBare writes and reads the same memory with nothing around it.
func benchBare(b *testing.B) {
	n, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	size := benchLayout().Bytes(64)
	from, to := make([]byte, 2*benchPages*size), make([]byte, 2*benchPages*size)
	touch(from)
	touch(to)
	b.SetBytes(int64(size))
	b.ResetTimer()
	since := spent(b)
	var wg sync.WaitGroup
	for s := range benchStreams {
		out, err := net.Dial("tcp", n.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		in, err := n.Accept()
		if err != nil {
			b.Fatal(err)
		}
		page := func(mem []byte, i int) []byte {
			at := (i*benchStreams + s) % (2 * benchPages) * size
			return mem[at : at+size]
		}
		count := b.N / benchStreams
		wg.Go(func() {
			for i := range count {
				if _, err := out.Write(page(from, i)); err != nil {
					b.Error(err)
				}
			}
		})
		wg.Go(func() {
			for i := range count {
				if _, err := io.ReadFull(in, page(to, i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	report(b, since)
}

// spent returns the processor time of this process, in nanoseconds.
func spent(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// report adds processor time to what a benchmark says; wall time is noisy.
func report(b *testing.B, since int64) {
	b.ReportMetric(float64(spent(b)-since)/float64(b.N), "cpu-ns/op")
}

func touch(mem []byte) {
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = byte(i)
	}
}

// benchEnd counts completions.
type benchEnd struct {
	opened  chan wire.Link
	written [2]chan error // by half
	closed  chan error
}

func (e benchEnd) Opened(l wire.Link)                        { e.opened <- l }
func (e benchEnd) Receive(wire.Link, wire.Message)           {}
func (e benchEnd) Written(_ wire.Link, id uint64, err error) { e.written[id] <- err }
func (e benchEnd) Closed(_ wire.Link, err error)             { e.closed <- err }

func newBenchEnd() benchEnd {
	return benchEnd{
		make(chan wire.Link, 1), [2]chan error{make(chan error, benchPages), make(chan error, benchPages)}, make(chan error, 1),
	}
}

func benchLink(b *testing.B, fabric func(testing.TB, wire.Options) wiretest.Fabric) {
	f := fabric(b, wire.Options{Streams: benchStreams})
	pool := func(epoch uint64) *kv.Pool {
		var n uint64
		p, err := kv.New(kv.Config{Layout: benchLayout(), Pages: 2 * benchPages, Epoch: epoch, Keys: func() (k kv.Key) {
			n++
			binary.LittleEndian.PutUint64(k[:], n)
			return k
		}})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	source, target := pool(1), pool(2)
	prefill, decode := newBenchEnd(), newBenchEnd()
	hp, hd := wiretest.PrefillHello(), wiretest.DecodeHello()
	hp.Layout, hd.Layout = benchLayout(), benchLayout()
	listener, err := f.Prefill.Listen(f.Addr, hp, prefill, nil)
	if err != nil {
		b.Fatal(err)
	}
	dialled, err := f.Decode.Dial(b.Context(), listener.Addr(), hd, decode, target.Landing())
	if err != nil {
		b.Fatal(err)
	}
	link := <-prefill.opened
	tokens := 2 * benchPages * 64
	seq, err := source.Local(kv.Domain{1}, tokens, nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := seq.Extend(tokens); err != nil {
		b.Fatal(err)
	}
	for layer := range benchLayout().Layers {
		for pos := range tokens {
			k, v, err := seq.Write(layer, pos)
			if err != nil {
				b.Fatal(err)
			}
			k[0], v[0] = float32(pos), float32(layer)
		}
	}
	if err := seq.Commit(); err != nil {
		b.Fatal(err)
	}
	run(b, link, prefill, target, seq, benchWarm*benchPages)
	b.SetBytes(int64(benchLayout().Bytes(64)))
	b.ReportAllocs()
	b.ResetTimer()
	since := spent(b)
	run(b, link, prefill, target, seq, b.N)
	b.StopTimer()
	report(b, since)
	dialled.Close(nil)
	link.Close(nil)
	<-decode.closed
	<-prefill.closed
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
}

// run writes n pages, into two reservations in turn.
func run(b *testing.B, link wire.Link, e benchEnd, target *kv.Pool, seq *kv.Sequence, n int) {
	post := func(half, n int) *kv.Reservation {
		r, err := target.Reserve(kv.Domain{1}, benchPages*64, 0, nil)
		if err != nil {
			b.Fatal(err)
		}
		for i := range n {
			segs, rows := seq.Segments(half*benchPages + i)
			if err := link.Write(wire.PageWrite{ID: uint64(half), Key: r.Key(), Page: i, Rows: rows, Segments: segs}); err != nil {
				b.Fatal(err)
			}
		}
		return r
	}
	finish := func(r *kv.Reservation, half, n int) {
		for range n {
			if err := <-e.written[half]; err != nil {
				b.Fatal(err)
			}
		}
		if _, err := target.Seal(r); err != nil {
			b.Fatal(err)
		}
		if err := target.Free(r); err != nil {
			b.Fatal(err)
		}
	}
	var before *kv.Reservation
	posted := 0
	half := 0
	for ; n > 0; half = 1 - half {
		now := min(n, benchPages)
		r := post(half, now)
		if before != nil {
			finish(before, 1-half, posted)
		}
		before, posted, n = r, now, n-now
	}
	finish(before, 1-half, posted)
}

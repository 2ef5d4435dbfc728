package wire

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

// valve is a connection whose writes can be kept back, to be let through in
// pieces that no record and no frame knows of.
type valve struct {
	net.Conn
	shut bool
	kept bytes.Buffer
}

func (v *valve) Write(p []byte) (int, error) {
	if v.shut {
		return v.kept.Write(p)
	}
	return v.Conn.Write(p)
}

// TestInterruptAnywhere interrupts a reader at every kind of place of a
// connection, in the middle of TLS records too, and it goes on where it was.
func TestInterruptAnywhere(t *testing.T) {
	a := testAuthority(t)
	server, client := a.mustIssue(t, RolePrefill, "p").Server(), a.mustIssue(t, RoleDecode, "d").Client()
	for _, secure := range []bool{false, true} {
		near, far := net.Pipe()
		v := &valve{Conn: far}
		var writer, reader net.Conn = v, near
		if secure {
			w, r := tls.Server(v, server), tls.Client(near, client)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := w.Handshake(); err != nil {
					t.Error(err)
				}
			})
			if err := r.Handshake(); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			writer, reader = w, r
		}
		content := make([]byte, 100_000)
		random := rand.New(rand.NewPCG(1, 2))
		for i := range content {
			content[i] = byte(random.Uint32())
		}
		v.shut = true
		if _, err := writer.Write(content); err != nil {
			t.Fatal(err)
		}

		src := &source{conn: reader}
		got := make([]byte, len(content))
		interrupted, done := make(chan int), make(chan error)
		go func() {
			for n := 0; n < len(got); {
				m, err := src.Read(got[n:])
				n += m
				switch {
				case errors.Is(err, kv.ErrInterrupted):
					interrupted <- n
				case err != nil:
					done <- err
					return
				}
			}
			close(done)
		}()
		places := 0
		for size := 1; v.kept.Len() > 0; size = 1 + random.IntN(3000) {
			src.Interrupt()
			at := await(t, interrupted)
			if at == len(got) {
				t.Fatal("interrupted after the end")
			}
			places++
			if _, err := v.Conn.Write(v.kept.Next(size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := await(t, done); err != nil {
			t.Fatalf("tls %v: %v", secure, err)
		}
		if !bytes.Equal(got, content) {
			t.Fatalf("tls %v: the content has changed", secure)
		}
		if places < 30 {
			t.Fatalf("only %d places", places)
		}
		_, _ = near.Close(), far.Close() // pipes close without an error
	}
}

// TestDrain reads exactly what is to be thrown away, interrupts or not.
func TestDrain(t *testing.T) {
	near, far := net.Pipe()
	src := &source{conn: near}
	go func() {
		for range 3 {
			_, _ = far.Write(make([]byte, 100_000)) // ends with the pipe
		}
		_, _ = far.Write([]byte("next"))
		_ = far.Close() // pipes close without an error
	}()
	src.Interrupt()
	if err := src.drain(300_000); err != nil {
		t.Fatal(err)
	}
	next := make([]byte, 4)
	if err := src.head(next); err != nil || string(next) != "next" {
		t.Fatalf("%q, %v", next, err)
	}
	if err := src.drain(1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("drain at the end: %v", err)
	}
	if err := src.drain(0); err != nil {
		t.Fatal(err)
	}
}

// TestLateInterrupts keeps interrupting the readers of a link, which may at no
// place take it for anything else than a reason to look again.
func TestLateInterrupts(t *testing.T) {
	a := testAuthority(t)
	for _, p := range []Protection{TLSAll, PlainData} {
		o := Options{Streams: 2}
		prefill, decode := newHeard(), newHeard()
		pool := testPool(t)
		listener, err := TCP{Options: o, Protection: p, Credential: a.mustIssue(t, RolePrefill, "prefill.one")}.
			Listen("127.0.0.1:0", testHello(RolePrefill), prefill, nil)
		if err != nil {
			t.Fatal(err)
		}
		l, err := TCP{Options: o, Protection: p, Credential: a.mustIssue(t, RoleDecode, "decode.one")}.
			Dial(t.Context(), listener.Addr(), testHello(RoleDecode), decode, pool.Landing())
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for _, s := range l.(*link).streams {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						s.source.Interrupt()
					}
				}
			})
		}
		sender := await(t, prefill.opened)
		const rounds, pages = 20, 64
		for round := range rounds {
			r, err := pool.Reserve(kv.Domain{}, pages*16, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := make([]kv.Digest, pages)
			for i := range pages {
				content := make([]byte, testLayout().Bytes(16))
				binary.LittleEndian.PutUint32(content[len(content)-4:], uint32(round<<8|i))
				want[i] = tail{}.Page(i, [][]byte{content})
				if err := sender.Write(PageWrite{Key: r.Key(), Page: i, Rows: 16, Segments: [][]byte{content}}); err != nil {
					t.Fatal(err)
				}
			}
			for range pages {
				if err := await(t, prefill.written); err != nil {
					t.Fatal(err)
				}
			}
			sealed, err := pool.Seal(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Verify(sealed, tail{}, want); err != nil {
				t.Fatal(err)
			}
			if err := pool.Free(r); err != nil {
				t.Fatal(err)
			}
		}
		close(stop)
		wg.Wait()
		l.Close(nil)
		await(t, decode.closed)
		await(t, prefill.closed)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// tail is a digest of a page's last bytes.
type tail struct{}

func (tail) Page(_ int, segments [][]byte) (d kv.Digest) {
	last := segments[len(segments)-1]
	copy(d[:], last[len(last)-4:])
	return d
}

package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// seeds adds every golden frame, cut by skip bytes, to the corpus.
func seeds(f *testing.F, skip int) {
	files, err := filepath.Glob(filepath.Join("testdata", "v1", "*.hex"))
	if err != nil || len(files) < 19 {
		f.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, file := range files {
		f.Add(readGolden(f, file)[skip:])
	}
	f.Add([]byte{})
}

// FuzzFrame: whatever arrives, reading a frame ends with a frame that is written
// the same, or with an error; and takes no more memory than the limit.
func FuzzFrame(f *testing.F) {
	seeds(f, 0)
	f.Fuzz(func(t *testing.T, b []byte) {
		all := make([]frameType, 0, frames)
		for k := noFrame + 1; k < frames; k++ {
			if k != framePage {
				all = append(all, k)
			}
		}
		kind, body, err := readFrame(bytes.NewReader(b), nil, all...)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("an error without a reason: %v", err)
			}
			return
		}
		again := endFrame(append(beginFrame(nil, kind), body...), 0, 0)
		if !bytes.Equal(again, b[:len(again)]) {
			t.Fatalf("read %x, written again as %x", b, again)
		}
	})
}

// FuzzMessage: a body is refused, or written again byte by byte.
func FuzzMessage(f *testing.F) {
	seeds(f, prefixSize)
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := parseMessage(body)
		if err != nil {
			if ReasonOf(err) != ReasonMalformed {
				t.Fatalf("reason %v", err)
			}
			return
		}
		if got := appendMessage(nil, &m)[prefixSize:]; !bytes.Equal(got, body) {
			t.Fatalf("read %x, written as %x", body, got)
		}
		if m.Kind != handoff.Notice && m.Digests != nil {
			t.Fatal("digests without a notice")
		}
	})
}

// FuzzHandshake: the bodies of the handshake are refused, or written again byte
// by byte.
func FuzzHandshake(f *testing.F) {
	seeds(f, prefixSize)
	f.Fuzz(func(t *testing.T, body []byte) {
		if g, err := parseGreeting(body); err == nil {
			if got := appendGreeting(nil, g); !bytes.Equal(got, body) {
				t.Fatalf("hello %x, written as %x", body, got)
			}
			if err := g.check(); err != nil {
				t.Fatal(err)
			}
		}
		if ticket, g, err := parseWelcome(body); err == nil {
			if got := appendWelcome(nil, ticket, g)[prefixSize:]; !bytes.Equal(got, body) {
				t.Fatalf("welcome %x, written as %x", body, got)
			}
		}
		if b, err := parseBind(body); err == nil {
			if got := appendBind(nil, b)[prefixSize:]; !bytes.Equal(got, body) {
				t.Fatalf("bind %x, written as %x", body, got)
			}
		}
		if a, err := parseAck(body); err == nil {
			if got := appendAck(nil, a)[prefixSize:]; !bytes.Equal(got, body) {
				t.Fatalf("ack %x, written as %x", body, got)
			}
		}
		if err := parseRefused(body); ReasonOf(err) == NoReason {
			t.Fatalf("a refusal without a reason: %v", err)
		}
	})
}

// FuzzPageStream feeds a data connection of decode: it ends with a reason, and
// page memory changes only for whole, allowed frames.
func FuzzPageStream(f *testing.F) {
	page := readGolden(f, filepath.Join("testdata", "v1", "page.hex"))
	f.Add(page)
	f.Add(append(bytes.Clone(page), page...))
	good := append(appendPage(nil, pageHead{key: kv.Key{1, 99}, rows: 2, seq: 1}, testLayout().Bytes(2)), make([]byte, testLayout().Bytes(2))...)
	f.Add(append(bytes.Clone(good), appendPage(nil, pageHead{key: kv.Key{1, 99}, rows: 2, seq: 2}, testLayout().Bytes(2))...))
	f.Add(good[:60])
	f.Fuzz(func(t *testing.T, b []byte) {
		pool := testPool(t)
		if _, err := pool.Reserve(kv.Domain{}, 2, 0, nil); err != nil {
			t.Fatal(err)
		}
		o, err := Options{}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		l := &link{side: side{opts: o, hello: testHello(RoleDecode), landing: pool.Landing()}, done: make(chan struct{})}
		s := newStream(l, &conn{Conn: replay{bytes.NewReader(b)}, kind: kindTLS})
		if got := asError(s.land()); got.Reason == NoReason {
			t.Fatalf("ended with %v", got)
		}
		if s.receipts.a.count > 0 && len(b) < prefixSize+pageSize {
			t.Fatal("a frame was acknowledged that did not arrive")
		}
	})
}

// replay is a connection whose peer has sent everything that it will.
type replay struct{ *bytes.Reader }

func (replay) Write(p []byte) (int, error)        { return len(p), nil }
func (replay) Close() error                       { return nil }
func (replay) LocalAddr() net.Addr                { return memAddr("here") }
func (replay) RemoteAddr() net.Addr               { return memAddr("there") }
func (replay) SetDeadline(time.Time) error        { return nil }
func (replay) SetReadDeadline(time.Time) error    { return nil }
func (replay) SetWriteDeadline(t time.Time) error { return nil }

// FuzzPass: no text is a pass but the one that was minted.
func FuzzPass(f *testing.F) {
	p, err := NewPasser(count(make([]byte, 32), 1))
	if err != nil {
		f.Fatal(err)
	}
	now := time.Unix(1_790_000_000, 0)
	minted := p.Mint(handoff.Attempt{1}, kv.Domain{2}, now.Add(time.Minute), 5, []byte("body"))
	f.Add(minted)
	f.Add(strings.ToUpper(minted))
	f.Add(minted + ".")
	f.Add("v1....")
	f.Add("v1." + strings.Repeat("0", 32) + "." + strings.Repeat("0", 32) + ".9223372036854775807." + strings.Repeat("0", 64))
	f.Fuzz(func(t *testing.T, header string) {
		_, err := p.Check(header, 5, []byte("body"), now)
		if (err == nil) != (header == minted) {
			t.Fatalf("%q: %v", header, err)
		}
	})
}

// FuzzPEM: no input is taken for a credential that it is not.
func FuzzPEM(f *testing.F) {
	now := time.Now()
	a, err := NewAuthority(now, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	c, err := a.Issue(now, time.Hour, Identity{RolePrefill, "p"})
	if err != nil {
		f.Fatal(err)
	}
	cert, key, authority, err := c.PEM()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(cert, key, authority)
	f.Add(authority, key, cert)
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"), key, authority)
	f.Fuzz(func(t *testing.T, c, k, a []byte) {
		got, err := ParseCredential(c, k, a)
		if err != nil {
			return
		}
		if !got.who.Role.valid() || !validName(got.who.Name) {
			t.Fatalf("credential of %v", got.who)
		}
	})
}

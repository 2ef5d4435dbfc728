package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

var rewrite = flag.Bool("rewrite", false, "rewrite golden files")

func count(b []byte, from byte) []byte {
	for i := range b {
		b[i] = from + byte(i)
	}
	return b
}

func goldenMessage(kind handoff.Kind) Message {
	m := Message{Msg: handoff.Msg{
		Kind: kind, Room: 0x0102030405060708,
		ID: handoff.ID{Attempt: handoff.Attempt(count(make([]byte, 16), 0xa0)), Gen: kv.Generation{Epoch: 0x1112131415161718, Counter: 3}},
		View: handoff.View{
			Tokens: 130, Pages: 8, Prefix: 16, Layout: 0x2122232425262728, PrefixHash: kv.Hash(count(make([]byte, 32), 0x30)),
			Input: kv.Hash(count(make([]byte, 32), 0x60)), Domain: kv.Domain(count(make([]byte, 16), 0xd0)),
		},
	}}
	switch kind {
	case handoff.Refuse:
		m.Code, m.Limit = handoff.TooLong, 681_280
	case handoff.Abort:
		m.Code = handoff.Cancelled
	case handoff.Grant:
		m.Key = kv.Key(count(make([]byte, 16), 0xe0))
	case handoff.Notice:
		m.Algorithm, m.First = 1, 65
		m.DigestKey, m.MAC = [32]byte(count(make([]byte, 32), 0x01)), [32]byte(count(make([]byte, 32), 0x81))
		m.Digests = []kv.Digest{kv.Digest(count(make([]byte, 16), 0xb0)), kv.Digest(count(make([]byte, 16), 0xc0))}
	}
	return m
}

func goldenGreeting() greeting {
	return greeting{
		Hello: Hello{
			Role: RoleDecode, Name: "decode-0.rack.example", Incarnation: 0x3132333435363738,
			Model: [32]byte(count(make([]byte, 32), 0x40)), Layout: kv.Layout{Layers: 28, Heads: 8, Dim: 128, PageTokens: 64},
		},
		protection: PlainData, streams: 2,
	}
}

func goldenTicket() ticket {
	return ticket{id: [16]byte(count(make([]byte, 16), 0x50)), token: [32]byte(count(make([]byte, 32), 0x70))}
}

// golden is one frame: how it is written, and how it is read back. read returns
// what frame was made of.
type golden struct {
	name  string
	made  any
	frame []byte
	read  func(body []byte) (any, error)
}

func goldens() []golden {
	g, t := goldenGreeting(), goldenTicket()
	b := bind{id: t.id, index: 1, proof: t.prove(1, frameBind)}
	a := ack{seq: 0x0102030405, refused: 1 << 2, count: 3}
	h := pageHead{key: kv.Key(count(make([]byte, 16), 0xe0)), page: 7, rows: 2, seq: 41}
	content := count(make([]byte, testLayout().Bytes(2)), 0)
	type welcome struct {
		ticket
		greeting
	}
	asIs := func(body []byte) (any, error) { return append([]byte{}, body...), nil }
	out := []golden{
		{"hello", g, appendHello(nil, g), func(b []byte) (any, error) { return parseGreeting(b) }},
		{"welcome", welcome{t, g}, appendWelcome(nil, t, g), func(b []byte) (any, error) {
			t, g, err := parseWelcome(b)
			return welcome{t, g}, err
		}},
		{"start", []byte{}, endFrame(beginFrame(nil, frameStart), 0, 0), asIs},
		{"refused", error(&Error{Reason: ReasonPageSize, Remote: true}), appendRefused(nil, ReasonPageSize), func(b []byte) (any, error) {
			return parseRefused(b), nil
		}},
		{"bind", b, appendBind(nil, b), func(b []byte) (any, error) { return parseBind(b) }},
		{"bound", b.proof[:], appendBound(nil, b.proof), asIs},
		{"ping", count(make([]byte, 8), 1), appendPing(nil, framePing, 0x0807060504030201), asIs},
		{"pong", count(make([]byte, 8), 1), appendPing(nil, framePong, 0x0807060504030201), asIs},
		{"ack", a, appendAck(nil, a), func(b []byte) (any, error) { return parseAck(b) }},
		{"page", h, append(appendPage(nil, h, len(content)), content...), nil},
	}
	for kind := handoff.Ask; kind <= handoff.Quiet; kind++ {
		m := goldenMessage(kind)
		out = append(out, golden{"message-" + kind.String(), m, appendMessage(nil, &m), func(b []byte) (any, error) { return parseMessage(b) }})
	}
	return out
}

// TestGoldenFrames holds every frame of every version to its file: written the
// same, and read as the same.
func TestGoldenFrames(t *testing.T) {
	seen := map[frameType]bool{}
	for _, g := range goldens() {
		file := filepath.Join("testdata", "v1", g.name+".hex")
		if *rewrite {
			writeGolden(t, file, g.frame)
		}
		frame := readGolden(t, file)
		if !bytes.Equal(frame, g.frame) {
			t.Errorf("%s: written as\n%x, the file has\n%x", g.name, g.frame, frame)
		}
		if g.read == nil {
			h, content, err := parsePage(frame[:prefixSize+pageSize], testLayout())
			if err != nil || h != g.made || content != len(frame)-prefixSize-pageSize {
				t.Errorf("%s: read as %+v with %d bytes, %v", g.name, h, content, err)
			}
			seen[framePage] = true
			continue
		}
		r := bytes.NewReader(frame)
		kind, body, err := readFrame(r, nil, frameType(frame[5]))
		if err != nil || r.Len() != 0 {
			t.Errorf("%s: %v, %d bytes left", g.name, err, r.Len())
			continue
		}
		seen[kind] = true
		if got, err := g.read(body); err != nil || !reflect.DeepEqual(got, g.made) {
			t.Errorf("%s: read as %#v, %v; want %#v", g.name, got, err, g.made)
		}
	}
	for kind := noFrame + 1; kind < frames; kind++ {
		if !seen[kind] {
			t.Errorf("frame type %d has no golden file", kind)
		}
	}
}

func writeGolden(t *testing.T, file string, frame []byte) {
	t.Helper()
	var b strings.Builder
	for i := 0; i < len(frame); i += 16 {
		fmt.Fprintf(&b, "%x\n", frame[i:min(i+16, len(frame))])
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readGolden(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// TestEveryByteCounts flips each bit of each frame: the checksum or a check
// catches it, but for the content of a page, which is the digest's.
func TestEveryByteCounts(t *testing.T) {
	for _, g := range goldens() {
		covered := len(g.frame)
		if g.read == nil {
			covered = prefixSize + pageSize
		}
		for bit := range covered * 8 {
			frame := bytes.Clone(g.frame)
			frame[bit/8] ^= 1 << (bit % 8)
			var err error
			if g.read == nil {
				_, _, err = parsePage(frame[:covered], testLayout())
			} else {
				_, _, err = readFrame(bytes.NewReader(frame), nil, frameType(g.frame[5]))
			}
			var e *Error
			if !errors.As(err, &e) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s: bit %d flipped: %v", g.name, bit, err)
			}
		}
	}
}

// TestEveryCutIsSeen cuts each frame short.
func TestEveryCutIsSeen(t *testing.T) {
	for _, g := range goldens() {
		if g.read == nil {
			continue
		}
		for n := range len(g.frame) {
			want := io.ErrUnexpectedEOF
			if n == 0 {
				want = io.EOF
			}
			if _, _, err := readFrame(bytes.NewReader(g.frame[:n]), nil, frameType(g.frame[5])); !errors.Is(err, want) {
				t.Fatalf("%s cut to %d bytes: %v, want %v", g.name, n, err, want)
			}
		}
		// A body that is cut and sealed again.
		for n := range len(g.frame) - prefixSize {
			frame := endFrame(bytes.Clone(g.frame[:prefixSize+n]), 0, 0)
			_, body, err := readFrame(bytes.NewReader(frame), nil, frameType(g.frame[5]))
			if err == nil {
				_, err = g.read(body)
			}
			if err == nil && g.name != "hello" && g.name != "welcome" { // a name may be shorter, below
				t.Fatalf("%s with a body of %d bytes was read", g.name, n)
			}
			if err == nil {
				t.Fatalf("%s: the length of the name was not compared", g.name)
			}
		}
	}
}

// TestReadFrameReusesBuffer: no allocation for the body if the buffer is there.
func TestReadFrameReusesBuffer(t *testing.T) {
	frame := appendPing(nil, framePing, 5)
	buf := make([]byte, 0, 64)
	_, body, err := readFrame(bytes.NewReader(frame), buf, framePing)
	if err != nil || &body[0] != &buf[:1][0] {
		t.Fatalf("%v, body elsewhere", err)
	}
}

// TestNoSecretIsPrinted prints what holds secrets with every verb.
func TestNoSecretIsPrinted(t *testing.T) {
	m := goldenMessage(handoff.Notice)
	m.Key = kv.Key(count(make([]byte, 16), 0xe0))
	w := PageWrite{ID: 4, Key: m.Key, Page: 3, Rows: 1, Segments: [][]byte{[]byte("SECRET-CONTENT")}}
	p, err := NewPasser([]byte("SECRET-KEY-SECRET-KEY-SECRET-KEY"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.Issue(time.Now(), time.Hour, Identity{RolePrefill, "p"})
	if err != nil {
		t.Fatal(err)
	}
	type bare Message // without Format: the positive control
	type bareWrite PageWrite
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		for _, v := range []any{bare(m), bareWrite(w)} {
			if text := fmt.Sprintf(verb, v); !tells(text) {
				t.Errorf("%s: the test does not see the secret in %q", verb, text)
			}
		}
		for _, v := range []any{m, &m, w, &w, p, a, c, []Message{m}, map[int]PageWrite{1: w}} {
			if text := fmt.Sprintf(verb, v); tells(text) || len(text) > 200 {
				t.Errorf("%s of %T prints %q", verb, v, text)
			}
		}
	}
}

// tells looks for the secrets of TestNoSecretIsPrinted as fmt could spell them.
func tells(text string) bool {
	for _, secret := range []string{
		"e0e1e2", "224 225 226", "0xe0, 0xe1", "0102030405", "1 2 3 4", "0x1, 0x2, 0x3", "b0b1b2", "176 177 178",
		"SECRET", "5345435245", "83 69 67 82", `\x01\x02`, "\x01\x02", `\xe0\xe1`,
	} {
		if strings.Contains(text, secret) {
			return true
		}
	}
	return false
}

// TestReasons: every reason has a name and a sentence of its own.
func TestReasons(t *testing.T) {
	names, sentences := map[string]Reason{}, map[string]Reason{}
	for r := NoReason; r < reasons; r++ {
		if r.String() == "" || r.Sentence() == "" {
			t.Errorf("reason %d says nothing", r)
		}
		if other, twice := names[r.String()]; twice {
			t.Errorf("reasons %d and %d have one name", r, other)
		}
		if other, twice := sentences[r.Sentence()]; twice {
			t.Errorf("reasons %d and %d have one sentence", r, other)
		}
		names[r.String()], sentences[r.Sentence()] = r, r
	}
	if reasons.String() != "unknown" || reasons.Sentence() == "" {
		t.Error("an unknown reason has no name")
	}
	cause := errors.New("cause")
	err := fmt.Errorf("around: %w", &Error{Reason: ReasonBusy, Remote: true, Err: cause})
	if ReasonOf(err) != ReasonBusy || !errors.Is(err, cause) || ReasonOf(cause) != NoReason || ReasonOf(nil) != NoReason {
		t.Error("ReasonOf")
	}
	if got := err.Error(); got != "around: wire: the peer says: too many connections: cause" {
		t.Errorf("error says %q", got)
	}
}

// TestOptions: zero means the default, nonsense is refused.
func TestOptions(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil || o.Streams != 2 || o.Writes != 65536 || o.Handshake != 10*time.Second || o.Rand == nil || o.Refused == nil {
		t.Fatalf("%+v, %v", o, err)
	}
	for _, o := range []Options{
		{Streams: -1}, {Streams: MaxStreams + 1}, {Queue: -1}, {Writes: -1}, {Links: -1}, {Handshake: -1}, {KeepAlive: -1}, {Stall: -1},
	} {
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	m := NewMem(Options{})
	pool := testPool(t)
	hello := testHello(RoleDecode)
	for name, listen := range map[string]func() (Listener, error){
		"decode without a landing": func() (Listener, error) { return m.Listen("a", hello, newHeard(), nil) },
		"prefill with a landing": func() (Listener, error) {
			return m.Listen("a", testHello(RolePrefill), newHeard(), pool.Landing())
		},
		"no handler": func() (Listener, error) { return m.Listen("a", hello, nil, pool.Landing()) },
		"no role":    func() (Listener, error) { return m.Listen("a", Hello{}, newHeard(), pool.Landing()) },
		"bad options": func() (Listener, error) {
			return NewMem(Options{Streams: 9}).Listen("a", hello, newHeard(), pool.Landing())
		},
	} {
		if l, err := listen(); err == nil {
			t.Errorf("%s: listens", name)
			_ = l.Close() // already failed
		}
	}
	l, err := m.Listen("a", hello, newHeard(), pool.Landing())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Listen("a", hello, newHeard(), pool.Landing()); err == nil {
		t.Error("two listen on one address")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Dial(t.Context(), "a", hello, newHeard(), pool.Landing()); ReasonOf(err) != ReasonGone {
		t.Errorf("dial of nobody: %v", err)
	}
}

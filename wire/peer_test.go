package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// The tests of this file put a peer that does not keep to the protocol at one
// end of a link. It has the raw connections and the real encoders.

func testLayout() kv.Layout { return kv.Layout{Layers: 2, Heads: 1, Dim: 4, PageTokens: 16} }

func testHello(r Role) Hello {
	return Hello{Role: r, Name: r.String() + ".one", Incarnation: 77, Model: [32]byte{4}, Layout: testLayout()}
}

// heard records what a handler was told.
type heard struct {
	opened   chan Link
	messages chan Message
	written  chan error
	closed   chan error
}

func newHeard() *heard {
	return &heard{make(chan Link, 8), make(chan Message, 4096), make(chan error, 4096), make(chan error, 8)}
}

func (h *heard) Opened(l Link)                       { h.opened <- l }
func (h *heard) Receive(_ Link, m Message)           { h.messages <- m }
func (h *heard) Written(_ Link, _ uint64, err error) { h.written <- err }
func (h *heard) Closed(_ Link, err error)            { h.closed <- err }

func testPool(t testing.TB) *kv.Pool {
	t.Helper()
	var n byte
	p, err := kv.New(kv.Config{Layout: testLayout(), Pages: 128, Epoch: 9, Keys: func() kv.Key { n++; return kv.Key{n, 99} }})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// victim is a real end of a link whose peer is raw.
type victim struct {
	t       *testing.T
	heard   *heard
	link    Link
	pool    *kv.Pool // of a decode worker
	control net.Conn // the peer's ends
	data    net.Conn
	refused chan error
}

// raw opens a connection to a listener of m.
func raw(t testing.TB, m *Mem, addr string) net.Conn {
	t.Helper()
	m.mu.Lock()
	n := m.at[addr]
	m.mu.Unlock()
	near, far := net.Pipe()
	select {
	case n.conns <- far:
	case <-n.done:
		t.Fatal("the listener is closed")
	}
	t.Cleanup(func() { _ = near.Close() }) // whatever the test left open
	return near
}

func put(t testing.TB, c net.Conn, frame []byte) {
	t.Helper()
	if _, err := c.Write(frame); err != nil {
		t.Fatalf("the peer cannot write: %v", err)
	}
}

// push writes what the other side may not want to read to its end.
func push(c net.Conn, frame []byte) {
	go func() { _, _ = c.Write(frame) }() // ends with the connection
}

func get(t testing.TB, c net.Conn, want frameType) []byte {
	t.Helper()
	kind, body, err := readFrame(c, nil, want)
	if err != nil {
		t.Fatalf("the peer reads %v, %v; want a frame of type %d", kind, err, want)
	}
	return body
}

func testOptions() (Options, chan error) {
	refused := make(chan error, 64)
	return Options{Streams: 1, Refused: func(err error) { refused <- err }}, refused
}

// prefillVictim is a real prefill worker whose decode peer is raw.
func prefillVictim(t *testing.T, o Options) *victim {
	t.Helper()
	refused := make(chan error, 64)
	o.Streams, o.Refused = 1, func(err error) { refused <- err }
	m := NewMem(o)
	v := &victim{t: t, heard: newHeard(), refused: refused}
	listener, err := m.Listen("a", testHello(RolePrefill), v.heard, nil)
	if err != nil {
		t.Fatal(err)
	}
	v.control = raw(t, m, "a")
	put(t, v.control, appendHello(nil, greeting{testHello(RoleDecode), inProcess, 1}))
	ticket, _, err := parseWelcome(get(t, v.control, frameWelcome))
	if err != nil {
		t.Fatal(err)
	}
	v.data = raw(t, m, "a")
	put(t, v.data, appendBind(nil, bind{ticket.id, 0, ticket.prove(0, frameBind)}))
	get(t, v.data, frameBound)
	put(t, v.control, endFrame(beginFrame(nil, frameStart), 0, 0))
	v.link = <-v.heard.opened
	t.Cleanup(func() {
		v.hangUp()
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
	return v
}

// decodeVictim is a real decode worker whose prefill peer is raw.
func decodeVictim(t *testing.T, o Options) *victim {
	t.Helper()
	o.Streams = 1
	m := NewMem(o)
	v := &victim{t: t, heard: newHeard(), pool: testPool(t)}
	n := &memListener{mem: m, addr: "a", conns: make(chan net.Conn), done: make(chan struct{})}
	m.at["a"] = n
	dialled := make(chan error, 1)
	go func() {
		_, err := m.Dial(t.Context(), "a", testHello(RoleDecode), v.heard, v.pool.Landing())
		dialled <- err
	}()
	v.control = <-n.conns
	get(t, v.control, frameHello)
	ticket := ticket{id: [16]byte{1}, token: [32]byte{2}}
	put(t, v.control, appendWelcome(nil, ticket, greeting{testHello(RolePrefill), inProcess, 1}))
	v.data = <-n.conns
	get(t, v.data, frameBind)
	put(t, v.data, appendBound(nil, ticket.prove(0, frameBound)))
	get(t, v.control, frameStart)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	v.link = <-v.heard.opened
	t.Cleanup(func() { v.hangUp(); synctest.Wait() })
	return v
}

func (v *victim) hangUp() {
	_, _ = v.control.Close(), v.data.Close() // pipes close without an error
}

// ends waits for Closed and checks its reason; nothing else may be reported.
func (v *victim) ends(want Reason) {
	v.t.Helper()
	cause := <-v.heard.closed
	var e *Error
	if !errors.As(cause, &e) || e.Reason != want || e.Remote {
		v.t.Errorf("closed by %v, want %v", cause, want)
	}
	if strings.Contains(cause.Error(), "SECRET") {
		v.t.Errorf("the cause quotes what the peer sent: %v", cause)
	}
}

// discard reads a connection to nowhere.
func discard(c net.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
}

// spoil changes one byte of a frame and repairs the checksum of what precedes
// beyond content bytes.
func spoil(frame []byte, at int, to byte) []byte {
	frame = append([]byte(nil), frame...)
	frame[at] = to
	checked := frame[prefixSize:]
	if frameType(frame[5]) == framePage {
		checked = checked[:pageSize]
	}
	binary.LittleEndian.PutUint32(frame[12:], checksum(frame[:12], checked))
	return frame
}

// TestControlFromHostilePeer: each of these ends the link, by name.
func TestControlFromHostilePeer(t *testing.T) {
	ask := Message{Msg: handoff.Msg{Kind: handoff.Ask, ID: handoff.ID{Attempt: handoff.Attempt{1}}}}
	good := appendMessage(nil, &ask)
	notice := ask
	notice.Kind, notice.Digests = handoff.Notice, make([]kv.Digest, 2)
	long := appendMessage(nil, &notice)
	flipped := append([]byte(nil), good...)
	flipped[prefixSize+20] ^= 1
	huge := append([]byte(nil), good...)
	binary.LittleEndian.PutUint32(huge[8:], 1<<31)
	for _, c := range []struct {
		name  string
		frame []byte
		want  Reason
	}{
		{"nothing", nil, NoReason}, // the positive control
		{"a good message", good, NoReason},
		{"a request of HTTP", []byte("GET /SECRET HTTP/1.1\r\n\r\n"), ReasonMalformed},
		{"another version", spoil(good, 4, 2), ReasonVersion},
		{"type zero", spoil(good, 5, 0), ReasonMalformed},
		{"an unknown type", spoil(good, 5, 200), ReasonMalformed},
		{"a reserved bit", spoil(good, 6, 1), ReasonMalformed},
		{"two gigabytes", huge, ReasonOversized},
		{"a flipped bit", flipped, ReasonChecksum},
		{"a second hello", appendHello(nil, greeting{testHello(RoleDecode), inProcess, 1}), ReasonUnexpected},
		{"a page", appendPage(nil, pageHead{rows: 1, seq: 1}, testLayout().Bytes(1)), ReasonUnexpected},
		{"an acknowledgement", appendAck(nil, ack{seq: 1, count: 1}), ReasonUnexpected},
		{"a kind of message that is none", spoil(good, prefixSize, 77), ReasonMalformed},
		{"an unknown code", spoil(good, prefixSize+1, 77), ReasonMalformed},
		{"a filler that is not zero", spoil(good, prefixSize+60, 1), ReasonMalformed},
		{"a grant without a key", spoil(good, prefixSize, byte(handoff.Grant)), ReasonMalformed},
		{"a notice without its parts", spoil(good, prefixSize, byte(handoff.Notice)), ReasonMalformed},
		{"more digests than bytes", spoil(long, prefixSize+messageSize+8, 200), ReasonMalformed},
		{"fewer digests than bytes", spoil(long, prefixSize+messageSize+8, 1), ReasonMalformed},
		{"an ask with the parts of a notice", spoil(long, prefixSize, byte(handoff.Ask)), ReasonMalformed},
		{"an answer to no ping", appendPing(nil, framePong, 5), ReasonUnexpected},
		{"a refusal without a reason", spoil(appendRefused(nil, ReasonBusy), prefixSize, 0), ReasonMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := decodeVictim(t, Options{})
				discard(v.control)
				push(v.control, c.frame)
				if c.want != NoReason {
					v.ends(c.want)
					return
				}
				synctest.Wait()
				if len(v.heard.closed) != 0 {
					t.Fatalf("closed by %v", <-v.heard.closed)
				}
				if c.frame != nil && len(v.heard.messages) != 1 {
					t.Fatal("the message did not arrive")
				}
			})
		})
	}
}

// TestPeerSaysWhy: the reason that the peer gives is the cause, also one of a
// later version.
func TestPeerSaysWhy(t *testing.T) {
	for _, reason := range []Reason{ReasonShutdown, 250} {
		synctest.Test(t, func(t *testing.T) {
			v := decodeVictim(t, Options{})
			put(t, v.control, appendRefused(nil, reason))
			var e *Error
			if cause := <-v.heard.closed; !errors.As(cause, &e) || e.Reason != reason || !e.Remote {
				t.Fatalf("closed by %v", cause)
			}
		})
	}
}

// TestPagesFromHostilePeer: what comes on a data connection.
func TestPagesFromHostilePeer(t *testing.T) {
	content := make([]byte, testLayout().Bytes(16))
	page := func(change func(h *pageHead, content *int)) []byte {
		h, n := pageHead{key: kv.Key{1, 99}, rows: 16, seq: 1}, len(content)
		change(&h, &n)
		return append(appendPage(nil, h, n), content...)
	}
	good := page(func(*pageHead, *int) {})
	flipped := append([]byte(nil), good...)
	flipped[prefixSize] ^= 1
	for _, c := range []struct {
		name  string
		frame []byte
		want  Reason
	}{
		{"a good page", good, NoReason}, // the positive control
		{"text", []byte("SECRET SECRET SECRET SECRET"), ReasonMalformed},
		{"another version", spoil(good, 4, 9), ReasonVersion},
		{"a message", appendMessage(nil, &Message{Msg: handoff.Msg{Kind: handoff.Ask}}), ReasonUnexpected},
		{"a flipped bit in the key", flipped, ReasonChecksum},
		{"no rows", page(func(h *pageHead, n *int) { h.rows, *n = 0, 0 }), ReasonMalformed},
		{"more rows than a page has", page(func(h *pageHead, n *int) { h.rows, *n = 17, testLayout().Bytes(17) }), ReasonMalformed},
		{"a page ordinal out of range", page(func(h *pageHead, _ *int) { h.page = 1 << 31 }), ReasonMalformed},
		{"a length that is not that of the rows", page(func(h *pageHead, _ *int) { h.rows = 15 }), ReasonMalformed},
		{"over the limit", page(func(_ *pageHead, n *int) { *n = MaxPageBytes + 1 }), ReasonOversized},
		{"out of sequence", page(func(h *pageHead, _ *int) { h.seq = 2 }), ReasonUnexpected},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := decodeVictim(t, Options{})
				if _, err := v.pool.Reserve(kv.Domain{}, 16, 0, nil); err != nil {
					t.Fatal(err)
				}
				discard(v.control)
				push(v.data, c.frame)
				if c.want != NoReason {
					v.ends(c.want)
					return
				}
				a, err := parseAck(get(t, v.data, frameAck))
				if err != nil || a != (ack{seq: 1, count: 1}) {
					t.Fatalf("acknowledged %+v, %v", a, err)
				}
			})
		})
	}
}

// TestAcknowledgementsFromHostilePeer: what comes back to prefill.
func TestAcknowledgementsFromHostilePeer(t *testing.T) {
	for _, c := range []struct {
		name string
		a    ack
		want Reason
	}{
		{"of the page", ack{seq: 1, count: 1}, NoReason}, // the positive control
		{"that it was refused", ack{seq: 1, count: 1, refused: 1}, NoReason},
		{"of more than was sent", ack{seq: 2, count: 2}, ReasonUnexpected},
		{"of nothing", ack{seq: 0, count: 0}, ReasonMalformed},
		{"over the window", ack{seq: 100, count: Window + 1}, ReasonMalformed},
		{"of a count that does not fit", ack{seq: 5, count: 1}, ReasonUnexpected},
		{"of a refusal outside", ack{seq: 1, count: 1, refused: 2}, ReasonMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := prefillVictim(t, Options{})
				discard(v.control)
				writePage(t, v.link, 1)
				frame := make([]byte, prefixSize+pageSize+testLayout().Bytes(16))
				if _, err := io.ReadFull(v.data, frame); err != nil {
					t.Fatal(err)
				}
				put(t, v.data, appendAck(nil, c.a))
				if c.want != NoReason {
					v.ends(c.want)
					return
				}
				err := <-v.heard.written
				if (err != nil) != (c.a.refused != 0) || (err != nil && !errors.Is(err, kv.ErrRefused)) {
					t.Fatalf("written: %v", err)
				}
			})
		})
	}
}

func writePage(t testing.TB, l Link, id uint64) []byte {
	t.Helper()
	content := make([]byte, testLayout().Bytes(16))
	if err := l.Write(PageWrite{ID: id, Key: kv.Key{1}, Rows: 16, Segments: [][]byte{content}}); err != nil {
		t.Fatal(err)
	}
	return content
}

// TestEarlyAcknowledgement: a peer that says "consumed" before it has read the
// page does not make the write complete while its source is still read (H-8).
func TestEarlyAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := prefillVictim(t, Options{})
		discard(v.control)
		writePage(t, v.link, 1)
		var head [prefixSize + pageSize]byte
		if _, err := io.ReadFull(v.data, head[:]); err != nil {
			t.Fatal(err)
		}
		put(t, v.data, appendAck(nil, ack{seq: 1, count: 1}))
		synctest.Wait()
		if len(v.heard.written) != 0 {
			t.Fatal("complete while the page is being read")
		}
		if _, err := io.ReadFull(v.data, make([]byte, testLayout().Bytes(16))); err != nil {
			t.Fatal(err)
		}
		if err := <-v.heard.written; err != nil {
			t.Fatal(err)
		}
	})
}

// TestFenceUnderBlockedWriter: a peer that reads nothing cannot keep the fence
// from coming down, and then nobody reads the source (the race detector looks).
func TestFenceUnderBlockedWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := prefillVictim(t, Options{})
		content := writePage(t, v.link, 1)
		synctest.Wait() // the writer is in the middle of the page now
		start := time.Now()
		v.link.Close(nil)
		v.ends(ReasonClosed)
		clear(content)
		if took := time.Since(start); took > farewell {
			t.Errorf("the fence took %v", took)
		}
		if len(v.heard.written) != 0 {
			t.Error("the write was reported; only Closed may settle it")
		}
	})
}

// TestSilentPeer: a peer that does not answer pings is given up after three,
// whether it reads or not; one that answers is not.
func TestSilentPeer(t *testing.T) {
	const every = 5 * time.Second
	for _, c := range []struct {
		name string
		peer func(v *victim)
		want Reason
	}{
		{"reads and says nothing", func(v *victim) { discard(v.control) }, ReasonSilent},
		{"does not even read", func(*victim) {}, ReasonSilent},
		{"answers", func(v *victim) { go answerPings(v.control) }, NoReason},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := decodeVictim(t, Options{KeepAlive: every})
				start := time.Now()
				c.peer(v)
				if c.want == NoReason {
					time.Sleep(time.Hour)
					if len(v.heard.closed) != 0 {
						t.Fatalf("closed by %v", <-v.heard.closed)
					}
					return
				}
				v.ends(c.want)
				if took := time.Since(start); took < 3*every || took > 5*every {
					t.Errorf("given up after %v", took)
				}
			})
		})
	}
}

// answerPings answers pings until the connection ends.
func answerPings(c net.Conn) {
	for {
		_, body, err := readFrame(c, nil, framePing, frameMessage, frameRefused)
		if err != nil {
			return
		}
		if len(body) != pingSize {
			continue
		}
		if _, err := c.Write(appendPing(nil, framePong, binary.LittleEndian.Uint64(body))); err != nil {
			return
		}
	}
}

// TestStalledPeer: pings are answered, but the page does not go on.
func TestStalledPeer(t *testing.T) {
	page := append(appendPage(nil, pageHead{key: kv.Key{1, 99}, rows: 16, seq: 1}, testLayout().Bytes(16)), make([]byte, testLayout().Bytes(16))...)
	for _, c := range []struct {
		name string
		sent int
		want Reason
	}{
		{"between frames", 0, NoReason},
		{"in the prefix", 5, ReasonStalled},
		{"in the header", prefixSize + 5, ReasonStalled},
		{"in the content", len(page) - 1, ReasonStalled},
		{"after the frame", len(page), NoReason},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := decodeVictim(t, Options{})
				r, err := v.pool.Reserve(kv.Domain{}, 16, 0, nil)
				if err != nil {
					t.Fatal(err)
				}
				go answerPings(v.control)
				discard(v.data)
				put(t, v.data, page[:c.sent])
				start := time.Now()
				if c.want == NoReason {
					time.Sleep(time.Hour)
					if len(v.heard.closed) != 0 {
						t.Fatalf("closed by %v", <-v.heard.closed)
					}
					return
				}
				v.pool.Landing().Revoke(r.Key()) // returns although the sender stalls
				if time.Since(start) != 0 {
					t.Errorf("the revocation took %v", time.Since(start))
				}
				v.ends(c.want)
				if took := time.Since(start); took < 25*time.Second || took > 45*time.Second {
					t.Errorf("given up after %v", took)
				}
			})
		})
	}
	t.Run("no acknowledgement", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			v := prefillVictim(t, Options{})
			go answerPings(v.control)
			discard(v.data)
			time.Sleep(time.Hour) // nothing is owed yet
			writePage(t, v.link, 1)
			v.ends(ReasonStalled)
			if len(v.heard.written) != 0 {
				t.Error("the write was reported; only Closed may settle it")
			}
		})
	})
}

// TestFloods: a peer that sends more than it may.
func TestFloods(t *testing.T) {
	t.Run("pages without reading acknowledgements", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			v := decodeVictim(t, Options{})
			discard(v.control)
			content := make([]byte, testLayout().Bytes(1))
			sent := 0
			for seq := uint64(1); ; seq++ {
				frame := append(appendPage(nil, pageHead{rows: 1, seq: seq}, len(content)), content...)
				if _, err := v.data.Write(frame); err != nil {
					break
				}
				sent++
			}
			v.ends(ReasonFlood)
			// The first acknowledgement, of 1 to Window frames, is stuck in our hands.
			if sent < Window || sent > 2*Window {
				t.Errorf("%d frames went through, the window is %d", sent, Window)
			}
		})
	})
	t.Run("pings", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			v := decodeVictim(t, Options{})
			discard(v.control)
			for n := uint64(1); ; n++ {
				if _, err := v.control.Write(appendPing(nil, framePing, n)); err != nil {
					break
				}
			}
			v.ends(ReasonFlood)
		})
	})
}

// TestCutOff: the peer vanishes; in mid-frame or not, the reason is the same,
// and the fence holds.
func TestCutOff(t *testing.T) {
	page := append(appendPage(nil, pageHead{key: kv.Key{1, 99}, rows: 16, seq: 1}, testLayout().Bytes(16)), make([]byte, 100)...)
	for _, sent := range []int{0, 7, prefixSize + 1, len(page)} {
		synctest.Test(t, func(t *testing.T) {
			v := decodeVictim(t, Options{})
			if _, err := v.pool.Reserve(kv.Domain{}, 16, 0, nil); err != nil {
				t.Fatal(err)
			}
			put(t, v.data, page[:sent])
			v.hangUp()
			v.ends(ReasonGone)
		})
	}
}

// TestHostilePeerAlone: what one peer does costs its own link only.
func TestHostilePeerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := testOptions()
		m := NewMem(o)
		prefill, decode := newHeard(), newHeard()
		listener, err := m.Listen("a", testHello(RolePrefill), prefill, nil)
		if err != nil {
			t.Fatal(err)
		}
		good, err := m.Dial(t.Context(), "a", testHello(RoleDecode), decode, testPool(t).Landing())
		if err != nil {
			t.Fatal(err)
		}
		<-prefill.opened
		bad := raw(t, m, "a")
		push(bad, []byte("SECRET SECRET SECRET"))
		time.Sleep(time.Minute)
		if err := good.Send(Message{Msg: handoff.Msg{Kind: handoff.Ask}}); err != nil {
			t.Fatal(err)
		}
		<-prefill.messages
		if len(prefill.closed)+len(decode.closed) != 0 {
			t.Fatal("the good link was closed")
		}
		good.Close(nil)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		<-prefill.closed
		<-decode.closed
	})
}

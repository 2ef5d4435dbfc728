package wire

import (
	"context"
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

// TestHandshakeAtListener: connections that do not become a link.
func TestHandshakeAtListener(t *testing.T) {
	hello := func(change func(*greeting)) []byte {
		g := greeting{testHello(RoleDecode), inProcess, 1}
		change(&g)
		return appendHello(nil, g)
	}
	good := hello(func(*greeting) {})
	for _, c := range []struct {
		name  string
		frame []byte
		want  Reason
	}{
		{"silence", nil, ReasonHandshake},
		{"half a hello", good[:20], ReasonHandshake},
		{"a hello and no more", good, ReasonHandshake},
		{"text", []byte("SECRET SECRET SECRET SECRET"), ReasonMalformed},
		{"another version", spoil(good, 4, 2), ReasonVersion},
		{"a message", appendMessage(nil, &Message{Msg: handoff.Msg{Kind: handoff.Ask}}), ReasonUnexpected},
		{"the same role", hello(func(g *greeting) { g.Role = RolePrefill }), ReasonRole},
		{"no role", hello(func(g *greeting) { g.Role = 0 }), ReasonMalformed},
		{"a bad name", hello(func(g *greeting) { g.Name = "SECRET\n" }), ReasonMalformed},
		{"no incarnation", hello(func(g *greeting) { g.Incarnation = 0 }), ReasonMalformed},
		{"no streams", hello(func(g *greeting) { g.streams = 0 }), ReasonMalformed},
		{"too many streams", hello(func(g *greeting) { g.streams = MaxStreams + 1 }), ReasonMalformed},
		{"an impossible layout", hello(func(g *greeting) { g.Layout.Layers = 1 << 31 }), ReasonMalformed},
		{"pages over the limit", hello(func(g *greeting) { g.Layout = kv.Layout{Layers: 1000, Heads: 4000, Dim: 4000, PageTokens: 16} }), ReasonMalformed},
		{"another numeric type", spoil(good, prefixSize+1, 2), ReasonLayout},
		{"another protection", hello(func(g *greeting) { g.protection = TLSAll }), ReasonProtection},
		{"a name that is longer than its frame", spoil(good, prefixSize+20, 60), ReasonMalformed},
		{"a bind for no link", appendBind(nil, bind{id: [16]byte{1}}), ReasonToken},
		{"a bind with an index out of range", appendBind(nil, bind{index: MaxStreams}), ReasonMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, refused := testOptions()
				m := NewMem(o)
				listener, err := m.Listen("a", testHello(RolePrefill), newHeard(), nil)
				if err != nil {
					t.Fatal(err)
				}
				conn := raw(t, m, "a")
				push(conn, c.frame)
				told := make(chan []byte, 8)
				go func() {
					for {
						_, body, err := readFrame(conn, nil, frameRefused, frameWelcome)
						if err != nil {
							close(told)
							return
						}
						told <- body
					}
				}()
				if err := <-refused; ReasonOf(err) != c.want || strings.Contains(err.Error(), "SECRET") {
					t.Errorf("refused: %v, want %v", err, c.want)
				}
				if c.want != ReasonHandshake { // too late for a word then
					if body := <-told; ReasonOf(parseRefused(body)) != c.want {
						t.Errorf("the peer was told %v", parseRefused(body))
					}
				}
				if err := listener.Close(); err != nil {
					t.Fatal(err)
				}
				_ = conn.Close() // ends the goroutine
				for range told {
				}
			})
		})
	}
}

// TestBind: a wrong proof costs the connection that shows it and not the link;
// each index is bound once.
func TestBind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, refused := testOptions()
		o.Streams = 2
		m := NewMem(o)
		h := newHeard()
		listener, err := m.Listen("a", testHello(RolePrefill), h, nil)
		if err != nil {
			t.Fatal(err)
		}
		control := raw(t, m, "a")
		put(t, control, appendHello(nil, greeting{testHello(RoleDecode), inProcess, 2}))
		ticket, theirs, err := parseWelcome(get(t, control, frameWelcome))
		if err != nil || theirs.streams != 2 {
			t.Fatalf("welcome: %+v, %v", theirs, err)
		}
		bad := func(b bind) {
			t.Helper()
			c := raw(t, m, "a")
			push(c, appendBind(nil, b))
			if err := parseRefused(get(t, c, frameRefused)); ReasonOf(err) != ReasonToken {
				t.Errorf("told %v", err)
			}
			if err := <-refused; ReasonOf(err) != ReasonToken {
				t.Errorf("refused: %v", err)
			}
		}
		good := func(index uint8) net.Conn {
			t.Helper()
			c := raw(t, m, "a")
			put(t, c, appendBind(nil, bind{ticket.id, index, ticket.prove(index, frameBind)}))
			if proof := ticket.prove(index, frameBound); [32]byte(get(t, c, frameBound)) != proof {
				t.Error("the listener's proof is wrong")
			}
			return c
		}
		bad(bind{ticket.id, 0, [32]byte{}})
		bad(bind{ticket.id, 0, ticket.prove(1, frameBind)})  // of another index
		bad(bind{ticket.id, 0, ticket.prove(0, frameBound)}) // of the other direction
		bad(bind{ticket.id, 2, ticket.prove(2, frameBind)})  // more than agreed
		first := good(0)
		bad(bind{ticket.id, 0, ticket.prove(0, frameBind)}) // twice
		second := good(1)
		put(t, control, endFrame(beginFrame(nil, frameStart), 0, 0))
		link := <-h.opened
		bad(bind{ticket.id, 1, ticket.prove(1, frameBind)}) // the ticket is used up
		discard(control)
		link.Close(nil)
		<-h.closed
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{first, second} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("a data connection is still open: %v", err)
			}
		}
	})
}

// TestHandshakeAtDialler: listeners that are none.
func TestHandshakeAtDialler(t *testing.T) {
	ticket := ticket{id: [16]byte{1}, token: [32]byte{2}}
	welcome := func(change func(*greeting)) []byte {
		g := greeting{testHello(RolePrefill), inProcess, 1}
		change(&g)
		return appendWelcome(nil, ticket, g)
	}
	good := welcome(func(*greeting) {})
	for _, c := range []struct {
		name    string
		welcome []byte
		bound   []byte
		want    Reason
	}{
		{"silence", nil, nil, ReasonHandshake},
		{"a refusal", appendRefused(nil, ReasonBusy), nil, ReasonBusy},
		{"another model", welcome(func(g *greeting) { g.Model[0]++ }), nil, ReasonModel},
		{"the same role", welcome(func(g *greeting) { g.Role = RoleDecode }), nil, ReasonRole},
		{"more streams than asked for", welcome(func(g *greeting) { g.streams = 2 }), nil, ReasonMalformed},
		{"another version", spoil(good, 4, 7), nil, ReasonVersion},
		{"a hello", appendHello(nil, greeting{testHello(RolePrefill), inProcess, 1}), nil, ReasonUnexpected},
		{"no proof", good, appendBound(nil, ticket.prove(0, frameBind)), ReasonToken},
		{"a refused bind", good, appendRefused(nil, ReasonToken), ReasonToken},
		{"silence after the bind", good, nil, ReasonHandshake},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMem(Options{Streams: 1})
				n := &memListener{mem: m, addr: "a", conns: make(chan net.Conn), done: make(chan struct{})}
				m.at["a"] = n
				go func() {
					control := <-n.conns
					get(t, control, frameHello)
					push(control, c.welcome)
					discard(control)
					if c.bound == nil && c.want != ReasonHandshake {
						return
					}
					select {
					case data := <-n.conns:
						get(t, data, frameBind)
						put(t, data, c.bound)
					case <-n.done:
					}
				}()
				h := newHeard()
				_, err := m.Dial(t.Context(), "a", testHello(RoleDecode), h, testPool(t).Landing())
				if ReasonOf(err) != c.want {
					t.Errorf("dial: %v, want %v", err, c.want)
				}
				_ = n.Close() // a pipe listener closes without an error
				synctest.Wait()
				if len(h.opened)+len(h.closed) != 0 {
					t.Error("the handler heard of a link that is none")
				}
			})
		})
	}
}

// TestBusyListener: over the bound, connections are turned away at once and
// the ones in their handshake go on.
func TestBusyListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, refused := testOptions()
		o.Links = 1
		m := NewMem(o)
		listener, err := m.Listen("a", testHello(RolePrefill), newHeard(), nil)
		if err != nil {
			t.Fatal(err)
		}
		const most = 1*(1+1) + spareHandshakes
		for range most {
			raw(t, m, "a")
		}
		over := raw(t, m, "a")
		if err := <-refused; ReasonOf(err) != ReasonBusy {
			t.Errorf("refused: %v", err)
		}
		if _, err := over.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read: %v", err)
		}
		for range most { // they run out of time, and make room
			if err := <-refused; ReasonOf(err) != ReasonHandshake {
				t.Errorf("refused: %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		decode := newHeard()
		l, err := m.Dial(ctx, "a", testHello(RoleDecode), decode, testPool(t).Landing())
		if err != nil {
			t.Fatal(err)
		}
		l.Close(nil)
		<-decode.closed
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCompare: certificate and hello must say the same.
func TestCompare(t *testing.T) {
	ours := greeting{testHello(RolePrefill), TLSAll, 1}
	theirs := greeting{testHello(RoleDecode), TLSAll, 1}
	for _, c := range []struct {
		who  Identity
		want Reason
	}{
		{Identity{RoleDecode, "decode.one"}, NoReason},
		{Identity{}, NoReason},
		{Identity{RolePrefill, "decode.one"}, ReasonRole},
		{Identity{RoleDecode, "decode.two"}, ReasonIdentity},
	} {
		if err := ours.compare(theirs, c.who); ReasonOf(err) != c.want {
			t.Errorf("%v: %v, want %v", c.who, err, c.want)
		}
	}
}

// TestCarries: which connections may be part of a link.
func TestCarries(t *testing.T) {
	for _, c := range []struct {
		p             Protection
		kind          connKind
		control, data bool
	}{
		{TLSAll, kindTLS, true, true},
		{TLSAll, kindPlain, false, false},
		{TLSAll, kindInProcess, false, false},
		{PlainData, kindTLS, true, false},
		{PlainData, kindPlain, false, true},
		{PlainData, kindInProcess, false, false},
		{inProcess, kindTLS, false, false},
		{inProcess, kindPlain, false, false},
		{inProcess, kindInProcess, true, true},
		{protections, kindTLS, false, false},
	} {
		if c.p.carries(c.kind, false) != c.control || c.p.carries(c.kind, true) != c.data {
			t.Errorf("%v with kind %d", c.p, c.kind)
		}
	}
}

// tired is a net.Listener that fails now and then.
type tired struct {
	*memListener
	fails chan error
}

func (n tired) Accept() (net.Conn, error) {
	select {
	case err := <-n.fails:
		return nil, err
	default:
		return n.memListener.Accept()
	}
}

// TestAcceptGoesOn: a listener that cannot accept for a while says so, waits a
// little, and goes on.
func TestAcceptGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, refused := testOptions()
		m := NewMem(o)
		h := newHeard()
		s, err := newSide(o, testHello(RolePrefill), h, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := tired{&memListener{mem: m, addr: "a", conns: make(chan net.Conn), done: make(chan struct{})}, make(chan error, 3)}
		m.at["a"] = n.memListener
		for range 3 {
			n.fails <- errors.New("too many open files")
		}
		start := time.Now()
		listener := listen(s, inProcess, n, func(_ context.Context, raw net.Conn) (*conn, error) {
			return &conn{Conn: raw, raw: raw, kind: kindInProcess}, nil
		})
		decode := newHeard()
		l, err := m.Dial(t.Context(), "a", testHello(RoleDecode), decode, testPool(t).Landing())
		if err != nil {
			t.Fatal(err)
		}
		if len(refused) != 3 || time.Since(start) == 0 {
			t.Errorf("%d reports in %v", len(refused), time.Since(start))
		}
		l.Close(nil)
		<-decode.closed
		for range 3 { // and once more, in the middle of which it is closed
			n.fails <- errors.New("too many open files")
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		<-h.closed
	})
}

// TestPendingIsForgotten: a handshake that ends half-way leaves no connection
// open and no place taken.
func TestPendingIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, refused := testOptions()
		o.Links, o.Streams = 1, 2
		m := NewMem(o)
		h := newHeard()
		listener, err := m.Listen("a", testHello(RolePrefill), h, nil)
		if err != nil {
			t.Fatal(err)
		}
		control, data := raw(t, m, "a"), raw(t, m, "a")
		put(t, control, appendHello(nil, greeting{testHello(RoleDecode), inProcess, 2}))
		ticket, _, err := parseWelcome(get(t, control, frameWelcome))
		if err != nil {
			t.Fatal(err)
		}
		put(t, data, appendBind(nil, bind{ticket.id, 0, ticket.prove(0, frameBind)}))
		get(t, data, frameBound)
		put(t, control, endFrame(beginFrame(nil, frameStart), 0, 0)) // without the second
		if _, err := data.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the data connection: %v", err)
		}
		if err := <-refused; ReasonOf(err) != ReasonHandshake {
			t.Errorf("refused: %v", err)
		}
		decode := newHeard()
		l, err := m.Dial(t.Context(), "a", testHello(RoleDecode), decode, testPool(t).Landing())
		if err != nil {
			t.Fatalf("the place is still taken: %v", err)
		}
		l.Close(nil)
		<-decode.closed
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		<-h.closed
	})
}

// TestListenerCloseInHandshake: closing does not wait for peers that say nothing.
func TestListenerCloseInHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, refused := testOptions()
		m := NewMem(o)
		listener, err := m.Listen("a", testHello(RolePrefill), newHeard(), nil)
		if err != nil {
			t.Fatal(err)
		}
		raw(t, m, "a")
		synctest.Wait() // it is in its handshake
		start := time.Now()
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > farewell {
			t.Errorf("it took %v", took)
		}
		if err := <-refused; ReasonOf(err) != ReasonClosed {
			t.Errorf("refused: %v", err)
		}
	})
}

package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"bulkhead.dev/bulkhead/kv"
)

// Protection says which connections of a link have TLS. Both sides must be
// configured alike (H-13).
type Protection uint8

const (
	// TLSAll: every connection is mutual TLS. The default.
	TLSAll Protection = iota
	// PlainData: the control connection is mutual TLS; pages travel in the clear,
	// with their write keys. For loopback and trusted wires.
	PlainData
	// inProcess: no connection leaves the process.
	inProcess
	protections
)

// String names the protection.
func (p Protection) String() string {
	if p >= protections {
		return "unknown"
	}
	return [protections]string{"tls", "plain-data", "in-process"}[p]
}

// numeric is the only numeric type of version 1: float32, little endian.
const numeric = 1

// The body of a hello frame:
//
//	role 1 | numeric 1 | protection 1 | streams 1 | layers 4 | heads 4 | dim 4 | page tokens 4 |
//	name length 2 | zero 2 | incarnation 8 | model 32 | name
//
// A welcome frame has link id 16 and token 32 before the same.
const (
	helloSize   = 64
	welcomeSize = 48
)

// greeting is what a hello frame says.
type greeting struct {
	Hello
	protection Protection
	streams    int
}

// ticket binds data connections to a link. The token is a secret of the control
// connection; the id is not.
type ticket struct {
	id    [16]byte
	token [32]byte
}

// check refuses a hello that no worker may send.
func (h Hello) check() error {
	switch {
	case !h.Role.valid():
		return errors.New("role: want prefill or decode")
	case !validName(h.Name):
		return fmt.Errorf("name: want 1 to %d characters of a-z 0-9 . -", MaxName)
	case h.Incarnation == 0:
		return errors.New("incarnation is zero")
	}
	if err := h.Layout.Check(); err != nil {
		return err
	}
	if n := h.Layout.Bytes(h.Layout.PageTokens); n > MaxPageBytes {
		return fmt.Errorf("layout: page of %d bytes, at most %d", n, MaxPageBytes)
	}
	return nil
}

func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= MaxName
}

// compare refuses a pair that must not be one (H-13). who is the identity in
// the peer's certificate, zero where there is none.
func (ours greeting) compare(theirs greeting, who Identity) error {
	a, b := ours.Layout, theirs.Layout
	switch {
	case theirs.Role != ours.Role.peer():
		return fail(ReasonRole, "both are %v", ours.Role)
	case who != Identity{} && who.Role != theirs.Role:
		return fail(ReasonRole, "hello of a %v, certificate of a %v", theirs.Role, who.Role)
	case who != Identity{} && who.Name != theirs.Name:
		return fail(ReasonIdentity, "hello of %s, certificate of %s", theirs.Name, who.Name)
	case theirs.Model != ours.Model:
		return fail(ReasonModel, "digest %s, here it is %s", short(theirs.Model), short(ours.Model))
	case a.Layers != b.Layers || a.Heads != b.Heads || a.Dim != b.Dim:
		return fail(ReasonLayout, "%d layers, %d heads, %d dim, here it is %d, %d, %d", b.Layers, b.Heads, b.Dim, a.Layers, a.Heads, a.Dim)
	case a.PageTokens != b.PageTokens:
		return fail(ReasonPageSize, "%d tokens, here it is %d", b.PageTokens, a.PageTokens)
	case theirs.protection != ours.protection:
		return fail(ReasonProtection, "%v, here it is %v", theirs.protection, ours.protection)
	}
	return nil
}

func short(model [32]byte) string { return hex.EncodeToString(model[:6]) }

func appendGreeting(b []byte, g greeting) []byte {
	b = append(b, byte(g.Role), numeric, byte(g.protection), byte(g.streams))
	for _, n := range [...]int{g.Layout.Layers, g.Layout.Heads, g.Layout.Dim, g.Layout.PageTokens} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(g.Name)))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, g.Incarnation)
	b = append(b, g.Model[:]...)
	return append(b, g.Name...)
}

func appendHello(b []byte, g greeting) []byte {
	start := len(b)
	return endFrame(appendGreeting(beginFrame(b, frameHello), g), start, 0)
}

func appendWelcome(b []byte, t ticket, g greeting) []byte {
	start := len(b)
	b = beginFrame(b, frameWelcome)
	b = append(append(b, t.id[:]...), t.token[:]...)
	return endFrame(appendGreeting(b, g), start, 0)
}

// parseGreeting reads the body of a hello frame.
func parseGreeting(b []byte) (greeting, error) {
	if len(b) < helloSize {
		return greeting{}, fail(ReasonMalformed, "hello of %d bytes", len(b))
	}
	u32 := binary.LittleEndian.Uint32
	g := greeting{protection: Protection(b[2]), streams: int(b[3])}
	g.Role, g.Name = Role(b[0]), string(b[helloSize:])
	g.Incarnation, g.Model = binary.LittleEndian.Uint64(b[24:]), [32]byte(b[32:64])
	g.Layout = kv.Layout{Layers: int(u32(b[4:])), Heads: int(u32(b[8:])), Dim: int(u32(b[12:])), PageTokens: int(u32(b[16:]))}
	if int(binary.LittleEndian.Uint16(b[20:])) != len(g.Name) || b[22]|b[23] != 0 ||
		g.streams < 1 || g.streams > MaxStreams || g.protection >= protections {
		return greeting{}, fail(ReasonMalformed, "hello")
	}
	if b[1] != numeric {
		return greeting{}, fail(ReasonLayout, "numeric type %d, here it is %d", b[1], numeric)
	}
	if err := g.check(); err != nil {
		return greeting{}, &Error{Reason: ReasonMalformed, Err: err}
	}
	return g, nil
}

// parseWelcome reads the body of a welcome frame.
func parseWelcome(b []byte) (ticket, greeting, error) {
	if len(b) < welcomeSize {
		return ticket{}, greeting{}, fail(ReasonMalformed, "welcome of %d bytes", len(b))
	}
	g, err := parseGreeting(b[welcomeSize:])
	return ticket{id: [16]byte(b[:16]), token: [32]byte(b[16:48])}, g, err
}

// prove makes the proof that a data connection belongs to a link, for one
// direction and one index; it can be shown in the clear, the token cannot.
func (t ticket) prove(index uint8, kind frameType) [32]byte {
	mac := hmac.New(sha256.New, t.token[:])
	mac.Write([]byte("bulkhead-bind-v1"))
	mac.Write(t.id[:])
	mac.Write([]byte{index, byte(kind)})
	return [32]byte(mac.Sum(nil))
}

// bind is the body of a bind frame:
//
//	link id 16 | index 1 | zero 7 | proof 32
//
// A bound frame has the proof alone.
type bind struct {
	id    [16]byte
	index uint8
	proof [32]byte
}

func appendBind(b []byte, x bind) []byte {
	start := len(b)
	b = append(beginFrame(b, frameBind), x.id[:]...)
	b = append(b, x.index, 0, 0, 0, 0, 0, 0, 0)
	return endFrame(append(b, x.proof[:]...), start, 0)
}

func parseBind(b []byte) (bind, error) {
	if len(b) != bindSize || binary.LittleEndian.Uint64(b[16:])>>8 != 0 || b[16] >= MaxStreams {
		return bind{}, fail(ReasonMalformed, "bind")
	}
	return bind{id: [16]byte(b[:16]), index: b[16], proof: [32]byte(b[24:])}, nil
}

func appendBound(b []byte, proof [32]byte) []byte {
	start := len(b)
	return endFrame(append(beginFrame(b, frameBound), proof[:]...), start, 0)
}

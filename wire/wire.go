// Package wire carries the hand-off between a prefill and a decode worker: the
// messages of the protocol on one control connection, and the pages on a few
// data connections beside it, which together are a [Link].
//
// What it promises:
//
//   - A link exists only after both sides have compared protocol version, roles,
//     model, layout and page size, and, over tcp, certificates (H-13).
//   - Bytes of a peer reach page memory only through [kv.Landing], straight from
//     the connection, and never after their key was revoked (H-5, H-6).
//   - A page write is complete when the receiver says that it consumed the frame
//     and our own write has returned. A notice that is sent after that cannot
//     overtake its pages (H-7, H-8).
//   - Closed is a fence: once the handler hears it, no goroutine of the link
//     reads a source page or places a byte any more (H-9).
//   - Everything is bounded, and a peer that forges, floods, stalls or vanishes
//     costs its own link and nothing else, with a [Reason].
//
// What must not come in: the meaning of the messages (package handoff), digests,
// logging, page content or keys in an error. A transport is treated as
// one-sided by the protocol above it (H-15): nothing here is the proof that
// pages are right.
//
// The frames are described in docs/format/wire.md.
package wire

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// Limits of protocol version 1. A peer that goes over one of them loses its link.
const (
	MaxStreams   = 8       // data connections of a link
	MaxName      = 64      // bytes of a worker's name
	MaxDigests   = 1 << 16 // pages that one notice may cover
	MaxPageBytes = 1 << 28 // bytes of one page
	Window       = 64      // page frames of one data connection that are not acknowledged
)

// Role is what a worker does.
type Role uint8

const (
	// RolePrefill computes pages and writes them to its peer.
	RolePrefill Role = 1
	// RoleDecode lends pages, and reads them once they are proved.
	RoleDecode Role = 2
)

// String names the role as flags and certificates do.
func (r Role) String() string {
	switch r {
	case RolePrefill:
		return "prefill"
	case RoleDecode:
		return "decode"
	}
	return "unknown"
}

// ParseRole reads the name of a role.
func ParseRole(s string) (Role, error) {
	for _, r := range [...]Role{RolePrefill, RoleDecode} {
		if s == r.String() {
			return r, nil
		}
	}
	return 0, errors.New("wire: role: want prefill or decode")
}

// peer is the role at the other end.
func (r Role) peer() Role { return RolePrefill + RoleDecode - r }

func (r Role) valid() bool { return r == RolePrefill || r == RoleDecode }

// Hello is what a worker says of itself in the handshake. Both sides compare
// (H-13): the roles must differ, Model and Layout must be equal. Incarnation
// and Name identify the process for the life of the link (H-2).
type Hello struct {
	Role        Role
	Name        string // 1 to MaxName of a-z 0-9 . and -, the one of the certificate
	Incarnation uint64 // of the process: random, never 0
	Model       [32]byte
	Layout      kv.Layout
}

// Message is one message of the protocol with what travels beside it. Parts that
// a kind does not carry are zero: Send refuses them otherwise, and no frame has
// room for them.
type Message struct {
	handoff.Msg

	Key kv.Key // Grant: opens decode's pages (H-6)

	// Notice (H-7).
	Algorithm uint8 // of the digests
	First     uint32
	DigestKey [32]byte
	MAC       [32]byte    // over identity, extent and digests
	Digests   []kv.Digest // one for each page written, in order; at most MaxDigests
}

// Format prints kind and attempt, whatever the verb: a message holds keys.
func (m Message) Format(s fmt.State, _ rune) {
	redact(s, m.Kind.String()+" of "+m.ID.Attempt.String())
}

// PageWrite is one page on its way to the peer.
type PageWrite struct {
	ID   uint64 // the caller's own; comes back in Written
	Key  kv.Key // of the grant
	Page int    // ordinal among the granted pages
	Rows int    // tokens of the page that are written
	// Segments are the bytes, Layout.Bytes(Rows) of them. The slices and what
	// they alias are read until the write has completed, or the link is Closed.
	Segments [][]byte
}

// Format prints id and ordinal, whatever the verb: a write holds a key and content.
func (w PageWrite) Format(s fmt.State, _ rune) {
	redact(s, fmt.Sprintf("page write %d of page %d", w.ID, w.Page))
}

func redact(w io.Writer, text string) {
	_, _ = io.WriteString(w, text) // a fmt.State keeps no error to report
}

// Handler hears from a link. It is called from the link's goroutines, must be
// safe for concurrent use, and must not block for long: the peer is not heard,
// and not answered, while it does. For each link: Opened, then any number of
// Receive and Written, then Closed.
type Handler interface {
	// Opened is called once, before anything else. On the dialling side it is
	// called before Dial returns.
	Opened(l Link)
	// Receive brings a message, in the order of the peer's Sends. The handler owns it.
	Receive(l Link, m Message)
	// Written says that a page write has completed: the peer consumed its frame,
	// and its segments are not read any more. err is nil if the page landed, and
	// says that it was refused otherwise. Writes that were not reported when the
	// link closes never are: Closed settles them (H-8).
	Written(l Link, id uint64, err error)
	// Closed is called exactly once, after every goroutine that could read a
	// segment or place a byte has returned (H-9). cause is an [*Error].
	Closed(l Link, cause error)
}

// Link is a pair's connection: one control connection and the data connections
// bound to it. Send, Write and Close never block; all are safe for concurrent
// use.
type Link interface {
	// Peer is what the other side said of itself.
	Peer() Hello
	// Send queues a message. Messages arrive in order. An error says that the
	// message is not sendable, or that the link is closing: over its bound the
	// queue closes the link with ReasonOverflow.
	Send(m Message) error
	// Write queues a page, at a prefill worker. Writes land in any order. Over
	// Options.Writes outstanding the link closes with ReasonOverflow.
	Write(w PageWrite) error
	// Close starts the end of the link; the first cause counts, nil means
	// ReasonClosed. The end itself is Closed.
	Close(cause error)
}

// Listener accepts links.
type Listener interface {
	// Addr is where it listens, as Dial takes it.
	Addr() string
	// Close stops listening, abandons handshakes under way, and closes the
	// accepted links with ReasonShutdown. It does not wait for their Closed. It
	// must not be called from a Handler.
	Close() error
}

// Transport makes links. hello speaks for this worker; landing is where pages of
// the peer land, and nil at a prefill worker.
type Transport interface {
	// Dial opens a link to addr. ctx bounds the handshake only. Errors are an [*Error].
	Dial(ctx context.Context, addr string, hello Hello, h Handler, landing *kv.Landing) (Link, error)
	// Listen accepts links at addr until the listener is closed.
	Listen(addr string, hello Hello, h Handler, landing *kv.Landing) (Listener, error)
}

// Options are what all transports share. The zero value is fine.
type Options struct {
	Streams   int           // data connections of a link, 1 to MaxStreams; the smaller side wins. 0 means 2
	Handshake time.Duration // for a whole handshake. 0 means 10 s
	KeepAlive time.Duration // between pings; after three unanswered ones the peer counts as silent. 0 means 5 s
	Stall     time.Duration // without progress inside one frame, or until its acknowledgement, in steps of KeepAlive. 0 means 30 s
	Queue     int           // bytes of messages that wait to be sent. 0 means 16 MiB
	Writes    int           // page writes that have not completed. 0 means 65536
	Links     int           // links of one listener, also those in their handshake. 0 means 64
	Rand      io.Reader     // of link tokens. nil means crypto/rand
	// Refused hears of connections that a listener did not make into a link: an
	// [*Error]. It is called from the listener's goroutines. nil means nobody does.
	Refused func(error)
}

func (o Options) withDefaults() (Options, error) {
	for _, v := range [...]struct {
		field *int
		zero  int
	}{{&o.Streams, 2}, {&o.Queue, 16 << 20}, {&o.Writes, 1 << 16}, {&o.Links, 64}} {
		if *v.field == 0 {
			*v.field = v.zero
		}
	}
	for _, v := range [...]struct {
		field *time.Duration
		zero  time.Duration
	}{{&o.Handshake, 10 * time.Second}, {&o.KeepAlive, 5 * time.Second}, {&o.Stall, 30 * time.Second}} {
		if *v.field == 0 {
			*v.field = v.zero
		}
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Refused == nil {
		o.Refused = func(error) {}
	}
	if o.Streams < 1 || o.Streams > MaxStreams || o.Queue < 1 || o.Writes < 1 || o.Links < 1 ||
		o.Handshake < 0 || o.KeepAlive < 0 || o.Stall < 0 {
		return o, fmt.Errorf("wire: options: a negative value, or more than %d streams", MaxStreams)
	}
	return o, nil
}

// side is one worker's end: what it says, who hears, where pages land.
type side struct {
	opts    Options
	hello   Hello
	handler Handler
	landing *kv.Landing
}

func newSide(o Options, hello Hello, h Handler, landing *kv.Landing) (side, error) {
	o, err := o.withDefaults()
	if err != nil {
		return side{}, err
	}
	if err := hello.check(); err != nil {
		return side{}, fmt.Errorf("wire: our hello: %w", err)
	}
	if h == nil || (landing == nil) != (hello.Role == RolePrefill) {
		return side{}, errors.New("wire: a handler is required, and a landing at decode only")
	}
	return side{opts: o, hello: hello, handler: h, landing: landing}, nil
}

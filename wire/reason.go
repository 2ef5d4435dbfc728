package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
)

// Reason is why a link ended or was never made. The numbers go on the wire:
// append, never reorder.
type Reason uint8

const (
	NoReason          Reason = iota
	ReasonClosed             // this side closed it
	ReasonShutdown           // the worker ends
	ReasonGone               // the peer went away, or the network failed
	ReasonVersion            // the two speak different versions
	ReasonRole               // the two have the same role, or a certificate is of the wrong one
	ReasonModel              // the two serve different models
	ReasonLayout             // the pages are shaped differently
	ReasonPageSize           // the pages hold different numbers of tokens
	ReasonProtection         // the two disagree on which connections have TLS
	ReasonCertificate        // a certificate is missing, expired, or of another authority
	ReasonIdentity           // the hello names another worker than the certificate
	ReasonToken              // a data connection does not prove that it belongs to a link
	ReasonHandshake          // the handshake took too long
	ReasonMalformed          // a frame that cannot be
	ReasonChecksum           // a frame that was changed on its way
	ReasonOversized          // a frame over its limit
	ReasonUnexpected         // a frame that has no place here
	ReasonFlood              // the peer sends more than it may
	ReasonOverflow           // this side queued more than it may
	ReasonSilent             // the peer does not answer pings
	ReasonStalled            // the peer stopped inside a frame, or does not acknowledge
	ReasonBusy               // too many links or handshakes
	reasons
)

// String names the reason, for metrics.
func (r Reason) String() string {
	if r >= reasons {
		return "unknown"
	}
	return [reasons]string{
		"none", "closed", "shutdown", "gone", "version", "role", "model", "layout", "page_size", "protection",
		"certificate", "identity", "token", "handshake", "malformed", "checksum", "oversized", "unexpected",
		"flood", "overflow", "silent", "stalled", "busy",
	}[r]
}

// Sentence says the reason in words.
func (r Reason) Sentence() string {
	if r >= reasons {
		return "a reason that this version does not know"
	}
	return [reasons]string{
		"no reason",
		"the link was closed",
		"the worker shuts down",
		"the peer went away",
		"the peer speaks another protocol version",
		"the peer has the wrong role",
		"the peer serves another model",
		"the peer's pages have another layout",
		"the peer's pages have another size",
		"the peer protects its connections differently",
		"the certificate is not accepted",
		"the certificate names another worker",
		"the connection does not belong to a link",
		"the handshake took too long",
		"the peer sent a malformed frame",
		"the peer sent a frame with a wrong checksum",
		"the peer sent a frame over its limit",
		"the peer sent a frame that has no place here",
		"the peer sends more than it may",
		"the queue to the peer is full",
		"the peer does not answer",
		"the peer has stalled",
		"too many connections",
	}[r]
}

// Error is the failure of one link, or of one connection that did not become
// part of a link. It never holds page content or a key.
type Error struct {
	Reason Reason
	Remote bool  // the peer found the reason and told us
	Err    error // cause, may be nil
}

// Error says the reason in words, and the cause.
func (e *Error) Error() string {
	text := "wire: "
	if e.Remote {
		text += "the peer says: "
	}
	text += e.Reason.Sentence()
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ReasonOf returns the reason of an error of this package, and NoReason for others.
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return NoReason
}

func fail(r Reason, format string, args ...any) error {
	return &Error{Reason: r, Err: fmt.Errorf(format, args...)}
}

// asError gives every failure of a connection a reason.
func asError(err error) *Error {
	var e *Error
	var op *net.OpError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert; a rejected certificate comes so late
		return &Error{Reason: ReasonCertificate, Remote: true, Err: err}
	case errors.As(err, &op) && op.Op == "local error": // a record that cannot be
		return &Error{Reason: ReasonMalformed, Err: err}
	}
	return &Error{Reason: ReasonGone, Err: err}
}

// tlsError gives a failed TLS handshake its reason.
func tlsError(err error) error {
	var e *Error
	var network net.Error
	switch {
	case errors.As(err, &e): // of verify
		return e
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled), errors.As(err, &network):
		return asError(err)
	}
	return &Error{Reason: ReasonProtection, Err: err} // no TLS at all, another version, no certificate
}

// handshakeError gives a failed handshake its reason; the end of ctx comes first.
func handshakeError(ctx context.Context, err error) error {
	var said *Error
	switch {
	case errors.As(err, &said) && said.Reason != ReasonGone:
		return said
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &Error{Reason: ReasonHandshake, Err: ctx.Err()}
	case ctx.Err() != nil:
		return &Error{Reason: ReasonClosed, Err: context.Cause(ctx)}
	}
	return asError(err)
}

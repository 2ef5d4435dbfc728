package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"bulkhead.dev/bulkhead/kv"
)

// TCP is the transport between processes and hosts. One address carries all
// connections of a link. Control connections are always mutual TLS 1.3.
type TCP struct {
	Options
	Credential *Credential // this worker's; its role and name must be those of the hello
	Protection Protection  // TLSAll or PlainData, the same on both sides
}

// tlsRecord is the first byte of a TLS client; no frame starts with it.
const tlsRecord = 0x16

func (t TCP) side(hello Hello, h Handler, landing *kv.Landing) (side, error) {
	s, err := newSide(t.Options, hello, h, landing)
	if err != nil {
		return side{}, err
	}
	if t.Protection != TLSAll && t.Protection != PlainData {
		return side{}, errors.New("wire: tcp: unknown protection")
	}
	if t.Credential == nil || t.Credential.Identity() != (Identity{hello.Role, hello.Name}) {
		return side{}, errors.New("wire: tcp: the credential is missing, or of another worker than the hello")
	}
	return s, nil
}

// Dial implements [Transport]. addr is host:port.
func (t TCP) Dial(ctx context.Context, addr string, hello Hello, h Handler, landing *kv.Landing) (Link, error) {
	s, err := t.side(hello, h, landing)
	if err != nil {
		return nil, err
	}
	config := t.Credential.Client()
	return dial(ctx, s, t.Protection, func(ctx context.Context, data bool) (*conn, error) {
		var d net.Dialer
		raw, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		var c *conn
		if data && t.Protection == PlainData {
			c, err = plain(raw)
		} else {
			c, err = encrypted(ctx, raw, tls.Client(raw, config))
		}
		if err != nil {
			_ = raw.Close() // the error that counts is err
		}
		return c, err
	})
}

// Listen implements [Transport]. addr is host:port; port 0 takes any.
func (t TCP) Listen(addr string, hello Hello, h Handler, landing *kv.Landing) (Listener, error) {
	s, err := t.side(hello, h, landing)
	if err != nil {
		return nil, err
	}
	n, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	config := t.Credential.Server()
	return listen(s, t.Protection, n, func(ctx context.Context, raw net.Conn) (*conn, error) {
		if t.Protection == TLSAll {
			return encrypted(ctx, raw, tls.Server(raw, config))
		}
		var first [1]byte
		if _, err := raw.Read(first[:]); err != nil {
			return nil, err
		}
		peeked := &peekedConn{Conn: raw, first: first[:]}
		if first[0] == tlsRecord {
			return encrypted(ctx, raw, tls.Server(peeked, config))
		}
		c, err := plain(raw)
		c.Conn = peeked
		return c, err
	}), nil
}

// plain makes a connection that is used as it is.
func plain(raw net.Conn) (*conn, error) {
	return &conn{Conn: raw, raw: raw, kind: kindPlain}, raw.(*net.TCPConn).SetNoDelay(true)
}

// encrypted shakes hands and takes the peer's identity from its certificate.
func encrypted(ctx context.Context, raw net.Conn, c *tls.Conn) (*conn, error) {
	if err := raw.(*net.TCPConn).SetNoDelay(true); err != nil {
		return nil, err
	}
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, tlsError(err)
	}
	who, err := identify(c.ConnectionState())
	return &conn{Conn: c, raw: raw, who: who, kind: kindTLS}, err
}

// peekedConn gives back bytes that were read already.
type peekedConn struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (c *peekedConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

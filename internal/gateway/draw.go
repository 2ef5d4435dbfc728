package gateway

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"

	"bulkhead.dev/bulkhead/handoff"
)

// ids is what is drawn once for a request.
type ids struct {
	public string // 128 bits in hexadecimal; clients see it
	seed   int64  // for sampling, if the client gave none; not negative
}

// draw draws what a request needs.
func (g *Gateway) draw() (ids, error) {
	var b [24]byte
	if err := g.fill(b[:]); err != nil {
		return ids{}, err
	}
	return ids{hex.EncodeToString(b[:16]), int64(binary.BigEndian.Uint64(b[16:]) >> 1)}, nil
}

// identity is what is drawn anew for each attempt. No part of it follows from another,
// from the public id, or from anything a client sent.
type identity struct {
	attempt handoff.Attempt
	room    int64 // 1 to 2^63-1
	// transfer is the key under which two legs meet, for engines that have one; 128 bits.
	transfer string
}

// mint draws the identity of an attempt.
func (g *Gateway) mint() (identity, error) {
	var b [40]byte
	if err := g.fill(b[:]); err != nil {
		return identity{}, err
	}
	return identity{
		attempt:  handoff.Attempt(b[:16]),
		room:     max(1, int64(binary.BigEndian.Uint64(b[16:24])>>1)),
		transfer: "bh-" + hex.EncodeToString(b[24:]),
	}, nil
}

// legID draws the id of one call to an engine (G-12).
func (g *Gateway) legID() (string, error) {
	var b [16]byte
	if err := g.fill(b[:]); err != nil {
		return "", err
	}
	return "bh-" + hex.EncodeToString(b[:]), nil
}

func (g *Gateway) fill(b []byte) error {
	g.drawing.Lock()
	defer g.drawing.Unlock()
	if _, err := io.ReadFull(g.random, b); err != nil {
		return fmt.Errorf("gateway: draw random bits: %w", err)
	}
	return nil
}

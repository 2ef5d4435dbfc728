// Package digest computes what a prefill worker says of the pages that it
// wrote, and what a decode worker compares: page digests behind [kv.Digester],
// and the MAC that binds the list of them to one hand-off (H-7).
//
// What it promises:
//
//   - Everything is derived from one 256-bit digest key, which prefill draws
//     afresh for every hand-off. Page digests of two hand-offs have nothing in
//     common, though the pages be equal, and a digest of one page never stands
//     for another.
//   - A digest depends on the bytes of a page's segments in order, not on where
//     one segment ends and the next begins. It copies no whole page, and
//     allocates nothing for each page.
//   - [Bind] covers every field of a [Statement], each framed by its length: two
//     statements with one MAC are one statement.
//
// What it does not promise: [XXH3] is no proven MAC; see there.
//
// What must not come in: randomness (keys are arguments), pools, messages, a
// choice of algorithm that a peer could make.
package digest

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/zeebo/xxh3"

	"bulkhead.dev/bulkhead/kv"
)

// Algorithm is how pages are digested. The numbers go on the wire. The zero
// Algorithm is none, and nothing accepts it.
type Algorithm uint8

const (
	// XXH3 is XXH3-64 with a seed for each page, 8 bytes. It runs at memory speed and
	// is the default between workers that trust each other and their wire. It sees
	// what goes wrong: pages that are missing, late, torn, misplaced, stale or
	// another request's.
	//
	// It is no MAC. XXH3 with a secret seed is not proved, nor meant, to withstand
	// somebody who chooses bytes to fit: against a peer that lies, or a wire on which
	// pages can be altered at will, it claims nothing. Take GMAC there. One in 2^64
	// wrong pages passes by chance.
	XXH3 Algorithm = 1
	// GMAC is AES-256-GCM with the page as additional data, 16 bytes: a MAC, and three
	// to ten times slower. Its key is used for one hand-off, and the nonce is the
	// page's index.
	//
	// A MAC of this kind gives its key away if two different contents of one page are
	// digested under one key and both digests are shown. So prefill digests a page
	// once, when it is complete, and decode compares its digests and shows them to
	// nobody; [kv.Pool.Verify] does so.
	GMAC Algorithm = 2
)

// String names the algorithm as settings do: "xxh3", "gmac".
func (a Algorithm) String() string {
	switch a {
	case XXH3:
		return "xxh3"
	case GMAC:
		return "gmac"
	}
	return "none"
}

// Parse is the inverse of String. "none" is not an algorithm.
func Parse(s string) (Algorithm, error) {
	switch s {
	case "xxh3":
		return XXH3, nil
	case "gmac":
		return GMAC, nil
	}
	return 0, errors.New("digest: unknown algorithm: want xxh3 or gmac")
}

// Labels keep what is derived from one digest key apart.
const (
	labelSeed = "bulkhead page seed v1"
	labelGMAC = "bulkhead page gmac key v1"
	labelBind = "bulkhead notice v1"
)

// New returns the digester of the hand-off to which key belongs. It keeps
// buffers between pages and is for one goroutine at a time.
//
// It fails for an unknown algorithm, and for GMAC where the process allows no
// GCM with nonces of its own (GODEBUG=fips140=only).
func New(a Algorithm, key [32]byte) (kv.Digester, error) {
	switch a {
	case XXH3:
		d := &xxh3Digester{mac: hmac.New(sha256.New, key[:])}
		copy(d.message[:], labelSeed)
		return d, nil
	case GMAC:
		mac := hmac.New(sha256.New, key[:])
		mac.Write([]byte(labelGMAC))
		block, err := aes.NewCipher(mac.Sum(nil))
		if err != nil {
			return nil, fmt.Errorf("digest: gmac: %w", err)
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("digest: gmac: %w", err)
		}
		return &gmacDigester{gcm: gcm}, nil
	}
	return nil, fmt.Errorf("digest: algorithm %d is unknown", uint8(a))
}

// xxh3Digester: the seed of page i is the first 8 bytes, little endian, of
// HMAC-SHA256(key, label || i as 8 bytes, big endian); the digest is XXH3-64
// under that seed, big endian, in the first 8 bytes.
type xxh3Digester struct {
	mac     hash.Hash
	message [len(labelSeed) + 8]byte
	sum     [sha256.Size]byte
	stream  xxh3.Hasher
}

func (d *xxh3Digester) seed(index int) uint64 {
	binary.BigEndian.PutUint64(d.message[len(labelSeed):], uint64(index))
	d.mac.Reset()
	d.mac.Write(d.message[:])
	d.mac.Sum(d.sum[:0])
	return binary.LittleEndian.Uint64(d.sum[:])
}

// Page implements [kv.Digester].
func (d *xxh3Digester) Page(index int, segments [][]byte) (out kv.Digest) {
	seed := d.seed(index)
	var sum uint64
	if len(segments) == 1 { // a whole page
		sum = xxh3.HashSeed(segments[0], seed)
	} else {
		d.stream.ResetSeed(seed)
		for _, s := range segments {
			_, _ = d.stream.Write(s) // cannot fail
		}
		sum = d.stream.Sum64()
	}
	binary.BigEndian.PutUint64(out[:], sum)
	return out
}

// gmacDigester: the key is HMAC-SHA256(key, label), the nonce of page i is i
// as 12 bytes, big endian, the page is the additional data, the plaintext is
// empty.
type gmacDigester struct {
	gcm   cipher.AEAD
	nonce [12]byte
	tag   [16]byte
	joint []byte // a page of several segments: the last of a prompt, which is partial
}

// Page implements [kv.Digester].
func (d *gmacDigester) Page(index int, segments [][]byte) kv.Digest {
	binary.BigEndian.PutUint64(d.nonce[4:], uint64(index))
	var data []byte
	if len(segments) == 1 {
		data = segments[0]
	} else {
		d.joint = d.joint[:0]
		for _, s := range segments {
			d.joint = append(d.joint, s...)
		}
		data = d.joint
	}
	d.gcm.Seal(d.tag[:0], d.nonce[:], nil, data)
	clear(d.joint) // it is a prompt's content, and this outlives the page
	return kv.Digest(d.tag)
}

// Package account is what a tenant is made of: API keys, cache domains, and budgets.
//
// It promises that a key is stored as a keyed hash only, that a domain cannot be guessed
// nor taken for another, and that a budget never gives more than it has.
//
// What must not come in: HTTP, requests, models, and the clock: time is an argument.
package account

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
)

// keyPrefix marks an API key of ours; 32 hexadecimal digits follow.
const keyPrefix = "bk-"

// KeyHash is what is stored of an API key: HMAC-SHA256 under the pepper.
type KeyHash [sha256.Size]byte

// String returns the hash in hexadecimal.
func (h KeyHash) String() string { return hex.EncodeToString(h[:]) }

// ParseKeyHash reads a hash that String wrote.
func ParseKeyHash(s string) (KeyHash, error) {
	var h KeyHash
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return h, fmt.Errorf("account: parse key hash: want %d hexadecimal digits", 2*len(h))
	}
	return KeyHash(b), nil
}

// NewKey makes an API key of 128 random bits. The text is to be shown once and forgotten;
// the hash is to be stored.
func NewKey(random io.Reader, pepper []byte) (text string, hash KeyHash, err error) {
	var bits [16]byte
	if _, err := io.ReadFull(random, bits[:]); err != nil {
		return "", KeyHash{}, fmt.Errorf("account: make key: %w", err)
	}
	text = keyPrefix + hex.EncodeToString(bits[:])
	return text, Hash(pepper, text), nil
}

// minKeyText is the least length of an API key that a tenant brought along, in bytes.
const minKeyText = 16

// MaxKey is the longest API key, in bytes. No longer text need be hashed.
const MaxKey = 128

// HashKey is the hash of a key that was not made by [NewKey]. It refuses a key that is
// shorter than 16 bytes, longer than 128, or not of printable ASCII without spaces. The
// error does not hold the key.
func HashKey(pepper []byte, text string) (KeyHash, error) {
	if len(text) < minKeyText || len(text) > MaxKey {
		return KeyHash{}, fmt.Errorf("account: hash key: want %d to %d bytes", minKeyText, MaxKey)
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return KeyHash{}, errors.New("account: hash key: want printable ASCII without spaces")
		}
	}
	return Hash(pepper, text), nil
}

// Hash is the hash of whatever text a caller gives as a key.
func Hash(pepper []byte, text string) KeyHash { return NewHasher(pepper).Hash(text) }

// Hasher hashes keys under one pepper, many times. It may be used by several goroutines.
type Hasher struct{ states sync.Pool }

// NewHasher makes one.
func NewHasher(pepper []byte) *Hasher {
	return &Hasher{sync.Pool{New: func() any { return hmac.New(sha256.New, pepper) }}}
}

// Hash is the hash of a key.
func (h *Hasher) Hash(text string) KeyHash {
	m := h.states.Get().(hash.Hash)
	defer h.states.Put(m)
	m.Reset() // nothing of the one before is left in it
	_, _ = io.WriteString(m, "bulkhead-key-v1")
	_, _ = io.WriteString(m, text)
	var out KeyHash
	m.Sum(out[:0])
	return out
}

package digest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"bulkhead.dev/bulkhead/kv"
)

// Statement is what prefill says of the pages that it wrote, and what decode
// believes of those that it granted. Decode makes its own from its own view;
// only the digests and the first token come from the peer.
type Statement struct {
	Attempt    [16]byte
	Generation kv.Generation
	Input      [32]byte // hash of the prompt's token ids
	Tokens     uint32   // tokens of the prompt
	Pages      uint32   // pages that prefill wrote
	Prefix     uint32   // tokens that decode had
	PrefixHash [32]byte // names them; zero if there are none
	Layout     uint64   // fingerprint of page layout, model and numeric type
	Domain     kv.Domain
	Algorithm  Algorithm   // of the digests
	First      uint32      // the token that prefill sampled
	Digests    []kv.Digest // of the written pages, in order
}

// Bind returns the MAC over a statement: HMAC-SHA256 under the digest key of the
// hand-off. Each field is preceded by its length, so that no two statements
// have one encoding (H-7). Compare with [Check], never with ==.
func Bind(key [32]byte, s Statement) [32]byte {
	b := make([]byte, 0, 320+len(s.Digests)*len(kv.Digest{}))
	b = frame(b, []byte(labelBind))
	b = frame(b, s.Attempt[:])
	b = frame64(b, s.Generation.Epoch)
	b = frame64(b, s.Generation.Counter)
	b = frame(b, s.Input[:])
	b = frame32(b, s.Tokens)
	b = frame32(b, s.Pages)
	b = frame32(b, s.Prefix)
	b = frame(b, s.PrefixHash[:])
	b = frame64(b, s.Layout)
	b = frame(b, s.Domain[:])
	b = frame(b, []byte{byte(s.Algorithm)})
	b = frame32(b, s.First)
	b = binary.BigEndian.AppendUint64(b, uint64(len(s.Digests)))
	for _, d := range s.Digests {
		b = append(b, d[:]...)
	}
	mac := hmac.New(sha256.New, key[:])
	mac.Write(b)
	return [32]byte(mac.Sum(nil))
}

// Check reports, in constant time, whether mac is the MAC over s.
func Check(key [32]byte, s Statement, mac [32]byte) bool {
	want := Bind(key, s)
	return hmac.Equal(want[:], mac[:])
}

// frame appends a field: its length as 8 bytes, big endian, then its bytes.
func frame(b, field []byte) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(field))), field...)
}

func frame32(b []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(b, 4), v)
}

func frame64(b []byte, v uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, 8), v)
}

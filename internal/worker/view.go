package worker

import (
	"crypto/sha256"
	"encoding/binary"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// chain hashes a prompt page by page: the hash of page i covers the token ids
// of pages 0 to i. The last hash, over the whole prompt, is its input hash.
func chain(tokens []llm.Token, pageTokens int) []kv.Hash {
	hashes := make([]kv.Hash, 0, (len(tokens)+pageTokens-1)/pageTokens)
	var prev kv.Hash
	buf := make([]byte, 0, 4*pageTokens+len(prev)+4)
	for at := 0; at < len(tokens); at += pageTokens {
		page := tokens[at:min(at+pageTokens, len(tokens))]
		buf = append(buf[:0], prev[:]...)
		buf = binary.LittleEndian.AppendUint32(buf, uint32(len(page)))
		for _, t := range page {
			buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
		}
		prev = sha256.Sum256(buf)
		hashes = append(hashes, prev)
	}
	return hashes
}

// fingerprint names what both workers must agree on for every attempt: layout,
// model, numeric type.
func fingerprint(h wire.Hello) uint64 {
	b := []byte("bulkhead-layout-v1 float32 little-endian")
	for _, n := range [...]int{h.Layout.Layers, h.Layout.Heads, h.Layout.Dim, h.Layout.PageTokens} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	b = append(b, h.Model[:]...)
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}

// view is this worker's view of a request (H-1). A request that is refused may
// have no token ids, and its view no hash.
func (w *Worker) view(r *request, hashes []kv.Hash) handoff.View {
	v := handoff.View{Tokens: uint32(r.count), Pages: uint32(len(hashes)), Layout: w.print, Domain: r.domain}
	if len(hashes) > 0 {
		v.Input = hashes[len(hashes)-1]
	}
	return v
}

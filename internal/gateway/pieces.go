package gateway

import (
	"bytes"
	"io"
	"net/http"
	"slices"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// outgoing is one call to an engine: most of its body are parts of the client's own, which
// are not copied (G-4).
type outgoing struct {
	upstream.Call
	pieces [][]byte
}

// give makes the body that of a request. net/http may ask for it once more, if a
// connection turns out to be closed before anything was sent.
func (o *outgoing) give(req *http.Request) {
	n := int64(0)
	for _, p := range o.pieces {
		n += int64(len(p))
	}
	req.ContentLength = n
	req.GetBody = func() (io.ReadCloser, error) {
		if len(o.pieces) == 1 {
			// Only a reader that net/http knows to be in memory leaves with its headers.
			return io.NopCloser(bytes.NewReader(o.pieces[0])), nil
		}
		return &pieceReader{slices.Clone(o.pieces)}, nil
	}
	req.Body, _ = req.GetBody()
}

// whole is the body in one piece.
func (o *outgoing) whole() []byte {
	if len(o.pieces) == 1 {
		return o.pieces[0]
	}
	return slices.Concat(o.pieces...)
}

// pieceReader reads pieces one behind the other.
type pieceReader struct{ left [][]byte }

// Read reads from the first piece that is left.
func (r *pieceReader) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) && len(r.left) > 0 {
		k := copy(b[n:], r.left[0])
		n += k
		if r.left[0] = r.left[0][k:]; len(r.left[0]) == 0 {
			r.left = r.left[1:]
		}
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Close does nothing; the pieces are the client's body, which lives as long as its request.
func (r *pieceReader) Close() error { return nil }

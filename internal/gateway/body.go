package gateway

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fault"
)

// checkHeaders refuses headers by which routers and engines are steered. No header of a
// client is ever forwarded; a client that sends one of these means something by it, and
// must not believe that it had an effect (G-1).
func checkHeaders(h http.Header) *fault.Error {
	for name := range h {
		if len(name) < 2 || name[0]|0x20 != 'x' || name[1] != '-' {
			continue // all that are reserved begin so
		}
		if reservedHeader(strings.ToLower(name)) {
			return fault.New(fault.ReservedHeader, fault.Field(strings.ToLower(name)))
		}
	}
	return nil
}

func reservedHeader(name string) bool {
	switch name {
	case "x-kv-cache-source-host-port", "x-llm-d-inference-fairness-id", "x-tenant-id", "x-encoder-hosts-ports", "x-conversation-id":
		return true
	}
	for _, prefix := range [...]string{
		"x-bulkhead-", "x-prefiller-", "x-data-parallel-", "x-override-", "x-sglext-", "x-sglang-", "x-smg-", "x-body-",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// maxClientID is the longest id of a client's own, in bytes, that is kept and echoed.
const maxClientID = 128

// clientID is the client's own id of its request, cut to its bound; empty if it gave none
// or one that is not printable ASCII. It is echoed and remembered, and reaches no engine.
func clientID(h http.Header) string {
	id := h.Get(headerClient)
	if id == "" {
		id = h.Get("X-Request-Id")
	}
	id = id[:min(len(id), maxClientID)]
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return ""
		}
	}
	return strings.Clone(id) // it is remembered, and must not keep the whole header
}

// checkForm refuses a body by its headers.
func checkForm(h http.Header) *fault.Error {
	if h.Get("Content-Encoding") != "" {
		return fault.New(fault.ContentEncoding)
	}
	if declared := h.Get("Content-Type"); declared != "" && declared != "application/json" {
		if kind, _, err := mime.ParseMediaType(declared); err != nil || kind != "application/json" {
			return fault.New(fault.ContentType)
		}
	}
	return nil
}

// copies is how often the bytes of a body are held: as the client sent them, and for
// each of the two legs.
const copies = 3

// lease is the part of the byte budgets that a request holds, for its body and for what is
// held of its answers. It is safe for concurrent use. The zero value takes nothing.
type lease struct {
	process, tenant *account.Budget

	mu sync.Mutex
	n  int64
}

// take takes n more bytes from both budgets, or none.
func (l *lease) take(n int64) *fault.Error {
	if l.tenant == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.tenant.Take(n) {
		return fault.New(fault.TenantBytes, fault.Int(l.tenant.Limit()))
	}
	if !l.process.Take(n) {
		l.tenant.Give(n)
		return fault.New(fault.Overloaded)
	}
	l.n += n
	return nil
}

// release gives everything back.
func (l *lease) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenant.Give(l.n)
	l.process.Give(l.n)
	l.n = 0
}

// firstChunk is how much is set aside for a body of unknown length at first, in bytes.
const firstChunk = 64 << 10

// readBody reads a whole body. Every byte is taken from the budgets before it is read,
// and the body must keep up its least rate (G-14).
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request, l *lease) ([]byte, *fault.Error) {
	most := g.bounds.Body
	if l.tenant != nil {
		most = min(most, l.tenant.Limit()/copies-1) // waiting makes no room for a longer one, and one byte more shows the end
	}
	tooLarge := func() *fault.Error { return fault.New(fault.BodyTooLarge, fault.Int(most)) }
	size := r.ContentLength
	if size > most {
		return nil, tooLarge()
	}
	if size < 0 {
		size = min(firstChunk, most)
	}
	if fail := l.take(copies * size); fail != nil {
		return nil, fail
	}
	rc := http.NewResponseController(w)
	start := g.clock.Now()
	// One byte more than is due makes the read see the end, from where on the server
	// notices a client that leaves.
	body := make([]byte, 0, size+1)
	for {
		if len(body) == cap(body) {
			if int64(len(body)) > most {
				return nil, tooLarge()
			}
			more := min(int64(cap(body)), most+1-int64(cap(body)))
			if fail := l.take(copies * more); fail != nil {
				return nil, fail
			}
			body = append(make([]byte, 0, int64(cap(body))+more), body...)
		}
		due := time.Duration(float64(len(body)) / float64(g.bounds.BodyRate) * float64(time.Second))
		_ = rc.SetReadDeadline(start.Add(g.bounds.BodyGrace + due)) // a server without deadlines has none
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			w.Header().Set("Connection", "close")
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, fault.New(fault.BodyTooSlow)
			}
			return nil, fault.New(fault.BodyIncomplete)
		}
	}
	if int64(len(body)) > most {
		return nil, tooLarge()
	}
	_ = rc.SetReadDeadline(time.Time{})
	return body, nil
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// leg is a worker that answers at once, always the same, in the dialect that the
// gateway speaks to real ones.
type leg struct {
	role  string
	looks looks
	info  []byte
}

// looks is how much of a request a leg reads as more than bytes.
type looks string

const (
	// looksAtHead: what stands before the leg is all that costs.
	looksAtHead looks = "head"
	// looksAtAll: it parses the whole request, as an engine does.
	looksAtAll looks = "all"
)

// manyTokens is what a leg says it can take: more than any prompt here.
const manyTokens = 1 << 26

func newLeg(role string, l looks) (*leg, error) {
	info, err := json.Marshal(map[string]any{
		"disaggregation_mode": role, "served_model_name": "recall", "context_length": manyTokens, "page_size": 64,
		"max_total_num_tokens": manyTokens, "max_req_input_len": manyTokens, "version": "bench", "incarnation": role + "-1",
	})
	return &leg{role, l, info}, err
}

const (
	streamEvents = 32  // of the leg's stream, [DONE] included
	peekSize     = 768 // bytes of a request that a leg looks at
	copyBuffer   = 256 << 10
	answerText   = "The answer is two hundred bytes long, as answers of a short chat are, and it is always the same one, for " +
		"what is measured is the way that it takes from a worker to a client, and not how anybody came to it."
)

// ServeHTTP serves one call.
func (l *leg) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/server_info":
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(l.info)
		return
	case "/abort_request":
		_, _ = io.WriteString(w, "{}")
		return
	}
	head, err := l.read(r)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	rid := ridOf(head)
	if l.role == "decode" && bytes.Contains(head, []byte(`"stream":true`)) {
		l.stream(w, rid)
		return
	}
	text, finish, tokens := answerText, "stop", 40
	if l.role == "prefill" {
		text, finish, tokens = "The", "length", 1
	}
	body := fmt.Appendf(nil, `{"id":%q,"object":"chat.completion","created":1,"model":"recall","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%q},"finish_reason":%q}],"usage":{"prompt_tokens":17,"completion_tokens":%d,"total_tokens":%d}}`,
		rid, text, finish, tokens, 17+tokens)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

// read reads a request and returns its head.
func (l *leg) read(r *http.Request) ([]byte, error) {
	if l.looks == looksAtAll {
		body := make([]byte, max(0, r.ContentLength))
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, err
		}
		var v struct {
			Messages []struct{ Role, Content string }
		}
		return body[:min(len(body), peekSize)], json.Unmarshal(body, &v)
	}
	head := make([]byte, peekSize)
	n, err := io.ReadFull(r.Body, head)
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, copyBuffer))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return head[:n], err
}

// ridOf is the request id in the head of a request; a client's own has none.
func ridOf(head []byte) string {
	_, rest, ok := bytes.Cut(head, []byte(`"rid":"`))
	id, _, whole := bytes.Cut(rest, []byte(`"`))
	if !ok || !whole {
		return "none"
	}
	return string(id)
}

// stream answers in streamEvents events, each flushed at once.
func (l *leg) stream(w http.ResponseWriter, rid string) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	buf := make([]byte, 0, 512)
	for i := range streamEvents - 1 {
		buf = fmt.Appendf(buf[:0], `data: {"id":%q,"object":"chat.completion.chunk","created":1,"model":"recall",`, rid)
		switch tokens := min(i+1, streamEvents-2); i {
		case streamEvents - 2:
			buf = fmt.Appendf(buf, `"choices":[],"usage":{"prompt_tokens":17,"completion_tokens":%d,"total_tokens":%d}}`, tokens, 17+tokens)
		case streamEvents - 3:
			buf = fmt.Appendf(buf, `"choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}],`+
				`"usage":{"prompt_tokens":17,"completion_tokens":%d,"total_tokens":%d}}`, tokens, 17+tokens)
		default:
			buf = fmt.Appendf(buf, `"choices":[{"index":0,"delta":{"content":"The "},"finish_reason":null}],`+
				`"usage":{"prompt_tokens":17,"completion_tokens":%d,"total_tokens":%d}}`, tokens, 17+tokens)
		}
		if _, err := w.Write(append(buf, "\n\n"...)); err != nil || flush() != nil {
			return
		}
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// client is a transport as the gateway's own is.
func client() *http.Transport {
	return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}
}

// bareProxy is Go's own reverse proxy before one leg.
func bareProxy(to *url.URL) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: client(),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Otherwise a leg that answers faster than the transport looks for the end of
		// the body makes the server close that body, and the transport its connection.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}

// floor is the least that a PD route in Go can do: it reads a body, splices an id
// into it, sends it to both legs, waits for both, and passes on what decode says. It
// reads no JSON and checks nothing.
type floor struct {
	transport       *http.Transport
	prefill, decode string
}

func (f *floor) post(r *http.Request, to string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, to+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return f.transport.RoundTrip(req)
}

// splice puts an id in front of the members of a JSON object.
func splice(body []byte) []byte {
	const id = `"rid":"bench-0123456789abcdef0123456789abcdef",`
	out := append(make([]byte, 0, len(body)+len(id)), '{')
	return append(append(out, id...), body[1:]...)
}

// ServeHTTP serves one request.
func (f *floor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := make([]byte, max(0, r.ContentLength))
	if _, err := io.ReadFull(r.Body, body); err != nil || len(body) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	prefilled := make(chan error, 1)
	go func() {
		resp, err := f.post(r, f.prefill, splice(body))
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close() // it was read to its end, or err says why not
		}
		prefilled <- err
	}()
	resp, err := f.post(r, f.decode, splice(body))
	if failed := <-prefilled; err != nil || failed != nil {
		if err == nil {
			_ = resp.Body.Close() // the error that counts is prefill's
		}
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	if n := resp.ContentLength; n >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	}
	flush := func() error { return nil }
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		flush = http.NewResponseController(w).Flush
	}
	relay(w, bufio.NewReaderSize(resp.Body, 16<<10), flush)
}

// relay copies an answer, and calls flush whenever nothing more is there.
func relay(w io.Writer, from *bufio.Reader, flush func() error) {
	for {
		if _, err := from.Peek(1); err != nil {
			return
		}
		b, _ := from.Peek(from.Buffered())
		if _, err := w.Write(b); err != nil {
			return
		}
		_, _ = from.Discard(len(b)) // they are there
		if flush() != nil {
			return
		}
	}
}

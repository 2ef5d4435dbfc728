package assure

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	maxAnswer = 16 << 20 // bytes of one answer that are kept
	maxEvent  = 4 << 20  // bytes of one line of a stream
)

var errElsewhere = errors.New("assure: call: the address is not one that the site names")

// ErrStranger is for Site.GatewayTLS to say that the gateway shows another certificate
// than its own.
var ErrStranger = errors.New("the gateway shows another certificate than the configuration names")

// client calls the addresses of one site and no others: the dialer compares, so that
// neither a redirect nor a case can go elsewhere.
type client struct {
	http *http.Client
}

func newClient(s *Site) (*client, error) {
	may := map[string]*tls.Dialer{}
	for name, address := range s.named() {
		u, err := base(address)
		if err != nil {
			return nil, fmt.Errorf("assure: read address: %w", err)
		}
		config := s.EngineTLS
		switch {
		case name == "gateway":
			config = s.GatewayTLS
		case name == "router" && may[hostPort(u)] != nil:
			continue // it is one of the others, too
		case name == "router":
			config = nil
		}
		may[hostPort(u)] = &tls.Dialer{Config: config}
	}
	var dialer net.Dialer
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if may[address] == nil {
				return nil, errElsewhere
			}
			return dialer.DialContext(ctx, network, address)
		},
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if may[address] == nil {
				return nil, errElsewhere
			}
			return may[address].DialContext(ctx, network, address)
		},
		MaxIdleConnsPerHost: 4,
		DisableCompression:  true,
	}
	return &client{http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// hostPort is what a dialer is asked for.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func (c *client) close() { c.http.CloseIdleConnections() }

// call is one request.
type call struct {
	method, base, path string
	headers            map[string]string
	body               []byte
}

// open sends a request and reads the headers of the answer.
func (c *client) open(ctx context.Context, q call) *Stream {
	s := &Stream{read: newReader(), begun: time.Now()}
	target, err := join(q.base, q.path)
	if err != nil {
		return s.fail(err)
	}
	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
	}
	request, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return s.fail(errors.New("assure: call: the method or the address is malformed"))
	}
	if q.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, value := range q.headers {
		request.Header.Set(name, value)
	}
	response, err := c.http.Do(request) //nolint:bodyclose // the stream closes it: Rest or Close
	if err != nil {
		return s.fail(plain(err))
	}
	s.body = response.Body
	s.read.answer.Status = response.StatusCode
	s.read.answer.Header = response.Header
	s.streamed = strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream")
	s.lines = bufio.NewReaderSize(response.Body, 64<<10)
	return s
}

// join puts a path with an optional query behind a base URL, whose host it cannot change.
func join(address, path string) (string, error) {
	u, err := base(address)
	if err != nil {
		return "", fmt.Errorf("assure: call: %w", err)
	}
	if !strings.HasPrefix(path, "/") {
		return "", errors.New("assure: call: a path begins with a slash")
	}
	path, query, _ := strings.Cut(path, "?")
	u.Path = strings.TrimSuffix(u.Path, "/") + path
	u.RawQuery = query
	return u.String(), nil
}

// plain takes addresses and texts out of an error of net/http.
func plain(err error) error {
	switch {
	case errors.Is(err, errElsewhere):
		return errElsewhere
	case errors.Is(err, ErrStranger):
		return ErrStranger
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return errors.New("nobody who is trusted vouches for its certificate")
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return errors.New("its certificate does not hold for this address")
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("time was up")
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the connection ended in mid-answer")
	case errors.Is(err, io.EOF):
		return errors.New("the connection was closed")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Errorf("%s failed: %w", op.Op, root(op.Err))
	}
	return errors.New("the exchange failed")
}

// root is the innermost error, which names no address.
func root(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// Stream is an answer that is read bit by bit. It belongs to one goroutine. It must be
// ended by Rest or Close.
type Stream struct {
	read     *reader
	body     io.ReadCloser
	lines    *bufio.Reader
	begun    time.Time
	streamed bool
	ended    bool
	after    func() // what ends with it
}

func (s *Stream) fail(err error) *Stream {
	s.read.answer.Err = err
	if !s.begun.IsZero() {
		s.read.answer.Took = time.Since(s.begun)
	}
	s.ended = true
	return s
}

// Status is the HTTP status, 0 when no answer came.
func (s *Stream) Status() int { return s.read.answer.Status }

// Text is what was said so far.
func (s *Stream) Text() string { return s.read.said() }

// Until reads until at least n bytes of text have come. False: it ended before.
func (s *Stream) Until(n int) bool {
	for len(s.read.said()) < n {
		if !s.next() {
			return false
		}
	}
	return true
}

// next reads one line of a stream, or all of another answer. False: there is no more.
func (s *Stream) next() bool {
	if s.ended {
		return false
	}
	a := &s.read.answer
	if !s.streamed {
		body, err := io.ReadAll(io.LimitReader(s.lines, maxAnswer))
		a.Body = body
		if err != nil {
			a.Err = plain(err)
		}
		s.read.whole(body)
		s.end()
		return len(body) > 0
	}
	line, err := s.line()
	a.Body = append(a.Body, line...)
	if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && err == nil {
		before := len(s.read.said())
		s.read.event(bytes.TrimSpace(data))
		if a.First == 0 && len(s.read.said()) > before {
			a.First = time.Since(s.begun)
		}
	}
	switch {
	case err == nil && len(a.Body) > maxAnswer:
		a.Err = errors.New("the answer is longer than is looked at")
	case errors.Is(err, io.EOF):
	case err != nil:
		a.Err = plain(err)
	default:
		return true
	}
	s.end()
	return false
}

func (s *Stream) line() ([]byte, error) {
	var whole []byte
	for {
		piece, err := s.lines.ReadSlice('\n')
		whole = append(whole, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return whole, err
		}
		if len(whole) > maxEvent {
			return whole, errors.New("assure: read stream: an event is longer than is looked at")
		}
	}
}

func (s *Stream) end() {
	s.ended = true
	if s.body != nil {
		s.body.Close()
	}
	if s.after != nil {
		s.after()
	}
	a := &s.read.answer
	a.Took = time.Since(s.begun)
	if a.First == 0 {
		a.First = a.Took
	}
}

// Rest reads to the end and returns the whole answer.
func (s *Stream) Rest() Answer {
	for s.next() {
	}
	a := s.read.answer
	a.Text = s.read.said()
	return a
}

// Close leaves, as a client does who is gone.
func (s *Stream) Close() {
	if !s.ended {
		s.end()
	}
}

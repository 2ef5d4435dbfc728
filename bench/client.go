package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// caller is one kept-alive connection that sends one request over and over. It
// reads just as much HTTP as the answers here have, so that the load costs little
// beside what is measured.
type caller struct {
	conn    net.Conn
	r       *bufio.Reader
	request []byte
	body    []byte // of the last answer; reused
}

// target is where a load goes to: an address, and the request as it is sent.
type target struct {
	addr    string
	request []byte
}

// post writes the request of a completion to addr.
func post(addr, key string, body []byte) target {
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: " + addr + "\r\nContent-Type: application/json\r\n"
	if key != "" {
		head += "Authorization: Bearer " + key + "\r\n"
	}
	head += "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	return target{addr, append([]byte(head), body...)}
}

func (t target) dial() (*caller, error) {
	c, err := net.DialTimeout("tcp", t.addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &caller{conn: c, r: bufio.NewReaderSize(c, 16<<10), request: t.request}, nil
}

// callTime bounds one call.
const callTime = 30 * time.Second

// maxBody bounds an answer.
const maxBody = 1 << 20

var errShape = errors.New("bench: an answer is not of the shape that was asked for")

// call sends the request and reads the whole answer into body.
func (c *caller) call() error {
	if err := c.conn.SetDeadline(time.Now().Add(callTime)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	length, err := c.head()
	if err != nil {
		return err
	}
	if c.body = c.body[:0]; length >= 0 {
		return c.read(length)
	}
	for { // chunked
		line, err := c.line()
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(line, 16, 32)
		if err != nil {
			return errShape
		}
		if err := c.read(int(n)); err != nil {
			return err
		}
		if _, err := c.line(); err != nil || n == 0 {
			return err
		}
	}
}

// head reads the header of an answer with status 200. It returns -1 for a chunked
// one.
func (c *caller) head() (length int, err error) {
	status, err := c.line()
	if err != nil {
		return 0, err
	}
	if !strings.HasPrefix(status, "HTTP/1.1 200") {
		return 0, fmt.Errorf("bench: a target answered %.40q", status)
	}
	length = -2
	for {
		line, err := c.line()
		if err != nil {
			return 0, err
		}
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case strings.EqualFold(name, "Content-Length"):
			if length, err = strconv.Atoi(value); err != nil || length < 0 {
				return 0, errShape
			}
		case strings.EqualFold(name, "Transfer-Encoding"):
			length = -1
		}
	}
	if length == -2 {
		return 0, errShape
	}
	return length, nil
}

func (c *caller) line() (string, error) {
	b, err := c.r.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	return string(bytes.TrimRight(b, "\r\n")), nil
}

func (c *caller) read(n int) error {
	at := len(c.body)
	if at+n > maxBody {
		return errShape
	}
	c.body = append(c.body, make([]byte, n)...)
	_, err := io.ReadFull(c.r, c.body[at:])
	return err
}

// window is one measurement of a load.
type window struct {
	p50   time.Duration
	rate  float64 // requests a second
	calls int     // all that were made
}

// span is how long a load lasts: a time, and at least so many calls on each connection.
type span struct {
	time  time.Duration
	calls int
}

// load sends requests over conns connections, one at a time on each, and checks the
// end of every answer.
func (t target) load(conns int, s span, ends string) (window, error) {
	callers := make([]*caller, conns)
	defer func() {
		for _, c := range callers {
			if c != nil {
				_ = c.conn.Close() // every answer was read
			}
		}
	}()
	for i := range callers {
		var err error
		if callers[i], err = t.dial(); err != nil {
			return window{}, err
		}
		if err := callers[i].call(); err != nil { // the first call of a connection pays for its set-up
			return window{}, err
		}
	}
	took, failed := make([][]float64, conns), make([]error, conns)
	var all sync.WaitGroup
	start := time.Now()
	for i, c := range callers {
		all.Go(func() { took[i], failed[i] = c.repeat(start, s, ends) })
	}
	all.Wait()
	elapsed := time.Since(start)
	if err := errors.Join(failed...); err != nil {
		return window{}, err
	}
	var each []float64
	for _, t := range took {
		each = append(each, t...)
	}
	return window{time.Duration(median(each)), float64(len(each)) / elapsed.Seconds(), len(each) + conns}, nil
}

func (c *caller) repeat(begun time.Time, s span, ends string) ([]float64, error) {
	var took []float64
	for now := time.Now(); len(took) < s.calls || now.Sub(begun) < s.time; {
		if err := c.call(); err != nil {
			return nil, err
		}
		end := time.Now()
		took, now = append(took, float64(end.Sub(now))), end
		if !bytes.HasSuffix(c.body, []byte(ends)) {
			return nil, errShape
		}
	}
	return took, nil
}

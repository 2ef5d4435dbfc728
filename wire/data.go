package wire

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"

	"bulkhead.dev/bulkhead/kv"
)

// stream is one data connection. At prefill it is written by write and read by
// acknowledged, at decode read by land and written by acknowledge.
type stream struct {
	link   *link
	conn   *conn
	source source

	// Prefill. The counters are frames of this connection, under post.mu. A frame
	// is complete when it is acked and wrote: a peer that acknowledges early must
	// not make us give away a page that our write still reads (H-8).
	sent, wrote, acked uint64
	flight             [Window]flight
	acks               meter
	head               []byte
	bufs               net.Buffers
	next               net.Buffers // of bufs, what is left to write
	buffered           *bufio.Writer

	// Decode.
	receipts receipts
}

// flight is one frame that has not completed.
type flight struct {
	id   uint64
	page int
}

func newStream(l *link, c *conn) *stream {
	if c.kind == kindPlain {
		c.Conn = c.raw // nothing stands between any more: writev, and reads into the page
	}
	s := &stream{link: l, conn: c, source: source{conn: c.Conn}}
	s.receipts.wake = make(chan struct{}, 1)
	if _, tcp := c.Conn.(*net.TCPConn); !tcp {
		// No writev: header and content share records instead. Large segments go
		// past the buffer.
		s.buffered = bufio.NewWriterSize(c.Conn, 16<<10)
	}
	return s
}

// item is a queued page.
type item struct {
	PageWrite
	gate  *Gate
	after int
}

// post is the queue of pages that all data connections of a link take from.
type post struct {
	limit   int // of writes that have not completed
	mu      sync.Mutex
	changed sync.Cond
	queue   []item // from first on
	first   int
	open    int // queued or in flight
	closed  bool
}

func (p *post) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.changed.Broadcast()
}

// add queues a page. It fails over the limit.
func (p *post) add(it item) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil // the link says why
	}
	if p.open >= p.limit {
		return fail(ReasonOverflow, "over %d page writes", p.limit)
	}
	if p.first > 0 && p.first == len(p.queue) {
		p.queue, p.first = p.queue[:0], 0
	} else if p.first > 1024 && p.first > len(p.queue)/2 {
		n := copy(p.queue, p.queue[p.first:])
		clear(p.queue[n:])
		p.queue, p.first = p.queue[:n], 0
	}
	p.queue = append(p.queue, it)
	p.open++
	p.changed.Broadcast()
	return nil
}

// take waits for a page and for room in the window of s, and puts the page in
// flight. It reports false once the link is closing.
func (p *post) take(s *stream) (item, uint64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && (p.first == len(p.queue) || s.sent-s.acked >= Window) {
		p.changed.Wait()
	}
	if p.closed {
		return item{}, 0, false
	}
	it := p.queue[p.first]
	p.queue[p.first] = item{}
	p.first++
	s.flight[s.sent%Window] = flight{it.ID, it.Page}
	s.sent++
	s.acks.busy.Store(true)
	return it, s.sent, true
}

// returned notes that the write of frame seq has returned.
func (p *post) returned(s *stream, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.wrote = seq
	p.changed.Broadcast()
}

// complete takes an acknowledgement, waits for our own writes to return, and
// gives the frames that are complete now. It returns nil once the link is
// closing.
func (p *post) complete(s *stream, a ack, into []flight) ([]flight, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.seq > s.sent || a.seq-s.acked != uint64(a.count) {
		return nil, fail(ReasonUnexpected, "acknowledgement of frames that were not sent")
	}
	for !p.closed && s.wrote < a.seq {
		p.changed.Wait()
	}
	if p.closed {
		return nil, nil
	}
	for seq := s.acked; seq < a.seq; seq++ {
		into = append(into, s.flight[seq%Window])
	}
	s.acked = a.seq
	p.open -= int(a.count)
	s.acks.moved.Add(1)
	s.acks.busy.Store(s.acked != s.sent)
	p.changed.Broadcast()
	return into, nil
}

// write takes pages from the link's queue and writes them.
func (s *stream) write() error {
	for {
		it, seq, ok := s.link.post.take(s)
		if !ok {
			return nil
		}
		if err := s.writePage(&it, seq); err != nil {
			return err
		}
		s.link.post.returned(s, seq)
	}
}

func (s *stream) writePage(it *item, seq uint64) error {
	h := pageHead{key: it.Key, page: uint32(it.Page), rows: uint32(it.Rows), seq: seq}
	s.head = appendPage(s.head[:0], h, s.link.hello.Layout.Bytes(it.Rows))
	s.bufs = append(s.bufs[:0], s.head)
	if it.gate == nil {
		s.bufs = append(s.bufs, it.Segments...)
		return s.flush()
	}
	before, rest := split(it.Segments, it.after)
	s.bufs = append(s.bufs, before...)
	if err := s.flush(); err != nil {
		return err
	}
	if !it.gate.wait(s.link.done) {
		return io.ErrClosedPipe
	}
	s.bufs = append(s.bufs[:0], rest...)
	return s.flush()
}

// split cuts segments after n bytes.
func split(segments [][]byte, n int) (before, rest [][]byte) {
	for i, seg := range segments {
		if n < len(seg) {
			return append(before, seg[:n]), append([][]byte{seg[n:]}, segments[i+1:]...)
		}
		before, n = append(before, seg), n-len(seg)
	}
	return before, nil
}

// flush writes bufs.
func (s *stream) flush() error {
	if s.buffered == nil {
		s.next = s.bufs
		_, err := s.next.WriteTo(s.conn.Conn)
		clear(s.bufs)
		return err
	}
	for i, b := range s.bufs {
		if _, err := s.buffered.Write(b); err != nil {
			return err
		}
		s.bufs[i] = nil
	}
	return s.buffered.Flush()
}

// acknowledged reads the peer's acknowledgements.
func (s *stream) acknowledged() error {
	var buf [ackSize]byte
	into := make([]flight, 0, Window)
	for {
		_, body, err := readFrame(s.conn, buf[:], frameAck)
		if err != nil {
			return err
		}
		a, err := parseAck(body)
		if err != nil {
			return err
		}
		done, err := s.link.post.complete(s, a, into)
		if err != nil {
			return err
		}
		for i, f := range done {
			var outcome error
			if a.refused>>i&1 != 0 {
				outcome = refused(f.page)
			}
			s.link.handler.Written(s.link, f.id, outcome)
		}
	}
}

// land reads page frames and lets them land. A page that is refused, or whose
// key is revoked on the way, is read to nowhere; the frames behind it are not
// touched (H-5).
func (s *stream) land() error {
	var head [prefixSize + pageSize]byte
	for seq := uint64(1); ; seq++ {
		s.source.meter.busy.Store(false)
		if err := s.source.head(head[:]); err != nil {
			return err
		}
		h, content, err := parsePage(head[:], s.link.hello.Layout)
		if err != nil {
			return err
		}
		if h.seq != seq {
			return fail(ReasonUnexpected, "page frame out of sequence")
		}
		if !s.receipts.room(seq) {
			return fail(ReasonFlood, "over %d frames without acknowledgement", Window)
		}
		n, err := s.link.landing.Land(h.key, int(h.page), int(h.rows), &s.source)
		landed := err == nil
		switch {
		case landed:
		case errors.Is(err, kv.ErrRefused), errors.Is(err, kv.ErrRevoked):
			if err := s.source.drain(content - n); err != nil {
				return err
			}
		default:
			return cutShort(err)
		}
		s.receipts.add(landed)
	}
}

// receipts are the frames that were consumed and not acknowledged yet.
type receipts struct {
	wake chan struct{} // holds one token while there is something to take

	mu sync.Mutex
	a  ack // what the next acknowledgement says
}

// room reports whether the peer may have sent frame seq.
func (r *receipts) room(seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return seq-(r.a.seq-uint64(r.a.count)) <= Window
}

// add notes that the next frame was consumed.
func (r *receipts) add(landed bool) {
	r.mu.Lock()
	if !landed {
		r.a.refused |= 1 << r.a.count
	}
	r.a.seq++
	r.a.count++
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take returns what is to be acknowledged now.
func (r *receipts) take() ack {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.a
	r.a.count, r.a.refused = 0, 0
	return a
}

// acknowledge writes acknowledgements, as many frames in one as there are.
func (s *stream) acknowledge() error {
	var buf []byte
	for {
		select {
		case <-s.receipts.wake:
		case <-s.link.done:
			return nil
		}
		a := s.receipts.take()
		if a.count == 0 {
			continue
		}
		buf = appendAck(buf[:0], a)
		if _, err := s.conn.Write(buf); err != nil {
			return err
		}
	}
}

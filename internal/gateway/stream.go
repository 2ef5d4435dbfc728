package gateway

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// errEvent says that an event is longer than it may be.
var errEvent = errors.New("gateway: event too long")

// errLeft says that the client does not take its stream.
var errLeft = errors.New("gateway: the client left")

// firstBuffer is how much is read of a stream at first, in bytes.
const firstBuffer = 4 << 10

// eventReader cuts a stream into events.
type eventReader struct {
	r io.Reader
	// wait, if set, is called before a read that may have to wait, and may end the walk.
	wait     func() error
	buf      []byte
	from, to int
	max      int
}

// next returns the data of the next event that has any. It holds until the next call. A
// stream that ends inside an event ends with io.ErrUnexpectedEOF, one that ends between
// two with io.EOF.
func (e *eventReader) next() ([]byte, error) {
	for {
		if n := upstream.CutEvent(e.buf[e.from:e.to]); n > 0 {
			event := e.buf[e.from : e.from+n]
			e.from += n
			if data, ok := upstream.EventData(event); ok {
				return data, nil
			}
			continue
		}
		if e.wait != nil {
			if err := e.wait(); err != nil {
				return nil, err
			}
		}
		if err := e.more(); err != nil {
			if errors.Is(err, io.EOF) && e.to > e.from {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// more reads more of the stream behind what is not yet cut.
func (e *eventReader) more() error {
	if e.from > 0 {
		e.to = copy(e.buf, e.buf[e.from:e.to])
		e.from = 0
	}
	if e.to == len(e.buf) {
		if len(e.buf) >= e.max {
			return errEvent
		}
		bigger := make([]byte, min(e.max, max(firstBuffer, 2*len(e.buf))))
		copy(bigger, e.buf[:e.to])
		e.buf = bigger
	}
	n, err := e.r.Read(e.buf[e.to:])
	e.to += n
	if n > 0 {
		return nil // an error comes again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// moreChunks is how many chunks a stream may have beside two for each token.
const moreChunks = 64

// relay is the state of one stream on its way to the client.
type relay struct {
	a    *attempt
	in   eventReader
	out  []byte // what the client gets next; everything until the verdict
	text []byte // decode's text until the verdict
	// prompt is decode's count; finish its finish reason.
	prompt upstream.Count
	finish string
	// chunks counts the chunks: a worker that never ends must not keep us for ever.
	chunks int64
	// agreed: the legs agree, and what was held may leave.
	agreed bool
	idle   Timer
}

// stream relays server-sent events. Nothing leaves before the legs agree (G-3); the
// stream is complete only with a finish reason and the end mark of the protocol, and no
// error before it (G-5).
func (a *attempt) stream(resp *http.Response) *failure {
	if !hasType(resp, "text/event-stream") {
		return &failure{err: fault.New(fault.UpstreamVoid)}
	}
	s := &relay{a: a}
	s.in = eventReader{r: resp.Body, max: a.x.g.bounds.Event, wait: s.flush}
	s.idle = a.x.g.clock.AfterFunc(a.x.g.bounds.Idle, func() { a.x.cancel(errIdle) })
	defer s.idle.Stop()
	fail := s.run()
	if fail != nil && a.x.sent {
		_ = s.flush() // what was read before the failure is sound; a client that left shows below
	}
	return fail
}

// run relays a stream to its end.
func (s *relay) run() *failure {
	for {
		data, err := s.in.next()
		if err != nil {
			return s.cut(err)
		}
		s.idle.Reset(s.a.x.g.bounds.Idle)
		if string(data) == upstream.Done {
			return s.done()
		}
		if fail := s.chunk(data); fail != nil {
			return fail
		}
	}
}

// cut is the failure of a stream that ended without its end mark.
func (s *relay) cut(err error) *failure {
	switch {
	case errors.Is(err, errLeft):
		return &failure{err: fault.New(fault.Cancelled)}
	case errors.Is(err, errEvent):
		return &failure{err: fault.New(fault.UpstreamVoid)}
	}
	f := lost(s.a.dctx, err)
	if s.a.x.sent {
		f.err = fault.New(fault.StreamBroken)
	}
	return f
}

// chunk takes one chunk.
func (s *relay) chunk(data []byte) *failure {
	x := s.a.x
	reply, err := upstream.ParseChunk(x.req.Endpoint, data)
	if err != nil {
		return &failure{err: fault.New(fault.UpstreamVoid)}
	}
	s.chunks++
	ag := upstream.Sound(s.a.rid, &reply)
	switch {
	case s.chunks > 2*x.event.MaxTokens+moreChunks:
		ag = upstream.Unproved
	case ag != upstream.Agreed:
	case reply.Prompt.Known && s.prompt.Known && reply.Prompt.N != s.prompt.N:
		ag = upstream.CountsDiffer // decode contradicts itself
	case s.finish != "" && reply.Choices > 0:
		ag = upstream.Unproved // nothing may follow the finish reason but the usage
	}
	if ag != upstream.Agreed {
		x.event.Agreement = ag
		f := broken(ag, &reply)
		f.ended = false // its stream goes on
		return f
	}
	if reply.Prompt.Known {
		s.prompt = reply.Prompt
	}
	if reply.Finish != "" {
		s.finish = reply.Finish
	}
	x.usage(&reply)
	s.append(&reply)
	if !s.agreed {
		s.text = append(s.text, reply.Text()...)
		if len(s.out) > x.g.bounds.Held {
			return &failure{err: fault.New(fault.UpstreamVoid)}
		}
		return s.judge()
	}
	return nil
}

// append rewrites a chunk for the client: under the public id, and with its usage only
// if that is the chunk for it and the client asked.
func (s *relay) append(reply *upstream.Reply) {
	x := s.a.x
	usage := upstream.StripUsage
	if reply.IsUsageChunk() {
		if !x.req.UsageChunk {
			return
		}
		usage = upstream.KeepUsage
	}
	s.out = upstream.AppendEvent(s.out, reply.Rewrite(nil, x.publicID(), x.model.Name, usage))
}

// judge compares the legs once decode has said what it takes: its count, and a text or
// its end. If they agree, what was held is released.
func (s *relay) judge() *failure {
	d := upstream.Decoded{Prompt: s.prompt, Text: s.text}
	if s.finish != "" {
		d.Progress = upstream.Ended
	} else if len(s.text) == 0 || !s.prompt.Known {
		return nil
	}
	ag, fail := s.a.agree(d)
	switch {
	case fail != nil:
		return fail
	case ag == upstream.Open:
		return nil
	case ag != upstream.Agreed:
		f := broken(ag, &upstream.Reply{})
		f.ended = false
		return f
	}
	s.text, s.agreed = nil, true
	return nil
}

// done takes the end mark.
func (s *relay) done() *failure {
	x := s.a.x
	if s.finish == "" || !s.agreed {
		return &failure{err: fault.New(fault.StreamBroken)}
	}
	s.a.decodeEnded = true
	s.out = upstream.AppendEvent(s.out, []byte(upstream.Done))
	if s.flush() == nil {
		x.event.Verdict = Served
	}
	// What follows is read only to see that nothing does. Surplus bytes, or an end that
	// does not come, make the transport close the connection (G-12).
	if s.in.from == s.in.to {
		s.idle.Reset(x.g.bounds.Abort)
		_, _ = s.in.r.Read(make([]byte, 1))
	}
	return nil
}

// flush sends what is due. Nothing is, before the legs agree.
func (s *relay) flush() error {
	x := s.a.x
	if s.agreed && len(s.out) > 0 {
		x.send(s.out)
		s.out = s.out[:0]
	}
	if x.event.Verdict == Left {
		return errLeft
	}
	return nil
}

// send sends a part of a stream, in front of the first one the headers: from there on
// the status is 200. A client that does not take it has left.
func (x *exchange) send(p []byte) {
	if x.event.Verdict == Left {
		return
	}
	x.writeDeadline()
	if !x.sent {
		x.begin("text/event-stream")
	}
	_, err := x.w.Write(p)
	if err == nil {
		err = x.rc.Flush()
	}
	if err != nil {
		x.event.Verdict, x.event.Code = Left, fault.Cancelled
	}
}

// begin sends the headers of an answer on which the legs agree.
func (x *exchange) begin(kind string) {
	x.sent = true
	x.first.Stop()
	h := x.w.Header()
	h.Set("Content-Type", kind)
	h.Set(headerVerdict, agreed)
	x.w.WriteHeader(http.StatusOK)
	x.event.Status = http.StatusOK
	x.event.FirstByte = x.g.clock.Now().Sub(x.event.Start)
}

// breakOff ends an answer whose first byte was sent: with an error event, and with a
// connection that is cut, never with an end mark (G-5, H-14).
func (x *exchange) breakOff(e *fault.Error) {
	x.broken = true
	x.event.Completion = admit.Unknown()
	if x.event.Verdict == Left || x.gone() {
		x.event.Verdict, x.event.Code = Left, fault.Cancelled
		return
	}
	x.event.Verdict, x.event.Code = Broken, e.Code
	x.send(upstream.AppendEvent(nil, e.WithID(x.event.ID).Body()))
}

// deliver sends a whole answer.
func (x *exchange) deliver(body []byte) {
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.writeDeadline()
	x.begin("application/json")
	_, err := x.w.Write(body)
	if err == nil {
		err = x.rc.Flush()
	}
	if err != nil {
		x.event.Verdict, x.event.Code, x.broken = Left, fault.Cancelled, true
		return
	}
	x.event.Verdict = Served
}

package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/record"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// errEvent says that an event, or what is held of a stream, is longer than it may be.
var errEvent = errors.New("gateway: event too long")

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
	a     *attempt
	in    eventReader
	reply upstream.Reply // of the chunk at hand
	out   []byte         // what the client gets next; everything until the verdict
	// said is what decode said until the verdict, where it is compared.
	said upstream.Decoded
	// id is what every chunk must carry; until the first one, empty where it is the engine's.
	id     string
	public upstream.Public
	// prompt is decode's count; ended says which choices have their finish reason, left is
	// how many have not.
	prompt upstream.Count
	ended  []bool
	left   int
	// moved says that any part of an answer came, counted that usage came at the end.
	moved, counted bool
	// fresh says that an event with data came since the idle timer was set.
	fresh bool
	// chunks counts the chunks, moves those with a part of an answer: a stream that never
	// ends must not keep us for ever.
	chunks, moves int64
	// agreed: the legs agree, and what was held may leave.
	agreed bool
	// whole takes the chunks if the client wants its answer whole; size is their length.
	whole *upstream.Assembly
	size  int64
	idle  Timer
	began time.Time // of the call
	came  time.Time // of the first chunk
}

// stream relays server-sent events. Nothing leaves before the verdict (G-3); the stream is
// complete only with a finish reason for each choice and the end mark of the protocol, and
// no error before it (G-5).
func (a *attempt) stream(resp *http.Response, began time.Time) *failure {
	if !hasType(resp, "text/event-stream") {
		return failed(fault.New(fault.UpstreamVoid))
	}
	x := a.x
	buf, _ := x.g.buffers.Get().(*[]byte)
	s := &relay{
		a: a, id: a.minted(), public: x.public(), left: x.choices(), began: began,
		ended: make([]bool, x.choices()),
	}
	if a.round.split {
		s.public.Shift = int64(a.sequence)
	}
	if a.assembles() {
		s.whole = &upstream.Assembly{}
	}
	s.in = eventReader{r: resp.Body, buf: *buf, max: x.g.bounds.Event, wait: s.flush}
	defer func() {
		if *buf = s.in.buf; len(*buf) <= maxPooled {
			x.g.buffers.Put(buf)
		}
	}()
	s.idle = x.g.clock.AfterFunc(x.g.bounds.Idle, func() { a.decode.end(errIdle) })
	defer s.idle.Stop()
	fail := s.run()
	if _, told := a.completion.Value(); fail != nil && !told && a.odd&record.UsageWrong == 0 && s.agreed {
		a.completion = admit.Known(s.moves) // pieces, where the engine counts at its end
	}
	if fail != nil && s.agreed && x.out.begun() {
		_ = s.flush() // what was read before the failure is sound; a client that left shows elsewhere
	}
	return fail
}

// maxPooled is the largest buffer that is kept for the next stream, in bytes.
const maxPooled = 64 << 10

// run relays a stream to its end.
func (s *relay) run() *failure {
	for {
		data, err := s.in.next()
		if err != nil {
			return s.cut(err)
		}
		s.fresh = true // comments are no progress, and never come here
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
		return failed(fault.New(fault.Cancelled))
	case errors.Is(err, errEvent):
		return failed(fault.New(fault.UpstreamVoid))
	case errors.As(err, new(*overBudget)):
		return s.undelivered(err)
	}
	f := lost(err)
	if s.a.x.out.begun() {
		f.err = fault.New(fault.StreamBroken)
	}
	return f
}

// chunk takes one chunk.
func (s *relay) chunk(data []byte) *failure {
	x := s.a.x
	r := &s.reply
	if upstream.ReadChunk(r, x.model.Dialect, x.req.Endpoint, data) != nil {
		return failed(fault.New(fault.UpstreamVoid))
	}
	if s.chunks == 0 {
		s.came = x.g.clock.Now()
		s.a.last.First = s.came.Sub(s.began)
		s.a.created = r.Created.N
	}
	s.chunks++
	if ag := s.sound(r); ag != upstream.Agreed {
		s.a.agreement = ag
		f := broken(ag, r)
		f.ended = false // its stream goes on
		return f
	}
	if len(s.ended) == 1 || r.IsUsageChunk() {
		s.a.usage(r) // beside others a choice counts for itself
	}
	if fail := s.append(r, len(data)); fail != nil {
		return fail
	}
	if s.moved || s.left == 0 {
		if fail := s.a.collected(); fail != nil {
			return fail
		}
	}
	if s.agreed {
		return nil
	}
	if x.model.traits.Legs != upstream.One {
		s.said.Add(r)
	}
	if len(s.out) > x.room() {
		return failed(fault.New(fault.UpstreamVoid))
	}
	return s.judge()
}

// sound judges one chunk by itself and by those before it.
func (s *relay) sound(r *upstream.Reply) upstream.Agreement {
	x := s.a.x
	if ag := upstream.Sound(x.model.Dialect, s.id, r); ag != upstream.Agreed {
		return ag
	}
	if s.id == "" {
		s.id = r.ID
	}
	switch {
	case s.chunks > 2*s.a.round.max*int64(len(s.ended))+moreChunks:
		return upstream.Unproved
	case r.Prompt.Known && s.prompt.Known && r.Prompt.N != s.prompt.N && x.req.Prompts <= 1:
		return upstream.CountsDiffer // decode contradicts itself
	}
	if r.Prompt.Known {
		if !s.prompt.Known {
			s.a.counted(r.Prompt)
		}
		s.prompt = r.Prompt
	}
	for i := range r.Choices {
		at := r.Index(i)
		n := int(at.N)
		if n < 0 || n >= len(s.ended) || s.ended[n] || !at.Known && len(s.ended) > 1 {
			return upstream.Unproved // nothing may follow a finish reason but the usage
		}
		if r.Moves(i) {
			s.moved = true
			s.moves++
		}
		if r.Finish(i) != "" {
			s.ended[n] = true
			s.left--
		}
	}
	return upstream.Agreed
}

// append rewrites a chunk for the client: under the public id, and with its usage only
// where the protocol has it and the client asked. A client that wants the whole gets it at
// the end.
func (s *relay) append(r *upstream.Reply, size int) *failure {
	x := s.a.x
	if s.whole != nil {
		if fail := x.hold(s.size, s.size+int64(size)); fail != nil {
			return &failure{err: fail}
		}
		s.size += int64(size)
		if s.size > x.g.bounds.Answer || s.whole.Add(r) != nil {
			return failed(fault.New(fault.UpstreamVoid))
		}
		return nil
	}
	s.rewrite(r)
	return nil
}

func (s *relay) rewrite(r *upstream.Reply) {
	x := s.a.x
	p := s.public
	if r.IsUsageChunk() {
		if s.counted {
			s.a.odd |= record.UsageTwice
			return
		}
		s.counted = s.left == 0
		if !x.req.UsageChunk || s.a.round.split {
			return
		}
		p.Usage = upstream.KeepUsage
	} else if r.Counted && x.model.traits.Counting == upstream.AtEnd {
		s.counted = true
		if x.req.UsageChunk && !s.a.round.split {
			p.Usage = upstream.KeepUsage
		}
	}
	s.out = append(s.out, "data: "...)
	from := len(s.out)
	s.out = r.Rewrite(s.out, p)
	for _, end := range [...]byte{'\r', '\n'} {
		for at := from; ; {
			i := bytes.IndexByte(s.out[at:], end)
			if i < 0 {
				break
			}
			s.out[at+i] = ' ' // JSON has them between its tokens only
			at += i + 1
		}
	}
	s.out = append(s.out, "\n\n"...)
}

// judge compares the legs once decode has said what it takes: its count, and a part of
// its answer or its end. If they agree, what was held is released. Where there is one leg
// a part of an answer is enough, for then the engine has not refused.
func (s *relay) judge() *failure {
	traits := s.a.x.model.traits
	ended := s.left == 0
	switch {
	case !s.moved && !ended:
		return nil
	case traits.Legs == upstream.One:
		return s.release()
	case traits.Counting == upstream.AtEnd && !s.prompt.Known:
		// Late agreement: prefill is sound by itself, and the counts are compared at the end.
		if p := s.a.hear(); p.fail != nil {
			return &failure{err: p.fail.err, echo: true}
		}
		return s.release()
	}
	if !ended && (!s.prompt.Known || traits.FirstToken && len(s.said.Text) == 0 && !s.said.Called) {
		return nil
	}
	if fail := s.compare(s.said); fail != nil || s.a.agreement == upstream.Open {
		return fail
	}
	return s.release()
}

// compare compares the legs, and fails if they differ.
func (s *relay) compare(d upstream.Decoded) *failure {
	ag, fail := s.a.agree(d)
	if fail != nil || ag == upstream.Open || ag == upstream.Agreed {
		return fail
	}
	f := broken(ag, &upstream.Reply{})
	f.ended = false
	return f
}

// release lets out what was held.
func (s *relay) release() *failure {
	x := s.a.x
	s.said, s.agreed = upstream.Decoded{}, true
	s.a.held = x.g.clock.Now().Sub(s.came)
	if s.whole != nil {
		return nil
	}
	err := x.out.release(s.out)
	s.out = s.out[:0]
	return s.undelivered(err)
}

// undelivered is the failure of an answer that the client did not take, or that grew too
// long while it waited for others.
func (s *relay) undelivered(err error) *failure {
	var over *overBudget
	switch {
	case err == nil:
		return nil
	case errors.As(err, &over):
		return &failure{err: over.fault}
	case errors.Is(err, errLeft):
		return &failure{err: fault.New(fault.Cancelled), outcome: fleet.Cancelled}
	default:
		return failed(fault.New(fault.UpstreamVoid))
	}
}

// done takes the end mark.
func (s *relay) done() *failure {
	x := s.a.x
	if s.left > 0 || !s.agreed {
		f := failed(fault.New(fault.StreamBroken))
		f.ended = true
		return f
	}
	if x.model.traits.Legs != upstream.One && s.a.agreement != upstream.Agreed {
		if fail := s.compare(upstream.Decoded{Prompt: s.prompt, Progress: upstream.Ended}); fail != nil {
			return fail
		}
	}
	s.a.decode.over()
	s.a.untold()
	if s.whole != nil {
		s.surplus()
		return s.deliver()
	}
	if !s.a.round.split {
		s.out = upstream.AppendEvent(s.out, []byte(upstream.Done))
	}
	fail := s.undelivered(s.flush())
	s.surplus()
	return fail
}

// deliver hands on an answer that was put together.
func (s *relay) deliver() *failure {
	x := s.a.x
	p := s.public
	p.Usage = upstream.KeepUsage
	if !s.a.round.split {
		x.out.deliver(s.whole.Answer(nil, x.req.Endpoint, p))
		return nil
	}
	p.Shift = 0
	reply, err := upstream.ParseAnswer(x.model.Dialect, x.req.Endpoint, s.whole.Answer(nil, x.req.Endpoint, p))
	if err != nil {
		return failed(fault.New(fault.Internal))
	}
	s.a.answer = &reply
	return nil
}

// surplus reads what follows the end mark only to see that nothing does. Surplus bytes,
// or an end that does not come, make the transport close the connection (G-12).
func (s *relay) surplus() {
	if s.in.from == s.in.to {
		s.idle.Reset(s.a.x.g.bounds.Abort)
		var b [1]byte
		if n, _ := s.in.r.Read(b[:]); n == 0 {
			return
		}
	}
	s.a.odd |= record.SurplusBytes
}

// flush sends what is due. Nothing is, before the legs agree. It runs before each read
// that may have to wait, so it also sets the idle timer anew, once for all the events that
// came at once.
func (s *relay) flush() error {
	if s.fresh {
		s.idle.Reset(s.a.x.g.bounds.Idle)
		s.fresh = false
	}
	if !s.agreed || s.whole != nil {
		return nil
	}
	err := s.a.x.out.write(s.out)
	s.out = s.out[:0]
	return err
}

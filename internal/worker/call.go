package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/wire"
)

// call is one HTTP request to a leg: one sequence, or in the open dialect as many as it
// names rooms.
type call struct {
	form    form
	id      string // of the answer
	listed  bool   // /generate: what was asked in a list is answered in a list
	prompts int    // different ones; the rest are further answers to the same
	seqs    []*sequence
	// refusal is what the leg is refused with, for all sequences. The other worker learns
	// of it.
	refusal *fault.Error
	ready   chan struct{} // a leg of the call has news
}

// sequence is one prompt and its answer.
type sequence struct {
	req *request
	leg *leg
	// What came of the answer so far.
	text   []byte // /generate counts from the beginning in every event
	told   int    // bytes of text that events told
	tokens int
	finish string
	ended  bool // an event told the finish reason
}

// admit reads, authenticates and parses a leg. f is the refusal of a leg whose attempt is
// not known; a refusal that the other worker must learn of comes with the call.
func (w *Worker) admit(rw http.ResponseWriter, r *http.Request, f form) (*call, *fault.Error) {
	cost := w.cost(r)
	if !w.bodies.take(cost) {
		return nil, fault.New(fault.Busy)
	}
	defer w.bodies.give(cost)
	data, fail := w.readBody(rw, r, w.cfg.BodyBytes)
	if fail != nil {
		return nil, fail
	}
	m, fail := parse(data)
	if fail != nil {
		return nil, fail
	}
	c := &call{form: f, prompts: 1, ready: make(chan struct{}, 1)}
	if w.cfg.OpenDialect && r.Header.Get(PassHeader) == "" {
		fail = w.openCall(c, m)
	} else {
		fail = w.passedCall(c, m, r, data)
	}
	if fail != nil {
		return nil, fail
	}
	for _, s := range c.seqs {
		s.leg = newLeg(c.ready)
		req := s.req
		if c.refusal == nil && req.stream && !r.ProtoAtLeast(1, 1) {
			c.refusal = fault.New(fault.StreamNeedsHTTP11) // it could not break visibly (H-14)
		}
		if c.refusal == nil && w.cfg.Role == wire.RoleDecode && w.peer(req.peer) == nil {
			c.refusal = fault.New(fault.RoomUnknownPeer)
		}
	}
	for _, s := range c.seqs {
		if c.refusal != nil {
			s.req.code, s.req.tokens = handoff.BadInput, nil
		} else {
			w.judge(s.req)
		}
	}
	return c, nil
}

// passedCall makes the one sequence of a leg that the gateway authorised (H-16).
func (w *Worker) passedCall(c *call, m members, r *http.Request, data []byte) *fault.Error {
	room, f := roomOf(m)
	if f != nil {
		return f
	}
	now := w.cfg.Now()
	pass, err := w.cfg.Passes.Check(r.Header.Get(PassHeader), room, data, now)
	if err == nil && pass.Expiry.Sub(now) > maxPassLife {
		err = wire.ErrPass
	}
	if err != nil {
		w.mail.put(func(w *Worker) { w.cfg.Events.Event(Event{Kind: PassRefused}) })
		if errors.Is(err, wire.ErrPassExpired) {
			return fault.New(fault.ExpiredPass)
		}
		return fault.New(fault.BadPass)
	}
	req := &request{form: c.form, room: room, attempt: pass.Attempt, domain: pass.Domain, expiry: pass.Expiry}
	c.refusal = req.identify(m)
	if c.refusal == nil {
		c.refusal = req.fill(m, w.cfg.ServedName, w.limit())
	}
	c.id, c.seqs = req.rid, []*sequence{{req: req}}
	return nil
}

// list splits a value into the elements of a list; one value is a list of one. A list that is
// longer than any may be is read no further than one element beyond that: each costs many
// times its bytes.
func list(raw []byte) ([][]byte, bool) {
	if null(raw) || raw[0] != '[' {
		return [][]byte{raw}, false
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return nil, true
	}
	var out [][]byte
	for d.More() && len(out) <= maxSequences {
		var one json.RawMessage
		if d.Decode(&one) != nil {
			return nil, true
		}
		out = append(out, one)
	}
	return out, true
}

// maxSequences bounds the sequences of one call.
const maxSequences = 64

// openCall makes the sequences of a leg that a router sent: one for each room (H-16).
func (w *Worker) openCall(c *call, m members) *fault.Error {
	if c.form == formGenerate {
		var f *fault.Error
		if m, f = generateMembers(m); f != nil {
			return f
		}
	}
	rooms, _ := list(m["bootstrap_room"])
	hosts, hostList := list(m["bootstrap_host"])
	ports, portList := list(m["bootstrap_port"])
	if len(rooms) == 0 || len(rooms) > maxSequences {
		return fault.New(fault.OutOfRange, fault.Field("bootstrap_room"), fault.Int(1), fault.Int(maxSequences))
	}
	if hostList && len(hosts) != len(rooms) || portList && len(ports) != len(rooms) {
		return fault.New(fault.WrongType, fault.Field("bootstrap_host"), fault.Fixed("as many as there are rooms"))
	}
	prompts, f := c.promptsOf(m, len(rooms))
	if f != nil {
		return f
	}
	if n, ok, f := m.integer("n", 1, maxSequences); f != nil || ok && int(n)*c.prompts != len(rooms) {
		return fault.New(fault.UnsupportedList, fault.Field("n")) // each answer has a room of its own
	}
	if f := m.read("rid", &c.id, fault.Fixed("a string")); f != nil || c.id == "" || !printable(c.id) {
		c.id = w.name() // what a client says is none of ours, and no other request's
	}
	seen := map[int64]bool{}
	for i := range rooms {
		own := members{}
		for name, raw := range m {
			own[name] = raw
		}
		own["bootstrap_room"], own["bootstrap_host"], own["bootstrap_port"] = rooms[i], hosts[min(i, len(hosts)-1)], ports[min(i, len(ports)-1)]
		if prompts != nil {
			own["prompt"] = prompts[i*len(prompts)/len(rooms)]
		}
		req := &request{form: c.form, open: true}
		room, f := roomOf(own)
		if f != nil {
			return f
		}
		if seen[room] {
			return fault.New(fault.DuplicateAttempt)
		}
		seen[room], req.room, req.expiry = true, room, w.cfg.Now().Add(maxPassLife)
		own["rid"] = []byte(strconv.Quote(w.name()))
		if c.refusal == nil {
			c.refusal = req.identify(own)
		}
		if c.refusal == nil {
			c.refusal = req.fill(own, w.cfg.ServedName, w.limit())
		}
		if null(own["seed"]) {
			req.sampling.Seed = uint64(room) // two answers to one prompt are to differ
		} else {
			req.sampling.Seed += uint64(i)
		}
		c.seqs = append(c.seqs, &sequence{req: req})
	}
	return nil
}

// promptsOf splits the prompts of a call among its rooms: nil for a chat, which has one.
// Each room serves one sequence, so that rooms must be prompts, or answers to one.
func (c *call) promptsOf(m members, rooms int) ([][]byte, *fault.Error) {
	if c.form == formChat {
		return nil, nil
	}
	raw := m["prompt"]
	prompts, listed := list(raw)
	if listed && (len(prompts) == 0 || len(prompts[0]) > 0 && prompts[0][0] != '[' && prompts[0][0] != '"') {
		prompts, listed = [][]byte{raw}, false // token ids of one prompt
	}
	c.listed = listed
	c.prompts = len(prompts)
	if len(prompts) > maxSequences || rooms%len(prompts) != 0 || len(prompts) > 1 && rooms != len(prompts) {
		return nil, fault.New(fault.UnsupportedList, fault.Field("prompt"))
	}
	return prompts, nil
}

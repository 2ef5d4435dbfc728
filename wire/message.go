package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// The body of a message frame:
//
//	kind 1 | code 1 | zero 2 | limit 4 | room 8 | attempt 16 | epoch 8 | counter 8 |
//	tokens 4 | pages 4 | prefix 4 | zero 4 | prefix hash 32 | input hash 32 | layout 8 | domain 16
//
// then, of a grant, key 16, and of a notice
//
//	algorithm 1 | zero 3 | first 4 | count 4 | zero 4 | digest key 32 | MAC 32 | digests 16 each
const (
	messageSize = 152
	grantSize   = messageSize + 16
	noticeSize  = messageSize + 80
	digestSize  = 16
)

// check refuses a message that has no frame.
func (m *Message) check() error {
	bare := Message{Msg: m.Msg}
	switch {
	case m.Kind < handoff.Ask || m.Kind > handoff.Quiet:
		return errors.New("wire: message of no kind")
	case !m.Code.Valid():
		return fmt.Errorf("wire: %v message with unknown code %d", m.Kind, m.Code)
	case m.Kind != handoff.Grant && m.Key != bare.Key:
		return fmt.Errorf("wire: %v message with a write key", m.Kind)
	case m.Kind != handoff.Notice && (m.Algorithm != 0 || m.First != 0 || m.DigestKey != bare.DigestKey ||
		m.MAC != bare.MAC || len(m.Digests) != 0):
		return fmt.Errorf("wire: %v message with parts of a notice", m.Kind)
	case len(m.Digests) > MaxDigests:
		return fmt.Errorf("wire: notice with %d digests, at most %d", len(m.Digests), MaxDigests)
	}
	return nil
}

// appendMessage appends the frame of a message that passes check.
func appendMessage(b []byte, m *Message) []byte {
	start := len(b)
	b = beginFrame(b, frameMessage)
	b = append(b, byte(m.Kind), byte(m.Code), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.Limit)
	b = binary.LittleEndian.AppendUint64(b, m.Room)
	b = append(b, m.ID.Attempt[:]...)
	b = binary.LittleEndian.AppendUint64(b, m.ID.Gen.Epoch)
	b = binary.LittleEndian.AppendUint64(b, m.ID.Gen.Counter)
	v := &m.View
	for _, n := range [...]uint32{v.Tokens, v.Pages, v.Prefix, 0} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	b = append(b, v.PrefixHash[:]...)
	b = append(b, v.Input[:]...)
	b = binary.LittleEndian.AppendUint64(b, v.Layout)
	b = append(b, v.Domain[:]...)
	switch m.Kind {
	case handoff.Grant:
		b = append(b, m.Key[:]...)
	case handoff.Notice:
		b = append(b, m.Algorithm, 0, 0, 0)
		for _, n := range [...]uint32{m.First, uint32(len(m.Digests)), 0} {
			b = binary.LittleEndian.AppendUint32(b, n)
		}
		b = append(b, m.DigestKey[:]...)
		b = append(b, m.MAC[:]...)
		for i := range m.Digests {
			b = append(b, m.Digests[i][:]...)
		}
	}
	return endFrame(b, start, 0)
}

// parseMessage reads the body of a message frame. It accepts exactly what
// appendMessage writes, and the result shares no memory with b.
func parseMessage(b []byte) (Message, error) {
	var m Message
	if len(b) < messageSize {
		return m, fail(ReasonMalformed, "message of %d bytes", len(b))
	}
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	m.Kind, m.Code = handoff.Kind(b[0]), handoff.Code(b[1])
	m.Limit, m.Room = u32(b[4:]), u64(b[8:])
	m.ID = handoff.ID{Attempt: handoff.Attempt(b[16:32]), Gen: kv.Generation{Epoch: u64(b[32:]), Counter: u64(b[40:])}}
	m.View = handoff.View{
		Tokens: u32(b[48:]), Pages: u32(b[52:]), Prefix: u32(b[56:]),
		PrefixHash: kv.Hash(b[64:96]), Input: kv.Hash(b[96:128]),
		Layout: u64(b[128:]), Domain: kv.Domain(b[136:152]),
	}
	size := messageSize
	switch m.Kind {
	case handoff.Grant:
		size = grantSize
		if len(b) == size {
			m.Key = kv.Key(b[messageSize:])
		}
	case handoff.Notice:
		size = noticeSize
		if len(b) >= size {
			size += parseNotice(&m, b[messageSize:])
		}
	}
	if len(b) != size || b[2] != 0 || b[3] != 0 || u32(b[60:]) != 0 {
		return Message{}, fail(ReasonMalformed, "%d bytes of a message", len(b))
	}
	if err := m.check(); err != nil {
		return Message{}, &Error{Reason: ReasonMalformed, Err: err}
	}
	return m, nil
}

// parseNotice reads what a notice has behind the common part, and returns how
// many bytes its digests take. Nothing is read, and -1 returned, if b is not
// exactly that long or has a wrong filler.
func parseNotice(m *Message, b []byte) int {
	u32 := binary.LittleEndian.Uint32
	const head = noticeSize - messageSize
	count := u32(b[8:])
	if count > MaxDigests || len(b) != head+int(count)*digestSize || b[1]|b[2]|b[3] != 0 || u32(b[12:]) != 0 {
		return -1
	}
	m.Algorithm, m.First = b[0], u32(b[4:])
	m.DigestKey, m.MAC = [32]byte(b[16:48]), [32]byte(b[48:80])
	if count > 0 {
		m.Digests = make([]kv.Digest, count)
	}
	for i := range m.Digests {
		m.Digests[i] = kv.Digest(b[head+i*digestSize:])
	}
	return int(count) * digestSize
}

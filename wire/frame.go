package wire

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"bulkhead.dev/bulkhead/kv"
)

// The frames of version 1 (docs/format/wire.md). All integers are little endian,
// as is page content. Every frame starts with the same prefix:
//
//	magic 4 | version 1 | type 1 | zero 2 | length 4 | checksum 4
//
// length counts the bytes after the prefix. The checksum is CRC-32C over the 12
// bytes before it and the body; of a page frame, over the page header only,
// because its content is covered end to end by the page digest (H-7).
const (
	magic       = "BHWF"
	version     = 1
	prefixSize  = 16
	pageSize    = 32 // of the page header behind the prefix
	ackSize     = 24
	bindSize    = 56
	boundSize   = 32
	refusedSize = 8
	pingSize    = 8
)

type frameType uint8

const (
	noFrame      frameType = iota
	frameHello             // control, dialling side: who I am
	frameWelcome           // control, listening side: who I am, and the link's token
	frameStart             // control, dialling side: every data connection is bound
	frameRefused           // either side: the reason; the last frame of a connection
	frameBind              // data, dialling side: I belong to this link
	frameBound             // data, listening side: so do I
	frameMessage           // control
	framePing              // control
	framePong              // control: its number comes back
	framePage              // data, prefill to decode
	frameAck               // data, decode to prefill
	frames
)

// bodies bounds the body of each type, in bytes. A page frame's depends on the
// layout; here is its header.
var bodies = [frames]struct{ min, max uint32 }{
	frameHello:   {helloSize + 1, helloSize + MaxName},
	frameWelcome: {welcomeSize + helloSize + 1, welcomeSize + helloSize + MaxName},
	frameStart:   {0, 0},
	frameRefused: {refusedSize, refusedSize},
	frameBind:    {bindSize, bindSize},
	frameBound:   {boundSize, boundSize},
	frameMessage: {messageSize, noticeSize + MaxDigests*digestSize},
	framePing:    {pingSize, pingSize},
	framePong:    {pingSize, pingSize},
	framePage:    {pageSize, pageSize + MaxPageBytes},
	frameAck:     {ackSize, ackSize},
}

// prefix is a frame's start.
type prefix struct {
	kind   frameType
	length uint32
	sum    uint32
}

// beginFrame appends a prefix that endFrame completes.
func beginFrame(b []byte, kind frameType) []byte {
	b = append(b, magic...)
	return append(b, version, byte(kind), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
}

// endFrame completes the frame that starts at start; beyond counts bytes of its
// body that follow elsewhere, without checksum.
func endFrame(b []byte, start, beyond int) []byte {
	frame := b[start:]
	binary.LittleEndian.PutUint32(frame[8:], uint32(len(frame)-prefixSize+beyond))
	binary.LittleEndian.PutUint32(frame[12:], checksum(frame[:12], frame[prefixSize:]))
	return b
}

func checksum(head, body []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(head, table), table, body)
}

// parsePrefix reads the prefix of a frame and checks it as far as it goes
// without the body.
func parsePrefix(b []byte) (prefix, error) {
	if len(b) < prefixSize || string(b[:4]) != magic {
		return prefix{}, fail(ReasonMalformed, "not a frame")
	}
	if b[4] != version {
		return prefix{}, fail(ReasonVersion, "version %d, here it is %d", b[4], version)
	}
	p := prefix{
		kind:   frameType(b[5]),
		length: binary.LittleEndian.Uint32(b[8:]),
		sum:    binary.LittleEndian.Uint32(b[12:]),
	}
	if p.kind == noFrame || p.kind >= frames || b[6] != 0 || b[7] != 0 {
		return prefix{}, fail(ReasonMalformed, "frame of unknown type %d", b[5])
	}
	switch limit := bodies[p.kind]; {
	case p.length > limit.max:
		return prefix{}, fail(ReasonOversized, "frame of type %d with %d bytes, at most %d", p.kind, p.length, limit.max)
	case p.length < limit.min:
		return prefix{}, fail(ReasonMalformed, "frame of type %d with %d bytes, at least %d", p.kind, p.length, limit.min)
	}
	return p, nil
}

// readFrame reads one frame whose type is in the set want, into buf if it is
// large enough. It reads no byte after the frame. An end before the first byte
// is io.EOF.
func readFrame(r io.Reader, buf []byte, want ...frameType) (frameType, []byte, error) {
	var head [prefixSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return noFrame, nil, err
	}
	p, err := parsePrefix(head[:])
	if err != nil {
		return noFrame, nil, err
	}
	expected := false
	for _, k := range want {
		expected = expected || k == p.kind
	}
	if !expected {
		return noFrame, nil, fail(ReasonUnexpected, "frame of type %d", p.kind)
	}
	body := buf[:0]
	if cap(body) < int(p.length) {
		body = make([]byte, p.length)
	}
	body = body[:p.length]
	if _, err := io.ReadFull(r, body); err != nil {
		return noFrame, nil, cutShort(err)
	}
	if checksum(head[:12], body) != p.sum {
		return noFrame, nil, fail(ReasonChecksum, "frame of type %d", p.kind)
	}
	return p.kind, body, nil
}

// cutShort makes an end inside a frame unexpected.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// pageHead is the head of a page frame:
//
//	key 16 | page 4 | rows 4 | sequence 8
type pageHead struct {
	key        kv.Key
	page, rows uint32
	seq        uint64 // 1, 2, 3 ... on its connection
}

// appendPage appends prefix and header of a page frame with content bytes.
func appendPage(b []byte, h pageHead, content int) []byte {
	start := len(b)
	b = beginFrame(b, framePage)
	b = append(b, h.key[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.page)
	b = binary.LittleEndian.AppendUint32(b, h.rows)
	b = binary.LittleEndian.AppendUint64(b, h.seq)
	return endFrame(b, start, content)
}

// parsePage reads prefix and header of a page frame. A frame of another type,
// or whose length is not that of its rows, is an error.
func parsePage(b []byte, l kv.Layout) (pageHead, int, error) {
	p, err := parsePrefix(b)
	if err != nil {
		return pageHead{}, 0, err
	}
	if p.kind != framePage || len(b) != prefixSize+pageSize {
		return pageHead{}, 0, fail(ReasonUnexpected, "frame of type %d on a page connection", p.kind)
	}
	body := b[prefixSize:]
	if checksum(b[:12], body) != p.sum {
		return pageHead{}, 0, fail(ReasonChecksum, "page header")
	}
	h := pageHead{
		key:  kv.Key(body[:16]),
		page: binary.LittleEndian.Uint32(body[16:]),
		rows: binary.LittleEndian.Uint32(body[20:]),
		seq:  binary.LittleEndian.Uint64(body[24:]),
	}
	content := int(p.length) - pageSize
	if h.rows < 1 || int64(h.rows) > int64(l.PageTokens) || h.page >= MaxDigests || content != l.Bytes(int(h.rows)) {
		return pageHead{}, 0, fail(ReasonMalformed, "page %d with %d rows in %d bytes", h.page, h.rows, content)
	}
	return h, content, nil
}

// ack says that the receiver has consumed every frame of the connection up to
// seq, of which count are new. Bit i of refused is set if frame seq-count+1+i did
// not land:
//
//	sequence 8 | refused 8 | count 4 | zero 4
type ack struct {
	seq     uint64
	refused uint64
	count   uint32
}

func appendAck(b []byte, a ack) []byte {
	start := len(b)
	b = beginFrame(b, frameAck)
	b = binary.LittleEndian.AppendUint64(b, a.seq)
	b = binary.LittleEndian.AppendUint64(b, a.refused)
	b = binary.LittleEndian.AppendUint32(b, a.count)
	b = append(b, 0, 0, 0, 0)
	return endFrame(b, start, 0)
}

func parseAck(body []byte) (ack, error) {
	if len(body) != ackSize {
		return ack{}, fail(ReasonMalformed, "acknowledgement of %d bytes", len(body))
	}
	a := ack{
		seq:     binary.LittleEndian.Uint64(body),
		refused: binary.LittleEndian.Uint64(body[8:]),
		count:   binary.LittleEndian.Uint32(body[16:]),
	}
	if a.count < 1 || a.count > Window || uint64(a.count) > a.seq || a.refused>>(a.count-1)>>1 != 0 ||
		binary.LittleEndian.Uint32(body[20:]) != 0 {
		return ack{}, fail(ReasonMalformed, "acknowledgement of %d frames", a.count)
	}
	return a, nil
}

func appendRefused(b []byte, r Reason) []byte {
	start := len(b)
	b = append(beginFrame(b, frameRefused), byte(r), 0, 0, 0, 0, 0, 0, 0)
	return endFrame(b, start, 0)
}

// parseRefused returns what the peer says as an error of its own.
func parseRefused(body []byte) error {
	if len(body) != refusedSize || body[0] == 0 || binary.LittleEndian.Uint64(body)>>8 != 0 {
		return fail(ReasonMalformed, "refusal of %d bytes", len(body))
	}
	return &Error{Reason: Reason(body[0]), Remote: true}
}

func appendPing(b []byte, kind frameType, n uint64) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint64(beginFrame(b, kind), n)
	return endFrame(b, start, 0)
}

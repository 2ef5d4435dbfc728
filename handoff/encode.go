package handoff

import "encoding/binary"

// AppendCanonical appends the machine's one encoding: equal machines give equal
// bytes, different machines different bytes of the same length.
func (m Decode) AppendCanonical(b []byte) []byte {
	b = append(b, byte(m.Phase), byte(m.Result), bits(m.Live, m.Held, m.Owed, m.Armed))
	b = appendSets(b, m.Expect, m.Saw, m.Still, m.Heard)
	b = binary.LittleEndian.AppendUint32(b, m.Limit)
	return appendIdentity(b, m.Room, m.ID, m.View)
}

// AppendCanonical appends the machine's one encoding. See [Decode.AppendCanonical].
func (m Prefill) AppendCanonical(b []byte) []byte {
	b = append(b, byte(m.Phase), byte(m.Result), bits(m.Held, m.Owed, m.Armed, m.Last))
	b = appendSets(b, m.Expect, m.Saw, m.Still)
	for _, n := range [...]uint32{m.Computed, m.Posted, m.Written, m.Limit} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return appendIdentity(b, m.Room, m.ID, m.View)
}

func bits(flags ...bool) byte {
	var b byte
	for i, f := range flags {
		if f {
			b |= 1 << i
		}
	}
	return b
}

func appendSets(b []byte, sets ...Writers) []byte {
	for _, s := range sets {
		b = binary.LittleEndian.AppendUint16(b, uint16(s))
	}
	return b
}

func appendIdentity(b []byte, room uint64, id ID, v View) []byte {
	b = binary.LittleEndian.AppendUint64(b, room)
	b = append(b, id.Attempt[:]...)
	b = binary.LittleEndian.AppendUint64(b, id.Gen.Epoch)
	b = binary.LittleEndian.AppendUint64(b, id.Gen.Counter)
	for _, n := range [...]uint32{v.Tokens, v.Pages, v.Prefix} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	b = append(b, v.PrefixHash[:]...)
	b = append(b, v.Input[:]...)
	b = binary.LittleEndian.AppendUint64(b, v.Layout)
	return append(b, v.Domain[:]...)
}

package upstream

// edit replaces the bytes of a span by others; an empty replacement cuts them out.
type edit struct {
	span
	with string
}

// apply appends b[from:] to dst with edits carried out, which lie behind from, do not
// overlap, and are in order.
func apply(dst, b []byte, from int, edits []edit) []byte {
	for i := range edits {
		e := &edits[i]
		dst = append(dst, b[from:e.from]...)
		dst = append(dst, e.with...)
		from = e.to
	}
	return append(dst, b[from:]...)
}

// member is one member of an inspected object, from the quote of its key to the end of
// its value.
type member struct {
	span
	keep bool
}

// cuts appends the edits that take the members out that are not kept, each with one of
// the commas beside it. Everything else stays as it is, byte for byte.
func cuts(edits []edit, members []member) []edit {
	front, end := -1, -1 // first byte of the cut at the front; end of what is behind us
	kept := false
	for _, m := range members {
		switch {
		case m.keep && !kept:
			if front >= 0 {
				edits = append(edits, edit{span: span{front, m.from}})
			}
			kept = true
		case !m.keep && kept:
			edits = append(edits, edit{span: span{end, m.to}})
		case !m.keep && front < 0:
			front = m.from
		}
		end = m.to
	}
	if !kept && front >= 0 {
		edits = append(edits, edit{span: span{front, end}})
	}
	return edits
}

package upstream

import "bytes"

// CutEvent finds the first complete event of a stream of server-sent events: the lines
// up to and with a blank line. n is its length in b, 0 if none is complete yet. What
// stands behind the last blank line is no event, whatever it says. Lines end in LF, CRLF
// or CR alone, as the standard has it. If b ends between the CR and the LF of a blank
// line, the LF is found later as an event without data.
func CutEvent(b []byte) (n int) {
	for at := 0; at < len(b); {
		size, next := cutLine(b[at:])
		if next == 0 {
			return 0
		}
		at += next
		if size == 0 {
			return at
		}
	}
	return 0
}

// cutLine returns the length of the first line without its end, and where the next one
// begins; 0 if the line has no end yet.
func cutLine(b []byte) (size, next int) {
	size = bytes.IndexByte(b, '\n')
	line := b
	if size >= 0 {
		line = b[:size]
	}
	cr := bytes.IndexByte(line, '\r')
	switch {
	case cr < 0 && size < 0:
		return 0, 0
	case cr < 0:
		return size, size + 1
	case cr == size-1:
		return cr, size + 1
	}
	return cr, cr + 1
}

// EventData returns the data of an event that CutEvent found: its data lines, joined by
// a newline. ok is false for an event without data, such as a comment. It refers to
// event unless there are several data lines. A byte order mark at its front is skipped.
func EventData(event []byte) (data []byte, ok bool) {
	event = bytes.TrimPrefix(event, []byte("\xef\xbb\xbf"))
	own := false
	for len(event) > 0 {
		size, next := cutLine(event)
		if next == 0 {
			size, next = len(event), len(event)
		}
		line := event[:size]
		event = event[next:]
		value, found := bytes.CutPrefix(line, []byte("data"))
		if !found || len(value) > 0 && value[0] != ':' {
			continue
		}
		value = bytes.TrimPrefix(bytes.TrimPrefix(value, []byte(":")), []byte(" "))
		if !ok {
			data, ok = value, true
			continue
		}
		if !own {
			data, own = bytes.Clone(data), true
		}
		data = append(append(data, '\n'), value...)
	}
	return data, ok
}

// AppendEvent appends an event with the given data. A newline in the data, which JSON
// allows between tokens only, is written as a space.
func AppendEvent(dst, data []byte) []byte {
	dst = append(dst, "data: "...)
	from := len(dst)
	dst = append(dst, data...)
	for i := from; i < len(dst); i++ {
		if dst[i] == '\n' || dst[i] == '\r' {
			dst[i] = ' '
		}
	}
	return append(dst, "\n\n"...)
}

package upstream

import "bytes"

// CutEvent finds the first complete event of a stream of server-sent events: the lines
// up to and with a blank line. n is its length in b, 0 if none is complete yet. What
// stands behind the last blank line is no event, whatever it says. Lines end in LF or
// CRLF.
func CutEvent(b []byte) (n int) {
	for at := 0; ; {
		i := bytes.IndexByte(b[at:], '\n')
		if i < 0 {
			return 0
		}
		line := b[at : at+i]
		at += i + 1
		if len(line) == 0 || len(line) == 1 && line[0] == '\r' {
			return at
		}
	}
}

// EventData returns the data of an event that CutEvent found: its data lines, joined by
// a newline. ok is false for an event without data, such as a comment. It refers to
// event unless there are several data lines.
func EventData(event []byte) (data []byte, ok bool) {
	for len(event) > 0 {
		line, rest, _ := bytes.Cut(event, []byte("\n"))
		event = rest
		line = bytes.TrimSuffix(line, []byte("\r"))
		value, found := bytes.CutPrefix(line, []byte("data"))
		if !found || len(value) > 0 && value[0] != ':' {
			continue
		}
		value = bytes.TrimPrefix(bytes.TrimPrefix(value, []byte(":")), []byte(" "))
		if !ok {
			data, ok = value, true
			continue
		}
		data = append(append(bytes.Clone(data), '\n'), value...)
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

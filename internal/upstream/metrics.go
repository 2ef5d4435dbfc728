package upstream

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

// sample is one line of metrics in Prometheus's text format.
type sample struct {
	name, labels, value string
}

// samples calls each with every sample of a text. Lines that are none are skipped.
func samples(text []byte, each func(sample)) {
	for line := range bytes.Lines(text) {
		if s, ok := cutSample(string(bytes.TrimSpace(line))); ok {
			each(s)
		}
	}
}

// cutSample takes a line apart; a time behind the value is left out.
func cutSample(line string) (sample, bool) {
	if line == "" || line[0] == '#' {
		return sample{}, false
	}
	var s sample
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return sample{}, false
	}
	s.name = line[:end]
	rest := line[end:]
	if rest[0] == '{' {
		n := closing(rest)
		if n < 0 {
			return sample{}, false
		}
		s.labels, rest = rest[1:n], rest[n+1:]
	}
	s.value, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
	return s, s.value != ""
}

// closing finds the brace that ends the labels, which may hold braces in their values.
func closing(labels string) int {
	quoted := false
	for i := 1; i < len(labels); i++ {
		switch c := labels[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return i
		}
	}
	return -1
}

// label returns the value of a label, empty if there is none. A value with escapes in it
// is returned as it is written.
func (s sample) label(name string) string {
	rest := s.labels
	for rest != "" {
		key, after, ok := strings.Cut(rest, `="`)
		if !ok {
			return ""
		}
		end := 0
		for end < len(after) && after[end] != '"' {
			if after[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(after) {
			return ""
		}
		if strings.TrimSpace(key) == name {
			return after[:end]
		}
		rest = strings.TrimLeft(after[end+1:], ", ")
	}
	return ""
}

// count returns the whole number in a label.
func (s sample) count(name string) Count {
	n, err := strconv.ParseInt(s.label(name), 10, 64)
	return Count{N: n, Known: err == nil && n >= 0}.orNone()
}

// orNone clears the number of a count that is not known.
func (c Count) orNone() Count {
	if !c.Known {
		return Count{}
	}
	return c
}

// whole returns the sample's value, if it is a whole number of at least 0.
func (s sample) whole() Count {
	x, err := strconv.ParseFloat(s.value, 64)
	if err != nil || x < 0 || x > 1<<53 || x != math.Trunc(x) {
		return Count{}
	}
	return Count{N: int64(x), Known: true}
}

package upstream

import (
	"strings"
	"unicode/utf8"
)

// alternatives makes one text that matches exactly the strings of a list. raw is the
// list, which was read before.
func alternatives(raw []byte, one func(dst []byte, s string) []byte, before, between, after string) string {
	l := lexer{b: raw}
	out := []byte(before)
	l.array(0, func(i int) bool {
		l.space()
		v, ok := l.str()
		if !ok {
			return false
		}
		if i > 0 {
			out = append(out, between...)
		}
		out = one(out, string(decode(raw, v)))
		return true
	})
	return string(append(out, after...))
}

// appendRegex appends the regular expression that matches s alone.
func appendRegex(dst []byte, s string) []byte {
	for _, c := range s {
		switch {
		case strings.ContainsRune(`\.+*?()|[]{}^$-/`, c):
			dst = append(dst, '\\', byte(c))
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return dst
}

// appendGBNF appends s as a literal of a llama.cpp grammar.
func appendGBNF(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, c := range s {
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', byte(c))
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return append(dst, '"')
}

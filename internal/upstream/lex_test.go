package upstream

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// valid says whether the lexer takes b as one JSON text.
func valid(b []byte) (bool, problem) {
	l := lexer{b: b}
	_, ok := l.value(0)
	l.space()
	return ok && l.i == len(b), l.bad
}

func texts() []string {
	return []string{
		``, ` `, `{}`, `[]`, `""`, `0`, `-0`, `-`, `01`, `1.`, `.5`, `1.5e+3`, `1e`, `1e5`, `-1.25E-7`, `+1`, `0x1`, `1_000`,
		`NaN`, `Infinity`, `-Infinity`, `null`, `nul`, `nullx`, `true`, `True`, `false`, `falsey`, `'a'`, `{a:1}`,
		`{"a":1}`, `{"a":1,}`, `{"a" 1}`, `{"a":}`, `{,}`, `[1,2]`, `[1,]`, `[,1]`, `[1 2]`, `[`, `{`, `{"a"`, `{"a":`, `]`, `}`,
		`{"a":1}}`, `{"a":1} x`, "{\"a\":1}\x00", "\x00", "[1]\n\t\r ", "\v[]", `[1]//c`, `/*c*/[]`, "\ufeff{}",
		`"a`, `"\`, `"\"`, `"\x41"`, `"\u12"`, `"\u12G4"`, `"é"`, `"\u00e9"`, `"\u0000"`, `"\ud83d\ude00"`, `"😀"`,
		`"\/\b\f\n\r\t\"\\"`, "\"\x01\"", "\"\n\"", "\"\t\"", "\"\x7f\"", `"1234567"`, `"12345678"`, `"123456789012345\n7"`,
		`"1234567é9"`, `"12345678é"`, `{"":0}`, `{"a":{"b":[{"c":null}]}}`, `"a""b"`, `[[[[]]]]`, `"` + strings.Repeat("x", 1000) + `"`,
	}
}

func TestLexerAgreesWithTheStandardLibrary(t *testing.T) {
	good := 0
	for _, s := range texts() {
		ok, _ := valid([]byte(s))
		if want := json.Valid([]byte(s)); ok != want {
			t.Errorf("%q: valid = %v, want %v", s, ok, want)
		}
		if ok {
			good++
		}
		// Every text but a bare number or a word stops being valid when it is cut.
		for i := range s {
			cut := []byte(s[:i])
			if ok, _ := valid(cut); ok != json.Valid(cut) {
				t.Errorf("%q: valid = %v", cut, ok)
			}
		}
	}
	if good < 20 {
		t.Fatalf("only %d valid texts", good)
	}
}

func TestLexerIsStricter(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, tc := range []struct {
		name, text string
		want       problem
	}{
		{"depth 64", deep(64), fine},
		{"depth 65", deep(65), tooDeep},
		{"depth 65 by objects", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), tooDeep},
		{"depth a million", strings.Repeat("[", 1_000_000), tooDeep},
		{"lone high surrogate", `"\ud83d"`, badSurrogate},
		{"lone low surrogate", `"\ude00"`, badSurrogate},
		{"two high surrogates", `"\ud83d\ud83d"`, badSurrogate},
		{"high surrogate and a letter", `"\ud83dA"`, badSurrogate},
		{"surrogates in the wrong order", `"\ude00\ud83d"`, badSurrogate},
		{"surrogate cut short", `"\ud83d\ude`, badSurrogate},
		{"lone continuation byte", "\"\x80\"", badUTF8},
		{"overlong", "\"\xc0\xaf\"", badUTF8},
		{"encoded surrogate", "\"\xed\xa0\x80\"", badUTF8},
		{"beyond Unicode", "\"\xf4\x90\x80\x80\"", badUTF8},
		{"cut character", "\"\xf0\x9f\x98\"", badUTF8},
		{"U+FFFD itself", "\"\uFFFD\"", fine},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ok, bad := valid([]byte(tc.text))
			if bad != tc.want || ok != (tc.want == fine) {
				t.Errorf("valid = %v, problem %d, want %d", ok, bad, tc.want)
			}
		})
	}
}

// TestSpecialFindsEveryByte puts each byte value at each place of a word.
func TestSpecialFindsEveryByte(t *testing.T) {
	for c := 0; c < 256; c++ {
		for at := 0; at < 24; at++ {
			text := []byte(strings.Repeat("a", 24))
			text[at] = byte(c)
			l := lexer{b: text}
			l.run()
			want := len(text)
			if c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
				want = at
			}
			if l.i != want {
				t.Fatalf("byte %#x at %d: stopped at %d, want %d", c, at, l.i, want)
			}
		}
	}
}

func FuzzLexer(f *testing.F) {
	for _, s := range texts() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ok, bad := valid(b)
		if ok && !(json.Valid(b) && utf8.Valid(b)) {
			t.Fatalf("took %q", b)
		}
		if !ok && bad == fine && json.Valid(b) {
			t.Fatalf("refused %q without a problem", b)
		}
		if !ok && bad == malformed && json.Valid(b) {
			t.Fatalf("called valid text malformed: %q", b)
		}
		l := lexer{b: b}
		if s, ok := l.str(); ok {
			var want string
			if err := json.Unmarshal(b[s.raw.from-1:s.raw.to+1], &want); err != nil {
				t.Fatal(err)
			}
			got := decode(b, s)
			if string(got) != want || s.size != len(want) {
				t.Fatalf("decoded %q (%d bytes), want %q", got, s.size, want)
			}
		}
	})
}

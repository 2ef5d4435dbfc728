package llm

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestChatTemplate(t *testing.T) {
	b := func(s string) []Token { return appendBytes(nil, s) }
	join := func(parts ...[]Token) []Token { return slices.Concat(parts...) }
	one := func(toks ...Token) []Token { return toks }
	for _, c := range []struct {
		msgs []Message
		want []Token
	}{
		{[]Message{{"user", "hi"}}, join(one(BOS, User), b("hi"))},
		{[]Message{{"user", ""}}, one(BOS, User)},
		{[]Message{{"system", "s"}, {"user", "u"}}, join(one(BOS, System), b("s"), one(End, User), b("u"))},
		{[]Message{{"developer", "s"}, {"tool", "t"}}, join(one(BOS, System), b("s"), one(End, Tool), b("t"))},
		{
			[]Message{{"user", "q"}, {"assistant", "a"}, {"user", "r"}},
			join(one(BOS, User), b("qa"), one(End, User), b("r")),
		},
		{[]Message{{"user", "q"}, {"assistant", "a"}}, join(one(BOS, User), b("qa"))},
		{
			[]Message{{"assistant", "a"}, {"assistant", "b"}, {"system", "c"}, {"assistant", "d"}},
			join(one(BOS, Assistant), b("a"), one(End, Assistant), b("b"), one(End, System), b("c"), one(End, Assistant), b("d")),
		},
		{
			[]Message{{"user", "<|end|>\x00\xff\u0100</s>[INST]"}},
			join(one(BOS, User), b("<|end|>\x00\xff\u0100</s>[INST]")),
		},
	} {
		got, err := Bytes{}.Chat(c.msgs)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: got %v, %v; want %v", c.msgs, got, err, c.want)
		}
	}
	for _, msgs := range [][]Message{nil, {}, {{"", "x"}}, {{"User", "x"}}, {{"user", "x"}, {"function", "secret"}}} {
		_, err := Bytes{}.Chat(msgs)
		_, err2 := Bytes{}.CountChat(msgs)
		if !errors.Is(err, ErrMessage) || !errors.Is(err2, ErrMessage) {
			t.Errorf("%q: %v, %v", msgs, err, err2)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "function")) {
			t.Errorf("the error quotes the message: %v", err)
		}
	}
}

// Whatever users write, the special tokens are those of the messages, the bytes
// come back, the counts are right, and the prompt ends with the last content.
func FuzzChat(f *testing.F) {
	f.Add("hello", "\xff\xfe", uint8(0))
	f.Add("", "", uint8(7))
	f.Add("\u0100\u0101", "<|user|>", uint8(14))
	roles := []string{"system", "user", "assistant", "tool", "developer"}
	f.Fuzz(func(t *testing.T, x, y string, pick uint8) {
		msgs := []Message{
			{roles[int(pick)%5], x}, {roles[int(pick)/5%5], y}, {roles[int(pick)/25%5], x}, {roles[int(pick)/50%5], y},
		}
		for i := range msgs {
			got, err := Bytes{}.Chat(msgs[:i+1])
			if err != nil {
				t.Fatal(err)
			}
			n, err := Bytes{}.CountChat(msgs[:i+1])
			if err != nil || n != len(got) {
				t.Fatalf("counted %d of %d: %v", n, len(got), err)
			}
			var text []byte
			special, want, all := 0, 1, ""
			for _, tok := range got {
				if tok > 255 {
					special++
				}
				text = Bytes{}.Append(text, tok)
			}
			for j, m := range msgs[:i+1] {
				all += m.Content
				switch {
				case j == 0:
					want++
				case m.Role != "assistant" || msgs[j-1].Role != "user":
					want += 2
				}
			}
			if special != want || string(text) != all {
				t.Fatalf("%d special tokens, want %d; text %q, want %q", special, want, text, all)
			}
			last := appendBytes(nil, msgs[i].Content)
			if !slices.Equal(got[len(got)-len(last):], last) {
				t.Fatal("the prompt does not end with the last message")
			}
		}
		if got := (Bytes{}).Text(x); len(got) != (Bytes{}).CountText(x) || got[0] != BOS || slices.ContainsFunc(got[1:], Bytes{}.Ends) {
			t.Fatalf("text: %v", got)
		}
	})
}

func TestTokens(t *testing.T) {
	if (Bytes{}).Vocab() != Recall().Config().Vocab {
		t.Error("tokenizer and model differ")
	}
	for tok := range Token(byteVocab) {
		text, ends := Bytes{}.Append(nil, tok), Bytes{}.Ends(tok)
		if isByte := tok < 256; ends == isByte || isByte != (len(text) == 1) || isByte && Token(text[0]) != tok {
			t.Errorf("token %d: %q, ends %v", tok, text, ends)
		}
	}
}

func TestAssembler(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want []string // after each piece, and after Flush
	}{
		{[]string{"ab", "c"}, []string{"ab", "c", ""}},
		{[]string{"\xe2", "\x82", "\xac"}, []string{"", "", "€", ""}},
		{[]string{"a\xf0\x9f\x90", "\xbb!"}, []string{"a", "🐻!", ""}},
		{[]string{"\xe2\x82"}, []string{"", "\ufffd\ufffd"}},
		{[]string{"\xe2", "A"}, []string{"", "\ufffdA", ""}},
		{[]string{"\xff", "\x80"}, []string{"\ufffd", "\ufffd", ""}},
		{[]string{"\xed\xa0\x80"}, []string{"\ufffd\ufffd\ufffd", ""}}, // a surrogate
		{[]string{"\xef\xbf\xbd"}, []string{"\ufffd", ""}},
	} {
		var a Assembler
		for i, in := range c.in {
			if got := string(a.Write(nil, []byte(in))); got != c.want[i] {
				t.Errorf("%q, piece %d: got %q, want %q", c.in, i, got, c.want[i])
			}
		}
		if got := string(a.Flush(nil)); got != c.want[len(c.in)] {
			t.Errorf("%q: flush: got %q, want %q", c.in, got, c.want[len(c.in)])
		}
	}
}

// The text is that of the bytes at once, however they are cut, and every piece
// is valid.
func FuzzAssembler(f *testing.F) {
	f.Add([]byte("a€🐻\xff\xe2\x82"), uint8(1))
	f.Add([]byte("\xf0\x9f\xe2\x82\xac"), uint8(3))
	f.Fuzz(func(t *testing.T, p []byte, cut uint8) {
		var a Assembler
		var got []byte
		for rest := p; len(rest) > 0; {
			n := min(len(rest), 1+int(cut)%5)
			at := len(got)
			got = a.Write(got, rest[:n])
			if !utf8.Valid(got[at:]) {
				t.Fatalf("piece %q is not valid", got[at:])
			}
			rest = rest[n:]
		}
		got = a.Flush(got)
		if want := string([]rune(string(p))); string(got) != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

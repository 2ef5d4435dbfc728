package llm

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Token is a token id.
type Token uint32

// Tokens of [Bytes]: a byte is its own id, and these follow. No text encodes to
// them.
const (
	BOS       Token = 256 + iota // first in every prompt
	End                          // ends a message
	System                       // begins a system (or developer) message
	User                         // begins a user message
	Assistant                    // begins an assistant message that follows no user message
	Tool                         // begins a tool message

	byteVocab = 256 + iota
)

// ErrMessage says that a chat cannot be rendered. The text names the message by
// its number and never quotes it.
var ErrMessage = errors.New("llm: bad message")

// Message is one message of a chat.
type Message struct {
	Role    string // system, developer, user, assistant or tool
	Content string // any bytes
}

// Bytes is the tokenizer of recall: one token per byte, and six special tokens.
//
// Its chat template writes
//
//	BOS  System "content" End  User "content"
//
// that is: BOS, then for each message the token of its role, the bytes of its
// content, and End; but the last message stays open, so that the prompt ends
// with its bytes and an answer continues them. An assistant message that follows
// a user message continues it in the same way, with no tokens between, so that a
// transcript reads as the model once wrote it:
//
//	BOS  User "question" "answer" End  User "question"
type Bytes struct{}

// Vocab is the number of tokens.
func (Bytes) Vocab() int { return byteVocab }

// Ends reports whether a token ends an answer: every special token does.
func (Bytes) Ends(t Token) bool { return t > 255 }

// Append appends the bytes of a token to dst: one byte, or none for a special
// token. Bytes of an answer may end inside a rune: see [Assembler].
func (Bytes) Append(dst []byte, t Token) []byte {
	if t > 255 {
		return dst
	}
	return append(dst, byte(t))
}

// Text encodes the prompt of a completion: BOS and its bytes.
func (Bytes) Text(prompt string) []Token {
	return appendBytes(append(make([]Token, 0, len(prompt)+1), BOS), prompt)
}

// CountText is the number of tokens of [Bytes.Text].
func (Bytes) CountText(prompt string) int { return len(prompt) + 1 }

// Chat encodes a chat.
//
// Errors: [ErrMessage].
func (b Bytes) Chat(msgs []Message) ([]Token, error) {
	n, err := b.CountChat(msgs)
	if err != nil {
		return nil, err
	}
	out := append(make([]Token, 0, n), BOS)
	for i, m := range msgs {
		if !joins(msgs, i) {
			if i > 0 {
				out = append(out, End)
			}
			role, _ := roleToken(m.Role)
			out = append(out, role)
		}
		out = appendBytes(out, m.Content)
	}
	return out, nil
}

// CountChat is the number of tokens of [Bytes.Chat], from lengths alone.
//
// Errors: [ErrMessage].
func (Bytes) CountChat(msgs []Message) (int, error) {
	if len(msgs) == 0 {
		return 0, fmt.Errorf("%w: there is none", ErrMessage)
	}
	n := 0 // a message that begins takes its role and what is before it: BOS or End
	for i, m := range msgs {
		if _, ok := roleToken(m.Role); !ok {
			return 0, fmt.Errorf("%w: number %d has an unknown role", ErrMessage, i+1)
		}
		if !joins(msgs, i) {
			n += 2
		}
		n += len(m.Content)
	}
	return n, nil
}

// joins reports whether message i continues the one before it.
func joins(msgs []Message, i int) bool {
	return i > 0 && msgs[i].Role == "assistant" && msgs[i-1].Role == "user"
}

func roleToken(role string) (Token, bool) {
	switch role {
	case "system", "developer":
		return System, true
	case "user":
		return User, true
	case "assistant":
		return Assistant, true
	case "tool":
		return Tool, true
	}
	return 0, false
}

func appendBytes(dst []Token, s string) []Token {
	for i := range len(s) {
		dst = append(dst, Token(s[i]))
	}
	return dst
}

// Assembler turns the bytes of an answer, as they come, into valid UTF-8. It
// holds back a rune that is not whole yet, and writes U+FFFD for every byte that
// cannot be part of one. What it gives does not depend on how the bytes were
// cut. The zero value is ready.
type Assembler struct {
	held [utf8.UTFMax]byte
	n    int
}

// Write takes bytes and appends to dst the text that is complete.
func (a *Assembler) Write(dst, p []byte) []byte {
	for _, c := range p {
		a.held[a.n] = c
		a.n++
		for a.n > 0 && utf8.FullRune(a.held[:a.n]) {
			dst = a.take(dst)
		}
	}
	return dst
}

// Flush appends to dst what is left at the end of the answer: U+FFFD for every
// held byte.
func (a *Assembler) Flush(dst []byte) []byte {
	for a.n > 0 {
		dst = a.take(dst)
	}
	return dst
}

func (a *Assembler) take(dst []byte) []byte {
	r, size := utf8.DecodeRune(a.held[:a.n])
	a.n = copy(a.held[:], a.held[size:a.n])
	return utf8.AppendRune(dst, r)
}

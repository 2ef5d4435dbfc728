package upstream

import (
	"bytes"
	"strings"
)

// Agreement is the judgement on what two legs said about one request (G-3, G-12).
type Agreement uint8

const (
	// Open is the zero value: decode has not yet said enough. Nothing may be released;
	// more of decode's stream must be read.
	Open Agreement = iota
	// Agreed: both legs answered this attempt, counted the same prompt, and the token
	// that prefill reported is the one that decode begins with. Decode's answer may be
	// released. Nothing follows.
	Agreed
	// LegFailed: a leg's answer carries an error, or another finish reason than a
	// one-token prefill ends with.
	LegFailed
	// Foreign: an answer carries another id than the attempt's.
	Foreign
	// CountsDiffer: the legs counted different prompts.
	CountsDiffer
	// TokensDiffer: decode does not begin with prefill's token.
	TokensDiffer
	// Unproved: an answer lacks what it must say, or has a shape that it may not have.
	Unproved
)

// String returns the judgement's name, as events show it.
func (a Agreement) String() string {
	names := [...]string{"open", "agreed", "leg failed", "foreign id", "counts differ", "tokens differ", "unproved"}
	if int(a) < len(names) {
		return names[a]
	}
	return "no agreement"
}

// Progress says how much of decode's answer has been seen.
type Progress uint8

const (
	// Ongoing: more text may follow.
	Ongoing Progress = iota
	// Ended: decode has given its finish reason.
	Ended
)

// Prefilled judges a prefill leg's answer with status 200 by itself. Agreed means that it
// is sound; what it says must still be compared with decode's.
func Prefilled(rid string, p *Reply) Agreement {
	switch {
	case p.Failure != nil:
		return LegFailed
	case p.ID != rid:
		return Foreign
	case p.Choices != 1 || p.Index.Known && p.Index.N != 0:
		return Unproved
	case p.Finish != "length":
		return LegFailed
	case !p.HasText || !p.Prompt.Known || p.Prompt.N == 0:
		return Unproved
	case p.Completion.Known && p.Completion.N != 1:
		return Unproved
	}
	return Agreed
}

// Decoded is what has been seen of a decode leg, whole or as far as its stream came.
type Decoded struct {
	// Prompt is decode's count of the prompt.
	Prompt Count
	// Text is the text so far.
	Text []byte
	// Progress says whether more may follow.
	Progress Progress
}

// Sound judges one answer or chunk of the decode leg by itself.
func Sound(rid string, d *Reply) Agreement {
	switch {
	case d.Failure != nil:
		return LegFailed
	case d.ID != rid:
		return Foreign
	case d.Choices > 1 || !d.Listed || d.Index.Known && d.Index.N != 0:
		return Unproved
	case d.Finish != "" && d.Finish != "stop" && d.Finish != "length":
		return LegFailed
	}
	return Agreed
}

// Agree compares a sound prefill answer with what has been seen of decode. stops are the
// request's stop strings: decode cuts its text in front of one, prefill never does.
func Agree(p *Reply, d Decoded, stops []string) Agreement {
	if !d.Prompt.Known {
		if d.Progress == Ended {
			return Unproved
		}
		return Open
	}
	if !p.Prompt.Known || p.Prompt.N != d.Prompt.N {
		return CountsDiffer
	}
	return beginsWith(d, firstText(p), stops)
}

// firstText is the text of prefill's token. A token may end inside a character, which is
// shown as U+FFFD; decode shows the whole character, so those are not compared.
func firstText(p *Reply) []byte {
	return bytes.TrimRight(p.Text(), "\uFFFD")
}

// beginsWith compares decode's text with the text of the first token.
func beginsWith(d Decoded, first []byte, stops []string) Agreement {
	switch {
	case bytes.HasPrefix(d.Text, first):
		return Agreed
	case !bytes.HasPrefix(first, d.Text):
		return TokensDiffer
	case d.Progress == Ongoing:
		return Open
	}
	// Decode ended inside the first token. Only a stop string that begins right there
	// explains that.
	rest := string(first[len(d.Text):])
	for _, s := range stops {
		if strings.HasPrefix(rest, s) || strings.HasPrefix(s, rest) {
			return Agreed
		}
	}
	return TokensDiffer
}

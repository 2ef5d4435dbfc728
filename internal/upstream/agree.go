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
	// Agreed: both legs answered this attempt, counted the same prompt, and where the
	// dialect has it so, the token that prefill reported is the one that decode begins
	// with. Decode's answer may be released. Nothing follows.
	Agreed
	// LegFailed: a leg's answer carries an error, or another finish reason than it may
	// end with.
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

// bears says whether a reply carries the id that we minted for its leg. A dialect that
// mints its own carries any, which the caller must find unchanged in all chunks.
func bears(d Dialect, id string, r *Reply) bool {
	if d.Traits().IDs == Steady {
		return id == "" || r.ID == id
	}
	switch d {
	case VLLM, VLLMNixl, VLLMMooncake:
		prefix := "chatcmpl-"
		if r.endpoint != Chat {
			prefix = "cmpl-"
		}
		rest, ok := strings.CutPrefix(r.ID, prefix)
		return ok && rest == id && id != ""
	}
	return r.ID == id && id != ""
}

// Prefilled judges a prefill leg's answer with status 200 by itself; id is the leg's
// [Control].ID. Agreed means that it is sound; what it says must still be compared with
// decode's.
func Prefilled(d Dialect, id string, r *Reply) Agreement {
	t := d.Traits()
	finish := r.Finish(0)
	switch {
	case t.Legs == One:
		return Unproved
	case r.Failure != nil:
		return LegFailed
	case !bears(d, id, r):
		return Foreign
	case r.Choices != 1 || r.Index(0).N != 0:
		return Unproved
	case finish != "length" && (finish != "stop" || d != VLLMNixl):
		// A prefill of one token ends by its length. Over NIXL it may also stop there, and
		// still hands over what it holds; nobody else's does.
		return LegFailed
	case !r.marked(0, hasMessage) || t.PrefillText && !r.HasText(0):
		return Unproved
	case !r.Prompt.Known || r.Prompt.N == 0:
		return Unproved
	case r.Completion.Known && r.Completion.N != 1:
		return Unproved
	}
	return Agreed
}

// Decoded is what has been seen of a decode leg, whole or as far as its stream came.
type Decoded struct {
	// Prompt is decode's count of the prompt.
	Prompt Count
	// Text is the text so far, reasoning and content in the order in which they came.
	Text []byte
	// Called says that decode has begun to call a tool, the marks of which are no text.
	Called bool
	// Progress says whether more may follow.
	Progress Progress
}

// Add adds what one sound answer or chunk of decode says. Once the text is longer than the
// first token can be, no more of it is kept.
func (d *Decoded) Add(r *Reply) {
	if r.Prompt.Known {
		d.Prompt = r.Prompt
	}
	if len(d.Text) < maxFirst {
		d.Text = append(d.Text, r.Reasoning(0)...)
		d.Text = append(d.Text, r.Text(0)...)
	}
	d.Called = d.Called || r.Calls(0)
	if r.Finish(0) != "" {
		d.Progress = Ended
	}
}

// maxFirst is more than the longest token has, in bytes.
const maxFirst = 4096

// Sound judges one answer or chunk of the leg that the client sees by itself; id is the
// leg's [Control].ID. Where the engine mints its own id, it is the id of the first chunk,
// or empty for any.
func Sound(d Dialect, id string, r *Reply) Agreement {
	t := d.Traits()
	switch {
	case r.Failure != nil:
		return LegFailed
	case !bears(d, id, r):
		return Foreign
	case !r.Listed || r.Choices > 1 && t.Lists == Split:
		return Unproved
	case r.whole && r.Choices == 0:
		return Unproved
	}
	for i := range r.Choices {
		if a := r.soundChoice(t, i); a != Agreed {
			return a
		}
	}
	return Agreed
}

// soundChoice judges one choice.
func (r *Reply) soundChoice(t Traits, i int) Agreement {
	index := r.Index(i)
	switch r.Finish(i) {
	case "":
		if r.whole {
			return Unproved
		}
	case "stop", "length", "tool_calls", "function_call":
	case finishFiltered:
		if !t.Hosted {
			return LegFailed
		}
	default:
		return LegFailed
	}
	switch {
	case t.Lists == Split && index.N != 0:
		return Unproved
	case t.Lists == Native && r.Choices > 1 && !index.Known:
		return Unproved
	case r.whole && !r.marked(i, hasContent|hasMoved):
		return Unproved // it ended and holds no answer, not even an empty one
	case r.whole && t.PrefillText && !r.HasText(i):
		return Unproved
	}
	return Agreed
}

// Agree compares a sound prefill answer with what has been seen of decode. stops are the
// request's stop strings: decode cuts its text in front of one, prefill never does. A
// dialect without a prefill leg has nothing to compare.
func Agree(d Dialect, p *Reply, got Decoded, stops []string) Agreement {
	t := d.Traits()
	if t.Legs == One {
		return Agreed
	}
	if !got.Prompt.Known {
		if got.Progress == Ended {
			return Unproved
		}
		return Open
	}
	if p == nil || !p.Prompt.Known || p.Prompt.N != got.Prompt.N {
		return CountsDiffer
	}
	if !t.FirstToken || got.Called {
		return Agreed
	}
	a := beginsWith(got, firstText(p), stops)
	if a == Agreed || t.PrefillText {
		return a
	}
	// A reasoning parser trims what it has whole, and cannot trim what it streams.
	got.Text = bytes.TrimLeft(got.Text, " \t\r\n")
	return beginsWith(got, bytes.TrimSpace(firstText(p)), stops)
}

// firstText is the text of prefill's token. A token may end inside a character, which is
// shown as U+FFFD; decode shows the whole character, so those are not compared.
func firstText(p *Reply) []byte {
	text := p.Text(0)
	if r := p.Reasoning(0); len(r) > 0 {
		text = append(bytes.Clone(r), text...)
	}
	return bytes.TrimRight(text, "\uFFFD")
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

package upstream

import (
	"errors"

	"bulkhead.dev/bulkhead/internal/fault"
)

// ErrMalformed says that an engine's text is not what its dialect allows.
var ErrMalformed = errors.New("upstream: malformed answer")

// Done is the data of the event that ends a stream. By itself it proves nothing (G-5).
const Done = "[DONE]"

// Reply is what one answer, or one chunk of a stream, says. What it does not say is
// unknown: an empty ID, a Count that is not known, a text that is not there. It refers to
// the body that it was read from, which must not change while it is in use.
type Reply struct {
	// ID is the id that the engine claims to answer.
	ID string
	// Prompt, Completion and Total are the usage, in tokens; Cached is how much of the
	// prompt came out of a cache. All are unknown if they contradict each other.
	Prompt, Completion, Total, Cached Count
	// Created is when the engine says that it began, in seconds since 1970.
	Created Count
	// Listed says whether the reply has choices at all; Choices is how many.
	Listed  bool
	Choices int
	// Counted says that the reply has a usage, whatever it says.
	Counted bool
	// CachedTooMany says that more tokens are told to come out of a cache than the prompt
	// has; then Cached is unknown.
	CachedTooMany bool
	// Contradictory says that the usage says what cannot be true; then its numbers are
	// unknown, and clients do not get it.
	Contradictory bool
	// Failure is set if the reply carries an error, whatever its status was.
	Failure *fault.Error

	dialect  Dialect
	endpoint Endpoint
	whole    bool
	body     []byte
	// handle is the value of kv_transfer_params, if it is an object.
	handle span
	// named and modeled say that the top level has an id and a model.
	named, modeled bool

	parts     int
	fewParts  [24]part
	moreParts []part
	fewSaid   [2]choice
	moreSaid  []choice
}

// choice is what one choice of a reply says.
type choice struct {
	index           Count
	finish          words
	text, reasoning words
	marks           mark
	// open and end are the bytes after the opening and the closing brace; first and last
	// are its parts.
	open, end   uint32
	first, last int
}

// mark says what a choice has.
type mark uint8

const (
	hasMessage  mark = 1 << iota // a message, a delta or a text
	hasText                      // a text of its answer, even an empty one
	hasContent                   // a content member, even null
	hasMoved                     // anything that is part of an answer
	hasCalled                    // a call of a tool
	hasIndex                     // an index member
	hasThoughts                  // reasoning under the name "reasoning"
)

// words is a string inside the body.
type words struct {
	from, to, size uint32
	plain          bool
}

func wordsOf(s str) words {
	return words{uint32(s.raw.from), uint32(s.raw.to), uint32(s.size), s.plain}
}

// of returns the decoded text. It refers to b unless there are escapes in it.
func (w words) of(b []byte) []byte {
	return decode(b, str{raw: span{int(w.from), int(w.to)}, size: int(w.size), plain: w.plain})
}

// ParseAnswer reads a whole answer.
func ParseAnswer(d Dialect, e Endpoint, body []byte) (Reply, error) {
	var r Reply
	err := r.read(d, e, body, true)
	return r, err
}

// ParseChunk reads the data of one event of a stream.
func ParseChunk(d Dialect, e Endpoint, body []byte) (Reply, error) {
	var r Reply
	err := r.read(d, e, body, false)
	return r, err
}

// ReadChunk is [ParseChunk] into a Reply that is used again for each event of one stream:
// nothing is allocated as long as the id stays the same.
func ReadChunk(r *Reply, d Dialect, e Endpoint, body []byte) error {
	return r.read(d, e, body, false)
}

// said returns choice i, or nil.
func (r *Reply) said(i int) *choice {
	switch {
	case i < 0 || i >= r.Choices:
		return nil
	case i < len(r.fewSaid):
		return &r.fewSaid[i]
	}
	return &r.moreSaid[i-len(r.fewSaid)]
}

// Index returns the index of choice i, counted as they stand in the reply.
func (r *Reply) Index(i int) Count {
	if c := r.said(i); c != nil {
		return c.index
	}
	return Count{}
}

// Finish returns the finish reason of choice i, empty if it has none.
func (r *Reply) Finish(i int) string {
	c := r.said(i)
	if c == nil {
		return ""
	}
	text := c.finish.of(r.body)
	for _, known := range finishes {
		if string(text) == known {
			return known
		}
	}
	return string(text)
}

// finishes are the finish reasons of an answer that ended as it should, and after
// finishFiltered those of one that did not.
var finishes = [...]string{"stop", "length", "tool_calls", "function_call", finishFiltered, "abort", "error"}

const finishFiltered = "content_filter"

// Text returns the text of choice i, decoded: the content of a message or delta, the text
// of a completion. It may refer to the body.
func (r *Reply) Text(i int) []byte {
	if c := r.said(i); c != nil && c.marks&hasText != 0 {
		return c.text.of(r.body)
	}
	return nil
}

// Reasoning returns the reasoning text of choice i, decoded. It may refer to the body.
func (r *Reply) Reasoning(i int) []byte {
	if c := r.said(i); c != nil && c.reasoning.to > 0 {
		return c.reasoning.of(r.body)
	}
	return nil
}

// HasText says whether choice i has a text, even an empty one.
func (r *Reply) HasText(i int) bool { return r.marked(i, hasText) }

// Moves says whether choice i holds any part of an answer: content, reasoning, a refusal
// or a call of a tool.
func (r *Reply) Moves(i int) bool { return r.marked(i, hasMoved) }

// Calls says whether choice i holds (a part of) a call of a tool.
func (r *Reply) Calls(i int) bool { return r.marked(i, hasCalled) }

func (r *Reply) marked(i int, m mark) bool {
	c := r.said(i)
	return c != nil && c.marks&m != 0
}

// IsUsageChunk says whether the reply is the chunk that carries only the usage.
func (r *Reply) IsUsageChunk() bool { return r.Listed && r.Choices == 0 && r.Counted }

// part is one member of an inspected object, from the quote of its key to the end of its
// value, or the place behind the opening brace of a choice. Parts stand in the order in
// which they begin.
type part struct {
	from, val, to uint32
	next          uint32 // where the next member of the same object begins; 0: it is the last
	depth         uint8
	kind          partKind
}

// partKind says what becomes of a part.
type partKind uint8

const (
	keptPart   partKind = iota // stays
	cutPart                    // is on no list
	idPart                     // its value becomes the public id
	modelPart                  // its value becomes the client's name of the model
	usagePart                  // stays if usage is kept
	cachedPart                 // stays if cached tokens are shown
	indexPart                  // its value is shifted
	openPart                   // the beginning of a choice that has an index
	barePart                   // the beginning of a choice that has none
)

// part returns part i.
func (r *Reply) part(i int) *part {
	if i < len(r.fewParts) {
		return &r.fewParts[i]
	}
	return &r.moreParts[i-len(r.fewParts)]
}

// add appends a part and returns its number.
func (r *Reply) add(p part) int {
	i := r.parts
	if i < len(r.fewParts) {
		r.fewParts[i] = p
	} else {
		r.moreParts = append(r.moreParts, p)
	}
	r.parts++
	return i
}

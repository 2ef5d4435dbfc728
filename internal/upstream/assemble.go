package upstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Assembly makes one whole answer out of the chunks of a stream, for a client that asked
// for the whole when decode had to be asked for a stream, so that its first token was seen
// in time (G-11). Chunks must be sound and agreed before; what is on no list is left out.
// The zero value is ready.
type Assembly struct {
	created            Count
	fingerprint        json.RawMessage
	prompt, completion Count
	cached             Count
	choices            []assembled
}

// assembled is one choice, as far as it has come.
type assembled struct {
	index                       int64
	content, reasoning, refusal []byte
	told                        mark // hasText: a content was there; hasMoved: a refusal was
	calls                       []toolCall
	arguments                   [][]byte // of each call, which come piece by piece
	finish                      string
	stop                        json.RawMessage
	logprobs                    map[string][]json.RawMessage
}

// toolCall is one call of a tool.
type toolCall struct {
	Index    int64  `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// maxAssembled is how many choices or calls an assembly has at most.
const maxAssembled = 256

// piece is what a chunk says beyond what [Reply] reads.
type piece struct {
	Fingerprint json.RawMessage `json:"system_fingerprint"`
	Choices     []struct {
		Delta struct {
			Refusal *string    `json:"refusal"`
			Calls   []toolCall `json:"tool_calls"`
		} `json:"delta"`
		Stop     json.RawMessage            `json:"stop_reason"`
		Logprobs map[string]json.RawMessage `json:"logprobs"`
	} `json:"choices"`
}

// Add adds the next chunk. The error says that the chunk cannot be a part of an answer.
func (a *Assembly) Add(r *Reply) error {
	var p piece
	// The library takes names in any case, so it is shown only those that are on the list.
	if json.Unmarshal(r.Rewrite(nil, Public{}), &p) != nil || len(p.Choices) != r.Choices {
		return fmt.Errorf("upstream: assemble answer: %w", ErrMalformed)
	}
	if !a.created.Known {
		a.created = r.Created
	}
	if some(p.Fingerprint) {
		a.fingerprint = p.Fingerprint
	}
	if r.Prompt.Known {
		a.prompt = r.Prompt
	}
	if r.Completion.Known {
		a.completion = r.Completion
	}
	if r.Cached.Known {
		a.cached = r.Cached
	}
	for i := range r.Choices {
		c := a.choice(r.Index(i).N)
		if c == nil {
			return fmt.Errorf("upstream: assemble answer: too many choices: %w", ErrMalformed)
		}
		c.content = append(c.content, r.Text(i)...)
		c.reasoning = append(c.reasoning, r.Reasoning(i)...)
		if r.HasText(i) {
			c.told |= hasText
		}
		if r.marked(i, hasThoughts) {
			c.told |= hasThoughts
		}
		if f := r.Finish(i); f != "" {
			c.finish = f
		}
		from := &p.Choices[i]
		if from.Delta.Refusal != nil {
			c.told |= hasMoved
			c.refusal = append(c.refusal, *from.Delta.Refusal...)
		}
		if some(from.Stop) {
			c.stop = from.Stop
		}
		if !c.addCalls(from.Delta.Calls) || !c.addLogprobs(from.Logprobs) {
			return fmt.Errorf("upstream: assemble answer: %w", ErrMalformed)
		}
	}
	return nil
}

// some says that a value is there and not null.
func some(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// choice returns the choice of an index.
func (a *Assembly) choice(index int64) *assembled {
	at, found := slices.BinarySearchFunc(a.choices, index, func(c assembled, i int64) int { return int(c.index - i) })
	if !found {
		if len(a.choices) == maxAssembled || index >= maxAssembled {
			return nil
		}
		a.choices = slices.Insert(a.choices, at, assembled{index: index})
	}
	return &a.choices[at]
}

// addCalls adds parts of calls: the name comes once, the arguments piece by piece.
func (c *assembled) addCalls(calls []toolCall) bool {
	for _, part := range calls {
		if part.Index < 0 || part.Index >= maxAssembled {
			return false
		}
		for int64(len(c.calls)) <= part.Index {
			c.calls = append(c.calls, toolCall{Index: int64(len(c.calls))})
			c.arguments = append(c.arguments, nil)
		}
		to := &c.calls[part.Index]
		if part.ID != "" {
			to.ID = part.ID
		}
		if part.Type != "" {
			to.Type = part.Type
		}
		to.Function.Name += part.Function.Name
		c.arguments[part.Index] = append(c.arguments[part.Index], part.Function.Arguments...)
	}
	return true
}

// addLogprobs joins lists of the same name.
func (c *assembled) addLogprobs(parts map[string]json.RawMessage) bool {
	for _, name := range logprobLists {
		var list []json.RawMessage
		if raw := parts[name]; some(raw) {
			if json.Unmarshal(raw, &list) != nil {
				return false
			}
			if c.logprobs == nil {
				c.logprobs = map[string][]json.RawMessage{}
			}
			c.logprobs[name] = append(c.logprobs[name], list...)
		}
	}
	return true
}

// logprobLists are the lists that log probabilities have, of a chat and of a completion. It
// is read only.
var logprobLists = [...]string{"content", "refusal", "text_offset", "token_logprobs", "tokens", "top_logprobs"}

// Answer appends the whole answer. A usage that was not told is left out.
func (a *Assembly) Answer(dst []byte, e Endpoint, p Public) []byte {
	created := p.Created
	if a.created.Known {
		created = a.created.N
	}
	dst = appendHead(dst, wholeObject(e), p, created)
	if a.fingerprint != nil {
		dst = append(append(dst, `,"system_fingerprint":`...), a.fingerprint...)
	}
	dst = append(dst, `,"choices":[`...)
	for i := range a.choices {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = a.choices[i].append(dst, e, p.Shift)
	}
	dst = append(dst, ']')
	if p.Usage == KeepUsage && a.prompt.Known && a.completion.Known {
		cached := a.cached
		if p.Cached == HideCached {
			cached = Count{}
		}
		dst = appendUsage(append(dst, `,"usage":`...), a.prompt.N, a.completion.N, cached)
	}
	return append(dst, '}')
}

// append writes one choice.
func (c *assembled) append(dst []byte, e Endpoint, shift int64) []byte {
	dst = strconv.AppendInt(append(dst, `{"index":`...), c.index+shift, 10)
	if e == Chat {
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		dst = appendText(dst, c.content, c.told&hasText != 0)
		if len(c.reasoning) > 0 {
			name := `,"reasoning_content":`
			if c.told&hasThoughts != 0 {
				name = `,"reasoning":`
			}
			dst = appendText(append(dst, name...), c.reasoning, true)
		}
		if c.told&hasMoved != 0 {
			dst = appendText(append(dst, `,"refusal":`...), c.refusal, true)
		}
		dst = append(c.appendCalls(dst), '}')
	} else {
		dst = appendText(append(dst, `,"text":`...), c.content, true)
	}
	dst = append(dst, `,"logprobs":`...)
	dst = c.appendLogprobs(dst)
	dst = append(dst, `,"finish_reason":`...)
	dst = appendText(dst, []byte(c.finish), c.finish != "")
	if c.stop != nil {
		dst = append(append(dst, `,"stop_reason":`...), c.stop...)
	}
	return append(dst, '}')
}

// appendText writes a text, or null if there is none.
func appendText(dst, text []byte, there bool) []byte {
	if !there {
		return append(dst, "null"...)
	}
	return appendQuoted(dst, string(text))
}

func (c *assembled) appendCalls(dst []byte) []byte {
	if len(c.calls) == 0 {
		return dst
	}
	dst = append(dst, `,"tool_calls":[`...)
	for i, call := range c.calls {
		if i > 0 {
			dst = append(dst, ',')
		}
		if call.Type == "" {
			call.Type = "function"
		}
		dst = appendQuoted(append(dst, `{"id":`...), call.ID)
		dst = appendQuoted(append(dst, `,"type":`...), call.Type)
		dst = appendQuoted(append(dst, `,"function":{"name":`...), call.Function.Name)
		dst = appendQuoted(append(dst, `,"arguments":`...), string(c.arguments[i]))
		dst = append(dst, "}}"...)
	}
	return append(dst, ']')
}

func (c *assembled) appendLogprobs(dst []byte) []byte {
	if c.logprobs == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '{')
	first := true
	for _, name := range logprobLists {
		list, there := c.logprobs[name]
		if !there {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(appendQuoted(dst, name), ':', '[')
		for i, x := range list {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, bytes.TrimSpace(x)...)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

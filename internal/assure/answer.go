package assure

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// Answer is what one call got. A count of -1 was not told.
type Answer struct {
	Status int // 0 when no answer came
	Header http.Header
	Body   []byte // as it came; of a stream all events
	Text   string // what the choices say, one after the other
	ID     string
	Finish []string // finish reasons by choice; "" where there is none
	// Counts in tokens.
	Prompt, Completion, Cached int64
	Done                       bool // the answer came to the end that its protocol has: [DONE], or a whole JSON answer
	ErrorEvent                 bool // a stream held an error event
	Events                     int  // events of a stream
	Err                        error
	Took                       time.Duration // to the last byte
	First                      time.Duration // to the first event with text; of a whole answer, Took
}

// OK says that the answer is a 200 that came whole and holds no error.
func (a *Answer) OK() bool {
	return a.Err == nil && a.Status == http.StatusOK && a.Done && !a.ErrorEvent
}

// Code returns the code of an OpenAI-style error body, or its type, or "".
func (a *Answer) Code() string {
	var body struct {
		Error struct {
			Code any    `json:"code"`
			Type string `json:"type"`
		} `json:"error"`
	}
	if json.Unmarshal(a.Body, &body) != nil {
		return ""
	}
	if code, ok := body.Error.Code.(string); ok && code != "" {
		return code
	}
	return body.Error.Type
}

// part is what is read of a whole answer, of a chunk, and of the native answers of the
// engines.
type part struct {
	ID      string `json:"id"`
	Choices []struct {
		Index   int     `json:"index"`
		Text    string  `json:"text"`
		Message *spoken `json:"message"`
		Delta   *spoken `json:"delta"`
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     *int64 `json:"prompt_tokens"`
		Input      *int64 `json:"input_tokens"`
		Completion *int64 `json:"completion_tokens"`
		Output     *int64 `json:"output_tokens"`
		Details    *struct {
			Cached *int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
	// Native answers.
	Text    json.RawMessage `json:"text"`
	Content json.RawMessage `json:"content"`
	Output  json.RawMessage `json:"output"`
}

type spoken struct {
	Content   any    `json:"content"`
	Reasoning string `json:"reasoning_content"`
	Tools     []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func (s *spoken) text() string {
	var b strings.Builder
	b.WriteString(s.Reasoning)
	if content, ok := s.Content.(string); ok {
		b.WriteString(content)
	}
	for _, t := range s.Tools {
		b.WriteString(t.Function.Name + t.Function.Arguments)
	}
	return b.String()
}

// reader puts an answer together out of its parts.
type reader struct {
	answer  Answer
	choices []strings.Builder
	native  strings.Builder
}

func newReader() *reader {
	return &reader{answer: Answer{Prompt: -1, Completion: -1, Cached: -1}}
}

// add reads one JSON value. What it cannot read it leaves out: the raw body is kept.
func (r *reader) add(data []byte) {
	var p part
	if json.Unmarshal(data, &p) != nil {
		return
	}
	a := &r.answer
	if p.ID != "" {
		a.ID = p.ID
	}
	if len(p.Error) > 0 && !bytes.Equal(p.Error, []byte("null")) {
		a.ErrorEvent = true
	}
	for _, c := range p.Choices {
		if c.Index < 0 || c.Index > 1024 {
			continue
		}
		for len(r.choices) <= c.Index {
			r.choices = append(r.choices, strings.Builder{})
			a.Finish = append(a.Finish, "")
		}
		text := c.Text
		for _, s := range []*spoken{c.Message, c.Delta} {
			if s != nil {
				text += s.text()
			}
		}
		r.choices[c.Index].WriteString(text)
		if c.Finish != nil {
			a.Finish[c.Index] = *c.Finish
		}
	}
	if u := p.Usage; u != nil {
		for _, count := range []struct {
			to   *int64
			from *int64
		}{{&a.Prompt, u.Input}, {&a.Prompt, u.Prompt}, {&a.Completion, u.Output}, {&a.Completion, u.Completion}} {
			if count.from != nil {
				*count.to = *count.from
			}
		}
		if u.Details != nil && u.Details.Cached != nil {
			a.Cached = *u.Details.Cached
		}
	}
	for _, raw := range []json.RawMessage{p.Text, p.Content, p.Output} {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			r.native.WriteString(text)
		} else {
			r.native.Write(raw)
		}
	}
}

// said is the text so far.
func (r *reader) said() string {
	var b strings.Builder
	for i := range r.choices {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(r.choices[i].String())
	}
	b.WriteString(r.native.String())
	return b.String()
}

// whole reads an answer that is one JSON value.
func (r *reader) whole(body []byte) {
	r.add(body)
	r.answer.Done = r.answer.Err == nil && json.Valid(body) && !r.answer.ErrorEvent
}

// event reads the data of one event of a stream.
func (r *reader) event(data []byte) {
	r.answer.Events++
	if string(data) == "[DONE]" {
		r.answer.Done = true
		return
	}
	r.add(data)
}

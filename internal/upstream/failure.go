package upstream

import (
	"encoding/json"
	"strconv"
	"strings"

	"bulkhead.dev/bulkhead/internal/fault"
)

// maxFailure is the longest error body that is read, in bytes.
const maxFailure = 64 << 10

// ParseFailure names an engine's error by a code of ours; status is that of the answer, 0
// for an error inside a stream. No text of the engine reaches the result, for it may hold
// a prompt, a key or an address; numbers do, where it is certain what they say.
func ParseFailure(d Dialect, status int, body []byte) *fault.Error { return failure(d, status, body) }

func failure(d Dialect, status int, body []byte) *fault.Error {
	if d == Bulkhead {
		return fault.Parse(status, body)
	}
	c := readComplaint(body)
	if status == 0 {
		// Inside a stream the error states its own status.
		status = c.status
	}
	if f := c.overLength(); f != nil && (status == 0 || status >= 400) {
		return f
	}
	for _, known := range complaints {
		if strings.Contains(c.message, known.text) {
			return fault.New(known.code)
		}
	}
	code := codeOf(d, status, c)
	if code == fault.BadInput {
		return c.blame(d)
	}
	return fault.New(code)
}

// blame names the field that an engine did not take, if it is one of ours to name: one on
// the client's list by its name, a control field as our own fault.
func (c complaint) blame(d Dialect) *fault.Error {
	name := strings.TrimPrefix(c.param, "body.")
	if f := lookup(d, Chat, []byte(name)); f != nil && f.mode != never {
		return fault.New(fault.BadInput, fault.Field(f.name))
	}
	if f := lookup(d, Completions, []byte(name)); f != nil && f.mode != never {
		return fault.New(fault.BadInput, fault.Field(f.name))
	}
	for _, r := range reserved {
		if r.name == name {
			return fault.New(fault.UpstreamRefused)
		}
	}
	return fault.New(fault.BadInput)
}

// complaint is an error of an engine, whatever its shape.
type complaint struct {
	message, kind, code string
	param               string
	status              int
	prompt, window      Count
}

// readComplaint reads the shapes that engines use: an error object inside (vLLM, llama.cpp,
// OpenAI, SGLang in a stream), a flat one (SGLang), an error that is a text, and FastAPI's
// detail.
func readComplaint(body []byte) complaint {
	if len(body) > maxFailure {
		return complaint{}
	}
	type inner struct {
		Message json.RawMessage `json:"message"`
		Type    json.RawMessage `json:"type"`
		Code    json.RawMessage `json:"code"`
		Param   json.RawMessage `json:"param"`
		Prompt  told            `json:"n_prompt_tokens"`
		Window  told            `json:"n_ctx"`
	}
	var v struct {
		inner
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &v) != nil {
		return complaint{}
	}
	in, text := v.inner, ""
	if v.Error != nil && json.Unmarshal(v.Error, &text) != nil {
		in = inner{}
		_ = json.Unmarshal(v.Error, &in) // what is no object says nothing
	}
	c := complaint{message: plain(in.Message), kind: plain(in.Type), code: plain(in.Code), param: plain(in.Param), prompt: in.Prompt.Count, window: in.Window.Count}
	if c.message == "" {
		c.message = text
	}
	if n, err := strconv.Atoi(string(in.Code)); err == nil && n >= 400 && n < 600 {
		c.status = n
	}
	return c
}

// plain is raw as a string, or empty if it is anything else.
func plain(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// overLength names an error that says that a request is too long.
func (c complaint) overLength() *fault.Error {
	if c.kind == "exceed_context_size_error" { // llama.cpp
		return fault.New(fault.PromptOverWindow, number(c.prompt), number(c.window))
	}
	for _, s := range lengths {
		n, ok := match(c.message, s.text)
		if !ok {
			continue
		}
		var args [3]fault.Arg
		for i, from := range s.args {
			args[i] = fault.Fixed("(unknown)")
			switch {
			case from < 0:
				args[i] = fault.AtLeast(n[-from-1])
			case from > 0:
				args[i] = fault.Int(n[from-1])
			}
		}
		return fault.New(s.code, args[:len(s.args)]...)
	}
	if c.code == "context_length_exceeded" {
		return fault.New(fault.PromptOverWindow)
	}
	return nil
}

func number(c Count) fault.Arg {
	if !c.Known {
		return fault.Fixed("(unknown)")
	}
	return fault.Int(c.N)
}

// length is a sentence by which an engine refuses a length; # stands for a number. args
// says which of the numbers fill our own sentence: 0 is unknown, a negative one is only a
// lower bound.
type length struct {
	text string
	code fault.Code
	args []int
}

// lengths is read only. The first sentence that is found decides.
var lengths = [...]length{
	// SGLang: the scheduler's limit, which is the pool; then the tokenizer's, the window.
	{"Input length (# tokens) exceeds the maximum allowed length (# tokens)", fault.PromptOverPool, []int{1, 2}},
	{"The input (# tokens) is longer than the model's context length (# tokens)", fault.PromptOverWindow, []int{1, 2}},
	{"maximum context length of # tokens. You requested a total of # tokens: # tokens from the input messages and # tokens for the completion",
		fault.OutputOverWindow, []int{3, 4, 1}},
	{"max_completion_tokens is too large: #.This model supports at most # completion tokens", fault.OutputOverWindow, []int{0, 1, 2}},
	// vLLM counts no further than one token above its limit.
	{"maximum context length is # tokens. However, your prompt contains at least # input tokens", fault.PromptOverWindow, []int{-2, 1}},
	{"maximum context length is # tokens. However, your prompt contains # input tokens", fault.PromptOverWindow, []int{2, 1}},
	{"maximum context length is # tokens. However, your prompt contains # characters", fault.PromptOverWindow, []int{0, 1}},
	{"maximum context length is # tokens. However, you requested # output tokens and your prompt contains at least # input tokens",
		fault.OutputOverWindow, []int{-3, 2, 1}},
	{"maximum context length is # tokens. However, you requested # output tokens and your prompt contains # input tokens",
		fault.OutputOverWindow, []int{3, 2, 1}},
	{"You passed # input tokens and requested # output tokens. However, the model's context length is only # tokens",
		fault.OutputOverWindow, []int{1, 2, 3}},
	{"You passed # input characters and requested # output tokens. However, the model's context length is only # tokens",
		fault.OutputOverWindow, []int{0, 2, 3}},
	{"max_tokens=# cannot be greater than max_model_len=#", fault.OutputOverWindow, []int{0, 1, 2}},
	{"max_completion_tokens=# cannot be greater than max_model_len=#", fault.OutputOverWindow, []int{0, 1, 2}},
	{"max_tokens must be at least 1, got 0", fault.PromptOverWindow, []int{0, 0}}, // we ask for more: nothing was left
	// llama.cpp, where its numbers are in the text only.
	{"request (# tokens) exceeds the available context size (# tokens)", fault.PromptOverWindow, []int{1, 2}},
	// Hosted.
	{"maximum context length is # tokens. However, you requested # tokens (# in the messages, # in the completion)",
		fault.OutputOverWindow, []int{3, 4, 1}},
	{"maximum context length is # tokens. However, your messages resulted in # tokens", fault.PromptOverWindow, []int{2, 1}},
	{"prompt is too long: # tokens > # maximum", fault.PromptOverWindow, []int{1, 2}},
	{"input token count (#) exceeds the maximum number of tokens allowed (#)", fault.PromptOverWindow, []int{1, 2}},
	{"Your input exceeds the context window of this model", fault.PromptOverWindow, []int{0, 0}},
	{"`inputs` must have less than # tokens. Given: #", fault.PromptOverWindow, []int{2, 1}},
}

// match finds a sentence in a message and returns its numbers.
func match(message, sentence string) (n []int64, ok bool) {
	head, rest, _ := strings.Cut(sentence, "#")
	at := strings.Index(message, head)
	if at < 0 {
		return nil, false
	}
	message = message[at+len(head):]
	if head == sentence {
		return nil, true
	}
	for {
		end := 0
		for end < len(message) && end < 19 && message[end] >= '0' && message[end] <= '9' {
			end++
		}
		x, err := strconv.ParseInt(message[:end], 10, 64)
		if err != nil {
			return nil, false
		}
		n = append(n, x)
		message = message[end:]
		var more bool
		head, rest, more = strings.Cut(rest, "#")
		if !strings.HasPrefix(message, head) {
			return nil, false
		}
		message = message[len(head):]
		if !more {
			return n, true
		}
	}
}

// complaints are sentences of engines that say more than their status. It is read only.
var complaints = [...]struct {
	text string
	code fault.Code
}{
	// SGLang's hand-off.
	{"Lost connection with prefill instance", fault.PeerGone},
	{"in KVPoll.", fault.PeerGone}, // it waited for the other leg in vain
	{"Metadata corruption detected", fault.Integrity},
	{"Aborted by AbortReq", fault.Cancelled},
	{"Aborted by decode-side abort notification", fault.Cancelled},
	{"The request queue is full", fault.Busy},
	{"without bootstrap room id", fault.UpstreamRefused},
	// llama.cpp blames itself for what is wrong with a request.
	{"[json.exception.", fault.BadInput},
	{"image input is not supported", fault.BadInput},
	{"audio input is not supported", fault.BadInput},
}

// codeOf names an error of which the status is all that is known.
func codeOf(d Dialect, status int, c complaint) fault.Code {
	switch status {
	case 401, 402, 403, 404, 405, 406, 407, 409, 410, 415, 421, 426, 501:
		// What they refuse is ours: our key, our path, the name that we asked for.
		return fault.UpstreamRefused
	case 408, 504:
		return fault.Deadline
	case 429, 503:
		return fault.Busy
	case 529:
		if d.Traits().Hosted {
			return fault.Busy
		}
	case 499:
		return fault.Cancelled
	}
	switch {
	case status >= 400 && status < 500:
		return fault.BadInput
	case status > 0 && status < 400:
		return fault.UpstreamVoid
	case c.kind == "invalid_request_error" && status == 0:
		return fault.BadInput
	}
	return fault.EngineFailed
}

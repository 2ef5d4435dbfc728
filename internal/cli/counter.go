package cli

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/llm"
)

// recallSizes bounds the tokens of a prompt for the model recall: one for each
// byte, and what its template adds.
func recallSizes() gateway.Sizes {
	return gateway.Sizes{BytesPerToken: 1, PerMessage: 2, PerRequest: 1}
}

// recallCounter counts the tokens of a prompt for the model recall. It is asked
// only where bounds from lengths do not decide.
type recallCounter struct{}

// noCounter counts nothing: what its bounds do not decide is refused.
type noCounter struct{}

// Count implements gateway.Counter.
func (noCounter) Count(context.Context, string, []byte) (int, error) { return 0, errUncountable }

var errUncountable = errors.New("cli: the prompt cannot be counted")

// Count implements gateway.Counter.
func (recallCounter) Count(_ context.Context, path string, body []byte) (int, error) {
	var b struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Prompt json.RawMessage `json:"prompt"`
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return 0, errUncountable
	}
	if !strings.HasSuffix(path, "/chat/completions") {
		text, ok := promptText(b.Prompt)
		if !ok {
			return 0, errUncountable
		}
		return llm.Bytes{}.CountText(text), nil
	}
	msgs := make([]llm.Message, 0, len(b.Messages))
	for _, m := range b.Messages {
		text, ok := contentText(m.Content)
		if !ok {
			return 0, errUncountable
		}
		msgs = append(msgs, llm.Message{Role: m.Role, Content: text})
	}
	n, err := llm.Bytes{}.CountChat(msgs)
	if err != nil {
		return 0, errUncountable
	}
	return n, nil
}

// promptText reads a prompt: a string, or a list of one.
func promptText(raw json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, true
	}
	var one []string
	if json.Unmarshal(raw, &one) != nil || len(one) != 1 {
		return "", false
	}
	return one[0], true
}

// contentText reads a message's content: a string, or a list of text parts.
func contentText(raw json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, true
	}
	var parts []struct {
		Text *string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", false
	}
	var all strings.Builder
	for _, p := range parts {
		if p.Text == nil {
			return "", false
		}
		all.WriteString(*p.Text)
	}
	return all.String(), true
}

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
)

// recallTokens is how long the answers are that are compared, in tokens.
const recallTokens = 24

// recallPrompts are what the built-in model is asked, here and in llama.cpp.
func recallPrompts() []string {
	ship := "The code word of ship 7 is heliotrope, kept by Mara. The code word of ship 7 is"
	far := strings.Repeat("Nothing of note happened on this day. ", 40)
	return []string{
		ship,
		"Room 12 is blue. Room 13 is green. Room 14 is red. Room 13 is",
		"The harbour of Zürich is small. " + far + "The harbour of Zürich is",
		"abcabcabcabcab",
	}
}

// writeRecall writes the built-in model for llama.cpp into the scratch directory.
func (d *driver) writeRecall() (string, error) {
	path := filepath.Join(d.dir, "recall.gguf")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("interop: write recall: %w", err)
	}
	if err := errors.Join(llm.WriteRecall(f), f.Close()); err != nil {
		return "", fmt.Errorf("interop: write recall: %w", err)
	}
	return path, nil
}

// sameRecall asks an engine that runs recall and our own what they answer, completions
// and chat, and returns how many answers were compared and what differs: the text, or the
// number of prompt tokens.
func (d *driver) sameRecall(ctx context.Context, url string) (compared int, differs []string, err error) {
	for i, prompt := range recallPrompts() {
		chat, err := llm.Bytes{}.Chat([]llm.Message{{Role: "user", Content: prompt}})
		if err != nil {
			return compared, differs, fmt.Errorf("interop: encode a chat: %w", err)
		}
		for _, try := range []struct {
			path   string
			fields map[string]any
			tokens []llm.Token
		}{
			{"/v1/completions", map[string]any{"prompt": prompt}, llm.Bytes{}.Text(prompt)},
			{"/v1/chat/completions", map[string]any{"messages": []map[string]any{{"role": "user", "content": prompt}}}, chat},
		} {
			want, err := recite(try.tokens)
			if err != nil {
				return compared, differs, err
			}
			try.fields["max_tokens"], try.fields["temperature"] = recallTokens, 0
			got, count, err := d.complete(ctx, url+try.path, try.fields)
			if err != nil {
				return compared, differs, err
			}
			compared++
			switch {
			case got != want:
				differs = append(differs, fmt.Sprintf("recall, prompt %d at %s: llama.cpp says %q, our engine %q", i+1, try.path, got, want))
			case count != len(try.tokens):
				differs = append(differs, fmt.Sprintf("recall, prompt %d at %s: llama.cpp counts %d tokens, our engine %d", i+1, try.path, count, len(try.tokens)))
			}
		}
	}
	return compared, differs, nil
}

// writeKey draws a key of which nobody makes use: nothing lands in this pool.
func writeKey() (k kv.Key) {
	rand.Read(k[:])
	return k
}

// recite is what our own engine answers, greedy.
func recite(prompt []llm.Token) (string, error) {
	m := llm.Recall()
	pool, err := kv.New(kv.Config{Layout: m.Layout(16), Pages: len(prompt)/16 + 8, Epoch: 1, Keys: writeKey})
	if err != nil {
		return "", fmt.Errorf("interop: recite: %w", err)
	}
	seq, err := pool.Local(kv.Domain{1}, len(prompt)+recallTokens, nil)
	if err != nil {
		return "", fmt.Errorf("interop: recite: %w", err)
	}
	runner, err := m.NewRunner(0, 0)
	if err != nil {
		return "", fmt.Errorf("interop: recite: %w", err)
	}
	sampler, err := llm.NewSampler(llm.Sampling{})
	if err != nil {
		return "", fmt.Errorf("interop: recite: %w", err)
	}
	var text []byte
	var assembler llm.Assembler
	for next, n := prompt, 0; n < recallTokens; n++ {
		items := []llm.Item{{Seq: seq, Tokens: next, Logits: make([]float32, m.Config().Vocab)}}
		runner.Step(items)
		token, err := sampler.Next(items[0].Logits)
		if err := errors.Join(items[0].Err, err); err != nil {
			return "", fmt.Errorf("interop: recite: %w", err)
		}
		if (llm.Bytes{}).Ends(token) {
			break
		}
		text = assembler.Write(text, llm.Bytes{}.Append(nil, token))
		next = []llm.Token{token}
	}
	return string(assembler.Flush(text)), nil
}

// complete asks an engine, and returns the text and the number of prompt tokens.
func (d *driver) complete(ctx context.Context, url string, fields map[string]any) (text string, prompt int, err error) {
	body, err := json.Marshal(fields)
	if err != nil {
		return "", 0, fmt.Errorf("interop: ask: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", 0, fmt.Errorf("interop: ask: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: d.http.Transport}).Do(request)
	if err != nil {
		return "", 0, fmt.Errorf("interop: ask: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil || response.StatusCode != http.StatusOK {
		return "", 0, fmt.Errorf("interop: ask: status %d, %w", response.StatusCode, err)
	}
	var answer struct {
		Choices []struct {
			Text    string `json:"text"`
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &answer); err != nil || len(answer.Choices) == 0 {
		return "", 0, errors.New("interop: ask: the answer has no choices")
	}
	return answer.Choices[0].Text + answer.Choices[0].Message.Content, answer.Usage.Prompt, nil
}

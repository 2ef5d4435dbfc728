package worker

// usage is OpenAI's.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// part is a chat message or delta.
type part struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type choice struct {
	Index   int     `json:"index"`
	Message *part   `json:"message,omitempty"`
	Delta   *part   `json:"delta,omitempty"`
	Text    *string `json:"text,omitempty"`
	Finish  *string `json:"finish_reason"`
}

// completion is an answer or a chunk of one, of either endpoint.
type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

func (r *request) frame(chat, text string, created int64) completion {
	c := completion{ID: r.rid, Object: text, Created: created, Model: r.served, Choices: []choice{}}
	if r.chat {
		c.Object = chat
	}
	return c
}

func (r *request) used(tokens int) *usage {
	return &usage{Prompt: r.count, Completion: tokens, Total: r.count + tokens}
}

// answer is a whole answer.
func (r *request) answer(text, finish string, tokens int, created int64) completion {
	c := r.frame("chat.completion", "text_completion", created)
	ch := choice{Finish: &finish}
	if r.chat {
		ch.Message = &part{Role: "assistant", Content: &text}
	} else {
		ch.Text = &text
	}
	c.Choices, c.Usage = append(c.Choices, ch), r.used(tokens)
	return c
}

// chunk is one event of a stream. first adds the role.
func (r *request) chunk(text, finish string, first bool, tokens int, created int64) completion {
	c := r.frame("chat.completion.chunk", "text_completion", created)
	var ch choice
	if finish != "" {
		ch.Finish = &finish
	}
	if r.chat {
		ch.Delta = &part{Content: &text}
		if first {
			ch.Delta.Role = "assistant"
		}
	} else {
		ch.Text = &text
	}
	c.Choices = append(c.Choices, ch)
	if r.running {
		c.Usage = r.used(tokens)
	}
	return c
}

// usageChunk is the last event of a stream that was asked for usage.
func (r *request) usageChunk(tokens int, created int64) completion {
	c := r.frame("chat.completion.chunk", "text_completion", created)
	c.Usage = r.used(tokens)
	return c
}

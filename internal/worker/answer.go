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

func (c *call) frame(chunk bool, created int64) completion {
	out := completion{ID: c.id, Object: "text_completion", Created: created, Model: c.seqs[0].req.served, Choices: []choice{}}
	switch {
	case c.form == formChat && chunk:
		out.Object = "chat.completion.chunk"
	case c.form == formChat:
		out.Object = "chat.completion"
	}
	return out
}

// used is the usage of the whole call: a prompt counts once, however often it is answered.
func (c *call) used() *usage {
	u := &usage{}
	for i, s := range c.seqs {
		if i*c.prompts%len(c.seqs) == 0 || c.prompts == len(c.seqs) {
			u.Prompt += s.req.count
		}
		u.Completion += s.tokens
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// answer is a whole answer.
func (c *call) answer(created int64) any {
	if c.form == formGenerate {
		return c.generatedAll()
	}
	out := c.frame(false, created)
	for i, s := range c.seqs {
		text := string(s.text)
		ch := choice{Index: i, Finish: &s.finish}
		if c.form == formChat {
			ch.Message = &part{Role: "assistant", Content: &text}
		} else {
			ch.Text = &text
		}
		out.Choices = append(out.Choices, ch)
	}
	out.Usage = c.used()
	return out
}

// chunk is one event of a stream: what is new in sequence i. first adds the role.
func (c *call) chunk(i int, first bool, created int64) any {
	if c.form == formGenerate {
		return c.generated(i)
	}
	s := c.seqs[i]
	out := c.frame(true, created)
	text := string(s.text[s.told:])
	ch := choice{Index: i}
	if s.finish != "" {
		ch.Finish = &s.finish
	}
	if c.form == formChat {
		ch.Delta = &part{Content: &text}
		if first {
			ch.Delta.Role = "assistant"
		}
	} else {
		ch.Text = &text
	}
	out.Choices = append(out.Choices, ch)
	if s.req.running {
		out.Usage = c.used()
	}
	return out
}

// usageChunk is the last event of a stream that was asked for usage.
func (c *call) usageChunk(created int64) completion {
	out := c.frame(true, created)
	out.Usage = c.used()
	return out
}

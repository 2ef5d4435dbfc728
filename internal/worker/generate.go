package worker

import (
	"strconv"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/internal/llm"
)

// generateMembers rewrites a body of /generate as one of /v1/completions: the same
// question in SGLang's own words. What is not among them has no effect.
func generateMembers(m members) (members, *fault.Error) {
	out := members{}
	for _, name := range [...]string{"model", "stream", "rid", "bootstrap_host", "bootstrap_port", "bootstrap_room"} {
		out[name] = m[name]
	}
	switch {
	case null(m["text"]) == null(m["input_ids"]):
		return nil, fault.New(fault.MissingField, fault.Field("text"))
	case null(m["text"]):
		out["prompt"] = m["input_ids"]
	default:
		out["prompt"] = m["text"]
	}
	if null(m["sampling_params"]) {
		return out, nil
	}
	if m["sampling_params"][0] == '[' {
		return nil, fault.New(fault.UnsupportedList, fault.Field("sampling_params"))
	}
	p, f := objectAt(m["sampling_params"], "sampling_params")
	if f != nil {
		return nil, f
	}
	for theirs, ours := range map[string]string{
		"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "stop": "stop", "sampling_seed": "seed",
	} {
		out[ours] = p[theirs]
	}
	if n, ok, f := p.integer("n", 1, maxSequences); f != nil || ok && n > 1 {
		return nil, fault.New(fault.UnsupportedList, fault.Field("n")) // routers give such a request one room
	}
	return out, nil
}

// generated is an answer of /generate, or an event of one.
type generated struct {
	Text  string      `json:"text"`
	IDs   []llm.Token `json:"output_ids"`
	Meta  meta        `json:"meta_info"`
	Index *int        `json:"index,omitempty"`
}

type meta struct {
	ID         string  `json:"id"`
	Finish     *ending `json:"finish_reason"`
	Prompt     int     `json:"prompt_tokens"`
	Completion int     `json:"completion_tokens"`
	Cached     int     `json:"cached_tokens"`
	Version    string  `json:"weight_version"`
}

// ending is a finish reason in SGLang's form.
type ending struct {
	Type   string `json:"type"`
	Length int    `json:"length,omitempty"`
}

func (c *call) generated(i int) generated {
	s := c.seqs[i]
	g := generated{
		Text: string(s.text), IDs: llm.Bytes{}.Text(string(s.text))[1:], // without the mark of a beginning
		Meta: meta{ID: c.id, Prompt: s.req.count, Completion: s.tokens, Version: "default"},
	}
	if len(c.seqs) > 1 {
		g.Index = &i
		g.Meta.ID += "-" + strconv.Itoa(i)
	}
	if s.finish != "" {
		g.Meta.Finish = &ending{Type: s.finish}
		if s.finish == "length" {
			g.Meta.Finish.Length = s.tokens
		}
	}
	return g
}

// generatedAll is the whole answer of /generate.
func (c *call) generatedAll() any {
	all := make([]generated, len(c.seqs))
	for i := range c.seqs {
		all[i] = c.generated(i)
	}
	if c.listed || len(all) > 1 {
		return all
	}
	return all[0]
}

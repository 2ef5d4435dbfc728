package upstream

// CountCall returns the call that makes the engine's own tokenizer count the prompt of a
// sequence (G-2); [ReadCount] reads its answer. It is false where the engine has no such
// endpoint, where that would not count all of the prompt, and where the prompt came as
// tokens (see [Request.Tokens]). model is the served name.
func (r *Request) CountCall(d Dialect, model string, sequence int) (Call, bool) {
	if r.Tokens(sequence).Known || !r.Countable(d) {
		return Call{}, false
	}
	var names string
	switch {
	case d == LlamaCPP && r.Endpoint == Chat:
		return r.countCall("/v1/chat/completions/input_tokens", "", "messages tools tool_choice chat_template_kwargs reasoning_format response_format parallel_tool_calls add_generation_prompt", sequence), true
	case d == LlamaCPP:
		return r.countCall("/tokenize", "", "content", sequence), true
	case r.Endpoint == Chat && (d == SGLang || d == SGLangPD):
		names = "messages tools tool_choice chat_template_kwargs reasoning_effort continue_final_message"
	case r.Endpoint == Chat:
		names = "messages tools chat_template_kwargs add_generation_prompt continue_final_message add_special_tokens"
	default:
		names = "prompt add_special_tokens"
	}
	return r.countCall("/tokenize", model, names, sequence), true
}

// Countable says whether an engine of the dialect can count this request: it has a
// tokenizer endpoint, which takes no pictures and sounds, and on vLLM no reasoning_effort.
func (r *Request) Countable(d Dialect) bool {
	if !d.Traits().Tokenizes || r.body.chat.media > 0 {
		return false
	}
	vllm := d == VLLM || d == VLLMNixl || d == VLLMMooncake
	return !vllm || r.Endpoint != Chat || r.body.entry("reasoning_effort") == nil
}

// countCall makes a body of some of the client's own members, each with its edits.
func (r *Request) countCall(path, model, names string, sequence int) Call {
	raw := r.body.raw
	n := 128 + 6*len(model)
	for i := range r.body.entries {
		if _, at := word(names, r.body.entries[i].name); at >= 0 {
			n += r.body.entries[i].to - r.body.entries[i].from
		}
	}
	it := r.item(sequence)
	if it != nil {
		n += it.to - it.from
	}
	b := append(make([]byte, 0, n), '{')
	if model != "" {
		b = appendMember(b, "model", model)
	}
	if it != nil {
		name := "prompt"
		if names == "content" {
			name, b = "content", append(b, `"add_special":true,"parse_special":true`...)
		}
		b = append(comma(b), '"')
		b = append(b, name...)
		b = append(b, `":`...)
		b = append(b, raw[it.from:it.to]...)
	}
	for i := range r.body.entries {
		e := &r.body.entries[i]
		if _, at := word(names, e.name); at < 0 || it != nil && string(e.name) == "prompt" || raw[e.value.from] == 'n' {
			continue
		}
		b = append(comma(b), '"')
		b = append(b, e.name...)
		b = append(b, `":`...)
		b = apply(b, raw[:e.value.to], e.value.from, within(r.edits, e.value))
	}
	return Call{Path: path, Body: append(b, '}')}
}

// within returns the edits that lie inside a span.
func within(edits []edit, s span) []edit {
	from := 0
	for from < len(edits) && edits[from].from < s.from {
		from++
	}
	to := from
	for to < len(edits) && edits[to].to <= s.to {
		to++
	}
	return edits[from:to]
}

package upstream

import "bulkhead.dev/bulkhead/internal/fault"

// llamacppFields is the allow-list of llama.cpp's server. It is read only. It was judged
// against the fields that two of its builds read (testdata/llamacpp/fields.json). Names
// that it does not know it ignores, and of two names for one thing one wins in silence
// (n_predict over max_tokens, n_cmpl over n, n_probs over logprobs): the winners are
// refused. It has no salt, so no prompt may be cached at all (G-7).
var llamacppFields = [...]field{
	// What the gateway reads and writes itself, beside gatewayFields.
	{name: "max_completion_tokens", in: both, mode: mapped, kind: kindMax},
	{name: "n", in: both, mode: mapped, kind: kindN},

	// Sampling.
	{name: "temperature", in: both, mode: pass, kind: kindNumber, low: 0, high: 2},
	{name: "top_p", in: both, mode: pass, kind: kindShare},
	{name: "top_k", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 20},
	{name: "min_p", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "typical_p", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "top_n_sigma", in: both, mode: pass, kind: kindNumber, low: -1, high: 100},
	{name: "xtc_probability", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "xtc_threshold", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "dynatemp_range", in: both, mode: pass, kind: kindNumber, low: 0, high: 2},
	{name: "dynatemp_exponent", in: both, mode: pass, kind: kindNumber, low: 0, high: 10},
	{name: "adaptive_target", in: both, mode: pass, kind: kindNumber, low: -1, high: 1},
	{name: "adaptive_decay", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "mirostat", in: both, mode: pass, kind: kindInt, low: 0, high: 2},
	{name: "mirostat_tau", in: both, mode: pass, kind: kindNumber, low: 0, high: 100},
	{name: "mirostat_eta", in: both, mode: pass, kind: kindNumber, low: 0, high: 10},
	{name: "min_keep", in: both, mode: pass, kind: kindInt, low: 0, high: 1 << 20},
	{name: "seed", in: both, mode: pass, kind: kindSeed},
	{name: "frequency_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "presence_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "repeat_penalty", in: both, mode: pass, kind: kindNumber, low: 0.01, high: 100},
	{name: "repetition_penalty", in: both, mode: mapped, kind: kindNumber, low: 0.01, high: 100, to: rewrite{before: `"repeat_penalty":`}},
	// The engine keeps as many tokens as these say, for each request.
	{name: "repeat_last_n", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 17},
	{name: "dry_penalty_last_n", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 17},
	{name: "dry_multiplier", in: both, mode: pass, kind: kindNumber, low: 0, high: 100},
	{name: "dry_base", in: both, mode: pass, kind: kindNumber, low: 0, high: 100},
	{name: "dry_allowed_length", in: both, mode: pass, kind: kindInt, low: 0, high: 1 << 17},
	{name: "dry_sequence_breakers", in: both, mode: pass, kind: kindTexts, high: 64},
	{name: "logit_bias", in: both, mode: pass, kind: kindOpaque, high: 64 << 10},

	// Where an answer ends.
	{name: "stop", in: both, mode: pass, kind: kindStop},
	{name: "ignore_eos", in: both, mode: pass, kind: kindBool},
	{name: "n_indent", in: both, mode: pass, kind: kindInt, low: 0, high: 1 << 10},
	{name: "t_max_predict_ms", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 31},
	{name: "reasoning_budget_tokens", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 20},
	{name: "thinking_budget_tokens", in: Chat, mode: pass, kind: kindInt, low: -1, high: 1 << 20},

	// How the prompt is rendered. The variables of a template are listed one by one, for
	// the server's own are among them.
	{name: "add_generation_prompt", in: Chat, mode: pass, kind: kindBool},
	{name: "continue_final_message", in: both, mode: pass, kind: kindBool},
	{name: "reasoning_effort", in: Chat, mode: pass, kind: kindEffort},
	{name: "chat_template_kwargs", in: Chat, mode: pass, kind: kindScalars, words: "enable_thinking thinking thinking_budget"},
	{name: "tools", in: Chat, mode: pass, kind: kindTools},
	// A tool that is named is auto to this engine, in silence.
	{name: "tool_choice", in: Chat, mode: pass, kind: kindWords, words: "none auto required"},
	{name: "parallel_tool_calls", in: Chat, mode: pass, kind: kindBool},

	// The form of the answer.
	{name: "response_format", in: Chat, mode: pass, kind: kindFormat, words: "text json_object json_schema"},
	{name: "grammar", in: both, mode: pass, kind: kindGrammar},
	{name: "json_schema", in: both, mode: pass, kind: kindSchema},
	{name: "guided_json", in: both, mode: mapped, kind: kindSchema, to: rewrite{before: `"json_schema":`, form: formObject}},
	{name: "guided_grammar", in: both, mode: mapped, kind: kindGrammar, to: rewrite{before: `"grammar":`}},
	{name: "guided_choice", in: both, mode: mapped, kind: kindChoices, to: rewrite{before: `"grammar":`, form: formGBNF}},
	{name: "guided_regex", in: both, mode: off, kind: kindEmpty},
	{name: "structured_outputs", in: both, mode: off, kind: kindEmpty},
	{name: "reasoning_format", in: both, mode: pass, kind: kindWords, words: "none auto deepseek deepseek-legacy"},
	{name: "parse_tool_calls", in: both, mode: pass, kind: kindBool},
	// Of a completion they would come in the shape that a chat has.
	{name: "logprobs", in: Chat, mode: pass, kind: kindLogprobs, low: 0, high: 20},
	{name: "logprobs", in: Completions, mode: off, kind: kindFalse},
	{name: "top_logprobs", in: Chat, mode: pass, kind: kindInt, low: 0, high: 20},
	{name: "post_sampling_probs", in: both, mode: pass, kind: kindBool},

	// For whoever knows the model well.
	{name: "samplers", in: both, mode: grant, kind: kindTexts, high: 32},
	{name: "reasoning_budget_message", in: both, mode: grant, kind: kindText, high: 4 << 10},
	{name: "reasoning_budget_start_tag", in: both, mode: grant, kind: kindText, high: 256},
	{name: "reasoning_budget_end_tag", in: both, mode: grant, kind: kindText, high: 256},
	{name: "reasoning_budget_end_tags", in: both, mode: grant, kind: kindTexts, high: 16},

	// Without effect here.
	{name: "user", in: both, mode: drop, kind: kindText},
	{name: "metadata", in: both, mode: drop, kind: kindObject},
	{name: "prompt_cache_key", in: both, mode: drop, kind: kindText},
	{name: "prompt_cache_retention", in: both, mode: drop, kind: kindWords},
	{name: "sse_ping_interval", in: both, mode: drop, kind: kindNumber, low: -1, high: 1 << 31},
	{name: "guided_decoding_backend", in: both, mode: drop, kind: kindText},

	// What would tell about others, or about the server.
	{name: "verbose", in: both, mode: never, reason: disclosure()},
	{name: "timings_per_token", in: both, mode: off, kind: kindFalse},
	{name: "return_progress", in: both, mode: off, kind: kindFalse},
	{name: "return_tokens", in: both, mode: off, kind: kindFalse},
	{name: "response_fields", in: both, mode: never, reason: disclosure()},

	// Not a tenant's to set.
	{name: "n_predict", in: both, mode: never, reason: otherName()},
	{name: "n_cmpl", in: both, mode: never, reason: otherName()},
	{name: "n_probs", in: both, mode: never, reason: otherName()},
	{name: "n_keep", in: both, mode: never, reason: shift()},
	{name: "n_discard", in: both, mode: never, reason: shift()},
	{name: "backend_sampling", in: both, mode: never, reason: engine()},
	{name: "chat_format", in: both, mode: never, reason: engine()},
	{name: "chat_parser", in: both, mode: never, reason: engine()},
	{name: "grammar_lazy", in: both, mode: never, reason: engine()},
	{name: "grammar_triggers", in: both, mode: never, reason: engine()},
	{name: "preserved_tokens", in: both, mode: never, reason: engine()},
	{name: "reasoning_control", in: both, mode: never, reason: fault.Fixed("it lets anybody who knows its id end an answer")},

	// OpenAI's own that this engine would ignore in silence, and what it reads to no
	// effect.
	{name: "echo", in: both, mode: off, kind: kindFalse},
	{name: "best_of", in: Completions, mode: off, kind: kindOne},
	{name: "suffix", in: Completions, mode: off, kind: kindEmpty},
	{name: "store", in: both, mode: off, kind: kindFalse},
	{name: "functions", in: Chat, mode: off, kind: kindEmpty},
	{name: "function_call", in: Chat, mode: off, kind: kindWord},
	{name: "service_tier", in: both, mode: off, kind: kindWord},
	{name: "verbosity", in: Chat, mode: off, kind: kindWord, words: "medium"},
	{name: "modalities", in: Chat, mode: off, kind: kindEmpty, words: `["text"]`},
	{name: "audio", in: Chat, mode: off, kind: kindEmpty},
	{name: "prediction", in: Chat, mode: off, kind: kindEmpty},
	{name: "web_search_options", in: Chat, mode: off, kind: kindEmpty},
}

func disclosure() fault.Arg { return fault.Fixed("it makes the server tell about itself") }
func otherName() fault.Arg {
	return fault.Fixed("it is another name of a field that is counted, and would win over it")
}
func shift() fault.Arg {
	return fault.Fixed("it throws tokens away where a prompt that is too long is refused")
}

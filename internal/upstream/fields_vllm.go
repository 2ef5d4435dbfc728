package upstream

import "bulkhead.dev/bulkhead/internal/fault"

// vllmFields is the allow-list of vLLM, for its single server and for its NIXL and
// Mooncake pairs. It is read only. It was judged against the schema of 0.32.0
// (testdata/vllm/0.32.0/fields-*.json): each name there has a row here or is reserved.
//
// Two things are peculiar to this engine. A name that it does not know it ignores, so that
// a field of another engine or of an older version would be without effect and without a
// word: what people still send is mapped, dropped or refused here. And whatever decides
// how the prompt reads goes to both legs, for decode takes prefill's pages only for the
// same tokens; what decides when an answer ends goes to decode alone, for Mooncake's
// prefill hands over nothing unless it ended by its length.
var vllmFields = [...]field{
	// What the gateway reads and writes itself, beside gatewayFields.
	{name: "max_completion_tokens", in: Chat, mode: mapped, kind: kindMax},
	{name: "n", in: both, mode: mapped, kind: kindN},
	{name: "priority", in: both, mode: mapped, kind: kindPriority},

	// Sampling, within the bounds that the engine itself holds.
	{name: "temperature", in: both, mode: pass, kind: kindNumber, low: 0, high: 2},
	{name: "top_p", in: both, mode: pass, kind: kindShare},
	{name: "top_k", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 20},
	{name: "min_p", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "seed", in: both, mode: pass, kind: kindSeed},
	{name: "frequency_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "presence_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "repetition_penalty", in: both, mode: pass, kind: kindNumber, low: 0.01, high: 100},
	{name: "logit_bias", in: both, mode: pass, kind: kindObject, high: 64 << 10},
	{name: "allowed_token_ids", in: both, mode: pass, kind: kindTokens, high: 4096},
	{name: "bad_words", in: both, mode: pass, kind: kindTexts, high: 64},

	// Where an answer ends.
	{name: "stop", in: both, mode: pass, kind: kindStop, leg: decodeLeg},
	{name: "stop_token_ids", in: both, mode: pass, kind: kindTokens, high: 128, leg: decodeLeg},
	{name: "include_stop_str_in_output", in: both, mode: pass, kind: kindBool, leg: decodeLeg},
	{name: "ignore_eos", in: both, mode: pass, kind: kindBool, leg: decodeLeg},
	{name: "min_tokens", in: both, mode: pass, kind: kindInt, low: 0, high: 1 << 20, leg: decodeLeg},
	{name: "thinking_token_budget", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 20, leg: decodeLeg},
	// The engine walks over every pattern length at every token, in the loop that serves
	// all tenants.
	{name: "repetition_detection", in: both, mode: grant, kind: kindKeys,
		words: "max_pattern_size min_pattern_size min_count", leg: decodeLeg},

	// How the prompt is rendered.
	{name: "add_special_tokens", in: both, mode: pass, kind: kindBool},
	{name: "add_generation_prompt", in: Chat, mode: pass, kind: kindBool},
	{name: "continue_final_message", in: Chat, mode: pass, kind: kindBool},
	{name: "reasoning_effort", in: Chat, mode: pass, kind: kindEffort},
	{name: "chat_template_kwargs", in: Chat, mode: pass, kind: kindScalars,
		words: "enable_thinking thinking thinking_budget"},
	{name: "tools", in: Chat, mode: pass, kind: kindTools},
	{name: "tool_choice", in: Chat, mode: pass, kind: kindToolChoice},
	{name: "parallel_tool_calls", in: Chat, mode: pass, kind: kindBool},

	// The form of the answer.
	{name: "response_format", in: both, mode: pass, kind: kindFormat,
		words: "text json_object json_schema structural_tag"},
	// _backend is missing: which library compiles a grammar is the operator's choice.
	{name: "structured_outputs", in: both, mode: pass, kind: kindKeys,
		words: "json regex choice grammar json_object structural_tag disable_any_whitespace " +
			"disable_additional_properties whitespace_pattern"},
	{name: "guided_json", in: both, mode: mapped, kind: kindSchema, to: structured("json", formRaw)},
	{name: "guided_regex", in: both, mode: mapped, kind: kindGrammar, to: structured("regex", formRaw)},
	{name: "guided_choice", in: both, mode: mapped, kind: kindChoices, to: structured("choice", formRaw)},
	{name: "guided_grammar", in: both, mode: mapped, kind: kindGrammar, to: structured("grammar", formRaw)},
	{name: "guided_whitespace_pattern", in: both, mode: off, kind: kindEmpty},
	{name: "guided_decoding_backend", in: both, mode: drop, kind: kindText},
	{name: "include_reasoning", in: Chat, mode: pass, kind: kindBool},
	{name: "skip_special_tokens", in: both, mode: pass, kind: kindBool},
	{name: "spaces_between_special_tokens", in: both, mode: pass, kind: kindBool},
	{name: "stream_interval", in: both, mode: pass, kind: kindInt, low: 1, high: 1024, leg: decodeLeg},
	{name: "logprobs", in: both, mode: pass, kind: kindLogprobs, low: 0, high: 20},
	{name: "top_logprobs", in: Chat, mode: pass, kind: kindInt, low: 0, high: 20},
	{name: "logprob_token_ids", in: both, mode: pass, kind: kindTokens, high: 128},
	{name: "return_tokens_as_token_ids", in: both, mode: pass, kind: kindBool},

	// What gives the prompt back. On a pair decode would compute the prompt that it has
	// just been handed a second time, so there it is not to be had.
	{name: "echo", in: both, mode: grant, kind: kindBool, on: plains},
	{name: "echo", in: both, mode: off, kind: kindFalse, on: pairs},
	{name: "prompt_logprobs", in: both, mode: grant, kind: kindInt, low: 0, high: 20, on: plains},
	{name: "prompt_logprobs", in: both, mode: never, on: pairs, reason: recompute()},
	{name: "return_prompt_text", in: Chat, mode: off, kind: kindFalse},
	{name: "return_token_ids", in: both, mode: off, kind: kindFalse},

	// Without effect here: the engine reads them for other paths or other settings.
	{name: "user", in: both, mode: drop, kind: kindText},
	{name: "metadata", in: both, mode: drop, kind: kindObject},
	{name: "prompt_cache_key", in: both, mode: drop, kind: kindText},
	{name: "length_penalty", in: both, mode: drop, kind: kindNumber, low: -100, high: 100},
	{name: "return_token_offsets", in: both, mode: drop, kind: kindBool},
	{name: "return_mm_kwargs", in: both, mode: drop, kind: kindBool},
	{name: "mm_payload", in: both, mode: drop, kind: kindWords, words: "tensors none"},
	{name: "truncation_side", in: both, mode: drop, kind: kindWords, words: "left right"},

	// Beam search answers with sequences of which no leg's id or count speaks, and its
	// prefill hands over nothing.
	{name: "use_beam_search", in: both, mode: off, kind: kindFalse},
	{name: "routed_experts_prompt_start", in: both, mode: off, kind: kindZero},

	// Not a tenant's to set.
	{name: "truncate_prompt_tokens", in: both, mode: never, reason: shorten()},
	{name: "documents", in: Chat, mode: never, reason: uncounted()},
	{name: "media_io_kwargs", in: Chat, mode: never, reason: engine()},
	{name: "mm_processor_kwargs", in: Chat, mode: never, reason: engine()},
	{name: "watermarking", in: both, mode: never, reason: watermark()},

	// OpenAI's own that this engine would ignore in silence.
	{name: "best_of", in: Completions, mode: off, kind: kindOne},
	{name: "suffix", in: Completions, mode: off, kind: kindEmpty},
	{name: "store", in: both, mode: off, kind: kindFalse},
	{name: "functions", in: Chat, mode: off, kind: kindEmpty},
	{name: "function_call", in: Chat, mode: off, kind: kindWord},
	{name: "service_tier", in: both, mode: off, kind: kindWord},
	{name: "verbosity", in: Chat, mode: off, kind: kindWord},
	{name: "modalities", in: Chat, mode: off, kind: kindEmpty},
	{name: "audio", in: Chat, mode: off, kind: kindEmpty},
	{name: "prediction", in: Chat, mode: off, kind: kindEmpty},
	{name: "web_search_options", in: Chat, mode: off, kind: kindEmpty},
}

// structured is the member that one of the old guided fields becomes. The engine takes one
// kind of constraint a request, so two of them in one body are refused as repeated.
func structured(kind string, f form) rewrite {
	return rewrite{before: `"structured_outputs":{"` + kind + `":`, form: f, after: "}"}
}

func recompute() fault.Arg {
	return fault.Fixed("it makes decode compute the whole prompt again, which a pair is there to avoid")
}
func shorten() fault.Arg {
	return fault.Fixed("it cuts the prompt, and a prompt that is too long is refused instead")
}
func uncounted() fault.Arg {
	return fault.Fixed("it adds text to the prompt that is not counted; put it into a message")
}
func watermark() fault.Arg {
	return fault.Fixed("the operator decides whether answers are watermarked")
}

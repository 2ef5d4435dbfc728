package upstream

import "bulkhead.dev/bulkhead/internal/fault"

// sglangFields is the allow-list of SGLang, for its single server and for its pairs. It is
// read only. It was judged against the schemas of 0.5.19 and 0.5.20
// (testdata/sglang/*/fields-*.json): each name there has a row here or is reserved.
//
// What is peculiar to this engine: prefill draws the first token, so whatever steers
// sampling, the grammar and the prompt goes to both legs; what says when an answer ends is
// decode's alone, for prefill refuses min_tokens beside its one token, and a refusal
// there leaves decode waiting. A name that it does not know it ignores in silence. Members
// that ask for more in the answer are off, since no client would be shown it (G-8).
var sglangFields = [...]field{
	// What the gateway reads and writes itself, beside gatewayFields.
	{name: "max_completion_tokens", in: Chat, mode: mapped, kind: kindMax},
	// With n the engine gives its answers ids of its own, and one room serves one of them.
	{name: "n", in: both, mode: mapped, kind: kindN},
	{name: "priority", in: both, mode: mapped, kind: kindPriority},

	// Sampling, within the bounds that the engine itself holds.
	{name: "temperature", in: both, mode: pass, kind: kindNumber, low: 0, high: 100},
	{name: "top_p", in: both, mode: pass, kind: kindShare},
	{name: "top_k", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 30},
	{name: "min_p", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "frequency_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "presence_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "repetition_penalty", in: both, mode: pass, kind: kindNumber, low: 0.001, high: 2},
	{name: "logit_bias", in: both, mode: pass, kind: kindObject, high: 64 << 10},
	{name: "seed", in: both, mode: pass, kind: kindSeed},

	// When an answer ends.
	{name: "stop", in: both, mode: pass, kind: kindStop, leg: decodeLeg},
	{name: "stop_token_ids", in: both, mode: pass, kind: kindTokens, high: 128, leg: decodeLeg},
	{name: "stop_regex", in: both, mode: pass, kind: kindTexts, high: 4, leg: decodeLeg},
	{name: "no_stop_trim", in: both, mode: pass, kind: kindBool, leg: decodeLeg},
	{name: "ignore_eos", in: both, mode: pass, kind: kindBool, leg: decodeLeg},
	{name: "min_tokens", in: both, mode: pass, kind: kindInt, low: 0, high: 1 << 20, leg: decodeLeg},

	// Grammars. The engine takes one at most.
	{name: "response_format", in: both, mode: pass, kind: kindFormat, words: "text json_object json_schema structural_tag"},
	{name: "regex", in: both, mode: pass, kind: kindGrammar},
	{name: "ebnf", in: both, mode: pass, kind: kindGrammar},
	{name: "json_schema", in: Completions, mode: mapped, kind: kindSchema, to: rewrite{`"json_schema":`, formQuoted, ""}},
	{name: "guided_json", in: Chat, mode: mapped, kind: kindSchema, to: rewrite{
		`"response_format":{"type":"json_schema","json_schema":{"name":"guided","schema":`, formObject, "}}"}},
	{name: "guided_json", in: Completions, mode: mapped, kind: kindSchema, to: rewrite{`"json_schema":`, formQuoted, ""}},
	{name: "guided_regex", in: both, mode: mapped, kind: kindGrammar, to: rewrite{`"regex":`, formRaw, ""}},
	{name: "guided_choice", in: both, mode: mapped, kind: kindChoices, to: rewrite{`"regex":`, formRegex, ""}},
	{name: "guided_grammar", in: both, mode: mapped, kind: kindGrammar, to: rewrite{`"ebnf":`, formRaw, ""}},
	{name: "guided_decoding_backend", in: both, mode: drop, kind: kindText, high: 256},
	{name: "guided_whitespace_pattern", in: both, mode: drop, kind: kindText, high: 256},

	// Tools, thinking and the shape of the prompt.
	{name: "tools", in: Chat, mode: pass, kind: kindTools},
	{name: "tool_choice", in: Chat, mode: pass, kind: kindToolChoice},
	{name: "parallel_tool_calls", in: Chat, mode: pass, kind: kindBool},
	{name: "reasoning_effort", in: Chat, mode: pass, kind: kindEffort, low: 0, high: 0.99},
	// reasoning is no field of the model: a validator reads these of its keys before the
	// model is made, and no others.
	{name: "reasoning", in: Chat, mode: pass, kind: kindScalars, words: "effort reasoning_effort enabled enable"},
	{name: "chat_template_kwargs", in: Chat, mode: pass, kind: kindScalars, words: "enable_thinking thinking thinking_budget"},
	{name: "separate_reasoning", in: Chat, mode: pass, kind: kindBool},
	{name: "stream_reasoning", in: Chat, mode: pass, kind: kindBool},
	{name: "continue_final_message", in: Chat, mode: pass, kind: kindBool},
	{name: "skip_special_tokens", in: both, mode: pass, kind: kindBool},
	{name: "task", in: Chat, mode: pass, kind: kindWords, words: "action query authority domain title read_url"},
	// Each multiplies what one picture costs.
	{name: "max_dynamic_patch", in: Chat, mode: grant, kind: kindInt, low: 1, high: 64},
	{name: "min_dynamic_patch", in: Chat, mode: grant, kind: kindInt, low: 1, high: 64},
	{name: "use_audio_in_video", in: Chat, mode: grant, kind: kindBool},
	{name: "images_config", in: both, mode: never, reason: engine()},
	{name: "video_config", in: Chat, mode: never, reason: engine()},

	// Probabilities of the answer's tokens.
	{name: "logprobs", in: both, mode: pass, kind: kindLogprobs, low: 0, high: 20},
	{name: "top_logprobs", in: Chat, mode: pass, kind: kindInt, low: 0, high: 20},
	// Decode of a pair has not computed the prompt and cannot give it back.
	{name: "echo", in: Completions, mode: grant, kind: kindBool, on: plains},
	{name: "echo", in: Completions, mode: off, kind: kindFalse, on: pairs},
	// Text of a prompt that its bytes would not be counted of.
	{name: "suffix", in: Completions, mode: off, kind: kindEmpty},
	{name: "best_of", in: Completions, mode: off, kind: kindOne},

	// What would come back in members that no client is shown.
	{name: "return_cached_tokens_details", in: both, mode: off, kind: kindFalse},
	{name: "return_input_ids_in_sglext", in: Chat, mode: off, kind: kindFalse},
	{name: "return_meta_info", in: Chat, mode: off, kind: kindFalse},
	{name: "return_output_ids_in_sglext", in: Chat, mode: off, kind: kindFalse},
	{name: "return_prompt_token_ids", in: Chat, mode: off, kind: kindFalse},
	{name: "return_routed_experts", in: both, mode: off, kind: kindFalse},
	{name: "return_sampling_mask", in: Chat, mode: off, kind: kindFalse},
	{name: "return_spec_tokens_details", in: both, mode: off, kind: kindFalse},
	{name: "return_token_ids", in: both, mode: off, kind: kindFalse},
	{name: "routed_experts_start_len", in: both, mode: off, kind: kindZero},

	// Labels of the engine's own metrics: each value is a new series that stays.
	{name: "custom_labels", in: Completions, mode: never, reason: labels()},
	// It is code that the engine unpacks and runs.
	{name: "custom_logit_processor", in: both, mode: never, reason: code()},

	// OpenAI's, which this engine has no use for.
	{name: "user", in: both, mode: drop, kind: kindText},
	{name: "metadata", in: both, mode: drop, kind: kindObject},
	{name: "prompt_cache_key", in: both, mode: drop, kind: kindText},
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

func labels() fault.Arg { return fault.Fixed("it writes into the metrics of the engine") }
func code() fault.Arg   { return fault.Fixed("it is code that the engine would run") }

package upstream

// openaiFields is the allow-list of hosted APIs and of others of which nothing else is
// known. It is read only. What costs more than tokens, or makes the other side fetch
// something, is for the operator to grant.
var openaiFields = [...]field{
	// What the gateway reads and writes itself, beside gatewayFields.
	{name: "max_completion_tokens", in: Chat, mode: mapped, kind: kindMax},
	{name: "n", in: both, mode: mapped, kind: kindN},

	// Sampling.
	{name: "temperature", in: both, mode: pass, kind: kindNumber, low: 0, high: 2},
	{name: "top_p", in: both, mode: pass, kind: kindShare},
	{name: "seed", in: both, mode: pass, kind: kindSeed},
	{name: "stop", in: both, mode: pass, kind: kindStop},
	{name: "frequency_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "presence_penalty", in: both, mode: pass, kind: kindNumber, low: -2, high: 2},
	{name: "logit_bias", in: both, mode: pass, kind: kindObject, high: 64 << 10},
	{name: "logprobs", in: both, mode: pass, kind: kindLogprobs, low: 0, high: 20},
	{name: "top_logprobs", in: Chat, mode: pass, kind: kindInt, low: 0, high: 20},
	// OpenAI itself refuses these; many of its shape take them.
	{name: "top_k", in: both, mode: pass, kind: kindInt, low: -1, high: 1 << 20},
	{name: "min_p", in: both, mode: pass, kind: kindNumber, low: 0, high: 1},
	{name: "repetition_penalty", in: both, mode: pass, kind: kindNumber, low: 0.01, high: 100},
	{name: "stop_token_ids", in: both, mode: pass, kind: kindTokens, high: 128},
	{name: "ignore_eos", in: both, mode: pass, kind: kindBool},
	{name: "min_tokens", in: both, mode: pass, kind: kindInt, low: 0, high: 1 << 20},
	{name: "skip_special_tokens", in: both, mode: pass, kind: kindBool},
	{name: "chat_template_kwargs", in: Chat, mode: pass, kind: kindScalars, words: "enable_thinking thinking thinking_budget"},

	// Tools and the form of the answer.
	{name: "tools", in: Chat, mode: pass, kind: kindTools},
	{name: "tool_choice", in: Chat, mode: pass, kind: kindToolChoice},
	{name: "parallel_tool_calls", in: Chat, mode: pass, kind: kindBool},
	{name: "functions", in: Chat, mode: pass, kind: kindFunctions},
	{name: "function_call", in: Chat, mode: pass, kind: kindToolChoice},
	{name: "response_format", in: Chat, mode: pass, kind: kindFormat, words: "text json_object json_schema"},
	{name: "guided_json", in: Chat, mode: mapped, kind: kindSchema,
		to: rewrite{before: `"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":`, form: formObject, after: "}}"}},
	{name: "guided_regex", in: both, mode: off, kind: kindEmpty},
	{name: "guided_choice", in: both, mode: off, kind: kindEmpty},
	{name: "guided_grammar", in: both, mode: off, kind: kindEmpty},
	{name: "reasoning_effort", in: Chat, mode: pass, kind: kindEffort},
	{name: "verbosity", in: Chat, mode: pass, kind: kindWords, words: "low medium high"},
	{name: "suffix", in: Completions, mode: pass, kind: kindText, high: 64 << 10},

	// By grant: another price, another source, or the prompt back.
	{name: "service_tier", in: both, mode: grant, kind: kindWords, words: "auto default flex scale priority standard_only"},
	{name: "modalities", in: Chat, mode: grant, kind: kindTexts, high: 4},
	{name: "audio", in: Chat, mode: grant, kind: kindOpaque, high: 4 << 10},
	{name: "prediction", in: Chat, mode: grant, kind: kindOpaque, high: 64 << 10},
	{name: "web_search_options", in: Chat, mode: grant, kind: kindOpaque, high: 4 << 10},
	{name: "echo", in: Completions, mode: grant, kind: kindBool},

	// Told to nobody.
	{name: "user", in: both, mode: drop, kind: kindText},
	{name: "metadata", in: both, mode: drop, kind: kindObject},
	{name: "prompt_cache_key", in: both, mode: drop, kind: kindText},
	{name: "prompt_cache_retention", in: both, mode: drop, kind: kindWords},
	{name: "store", in: both, mode: off, kind: kindFalse},
	{name: "best_of", in: Completions, mode: off, kind: kindOne},
}

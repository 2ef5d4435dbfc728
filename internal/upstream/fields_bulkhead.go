package upstream

// bulkheadFields is the allow-list of our own workers. It is read only. What the embedded
// engine cannot do is off, so that it is refused and not ignored.
var bulkheadFields = [...]field{
	{name: "max_completion_tokens", in: Chat, mode: mapped, kind: kindMax},
	{name: "temperature", in: both, mode: pass, kind: kindNumber, low: 0, high: 2},
	{name: "top_p", in: both, mode: pass, kind: kindShare},
	{name: "seed", in: both, mode: pass, kind: kindSeed},
	{name: "stop", in: both, mode: pass, kind: kindStop, leg: decodeLeg},

	{name: "user", in: both, mode: drop, kind: kindText},
	{name: "metadata", in: both, mode: drop, kind: kindObject},
	{name: "prompt_cache_key", in: both, mode: drop, kind: kindText},

	{name: "n", in: both, mode: off, kind: kindOne},
	{name: "best_of", in: Completions, mode: off, kind: kindOne},
	{name: "store", in: both, mode: off, kind: kindFalse},
	{name: "echo", in: Completions, mode: off, kind: kindFalse},
	{name: "suffix", in: Completions, mode: off, kind: kindEmpty},
	{name: "frequency_penalty", in: both, mode: off, kind: kindZero},
	{name: "presence_penalty", in: both, mode: off, kind: kindZero},
	{name: "logit_bias", in: both, mode: off, kind: kindEmpty},
	{name: "logprobs", in: both, mode: off, kind: kindFalse},
	{name: "top_logprobs", in: Chat, mode: off, kind: kindZero},
	{name: "tools", in: Chat, mode: off, kind: kindEmpty},
	{name: "functions", in: Chat, mode: off, kind: kindEmpty},
	{name: "tool_choice", in: Chat, mode: off, kind: kindWord},
	{name: "function_call", in: Chat, mode: off, kind: kindWord},
	{name: "parallel_tool_calls", in: Chat, mode: off, kind: kindNoBool},
	{name: "response_format", in: Chat, mode: off, kind: kindPlain},
	{name: "service_tier", in: both, mode: off, kind: kindWord},
	{name: "reasoning_effort", in: Chat, mode: off, kind: kindWord},
	{name: "verbosity", in: Chat, mode: off, kind: kindWord, words: "medium"},
	{name: "modalities", in: Chat, mode: off, kind: kindEmpty, words: `["text"]`},
	{name: "audio", in: Chat, mode: off, kind: kindEmpty},
	{name: "prediction", in: Chat, mode: off, kind: kindEmpty},
	{name: "web_search_options", in: Chat, mode: off, kind: kindEmpty},
}

package upstream

import "bulkhead.dev/bulkhead/internal/fault"

// Endpoint is a path of the dialect that a tenant may reach. There is no other.
type Endpoint uint8

const (
	// Chat is /v1/chat/completions.
	Chat Endpoint = 1 << iota
	// Completions is /v1/completions.
	Completions
)

// both marks a field of either endpoint.
const both = Chat | Completions

// Path returns the HTTP path of the endpoint, at the gateway and at the workers.
func (e Endpoint) Path() string {
	if e == Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// mode says what becomes of a listed field (G-1).
type mode uint8

const (
	// pass: the value is checked, its bytes go to both legs untouched.
	pass mode = iota
	// drop: the value is checked and cut out; the client is told that it had no effect.
	drop
	// mapped: the value is read and cut out; the legs get what the gateway writes.
	mapped
	// off: the model cannot do it. Only the value that means "not wanted" is taken, and
	// cut out.
	off
)

// kind says how the value of a field is read.
type kind uint8

const (
	kindModel kind = iota
	kindMessages
	kindPrompt
	kindStream
	kindStreamOptions
	kindMax
	kindNumber // from low to high
	kindShare  // above 0, at most 1
	kindSeed
	kindStop
	kindText
	kindObject
	kindBool
	kindOne    // 1
	kindFalse  // false
	kindZero   // 0
	kindEmpty  // [], {} or ""
	kindWord   // "none", "auto" or "default"
	kindFormat // {"type":"text"}
)

// field is one line of the allow-list. Every optional field also takes null, which
// means that it was not given.
type field struct {
	name      string
	in        Endpoint
	mode      mode
	kind      kind
	low, high float64
}

// fields is the allow-list of body fields at top level, at most 64 of them. It is read
// only. What is neither here nor in reserved is refused as unknown.
var fields = [...]field{
	{name: "model", in: both, mode: mapped, kind: kindModel},
	{name: "messages", in: Chat, mode: pass, kind: kindMessages},
	{name: "prompt", in: Completions, mode: pass, kind: kindPrompt},
	{name: "stream", in: both, mode: mapped, kind: kindStream},
	{name: "stream_options", in: both, mode: mapped, kind: kindStreamOptions},
	{name: "max_tokens", in: both, mode: mapped, kind: kindMax},
	{name: "max_completion_tokens", in: Chat, mode: mapped, kind: kindMax},
	{name: "temperature", in: both, mode: pass, kind: kindNumber, low: 0, high: 2},
	{name: "top_p", in: both, mode: pass, kind: kindShare},
	{name: "seed", in: both, mode: pass, kind: kindSeed},
	{name: "stop", in: both, mode: pass, kind: kindStop},

	{name: "user", in: both, mode: drop, kind: kindText},
	{name: "metadata", in: both, mode: drop, kind: kindObject},
	{name: "safety_identifier", in: both, mode: drop, kind: kindText},
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
	{name: "parallel_tool_calls", in: Chat, mode: off, kind: kindBool},
	{name: "response_format", in: Chat, mode: off, kind: kindFormat},
	{name: "service_tier", in: both, mode: off, kind: kindWord},
	{name: "reasoning_effort", in: Chat, mode: off, kind: kindWord},
	{name: "verbosity", in: Chat, mode: off, kind: kindWord},
	{name: "modalities", in: Chat, mode: off, kind: kindEmpty},
	{name: "audio", in: Chat, mode: off, kind: kindEmpty},
	{name: "prediction", in: Chat, mode: off, kind: kindEmpty},
	{name: "web_search_options", in: Chat, mode: off, kind: kindEmpty},
}

// messageFields is the allow-list inside a message, as fields is at top level. role and
// content are read by hand; the rest is what client libraries send back from an answer.
var messageFields = [...]field{
	{name: "role"},
	{name: "content"},
	{name: "name", mode: off, kind: kindEmpty},
	{name: "refusal", mode: off, kind: kindEmpty},
	{name: "tool_calls", mode: off, kind: kindEmpty},
	{name: "tool_call_id", mode: off, kind: kindEmpty},
	{name: "function_call", mode: off, kind: kindEmpty},
	{name: "audio", mode: off, kind: kindEmpty},
	{name: "annotations", mode: off, kind: kindEmpty},
}

// never is a field that no client may set, at any depth that is inspected.
type never struct {
	name   string
	reason fault.Arg
}

// reserved lists the engine-control fields of every known dialect. The allow-list would
// refuse them as unknown; here they are refused as what they are.
var reserved = [...]never{
	{"bootstrap_host", handOff()}, {"bootstrap_port", handOff()}, {"bootstrap_room", handOff()},
	{"bootstrap_pair_key", handOff()}, {"kv_transfer_params", handOff()}, {"ec_transfer_params", handOff()},
	{"disaggregated_params", handOff()}, {"disagg_prefill_resp", handOff()}, {"disagg_prefill_dp_rank", handOff()},
	{"transfer_id", handOff()},
	{"routed_dp_rank", placement()}, {"data_parallel_rank", placement()}, {"id_slot", placement()},
	{"slot_id", placement()}, {"priority", placement()},
	{"rid", identity()}, {"request_id", identity()}, {"session_id", identity()}, {"session_params", identity()},
	{"conversation_id", identity()}, {"conversation", identity()}, {"previous_response_id", identity()},
	{"background", identity()},
	{"cache_salt", cache()}, {"extra_key", cache()}, {"cache_prompt", cache()}, {"cache_hit_threshold", cache()},
	{"lora_path", engine()}, {"lora_id", engine()}, {"return_hidden_states", engine()},
	{"custom_logit_processor", engine()}, {"custom_params", engine()}, {"input_embeds", engine()},
	{"input_embeddings", engine()}, {"input_ids", engine()}, {"prompt_token_ids", engine()},
	{"token_ids_logprob", engine()}, {"return_bytes", engine()}, {"log_metrics", engine()}, {"no_logs", engine()},
	{"chat_template", engine()}, {"chat_template_kwargs", engine()}, {"sampling_params", engine()},
	{"vllm_xargs", engine()}, {"nvext", engine()}, {"extra_body", engine()}, {"extra_args", engine()},
}

func handOff() fault.Arg   { return fault.Fixed("it steers the hand-off between the workers") }
func placement() fault.Arg { return fault.Fixed("it steers which worker or slot serves a request") }
func identity() fault.Arg  { return fault.Fixed("it names a request or a session inside the workers") }
func cache() fault.Arg {
	return fault.Fixed("it decides who shares cached prompts, which follows from the key")
}
func engine() fault.Arg { return fault.Fixed("it reaches into the engine") }

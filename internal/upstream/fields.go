package upstream

import "bulkhead.dev/bulkhead/internal/fault"

// Endpoint is a path of the OpenAI API that a tenant may reach. There is no other.
type Endpoint uint8

const (
	// Chat is /v1/chat/completions.
	Chat Endpoint = 1 << iota
	// Completions is /v1/completions.
	Completions
)

// both marks a field of either endpoint.
const both = Chat | Completions

// Path returns the HTTP path of the endpoint, at the gateway and at the engines.
func (e Endpoint) Path() string {
	if e == Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// mode says what becomes of a listed field (G-1). Whatever the mode but never, null is
// taken for "not given" and cut out.
type mode uint8

const (
	// pass: the value is checked, its bytes go to the legs untouched.
	pass mode = iota
	// drop: the value is checked and cut out; the client is told that it had no effect.
	drop
	// mapped: the value is read and cut out; the legs get what the gateway writes, which
	// is the field's own form or, where there is none, follows from Control.
	mapped
	// grant: as pass if the operator granted the field by its name. false needs no grant.
	grant
	// never: no client may set it, for the row's reason.
	never
	// off: the engine cannot do it, or not here. Only the value that means "not wanted"
	// is taken, and cut out.
	off
)

// kind says how the value of a field is read and bounded.
type kind uint8

const (
	// Kinds that the gateway must understand; one row of each at most.
	kindModel kind = iota
	kindMessages
	kindPrompt
	kindStream
	kindStreamOptions
	kindMax      // a whole number above 0
	kindSeed     // any whole number
	kindStop     // a string or up to 4
	kindN        // 1 to Policy.MaxSequences
	kindPriority // any whole number
	kindSafety   // a string
	kindLogprobs // a bool, or a whole number from low to high

	// Scalars.
	kindBool
	kindInt    // a whole number from low to high
	kindNumber // from low to high
	kindShare  // above 0, at most 1
	kindText   // a string of at most high bytes; 0: of any length
	kindWords  // a string that is one of words
	kindEffort // a short string, or a number from low to high

	// Lists and objects.
	kindTokens  // a list of at most high token ids
	kindTexts   // a string or a list of at most high of them, each at most 4 KiB
	kindObject  // an object of the caller's own keys; at most high bytes, 0: of any length
	kindOpaque  // any value; at most high bytes, 0: of any length
	kindGrammar // a string of at most Policy.MaxSchema bytes
	kindSchema  // an object, or a string that holds one, of at most Policy.MaxSchema bytes
	kindChoices // a list of strings, together at most Policy.MaxSchema bytes

	// Objects that are inspected: unknown, reserved and repeated keys are refused in them.
	kindKeys       // its keys are words, their values opaque, at most Policy.MaxSchema bytes
	kindScalars    // its keys are words, their values scalars (chat_template_kwargs)
	kindFormat     // response_format, whose type is one of words
	kindTools      // tools, of type function
	kindFunctions  // functions: what tools were before
	kindToolChoice // "none", "auto", "required", or an object that names a function

	// The values that mean "not wanted", for off.
	kindOne    // 1
	kindFalse  // false
	kindZero   // 0
	kindEmpty  // [], {} or ""
	kindWord   // "none", "auto" or "default", or a word of the row
	kindPlain  // {"type":"text"}
	kindNoBool // true or false: both mean nothing here
)

// only says which leg of a pair a field is for.
type only uint8

const (
	eitherLeg only = iota
	// decodeLeg: prefill must not get it, for it would change what its one token is, or
	// be refused beside max_tokens 1 (stop, min_tokens ...).
	decodeLeg
)

// form says how the client's value is written anew.
type form uint8

const (
	// formRaw: its own bytes.
	formRaw form = iota
	// formQuoted: a string stays; any other value becomes the string of its JSON text.
	formQuoted
	// formObject: an object stays; a string becomes the object that it must hold.
	formObject
	// formRegex: a list of strings becomes the string of a regular expression that
	// matches exactly these.
	formRegex
	// formGBNF: a list of strings becomes the string of a llama.cpp grammar of these.
	formGBNF
)

// rewrite is what a mapped field becomes: one member of the body, before + form + after.
type rewrite struct {
	before string
	form   form
	after  string
}

// field is one line of an allow-list.
type field struct {
	name string
	in   Endpoint
	mode mode
	kind kind
	// low and high bound the value, as the kind says.
	low, high float64
	// words are the values, types or keys that the kind takes, separated by spaces.
	words string
	// on narrows the row to some of the dialects that its table serves; 0: all.
	on dialectSet
	// leg says which leg of a pair gets it.
	leg only
	// to is set for a mapped field that becomes another one.
	to rewrite
	// reason is told if the mode is never.
	reason fault.Arg
}

// dialectSet is a set of dialects.
type dialectSet uint16

// sole is the set of the given dialects; with more than one, join sets by |.
func sole(d Dialect) dialectSet { return 1 << d }

// pairs is the set of the dialects with two legs.
const pairs = dialectSet(1<<Bulkhead | 1<<SGLangPD | 1<<VLLMNixl | 1<<VLLMMooncake)

// plains is the set of the dialects with one.
const plains = dialectSet(1<<SGLang | 1<<VLLM | 1<<LlamaCPP | 1<<OpenAI)

// gatewayFields are the rows that every dialect has: what the gateway reads and writes
// itself, whoever answers. It is read only.
var gatewayFields = [...]field{
	{name: "model", in: both, mode: mapped, kind: kindModel},
	{name: "messages", in: Chat, mode: pass, kind: kindMessages},
	{name: "prompt", in: Completions, mode: pass, kind: kindPrompt},
	{name: "stream", in: both, mode: mapped, kind: kindStream},
	{name: "stream_options", in: both, mode: mapped, kind: kindStreamOptions},
	{name: "max_tokens", in: both, mode: mapped, kind: kindMax},
	{name: "safety_identifier", in: both, mode: drop, kind: kindSafety},
}

// table returns the allow-list of a dialect beyond gatewayFields: what is in neither of
// them nor in reserved is refused as unknown. A row stands for its name at its endpoints
// and dialects; there are no two for the same.
func table(d Dialect) []field {
	switch d {
	case Bulkhead:
		return bulkheadFields[:]
	case SGLang, SGLangPD:
		return sglangFields[:]
	case VLLM, VLLMNixl, VLLMMooncake:
		return vllmFields[:]
	case LlamaCPP:
		return llamacppFields[:]
	default:
		return openaiFields[:]
	}
}

// lookup returns the row of a dialect for a name.
func lookup(d Dialect, e Endpoint, name []byte) *field {
	if f := find(gatewayFields[:], d, e, name); f != nil {
		return f
	}
	return find(table(d), d, e, name)
}

func find(rows []field, d Dialect, e Endpoint, name []byte) *field {
	for i := range rows {
		f := &rows[i]
		if string(name) == f.name && f.in&e != 0 && (f.on == 0 || f.on&sole(d) != 0) {
			return f
		}
	}
	return nil
}

// Grantable says whether an operator can grant a field by this name to the tenants of a
// dialect: to say so is of use then, and of none otherwise.
func Grantable(d Dialect, name string) bool {
	if name == "prompt_token_ids" {
		return d != Bulkhead
	}
	rows := table(d)
	for i := range rows {
		if f := &rows[i]; f.name == name && f.mode == grant && (f.on == 0 || f.on&sole(d) != 0) {
			return true
		}
	}
	return false
}

// refusal is a field that no client may set, at any depth that is inspected.
type refusal struct {
	name   string
	reason fault.Arg
}

// reserved lists the engine-control fields of every known dialect. The allow-list would
// refuse them as unknown; here they are refused as what they are.
var reserved = [...]refusal{
	{"bootstrap_host", handOff()}, {"bootstrap_port", handOff()}, {"bootstrap_room", handOff()},
	{"bootstrap_pair_key", handOff()}, {"kv_transfer_params", handOff()}, {"ec_transfer_params", handOff()},
	{"disaggregated_params", handOff()}, {"disagg_prefill_resp", handOff()}, {"disagg_prefill_dp_rank", handOff()},
	{"transfer_id", handOff()}, {"do_remote_prefill", handOff()}, {"do_remote_decode", handOff()},
	{"remote_block_ids", handOff()}, {"remote_engine_id", handOff()}, {"remote_host", handOff()}, {"remote_port", handOff()},
	{"remote_request_id", handOff()}, {"remote_bootstrap_addr", handOff()},
	{"routed_dp_rank", placement()}, {"data_parallel_rank", placement()}, {"id_slot", placement()},
	{"slot_id", placement()}, {"priority", placement()},
	{"rid", identity()}, {"request_id", identity()}, {"session_id", identity()}, {"session_params", identity()},
	{"conversation_id", identity()}, {"conversation", identity()}, {"previous_response_id", identity()},
	{"background", identity()},
	{"cache_salt", cache()}, {"extra_key", cache()}, {"cache_prompt", cache()}, {"cache_hit_threshold", cache()},
	{"n_cache_reuse", cache()}, {"uuid", cache()},
	{"lora_path", engine()}, {"lora_id", engine()}, {"lora", engine()}, {"return_hidden_states", engine()},
	{"custom_logit_processor", engine()}, {"custom_params", engine()}, {"input_embeds", engine()},
	{"input_embeddings", engine()}, {"prompt_embeds", engine()}, {"input_ids", engine()}, {"prompt_token_ids", engine()},
	{"token_ids_logprob", engine()}, {"return_bytes", engine()}, {"log_metrics", engine()}, {"no_logs", engine()},
	{"chat_template", engine()}, {"chat_template_kwargs", engine()}, {"sampling_params", engine()},
	{"vllm_xargs", engine()}, {"nvext", engine()}, {"extra_body", engine()}, {"extra_args", engine()},
	{"n_predict", engine()}, {"n_cmpl", engine()}, {"samplers", engine()}, {"verbose", engine()},
}

func handOff() fault.Arg   { return fault.Fixed("it steers the hand-off between the workers") }
func placement() fault.Arg { return fault.Fixed("it steers which worker or slot serves a request") }
func identity() fault.Arg  { return fault.Fixed("it names a request or a session inside the workers") }
func cache() fault.Arg {
	return fault.Fixed("it decides who shares cached prompts, which follows from the key")
}
func engine() fault.Arg { return fault.Fixed("it reaches into the engine") }

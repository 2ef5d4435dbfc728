package fault

// Codes that the gateway gives at its own door, before any worker is asked.
const (
	MissingKey         Code = "missing_api_key"
	InvalidKey         Code = "invalid_api_key"
	ModelNotFound      Code = "model_not_found"
	PathNotFound       Code = "path_not_found"
	PathNotServed      Code = "path_not_served"
	MethodNotAllowed   Code = "method_not_allowed"
	MalformedJSON      Code = "malformed_json"
	InvalidUTF8        Code = "invalid_utf8"
	LoneSurrogate      Code = "lone_surrogate"
	ByteOrderMark      Code = "byte_order_mark"
	TooDeep            Code = "json_too_deep"
	TrailingBytes      Code = "trailing_bytes"
	RepeatedField      Code = "repeated_field"
	UnknownField       Code = "unknown_field"
	ReservedField      Code = "reserved_field"
	FieldNotGranted    Code = "field_not_granted"
	UnsupportedField   Code = "unsupported_field"
	UnsupportedContent Code = "unsupported_content"
	UnsupportedList    Code = "unsupported_list"
	ConflictingFields  Code = "conflicting_fields"
	MissingField       Code = "missing_field"
	WrongType          Code = "wrong_type"
	OutOfRange         Code = "value_out_of_range"
	TooManyValues      Code = "too_many_values"
	ValueTooLong       Code = "value_too_long"
	URLNotAllowed      Code = "url_not_allowed"
	EmptyPrompt        Code = "empty_prompt"
	ReservedHeader     Code = "reserved_header"
	ContentEncoding    Code = "content_encoding"
	ContentType        Code = "content_type"
	StreamNeedsHTTP11  Code = "stream_needs_http_1_1"
	BodyTooLarge       Code = "body_too_large"
	BodyTooSlow        Code = "body_too_slow"
	BodyIncomplete     Code = "body_incomplete"
	PromptOverWindow   Code = "context_length_exceeded"
	OutputOverWindow   Code = "output_exceeds_window"
	PromptOverPool     Code = "prompt_exceeds_pool"
	OutputOverPool     Code = "output_exceeds_pool"
	CountUnavailable   Code = "token_count_unavailable"
	LimitsUnknown      Code = "limits_unknown"
	NoPairReady        Code = "no_pair_ready"
	TooManyRequests    Code = "too_many_requests"
	TenantBytes        Code = "tenant_bytes_exceeded"
	Overloaded         Code = "overloaded"
	ShuttingDown       Code = "shutting_down"
	ExpiredKey         Code = "expired_api_key"
	RequestRate        Code = "request_rate_exceeded"
	TokenRate          Code = "token_rate_exceeded"
	TokenBudget        Code = "token_budget_used"
	Uncollected        Code = "uncollected_prefill"
	TooManyCounts      Code = "too_many_counts"
	QueueFull          Code = "queue_full"
	QueueTime          Code = "queue_timeout"
	Internal           Code = "internal"
)

// Codes of the hand-off and of the workers. Both legs of a request give the same one.
const (
	// TooLong: the prompt is longer than a prompt may be at this worker.
	TooLong Code = "too_long"
	// PoolExceeded: the prompt or the answer does not fit the worker's KV pool.
	PoolExceeded Code = "pool_exceeded"
	// BadInput: the worker could not take the request as it stands.
	BadInput Code = "bad_input"
	// LegsDisagree: prefill and decode do not agree on what was asked or answered.
	LegsDisagree Code = "legs_disagree"
	// Integrity: the KV of the request could not be proved to be its own.
	Integrity Code = "integrity"
	// PeerGone: the other worker of the pair cannot be reached.
	PeerGone Code = "peer_gone"
	// Busy: the worker's queues are full.
	Busy Code = "busy"
	// Cancelled: the request was aborted.
	Cancelled Code = "cancelled"
	// Deadline: the request took longer than it may.
	Deadline Code = "deadline"
	// ExpiredPass: the gateway's authorisation has run out.
	ExpiredPass Code = "expired_pass"
	// BadPass: the gateway's authorisation is missing, forged or for another body.
	BadPass Code = "bad_pass"
	// DuplicateAttempt: the attempt or its room has been seen before.
	DuplicateAttempt Code = "duplicate_attempt"
	// EngineFailed: the engine failed while it worked on the request.
	EngineFailed Code = "engine_failed"
	// RoomUnknownPeer: the request names a prefill worker that decode does not know.
	RoomUnknownPeer Code = "room_unknown_peer"
)

// Codes that the gateway gives when a leg failed, or when the two did not add up.
const (
	// UpstreamRefused: a worker did not take the gateway's own authorisation.
	UpstreamRefused Code = "upstream_refused"
	// UpstreamUnreachable: a worker could not be reached, or hung up without an answer.
	UpstreamUnreachable Code = "upstream_unreachable"
	// UpstreamVoid: a worker's answer broke the rules of its dialect.
	UpstreamVoid Code = "upstream_answer_void"
	// StreamBroken: the stream ended before the answer was complete.
	StreamBroken Code = "stream_broken"
	// LeaseOver: what prefill held for decode was not fetched within its lease.
	LeaseOver Code = "lease_over"
)

// row is one line of the registry.
type row struct {
	code   Code
	status int
	kind   Type
	// sentence has {placeholders}; each is filled by one argument, in order.
	sentence string
	hint     string
	// client is the code that a client sees instead; empty means the same one.
	client Code
}

// registry is the one table of errors. It is read only. docs/errors.md is made from it.
var registry = [...]row{
	{code: MissingKey, status: 401, kind: Authentication,
		sentence: "No API key was given.",
		hint:     "Send the header Authorization: Bearer with your key."},
	{code: InvalidKey, status: 401, kind: Authentication,
		sentence: "The API key is not known here.",
		hint:     "Check the key; a key is shown once, when it is made."},
	{code: ModelNotFound, status: 404, kind: InvalidRequest,
		sentence: "The field {field} names no model that this key may use.",
		hint:     "List the models that this key may use with GET /v1/models."},
	{code: PathNotFound, status: 404, kind: InvalidRequest,
		sentence: "There is nothing at this path.",
		hint:     "Use /v1/chat/completions, /v1/completions or /v1/models."},
	{code: PathNotServed, status: 404, kind: InvalidRequest,
		sentence: "The gateway does not serve {field} yet.",
		hint:     "Use /v1/chat/completions, /v1/completions or /v1/models."},
	{code: MethodNotAllowed, status: 405, kind: InvalidRequest,
		sentence: "This path does not take this HTTP method.",
		hint:     "Use POST for completions and GET for the rest."},
	{code: MalformedJSON, status: 400, kind: InvalidRequest,
		sentence: "The body is not valid JSON at byte {offset}.",
		hint:     "Send one JSON object, as RFC 8259 defines it."},
	{code: InvalidUTF8, status: 400, kind: InvalidRequest,
		sentence: "The body is not valid UTF-8 at byte {offset}.",
		hint:     "Encode the body as UTF-8."},
	{code: LoneSurrogate, status: 400, kind: InvalidRequest,
		sentence: "The body has half of a surrogate pair at byte {offset}.",
		hint:     "Write characters above U+FFFF as two \\u escapes, or as UTF-8."},
	{code: ByteOrderMark, status: 400, kind: InvalidRequest,
		sentence: "The body begins with a byte order mark.",
		hint:     "Send the JSON without it."},
	{code: TooDeep, status: 400, kind: InvalidRequest,
		sentence: "The body is nested more than {limit} levels deep.",
		hint:     "Send a flatter body."},
	{code: TrailingBytes, status: 400, kind: InvalidRequest,
		sentence: "The body goes on after its JSON object, at byte {offset}.",
		hint:     "Send one JSON object and nothing after it."},
	{code: RepeatedField, status: 400, kind: InvalidRequest,
		sentence: "The field {field} is given more than once.",
		hint:     "Give each field once."},
	{code: UnknownField, status: 400, kind: InvalidRequest,
		sentence: "The field {field} is not known here.",
		hint:     "Remove it; only listed fields are taken, spelled exactly."},
	{code: ReservedField, status: 400, kind: InvalidRequest,
		sentence: "The field {field} cannot be set by a client: {reason}.",
		hint:     "Remove it; the gateway sets what the workers need."},
	{code: FieldNotGranted, status: 400, kind: InvalidRequest,
		sentence: "The field {field} is taken only from those to whom the operator has granted it.",
		hint:     "Remove it, or ask the operator to grant it by that name."},
	{code: UnsupportedField, status: 400, kind: InvalidRequest,
		sentence: "The field {field} is not supported by this model.",
		hint:     "Remove it, or give it the value that means off."},
	{code: UnsupportedContent, status: 400, kind: InvalidRequest,
		sentence: "The content in {field} is of a kind that this model does not take.",
		hint:     "Send text, as a string or as parts of type text."},
	{code: UnsupportedList, status: 400, kind: InvalidRequest,
		sentence: "The field {field} holds more than one prompt, or tokens in place of text.",
		hint:     "Send one prompt a request, as text."},
	{code: ConflictingFields, status: 400, kind: InvalidRequest,
		sentence: "The field {field} says the same thing as another field of this request.",
		hint:     "Give one of the two."},
	{code: MissingField, status: 400, kind: InvalidRequest,
		sentence: "The field {field} is missing.",
		hint:     "Add it."},
	{code: WrongType, status: 400, kind: InvalidRequest,
		sentence: "The field {field} must be {type}.",
		hint:     "Correct the type of its value."},
	{code: OutOfRange, status: 400, kind: InvalidRequest,
		sentence: "The field {field} must be from {low} to {high}.",
		hint:     "Choose a value in that range."},
	{code: TooManyValues, status: 400, kind: InvalidRequest,
		sentence: "The field {field} takes at most {limit} values.",
		hint:     "Send fewer."},
	{code: ValueTooLong, status: 400, kind: InvalidRequest,
		sentence: "The field {field} is longer than {limit} bytes.",
		hint:     "Send a shorter value."},
	{code: URLNotAllowed, status: 400, kind: InvalidRequest,
		sentence: "The content in {field} names a place that this model may not read.",
		hint:     "Send the content itself, as a data: URL, or ask the operator to allow the host."},
	{code: EmptyPrompt, status: 400, kind: InvalidRequest,
		sentence: "The prompt in {field} has no text.",
		hint:     "Send at least one character."},
	{code: ReservedHeader, status: 400, kind: InvalidRequest,
		sentence: "The header {field} cannot be set by a client.",
		hint:     "Remove it; who you are follows from the key alone."},
	{code: ContentEncoding, status: 400, kind: InvalidRequest,
		sentence: "The body is compressed.",
		hint:     "Send it without Content-Encoding."},
	{code: ContentType, status: 415, kind: InvalidRequest,
		sentence: "The body is not declared as JSON.",
		hint:     "Send the header Content-Type: application/json."},
	{code: StreamNeedsHTTP11, status: 400, kind: InvalidRequest,
		sentence: "A stream cannot be sent over HTTP/1.0, for there it could not break visibly.",
		hint:     "Use HTTP/1.1, or ask without stream."},
	{code: BodyTooLarge, status: 413, kind: InvalidRequest,
		sentence: "The body is longer than {limit} bytes.",
		hint:     "Send a shorter request."},
	{code: BodyTooSlow, status: 408, kind: InvalidRequest,
		sentence: "The body did not arrive in time.",
		hint:     "Send it without pauses."},
	{code: BodyIncomplete, status: 400, kind: InvalidRequest,
		sentence: "The body ended before it was complete.",
		hint:     "Send as many bytes as the header announces."},
	{code: PromptOverWindow, status: 400, kind: InvalidRequest,
		sentence: "The prompt has {prompt} tokens; this model's maximum context length is {window} tokens, and an answer needs one of them.",
		hint:     "Shorten the prompt."},
	{code: OutputOverWindow, status: 400, kind: InvalidRequest,
		sentence: "The prompt has {prompt} tokens and {output} more were asked for; this model's maximum context length is {window} tokens.",
		hint:     "Ask for fewer tokens, or shorten the prompt."},
	{code: PromptOverPool, status: 400, kind: InvalidRequest,
		sentence: "The prompt has {prompt} tokens; the workers of this model take at most {limit}.",
		hint:     "Shorten the prompt."},
	{code: OutputOverPool, status: 400, kind: InvalidRequest,
		sentence: "The prompt has {prompt} tokens and {output} more were asked for; the workers of this model hold at most {limit}.",
		hint:     "Ask for fewer tokens, or shorten the prompt."},
	{code: CountUnavailable, status: 503, kind: Server,
		sentence: "The tokens of this prompt could not be counted, and it is too close to a limit to go without.",
		hint:     "Try again later, or shorten the prompt."},
	{code: LimitsUnknown, status: 503, kind: Server,
		sentence: "The limits of this model's workers are not known at the moment.",
		hint:     "Try again later."},
	{code: NoPairReady, status: 503, kind: Server,
		sentence: "No worker that could answer for this model is ready.",
		hint:     "Try again later."},
	{code: TooManyRequests, status: 429, kind: RateLimit,
		sentence: "This key has as many requests in progress as it may: {limit}.",
		hint:     "Wait until one of them has ended."},
	{code: TenantBytes, status: 429, kind: RateLimit,
		sentence: "The requests in progress under this key hold as many bytes as they may, {limit}.",
		hint:     "Wait until one of them has ended, or send a shorter request."},
	{code: ExpiredKey, status: 401, kind: Authentication,
		sentence: "The API key has expired.",
		hint:     "Use another key of yours, or ask the operator for one."},
	{code: RequestRate, status: 429, kind: RateLimit,
		sentence: "This key may make {limit} requests a minute, and has made them.",
		hint:     "Wait for as long as the header Retry-After says."},
	{code: TokenRate, status: 429, kind: RateLimit,
		sentence: "This key may use {limit} tokens a minute, of prompts and answers, and has used them.",
		hint:     "Wait for as long as the header Retry-After says, or ask for fewer tokens."},
	{code: TokenBudget, status: 429, kind: RateLimit,
		sentence: "This key has used its {limit} tokens, or what is left of them is too little for this request.",
		hint:     "Ask the operator for more."},
	{code: Uncollected, status: 429, kind: RateLimit,
		sentence: "Prompts of this key that are computed and not yet answered hold as many tokens as they may, {limit}.",
		hint:     "Wait until one of them is answered, or send a shorter prompt."},
	{code: TooManyCounts, status: 429, kind: RateLimit,
		sentence: "This key has {limit} prompts being counted already.",
		hint:     "Wait until one of them is counted, or send a prompt that is farther from the limit."},
	{code: QueueFull, status: 429, kind: RateLimit,
		sentence: "This key has as many requests waiting as it may.",
		hint:     "Wait until one of them has ended."},
	{code: QueueTime, status: 503, kind: Server,
		sentence: "No engine had room for this request in time.",
		hint:     "Try again later."},
	{code: ShuttingDown, status: 503, kind: Server,
		sentence: "The gateway was stopped before the answer was complete.",
		hint:     "Do not take what came as a whole answer; ask again."},
	{code: Overloaded, status: 503, kind: Server,
		sentence: "The gateway has as many requests in progress as it can hold.",
		hint:     "Try again later."},
	{code: Internal, status: 500, kind: Server,
		sentence: "Something failed on our side.",
		hint:     "Try again; if it stays, report the id."},

	{code: TooLong, status: 400, kind: InvalidRequest,
		sentence: "The prompt has {prompt} tokens; this worker takes at most {limit}.",
		hint:     "Shorten the prompt."},
	{code: PoolExceeded, status: 400, kind: InvalidRequest,
		sentence: "The request needs room for {tokens} tokens; this worker holds at most {limit}.",
		hint:     "Shorten the prompt, or ask for fewer tokens."},
	{code: BadInput, status: 400, kind: InvalidRequest,
		sentence: "The request cannot be taken as it stands.",
		hint:     "Check the fields of the request against the list of what this model takes."},
	{code: LegsDisagree, status: 502, kind: Server,
		sentence: "The two workers of this request did not agree, so its answer was withheld.",
		hint:     "Try again; if it stays, report the id."},
	{code: Integrity, status: 502, kind: Server,
		sentence: "The KV cache of this request could not be proved to be its own, so its answer was withheld.",
		hint:     "Try again; if it stays, report the id."},
	{code: PeerGone, status: 502, kind: Server,
		sentence: "A worker of this request went away.",
		hint:     "Try again."},
	{code: Busy, status: 503, kind: Server,
		sentence: "The workers are busy.",
		hint:     "Try again later."},
	{code: Cancelled, status: 499, kind: InvalidRequest,
		sentence: "The request was cancelled.",
		hint:     "Send it again if you still want the answer."},
	{code: Deadline, status: 504, kind: Server,
		sentence: "The request took longer than it may.",
		hint:     "Try again, with a shorter prompt or fewer tokens."},
	{code: ExpiredPass, status: 403, kind: Authentication, client: UpstreamRefused,
		sentence: "The pass of this request has run out.",
		hint:     "Compare the clocks of gateway and worker."},
	{code: BadPass, status: 403, kind: Authentication, client: UpstreamRefused,
		sentence: "The request has no pass of the gateway that holds for it.",
		hint:     "Workers take requests from the gateway only; compare the keys of both."},
	{code: DuplicateAttempt, status: 409, kind: InvalidRequest, client: UpstreamRefused,
		sentence: "The attempt was seen before.",
		hint:     "A retry is a new attempt, with a new room."},
	{code: EngineFailed, status: 500, kind: Server,
		sentence: "The engine failed while it worked on this request.",
		hint:     "Try again; if it stays, report the id."},
	{code: RoomUnknownPeer, status: 400, kind: InvalidRequest, client: UpstreamRefused,
		sentence: "The request names a prefill worker that is not configured here.",
		hint:     "Compare the pairs of the gateway with the peers of the decode worker."},

	{code: UpstreamRefused, status: 502, kind: Server,
		sentence: "The workers did not accept this request from the gateway.",
		hint:     "This needs the operator; report the id."},
	{code: UpstreamUnreachable, status: 502, kind: Server,
		sentence: "A worker could not be reached, or ended the connection without an answer.",
		hint:     "Try again."},
	{code: UpstreamVoid, status: 502, kind: Server,
		sentence: "A worker's answer could not be shown to belong to this request, so it was withheld.",
		hint:     "Try again; if it stays, report the id."},
	{code: LeaseOver, status: 502, kind: Server,
		sentence: "The answer to this request did not begin while its prompt was safely held, so it was withheld.",
		hint:     "Try again, or with a shorter prompt; if it stays, report the id."},
	{code: StreamBroken, status: 502, kind: Server,
		sentence: "The stream ended before the answer was complete.",
		hint:     "Do not take what came as a whole answer; ask again."},
}

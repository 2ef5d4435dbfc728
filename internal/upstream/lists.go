package upstream

// names is a set of members that replies have. What is in no set of its dialect never
// reaches a client (G-8): timings, verbose dumps, hand-off parameters, token ids, hidden
// states, what an engine measured, and whatever a later version adds.
type names uint32

// At top level.
const (
	topID names = 1 << iota
	topModel
	topObject
	topCreated
	topChoices
	topUsage
	topError
	topFingerprint
	topTier
	topObfuscation
	topPromptLogprobs
	topHandle
)

// In a choice.
const (
	inIndex names = 1 << iota
	inFinish
	inMessage
	inText
	inLogprobs
	inStopReason
	inMatchedStop
	inPromptLogprobs
)

// In a message or delta.
const (
	msgRole names = 1 << iota
	msgContent
	msgRefusal
	msgToolCalls
	msgFunctionCall
	msgReasoningContent
	msgReasoning
	msgReasoningDetails
	msgAnnotations
	msgAudio
)

// In a usage.
const (
	usedItself names = 1 << iota
	usedPrompt
	usedCompletion
	usedTotal
	usedPromptDetails
	usedCompletionDetails
	usedReasoning
	usedCached // shown only to the owner of the cache
)

// replyList is what clients may see of a dialect's replies.
type replyList struct{ top, choice, message, usage names }

const (
	basicTop     = topID | topModel | topObject | topCreated | topChoices | topUsage | topFingerprint
	basicChoice  = inIndex | inFinish | inMessage | inText | inLogprobs
	basicMessage = msgRole | msgContent | msgRefusal | msgToolCalls | msgFunctionCall | msgReasoningContent
	basicUsage   = usedPrompt | usedCompletion | usedTotal | usedPromptDetails | usedCompletionDetails | usedReasoning | usedCached
)

// replyLists is read only.
var replyLists = [dialects]replyList{
	Bulkhead: {basicTop, basicChoice, msgRole | msgContent, basicUsage},
	SGLangPD: {basicTop, basicChoice | inMatchedStop, basicMessage, basicUsage},
	SGLang:   {basicTop, basicChoice | inMatchedStop, basicMessage, basicUsage},

	VLLMNixl:     {vllmTop, vllmChoice, vllmMessage, basicUsage},
	VLLMMooncake: {vllmTop, vllmChoice, vllmMessage, basicUsage},
	VLLM:         {vllmTop, vllmChoice, vllmMessage, basicUsage},

	LlamaCPP: {basicTop, basicChoice, basicMessage, basicUsage},
	OpenAI: {basicTop | topTier | topObfuscation, basicChoice,
		basicMessage | msgReasoning | msgReasoningDetails | msgAnnotations | msgAudio, basicUsage},
}

const (
	vllmTop     = basicTop | topTier | topPromptLogprobs
	vllmChoice  = basicChoice | inStopReason | inPromptLogprobs
	vllmMessage = basicMessage | msgReasoning | msgAnnotations | msgAudio
)

func topName(name []byte) names {
	switch string(name) {
	case "id":
		return topID
	case "model":
		return topModel
	case "object":
		return topObject
	case "created":
		return topCreated
	case "choices":
		return topChoices
	case "usage":
		return topUsage
	case "error":
		return topError
	case "system_fingerprint":
		return topFingerprint
	case "service_tier":
		return topTier
	case "obfuscation":
		return topObfuscation
	case "prompt_logprobs":
		return topPromptLogprobs
	case "kv_transfer_params":
		return topHandle
	}
	return 0
}

func choiceName(name []byte) names {
	switch string(name) {
	case "index":
		return inIndex
	case "finish_reason":
		return inFinish
	case "logprobs":
		return inLogprobs
	case "stop_reason":
		return inStopReason
	case "matched_stop":
		return inMatchedStop
	case "prompt_logprobs":
		return inPromptLogprobs
	}
	return 0
}

func messageName(name []byte) names {
	switch string(name) {
	case "role":
		return msgRole
	case "content":
		return msgContent
	case "refusal":
		return msgRefusal
	case "tool_calls":
		return msgToolCalls
	case "function_call":
		return msgFunctionCall
	case "reasoning_content":
		return msgReasoningContent
	case "reasoning":
		return msgReasoning
	case "reasoning_details":
		return msgReasoningDetails
	case "annotations":
		return msgAnnotations
	case "audio":
		return msgAudio
	}
	return 0
}

func usageName(name []byte) names {
	switch string(name) {
	case "prompt_tokens":
		return usedPrompt
	case "completion_tokens":
		return usedCompletion
	case "total_tokens":
		return usedTotal
	case "prompt_tokens_details":
		return usedPromptDetails
	case "completion_tokens_details":
		return usedCompletionDetails
	case "reasoning_tokens":
		return usedReasoning
	case "cached_tokens", "prompt_cache_hit_tokens", "prompt_cache_miss_tokens":
		return usedCached
	}
	return 0
}

// detailName says whether a member of a usage's details is on the list. Cached tokens are
// told apart, for only the owner of the cache sees them.
func detailName(name []byte) (listed, cached bool) {
	switch string(name) {
	case "cached_tokens", "created_cache_tokens":
		return true, true
	case "audio_tokens", "image_tokens", "video_tokens", "text_tokens", "multimodal_tokens", "reasoning_tokens",
		"accepted_prediction_tokens", "rejected_prediction_tokens":
		return true, false
	}
	return false, false
}

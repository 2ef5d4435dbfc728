package upstream

import "fmt"

// Dialect is how an engine wants to be asked and how it answers.
type Dialect uint8

const (
	// Bulkhead is a prefill and a decode worker of our own: SGLang's shape of a pair,
	// with the gateway's pass in a header.
	Bulkhead Dialect = iota
	// SGLangPD is a prefill and a decode server of SGLang, asked at the same time, that
	// meet in a room.
	SGLangPD
	// SGLang is one SGLang server.
	SGLang
	// VLLMNixl is a pair of vLLM over NIXL: prefill answers with a handle, which decode
	// is then given.
	VLLMNixl
	// VLLMMooncake is a pair of vLLM over Mooncake, asked at the same time, that meet
	// under a transfer id of ours.
	VLLMMooncake
	// VLLM is one vLLM server.
	VLLM
	// LlamaCPP is one llama.cpp server.
	LlamaCPP
	// OpenAI is a hosted API, or any other of that shape of which nothing else is known.
	OpenAI

	dialects // how many there are
)

// Legs says how many calls a request becomes, and when they are made.
type Legs uint8

const (
	// One: one call to one server.
	One Legs = iota
	// Together: prefill and decode are called at the same time.
	Together
	// InTurn: decode is called with what prefill's answer said.
	InTurn
)

// IDs says which id an answer carries (G-12).
type IDs uint8

const (
	// Minted: the id that we gave, as [Sound] and [Prefilled] expect it.
	Minted IDs = iota
	// Steady: the engine's own, the same in all chunks of one answer.
	Steady
)

// Lists says what becomes of n above 1 and of lists of prompts (G-11).
type Lists uint8

const (
	// Split: each sequence becomes a call of its own, and [Merge] puts the answers
	// together. So it is for two legs, for engines that give each sequence an id that we
	// did not mint (SGLang), and for those that count one sequence only (llama.cpp).
	Split Lists = iota
	// Native: the engine takes them as they are.
	Native
)

// Counting says when a stream tells how many tokens its prompt has.
type Counting uint8

const (
	// Early: with or before its first content.
	Early Counting = iota
	// AtEnd: in the usage chunk only.
	AtEnd
)

// Traits is what distinguishes a dialect from the others.
type Traits struct {
	Legs     Legs
	IDs      IDs
	Lists    Lists
	Counting Counting
	// FirstToken: the one token that prefill reports is the one that decode begins with.
	FirstToken bool
	// Salted: the engine takes a salt for its prefix cache (G-7).
	Salted bool
	// SaltPerAttempt: decode's salt must be fresh for each attempt, for a void answer
	// would stay in its prefix cache (G-7).
	SaltPerAttempt bool
	// Hosted: there is no pool to read; only the configured window is known (G-2).
	Hosted bool
	// Aborts: a request can be ended by its id at /abort_request (G-6).
	Aborts bool
	// Leased: what prefill holds for decode expires on a clock of its own (G-11).
	Leased bool
	// Bootstrap: the prefill node has a second address, at which decode meets it.
	Bootstrap bool
	// Tokenizes: the server counts tokens at an endpoint of its own.
	Tokenizes bool
	// PrefillText: every answer holds its text, be it empty; prefill's that of its token.
	PrefillText bool
	// Ranks: one server may hold several engines, each with a pool of its own.
	Ranks bool
	// Threaded: the server spends one of its few threads on each connection that is kept.
	Threaded bool
}

// dialectRow is one line of the table of dialects.
type dialectRow struct {
	name string
	Traits
}

// dialectTable lists the dialects in their order. It is read only.
var dialectTable = [dialects]dialectRow{
	Bulkhead: {"bulkhead", Traits{Legs: Together, IDs: Minted, Lists: Split, Counting: Early,
		FirstToken: true, Aborts: true, Bootstrap: true, PrefillText: true}},
	SGLangPD: {"sglang-pd", Traits{Legs: Together, IDs: Minted, Lists: Split, Counting: Early,
		FirstToken: true, Salted: true, SaltPerAttempt: true, Aborts: true, Bootstrap: true, Tokenizes: true, Ranks: true}},
	SGLang: {"sglang", Traits{Legs: One, IDs: Minted, Lists: Split, Counting: Early,
		Salted: true, Aborts: true, Tokenizes: true, Ranks: true}},
	VLLMNixl: {"vllm-nixl", Traits{Legs: InTurn, IDs: Minted, Lists: Split, Counting: Early,
		Salted: true, SaltPerAttempt: true, Leased: true, Tokenizes: true, Ranks: true}},
	VLLMMooncake: {"vllm-mooncake", Traits{Legs: Together, IDs: Minted, Lists: Split, Counting: Early,
		Salted: true, SaltPerAttempt: true, Bootstrap: true, Tokenizes: true, Ranks: true}},
	VLLM: {"vllm", Traits{Legs: One, IDs: Minted, Lists: Native, Counting: Early,
		Salted: true, Tokenizes: true, Ranks: true}},
	LlamaCPP: {"llamacpp", Traits{Legs: One, IDs: Steady, Lists: Split, Counting: AtEnd,
		Tokenizes: true, Threaded: true}},
	OpenAI: {"openai", Traits{Legs: One, IDs: Steady, Lists: Native, Counting: AtEnd,
		Hosted: true}},
}

// String returns the name of the dialect, as configurations write it.
func (d Dialect) String() string {
	if d >= dialects {
		return "no dialect"
	}
	return dialectTable[d].name
}

// Traits returns what distinguishes the dialect. One that does not exist has those of
// [OpenAI], of which the least is expected.
func (d Dialect) Traits() Traits {
	if d >= dialects {
		d = OpenAI
	}
	return dialectTable[d].Traits
}

// ParseDialect returns the dialect of the given name.
func ParseDialect(name string) (Dialect, error) {
	for d := range dialects {
		if dialectTable[d].name == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("upstream: parse dialect: there is none of that name")
}

// Dialects returns all dialects, in the order of their numbers.
func Dialects() []Dialect {
	all := make([]Dialect, dialects)
	for d := range dialects {
		all[d] = d
	}
	return all
}

// Role is what a server is for.
type Role string

const (
	// PrefillRole computes prompts.
	PrefillRole Role = "prefill"
	// DecodeRole generates answers.
	DecodeRole Role = "decode"
	// Plain does both.
	Plain Role = "plain"
)

package upstream

// Count is a number that a text did or did not give. The zero value is "not given",
// which is not zero.
type Count struct {
	N     int64
	Known bool
}

// Streaming says whether an answer is wanted piece by piece.
type Streaming uint8

const (
	// Whole: the answer in one body.
	Whole Streaming = iota
	// Streamed: the answer as server-sent events.
	Streamed
)

// Request is what a body asks of an engine of one dialect, after it was judged. It
// refers to the body's bytes, which must not change while it is in use.
type Request struct {
	// Endpoint is the path that was asked.
	Endpoint Endpoint
	// Model is the name as the client wrote it.
	Model string
	// Streaming says how the answer is wanted.
	Streaming Streaming
	// UsageChunk says whether a streaming client asked for the usage chunk.
	UsageChunk bool
	// Max is the answer length asked for, in tokens.
	Max Count
	// N is how many answers each prompt gets, at least 1.
	N int
	// Prompts is the number of prompts, at least 1; 1 for a chat.
	Prompts int
	// Stops are the stop strings, decoded.
	Stops []string
	// Text is the length of the prompts' decoded text in bytes, over all of them: the
	// messages, names, calls and the definitions of tools. Token ids count as nothing;
	// see Tokens.
	Text int64
	// Loose says that Text bounds the number of tokens neither way: the prompt holds
	// pictures or sounds, or what a template prints in a form of its own (tools, calls,
	// schemas).
	Loose bool
	// Messages counts the messages; 1 for a completion.
	Messages int
	// Dropped names the fields that were taken and had no effect.
	Dropped []string
	// Mapped names the fields that were written as other ones.
	Mapped []string
	// Shadowed names the fields that passed only because of Policy.Shadow.
	Shadowed []string
	// Priority is the client's own wish. What it means depends on the engine; the
	// gateway decides whether it counts.
	Priority Count
	// SafetyID is the client's safety_identifier; empty if it gave none. It may narrow a
	// cache domain and nothing else (G-7).
	SafetyID string
	// Seed is the client's own.
	Seed Count
	// Tools says that the model was given tools to call.
	Tools bool
	// Logprobs says that log probabilities of the answer were asked for.
	Logprobs bool
	// Echo says that the prompt is wanted back in front of the answer.
	Echo bool

	body *Body
	// edits make the client's members into what decode, or the one server, gets;
	// prefill into what prefill gets. Both are in the order of the body.
	edits, prefill []edit
	// writes are the members that mapped fields became.
	writes []write
	// maxName is the client's own name of the length.
	maxName string
	// ongoing says that the answer may not end at once.
	ongoing bool
	// reseed says that the client's seed was cut out, for each answer gets its own.
	reseed bool
}

// write is one member that a mapped field became.
type write struct {
	before string
	raw    span   // bytes of the client's body, or
	text   []byte // bytes made out of them
	after  string
	// constrains says that it narrows the form of the answer.
	constrains bool
}

// Sequences is how many answers there will be over all prompts. Sequence i answers prompt
// i / N; its number is also its index in the answer.
func (r *Request) Sequences() int { return r.N * r.Prompts }

// TextOf returns the bytes of prompt text of sequence i; 0 for token ids.
func (r *Request) TextOf(i int) int64 {
	if it := r.item(i); it != nil {
		if r.body.prompt.ids {
			return 0
		}
		return int64(it.size)
	}
	return r.Text
}

// Tokens returns the exact number of tokens of sequence i if the prompt came as tokens.
func (r *Request) Tokens(i int) Count {
	if it := r.item(i); it != nil && r.body.prompt.ids {
		return Count{N: int64(it.size), Known: true}
	}
	return Count{}
}

// Head returns at most n bytes of the beginning of sequence i's prompt as the client
// wrote them, undecoded; for a chat, of the array of messages. It refers to the body.
func (r *Request) Head(i, n int) []byte {
	b := r.body
	s := span{}
	if it := r.item(i); it != nil {
		s = it.span
	} else if e := b.entry("messages"); e != nil {
		s = e.value
	}
	return b.raw[s.from:min(s.to, s.from+max(n, 0))]
}

// item returns the prompt of sequence i; nil for a chat.
func (r *Request) item(i int) *item {
	p := &r.body.prompt
	if r.Endpoint == Chat || len(p.items) == 0 {
		return nil
	}
	return &p.items[min(max(i, 0)/r.N, len(p.items)-1)]
}

// entry returns the member of a name at top level, or nil.
func (b *Body) entry(name string) *entry {
	for i := range b.entries {
		if string(b.entries[i].name) == name {
			return &b.entries[i]
		}
	}
	return nil
}

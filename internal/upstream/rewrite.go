package upstream

import "strconv"

// Usage says what happens to the usage of a rewritten reply.
type Usage uint8

const (
	// StripUsage cuts it out: the client did not ask.
	StripUsage Usage = iota
	// KeepUsage leaves it.
	KeepUsage
)

// CachedTokens says who may learn how much of a prompt came out of a cache: whoever shares
// a cache can read other people's prompts from that number.
type CachedTokens uint8

const (
	// HideCached cuts the numbers out.
	HideCached CachedTokens = iota
	// ShowCached leaves them: the cache domain is the tenant's own.
	ShowCached
)

// Public is how a reply is shown to the client.
type Public struct {
	// ID is the public id of the request, Model the name that the client used.
	ID, Model string
	Usage     Usage
	Cached    CachedTokens
	// Shift is added to the index of each choice, for replies to one sequence of several.
	Shift int64
	// Prompts is how many prompts the replies that [Merge] puts together have; they come
	// prompt by prompt, equally many of each. 0 is 1.
	Prompts int
	// Created is the time of a chunk of our own, in seconds since 1970. 0 leaves it out.
	Created int64
}

// Rewrite appends the reply as the client gets it: under its public id and the model name
// that the client used, without members that are on no list of its dialect (G-8). An id,
// a model or a needed index that is not there is added. Other bytes stay.
func (r *Reply) Rewrite(dst []byte, p Public) []byte {
	if r.body == nil {
		return append(dst, "{}"...)
	}
	w := rewriter{r: r, p: p}
	at := uint32(0)
	for r.body[at] != '{' {
		at++
	}
	dst = w.copy(dst, at+1)
	if !r.named {
		dst = appendQuoted(append(dst, `"id":`...), p.ID)
		w.pending[0] = true
	}
	if !r.modeled {
		if w.pending[0] {
			dst = append(dst, ',')
		}
		dst = appendQuoted(append(dst, `"model":`...), p.Model)
		w.pending[0] = true
	}
	dst = w.parts(dst, 0, r.parts)
	return append(dst, r.body[w.at:]...)
}

// rewriter copies a reply piece by piece. What it writes to is not its own, so that a
// Reply need not be kept for as long as what was made of it.
type rewriter struct {
	r *Reply
	p Public
	// at is how far the body has been copied.
	at uint32
	// For the object that is open at each depth: whether it has kept a member, where its
	// last one ended, and whether the next one needs a comma in front of it.
	kept    [3]bool
	ended   [3]uint32
	pending [3]bool
	// always writes an index even if there is none and no shift.
	always bool
}

// copy appends the body up to the given byte.
func (w *rewriter) copy(dst []byte, to uint32) []byte {
	dst = append(dst, w.r.body[w.at:to]...)
	w.at = to
	return dst
}

// parts copies the body up to the last of the parts from i to n.
func (w *rewriter) parts(dst []byte, i, n int) []byte {
	for ; i < n; i++ {
		m := w.r.part(i)
		d := m.depth
		if int(d)+1 < len(w.kept) {
			w.kept[d+1], w.pending[d+1] = false, false
		}
		if m.kind == openPart || m.kind == barePart {
			w.kept[1], w.pending[1] = false, false
			if m.kind == barePart && (w.p.Shift != 0 || w.always) {
				dst = w.copy(dst, m.to)
				dst = strconv.AppendInt(append(dst, `"index":`...), w.p.Shift, 10)
				w.pending[1] = true
			}
			continue
		}
		if w.drops(m) {
			from, to := m.from, m.to
			if w.kept[d] {
				from = w.ended[d]
			} else if m.next > 0 {
				to = m.next
			}
			dst = w.copy(dst, from)
			w.at, w.ended[d] = to, m.to
			for i+1 < n && w.r.part(i+1).from < m.to {
				i++
			}
			continue
		}
		if w.pending[d] {
			dst = append(w.copy(dst, m.from), ',')
			w.pending[d] = false
		}
		w.kept[d], w.ended[d] = true, m.to
		dst = w.value(dst, m)
	}
	return dst
}

// drops says whether a part is left out.
func (w *rewriter) drops(m *part) bool {
	switch m.kind {
	case cutPart:
		return true
	case usagePart:
		return w.p.Usage == StripUsage || w.r.Contradictory
	case cachedPart:
		return w.p.Cached == HideCached || !w.r.Cached.Known
	}
	return false
}

// value writes what stands in place of the value of a part.
func (w *rewriter) value(dst []byte, m *part) []byte {
	switch m.kind {
	case idPart:
		dst = appendQuoted(w.copy(dst, m.val), w.p.ID)
	case modelPart:
		dst = appendQuoted(w.copy(dst, m.val), w.p.Model)
	case indexPart:
		if w.p.Shift == 0 && !w.always {
			return dst
		}
		n := int64(0)
		if w.r.body[m.val] != 'n' {
			n, _ = integer(w.r.body[m.val:m.to])
		}
		dst = strconv.AppendInt(w.copy(dst, m.val), n+w.p.Shift, 10)
	default:
		return dst
	}
	w.at = m.to
	return dst
}

// appendQuoted appends s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			return appendString(dst, s)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// Merge appends one answer that holds the choices of all replies, which are whole answers
// to the sequences of one request in their order. The choices are numbered anew; the usage
// counts each prompt once, and is left out if a reply did not tell it.
func Merge(dst []byte, e Endpoint, replies []Reply, p Public) []byte {
	dst = appendHead(dst, wholeObject(e), p, created(replies, p))
	dst = append(dst, `,"choices":[`...)
	next := int64(0)
	for i := range replies {
		r := &replies[i]
		for j := range r.Choices {
			c := r.said(j)
			if next > 0 {
				dst = append(dst, ',')
			}
			q := p
			q.Shift = next - c.index.N
			w := rewriter{r: r, p: q, at: c.open, always: true}
			dst = w.parts(append(dst, '{'), c.first, c.last)
			dst = w.copy(dst, c.end)
			next++
		}
	}
	dst = append(dst, ']')
	if p.Usage == KeepUsage {
		dst = appendSum(dst, replies, p)
	}
	return append(dst, '}')
}

// created is the time of the first reply that tells one.
func created(replies []Reply, p Public) int64 {
	for i := range replies {
		if replies[i].Created.Known {
			return replies[i].Created.N
		}
	}
	return p.Created
}

// appendSum appends the usage of several replies, if it is known.
func appendSum(dst []byte, replies []Reply, p Public) []byte {
	if len(replies) == 0 {
		return dst
	}
	each := max(1, len(replies)/max(1, p.Prompts))
	prompt, completion, cached := int64(0), int64(0), Count{Known: true}
	for i := range replies {
		r := &replies[i]
		first := &replies[i-i%each]
		if !r.Prompt.Known || !r.Completion.Known || r.Prompt.N != first.Prompt.N {
			return dst
		}
		completion += r.Completion.N
		if i%each == 0 {
			prompt += r.Prompt.N
			cached = Count{N: cached.N + r.Cached.N, Known: cached.Known && r.Cached.Known}
		}
	}
	dst = append(dst, `,"usage":`...)
	if p.Cached == HideCached {
		cached = Count{}
	}
	return appendUsage(dst, prompt, completion, cached)
}

// AppendUsage appends a usage chunk of our own, for a stream whose chunks came from several
// calls. Both numbers are in tokens.
func AppendUsage(dst []byte, e Endpoint, p Public, prompt, completion int64) []byte {
	dst = appendHead(dst, chunkObject(e), p, p.Created)
	dst = append(dst, `,"choices":[],"usage":`...)
	return append(appendUsage(dst, prompt, completion, Count{}), '}')
}

func wholeObject(e Endpoint) string {
	if e == Chat {
		return "chat.completion"
	}
	return "text_completion"
}

func chunkObject(e Endpoint) string {
	if e == Chat {
		return "chat.completion.chunk"
	}
	return "text_completion"
}

// appendHead begins a reply of our own.
func appendHead(dst []byte, object string, p Public, created int64) []byte {
	dst = appendQuoted(append(dst, `{"id":`...), p.ID)
	dst = appendQuoted(append(dst, `,"object":`...), object)
	if created > 0 {
		dst = strconv.AppendInt(append(dst, `,"created":`...), created, 10)
	}
	return appendQuoted(append(dst, `,"model":`...), p.Model)
}

func appendUsage(dst []byte, prompt, completion int64, cached Count) []byte {
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), prompt, 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), completion, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), prompt+completion, 10)
	if cached.Known {
		dst = strconv.AppendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), cached.N, 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

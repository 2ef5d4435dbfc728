package upstream

import (
	"math"
	"strconv"
)

// replyScanner walks over one reply. An object that is inspected may not repeat a key
// that is on a list. It works without closures, for it is the hot path of streams.
type replyScanner struct {
	lexer
	r    *Reply
	list replyList
	// failing is set by an error member, or by an object that says that it is an error.
	failing bool
	// caches notes the names under which cached tokens were told, quarrel that they differ.
	caches  names
	quarrel bool
}

// read fills r from body.
func (r *Reply) read(d Dialect, e Endpoint, body []byte, whole bool) error {
	if d >= dialects {
		d = OpenAI
	}
	// The arrays are not cleared: parts and Choices say how much of them holds.
	id := r.ID
	r.Prompt, r.Completion, r.Total, r.Cached, r.Created = Count{}, Count{}, Count{}, Count{}, Count{}
	r.Listed, r.Choices, r.Counted, r.CachedTooMany, r.Contradictory, r.Failure = false, 0, false, false, false, nil
	r.dialect, r.endpoint, r.whole, r.body, r.handle = d, e, whole, body, span{}
	r.named, r.modeled, r.parts = false, false, 0
	r.moreParts, r.moreSaid = r.moreParts[:0], r.moreSaid[:0]
	p := replyScanner{lexer: lexer{b: body}, r: r, list: replyLists[d]}
	if len(body) >= math.MaxInt32 || !p.top() {
		*r = Reply{}
		return ErrMalformed
	}
	p.space()
	if p.i != len(body) {
		*r = Reply{}
		return ErrMalformed
	}
	if !r.named && id != "" {
		r.ID = ""
	}
	if p.quarrel {
		r.Cached = Count{}
	}
	r.judgeUsage()
	if p.failing {
		r.Failure = failure(d, 0, body)
	}
	return nil
}

// judgeUsage makes a usage unknown that cannot be true. A hosted API may count tokens
// into the total that it counts nowhere else.
func (r *Reply) judgeUsage() {
	if r.Cached.Known && r.Prompt.Known && r.Cached.N > r.Prompt.N {
		r.Cached, r.CachedTooMany = Count{}, true
	}
	wrong := false
	if r.Prompt.Known && r.Completion.Known && r.Total.Known {
		sum := r.Prompt.N + r.Completion.N
		wrong = sum < 0 || r.Total.N < sum || r.Total.N > sum && !r.dialect.Traits().Hosted
	}
	if r.dialect == LlamaCPP && r.Choices > 1 && r.Counted {
		wrong = true // it counts one choice only
	}
	if wrong {
		r.Contradictory = true
		r.Prompt, r.Completion, r.Total, r.Cached = Count{}, Count{}, Count{}, Count{}
	}
}

// enter consumes the opening brace of an object.
func (p *replyScanner) enter() bool {
	if !p.take('{') {
		return p.fail(malformed)
	}
	return true
}

// member moves to the value of the next member of an object; more is false at its end.
func (p *replyScanner) member(first bool) (key str, more, ok bool) {
	if p.take('}') {
		return str{}, false, true
	}
	if !first && !p.take(',') {
		return str{}, false, p.fail(malformed)
	}
	p.space()
	key, ok = p.str()
	if !ok {
		return str{}, false, false
	}
	if !p.take(':') {
		return str{}, false, p.fail(malformed)
	}
	p.space()
	return key, true, true
}

// begin adds the part of a member whose value is next, behind its neighbour last.
func (p *replyScanner) begin(key str, depth uint8, last int) int {
	from := uint32(key.raw.from - 1)
	if last >= 0 {
		p.r.part(last).next = from
	}
	return p.r.add(part{from: from, val: uint32(p.i), depth: depth})
}

// end closes a part behind its value.
func (p *replyScanner) end(i int, kind partKind) {
	q := p.r.part(i)
	q.to, q.kind = uint32(p.i), kind
}

// once notes a listed name of an object, and fails if it was there already.
func (p *replyScanner) once(seen *names, name names) bool {
	if *seen&name != 0 {
		return p.fail(malformed)
	}
	*seen |= name
	return true
}

// skip scans a value that is not inspected.
func (p *replyScanner) skip(depth int) bool {
	switch p.peek() {
	case '"':
		_, ok := p.str()
		return ok
	case 'n':
		return p.word("null")
	}
	_, ok := p.value(depth)
	return ok
}

func (p *replyScanner) top() bool {
	if !p.enter() {
		return false
	}
	seen, last := names(0), -1
	for {
		key, more, ok := p.member(last < 0)
		if !more {
			return ok
		}
		last = p.begin(key, 0, last)
		name := topName(decode(p.b, key))
		kind := keptPart
		if name&p.list.top == 0 {
			kind = cutPart
		}
		if !p.once(&seen, name) || !p.topValue(name, &kind) {
			return false
		}
		p.end(last, kind)
	}
}

// topValue scans the value of a member at top level.
func (p *replyScanner) topValue(name names, kind *partKind) bool {
	switch name {
	case topID:
		*kind = idPart
		p.r.named = true
		v, ok := p.maybe()
		if string(p.b[v.raw.from:v.raw.to]) != p.r.ID || !v.plain {
			p.r.ID = string(decode(p.b, v))
		}
		return ok
	case topModel:
		*kind = modelPart
		p.r.modeled = true
		_, ok := p.maybe()
		return ok
	case topCreated:
		return p.created()
	case topChoices:
		return p.choices()
	case topUsage:
		*kind = usagePart
		return p.usage()
	case topError:
		p.failing = p.failing || p.peek() != 'n'
		return p.skip(1)
	case topObject:
		if p.peek() != '"' {
			return p.skip(1)
		}
		v, ok := p.str()
		p.failing = p.failing || ok && string(decode(p.b, v)) == "error"
		return ok
	case topHandle:
		if p.peek() != '{' {
			return p.skip(1)
		}
		v, ok := p.value(1)
		p.r.handle = v
		return ok
	}
	return p.skip(1)
}

// maybe scans a string or null; null is an empty string without a place.
func (p *replyScanner) maybe() (str, bool) {
	switch p.peek() {
	case '"':
		return p.str()
	case 'n':
		return str{plain: true}, p.word("null")
	}
	return str{plain: true}, p.fail(malformed)
}

// created scans a time; one that is no whole number of seconds is unknown.
func (p *replyScanner) created() bool {
	if c := p.peek(); c < '0' || c > '9' {
		return p.skip(1)
	}
	s, whole, ok := p.number()
	if !ok || !whole {
		return ok
	}
	if n, fits := integer(p.b[s.from:s.to]); fits {
		p.r.Created = Count{N: n, Known: true}
	}
	return true
}

// integer reads a number that the lexer has scanned as a whole one.
func integer(digits []byte) (n int64, fits bool) {
	if len(digits) > 18 {
		x, err := strconv.ParseInt(string(digits), 10, 64)
		return x, err == nil
	}
	negative := false
	for i, c := range digits {
		if i == 0 && c == '-' {
			negative = true
			continue
		}
		n = n*10 + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, len(digits) > 0
}

// count scans a whole number of at least 0, or null.
func (p *replyScanner) count() (Count, bool) {
	if p.peek() == 'n' {
		return Count{}, p.word("null")
	}
	s, whole, ok := p.number()
	if !ok || !whole {
		return Count{}, p.fail(malformed)
	}
	n, fits := integer(p.b[s.from:s.to])
	if !fits || n < 0 {
		return Count{}, p.fail(malformed)
	}
	return Count{N: n, Known: true}, true
}

func (p *replyScanner) usage() bool {
	if p.peek() == 'n' {
		return p.word("null")
	}
	if !p.enter() {
		return false
	}
	p.r.Counted = true
	seen, last := names(0), -1
	for {
		key, more, ok := p.member(last < 0)
		if !more {
			return ok
		}
		last = p.begin(key, 1, last)
		raw := decode(p.b, key)
		name := usageName(raw)
		kind := keptPart
		if name&p.list.usage == 0 {
			kind = cutPart
		}
		if name != usedCached && !p.once(&seen, name) {
			return false
		}
		switch name {
		case usedPrompt:
			p.r.Prompt, ok = p.count()
		case usedCompletion:
			p.r.Completion, ok = p.count()
		case usedTotal:
			p.r.Total, ok = p.count()
		case usedPromptDetails, usedCompletionDetails:
			var more bool
			if more, ok = p.details(name); !more && name == usedPromptDetails {
				kind = cachedPart // that it is there tells as much as what is in it
			}
		case usedCached:
			kind = cachedPart
			ok = p.cached(raw, 1)
		default:
			ok = p.skip(2)
		}
		if !ok {
			return false
		}
		p.end(last, kind)
	}
}

// cached scans a count that tells of a cache. How much was taken out of it may be told under
// several names, of which each may come once; if they differ, it is unknown.
func (p *replyScanner) cached(name []byte, place names) bool {
	bit, taken := place, true
	switch string(name) {
	case "prompt_cache_hit_tokens":
		bit = place << 1
	case "prompt_cache_miss_tokens":
		bit, taken = place<<2, false
	case "created_cache_tokens":
		bit, taken = place<<3, false
	}
	n, ok := p.count()
	if !ok || !p.once(&p.caches, bit) || !taken || !n.Known {
		return p.bad == fine && ok
	}
	if p.r.Cached.Known && p.r.Cached != n {
		p.quarrel = true
	}
	p.r.Cached = n
	return true
}

// details scans what a usage says in detail. more says that there is something on the list
// beside cached tokens.
func (p *replyScanner) details(of names) (more, ok bool) {
	if p.peek() == 'n' {
		return false, p.word("null")
	}
	if !p.enter() {
		return false, false
	}
	last := -1
	for {
		key, next, sound := p.member(last < 0)
		if !next {
			return more, sound
		}
		last = p.begin(key, 2, last)
		kind := keptPart
		name := decode(p.b, key)
		listed, cached := detailName(name)
		switch {
		case cached && of == usedPromptDetails:
			kind = cachedPart
			ok = p.cached(name, 1<<8)
		case cached || !listed:
			kind = cutPart
			ok = p.skip(3)
		default:
			more = true
			ok = p.skip(3)
		}
		if !ok {
			return more, false
		}
		p.end(last, kind)
	}
}

func (p *replyScanner) choices() bool {
	p.r.Listed = true
	if !p.take('[') {
		return p.fail(malformed)
	}
	if p.take(']') {
		return true
	}
	for {
		if !p.choice() {
			return false
		}
		if p.take(']') {
			return true
		}
		if !p.take(',') {
			return p.fail(malformed)
		}
	}
}

// choice scans one choice.
func (p *replyScanner) choice() bool {
	if !p.enter() {
		return false
	}
	at := uint32(p.i)
	open := p.r.add(part{from: at, val: at, to: at, depth: 1, kind: barePart})
	if n := p.r.Choices - len(p.r.fewSaid); n < 0 {
		p.r.fewSaid[p.r.Choices] = choice{}
	} else {
		p.r.moreSaid = append(p.r.moreSaid, choice{})
	}
	p.r.Choices++
	c := choice{open: at, first: open}
	seen, last := names(0), -1
	for {
		key, more, ok := p.member(last < 0)
		if !ok {
			return false
		}
		if !more {
			break
		}
		last = p.begin(key, 1, last)
		name := p.choiceName(decode(p.b, key))
		kind := keptPart
		if name&p.list.choice == 0 {
			kind = cutPart
		}
		if !p.once(&seen, name) || !p.choiceValue(name, &c, &kind) {
			return false
		}
		p.end(last, kind)
	}
	if c.marks&hasIndex != 0 {
		p.r.part(open).kind = openPart
	}
	c.end, c.last = uint32(p.i), p.r.parts
	*p.r.said(p.r.Choices - 1) = c
	return true
}

// choiceName also knows what holds the answer: it depends on endpoint and form.
func (p *replyScanner) choiceName(name []byte) names {
	r := p.r
	switch string(name) {
	case "delta":
		if r.endpoint == Chat && !r.whole {
			return inMessage
		}
		return 0
	case "message":
		if r.endpoint == Chat && r.whole {
			return inMessage
		}
		return 0
	case "text":
		if r.endpoint != Chat {
			return inText
		}
		return 0
	}
	return choiceName(name)
}

// choiceValue scans the value of a member of a choice.
func (p *replyScanner) choiceValue(name names, c *choice, kind *partKind) (ok bool) {
	switch name {
	case inIndex:
		*kind = indexPart
		c.marks |= hasIndex
		c.index, ok = p.count()
	case inFinish:
		var v str
		v, ok = p.maybe()
		c.finish = wordsOf(v)
	case inMessage:
		c.marks |= hasMessage
		ok = p.message(c)
	case inText:
		var v str
		v, ok = p.str()
		c.text = wordsOf(v)
		c.marks |= hasMessage | hasContent | hasText
		if v.size > 0 {
			c.marks |= hasMoved
		}
	default:
		ok = p.skip(3)
	}
	return ok
}

// message scans the message or delta of a choice.
func (p *replyScanner) message(c *choice) bool {
	if !p.enter() {
		return false
	}
	seen, last := names(0), -1
	for {
		key, more, ok := p.member(last < 0)
		if !more {
			return ok
		}
		last = p.begin(key, 2, last)
		name := messageName(decode(p.b, key))
		kind := keptPart
		if name&p.list.message == 0 {
			kind = cutPart
		}
		if !p.once(&seen, name) || !p.messageValue(name, c) {
			return false
		}
		p.end(last, kind)
	}
}

// messageValue scans the value of a member of a message or delta.
func (p *replyScanner) messageValue(name names, c *choice) bool {
	switch name {
	case msgContent:
		c.marks |= hasContent
		if p.r.dialect == OpenAI && p.peek() == '[' {
			return p.parts(c, hasMoved) // parts of several kinds
		}
		v, ok := p.maybe()
		if v.raw.to > 0 {
			c.text = wordsOf(v)
			c.marks |= hasText
		}
		if v.size > 0 {
			c.marks |= hasMoved
		}
		return ok
	case msgReasoningContent, msgReasoning:
		if name == msgReasoning {
			c.marks |= hasThoughts
		}
		if p.peek() != '"' {
			return p.parts(c, hasMoved)
		}
		v, ok := p.str()
		if c.reasoning.to == 0 {
			c.reasoning = wordsOf(v)
		}
		if v.size > 0 {
			c.marks |= hasMoved
		}
		return ok
	case msgRefusal:
		v, ok := p.maybe()
		if v.size > 0 {
			c.marks |= hasMoved
		}
		return ok
	case msgToolCalls, msgFunctionCall:
		return p.parts(c, hasMoved|hasCalled)
	case msgReasoningDetails, msgAudio:
		return p.parts(c, hasMoved)
	}
	return p.skip(4)
}

// parts scans a list, an object or null, and marks the choice unless it is empty.
func (p *replyScanner) parts(c *choice, m mark) bool {
	if p.peek() == 'n' {
		return p.word("null")
	}
	v, ok := p.value(4)
	if raw := p.b[v.from:v.to]; ok && (raw[0] == '[' || raw[0] == '{') && !hollow(raw) {
		c.marks |= m
	}
	return ok
}

// hollow says whether a list or an object has nothing in it.
func hollow(raw []byte) bool {
	for _, c := range raw[1 : len(raw)-1] {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return false
		}
	}
	return true
}

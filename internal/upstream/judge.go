package upstream

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead.dev/bulkhead/internal/fault"
)

// Policy is what the route of a model and the tenant allow.
type Policy struct {
	// Dialect is that of the model's engines.
	Dialect Dialect
	// Grants names the fields that the operator granted. A prompt of token ids needs
	// "prompt_token_ids".
	Grants []string
	// Shadow names fields that would be refused as unknown or as not granted but pass
	// for now, inner ones by their path without numbers ("messages.content.weight"); "*"
	// names all. It never helps a reserved field, nor one that the gateway writes (G-10).
	Shadow []string
	// Domains are the hosts that URLs in content may name (G-13): "images.example.org"
	// on the scheme's own port, "images.example.org:8443" on that one.
	Domains []string
	// MaxSchema bounds one grammar or schema, in bytes; 0: 64 KiB.
	MaxSchema int
	// MaxSequences bounds Request.Sequences; 0: 16.
	MaxSequences int
}

// Defaults of a policy.
const (
	maxSchema    = 64 << 10 // bytes
	maxSequences = 16
)

// Limits of what is small by nature.
const (
	maxStops    = 4
	maxStop     = 256     // bytes
	maxShort    = 64      // bytes of a value that is one word
	maxPattern  = 4 << 10 // bytes of one of a list of texts
	maxSafetyID = 256     // bytes
)

// written are the names at top level that the gateway writes for some dialect, or that
// some engine takes for one of these. They pass only as a table says.
const written = "model messages prompt stream stream_options max_tokens max_completion_tokens max_output_tokens n best_of " +
	"seed safety_identifier structured_outputs response_format json_schema grammar regex ebnf store"

// judge judges one body.
type judge struct {
	reader
	body *Body
	req  *Request
	p    Policy
	// kept are the members at top level for decode, or for the one server; first those
	// for prefill.
	kept, first []member
	// constraints counts what narrows the form of the answer.
	constraints int
	maxAt       bool
}

// Judge says what a body asks of an engine under a policy, or why it may not (G-1). It
// does not walk over the prompt again. The error is ready for the client but for its id.
func (b *Body) Judge(p Policy) (*Request, *fault.Error) {
	if p.MaxSchema <= 0 {
		p.MaxSchema = maxSchema
	}
	if p.MaxSequences <= 0 {
		p.MaxSequences = maxSequences
	}
	r := &Request{Endpoint: b.Endpoint, Model: b.Model, N: 1, Prompts: 1, body: b}
	room := make([]member, 2*len(b.entries))
	j := judge{reader: reader{lexer: lexer{b: b.raw}}, body: b, req: r, p: p,
		kept: room[:0:len(b.entries)], first: room[len(b.entries):len(b.entries)]}
	for i := range b.entries {
		if !j.member(&b.entries[i]) {
			return nil, j.failure()
		}
	}
	if !j.prompts() || !j.together() {
		return nil, j.failure()
	}
	j.edits()
	return r, nil
}

// member judges one member at top level.
func (j *judge) member(e *entry) bool {
	f := lookup(j.p.Dialect, j.body.Endpoint, e.name)
	keep, leg := false, eitherLeg
	if f == nil {
		if !j.unlisted(string(e.name)) {
			return false
		}
		keep = true
	} else {
		j.i = e.value.from
		ok := false
		if keep, ok = j.field(f, e); !ok {
			return false
		}
		leg = f.leg
	}
	j.kept = append(j.kept, member{e.span, keep})
	j.first = append(j.first, member{e.span, keep && leg != decodeLeg})
	return true
}

// unlisted refuses a field at top level that is on no list, unless it is shadowed.
func (j *judge) unlisted(name string) bool {
	if reason, yes := forbidden([]byte(name)); yes {
		return j.refuse(fault.ReservedField, fault.Field(name), reason)
	}
	if _, i := word(written, []byte(name)); i >= 0 || !j.shadowed(name) {
		return j.refuse(fault.UnknownField, fault.Field(name))
	}
	return true
}

// shadowed says whether a field passes for now, and notes it.
func (j *judge) shadowed(name string) bool {
	for _, s := range j.p.Shadow {
		if s == name || s == "*" {
			j.req.Shadowed = append(j.req.Shadowed, ordinary(name))
			return true
		}
	}
	return false
}

// ordinary is the name of a field as it may be told to an operator: it is the client's own
// text, so that only an ordinary one is.
func ordinary(name string) string {
	for i := range len(name) {
		c := name[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
		if !plain || i >= maxShort {
			return "(other)"
		}
	}
	return name
}

// field judges the value of a listed field and says whether its bytes stay.
func (j *judge) field(f *field, e *entry) (keep, ok bool) {
	at := fault.Field(f.name)
	if f.mode == never {
		return false, j.refuse(fault.ReservedField, at, f.reason)
	}
	if j.peek() == 'n' {
		// Scan has refused null where a value must be.
		return false, true
	}
	switch f.mode {
	case pass:
		if f.kind == kindSeed && !j.seed(at) {
			return false, false
		}
		return true, f.kind == kindSeed || j.read(f, at)
	case drop:
		if !j.read(f, at) {
			return false, false
		}
		j.req.Dropped = append(j.req.Dropped, f.name)
		return false, true
	case mapped:
		return false, j.rewritten(f, e, at)
	case grant:
		if j.peek() == 'f' {
			return false, j.word("false")
		}
		if !slices.Contains(j.p.Grants, f.name) && !j.shadowed(f.name) {
			return false, j.refuse(fault.FieldNotGranted, at)
		}
		return true, j.read(f, at)
	default:
		return false, j.isOff(f, at)
	}
}

// seed reads the client's seed.
func (j *judge) seed(at fault.Arg) bool {
	n, ok := j.integer(at, bound(-1<<63), bound(1<<63))
	j.req.Seed = Count{N: n, Known: ok}
	return ok
}

// rewritten reads a mapped field.
func (j *judge) rewritten(f *field, e *entry, at fault.Arg) bool {
	if !j.read(f, at) {
		return false
	}
	if f.to == (rewrite{}) {
		return true
	}
	w := write{before: f.to.before, after: f.to.after,
		constrains: f.kind == kindGrammar || f.kind == kindSchema || f.kind == kindChoices}
	raw := j.b[e.value.from:e.value.to]
	switch {
	case f.to.form == formQuoted && raw[0] != '"':
		w.text = appendString(nil, string(raw))
	case f.to.form == formObject && raw[0] == '"':
		if w.text = objectIn(raw); w.text == nil {
			return j.refuse(fault.WrongType, at, fault.Fixed("an object, or a string that holds one"))
		}
	case f.to.form == formRegex:
		w.text = appendString(nil, alternatives(raw, appendRegex, "(", "|", ")"))
	case f.to.form == formGBNF:
		w.text = appendString(nil, alternatives(raw, appendGBNF, "root ::= ", " | ", ""))
	default:
		w.raw = e.value
	}
	j.req.writes = append(j.req.writes, w)
	j.req.Mapped = append(j.req.Mapped, f.name)
	return true
}

// objectIn returns the JSON object that a string of JSON holds, or nil.
func objectIn(raw []byte) []byte {
	l := lexer{b: raw}
	v, ok := l.str()
	if !ok {
		return nil
	}
	text := slices.Clone(decode(raw, v))
	l = lexer{b: text}
	if l.peek() != '{' {
		return nil
	}
	if _, ok := l.value(maxDepth / 2); !ok || l.peek() != 0 || l.i != len(text) {
		return nil
	}
	return text
}

// prompts judges what was scanned of the prompt.
func (j *judge) prompts() bool {
	r := j.req
	if j.body.Endpoint == Chat {
		c := &j.body.chat
		r.Messages = c.count
		r.Text += c.text + c.more
		r.Loose = r.Loose || c.media > 0 || c.uses[talkToolCalls].known || c.uses[talkFunctionCall].known
		return j.talk(c)
	}
	p := &j.body.prompt
	r.Messages = 1
	r.Prompts = len(p.items)
	at := fault.Field("prompt")
	if j.p.Dialect == Bulkhead && (p.ids || len(p.items) > 1) {
		return j.refuse(fault.UnsupportedList, at)
	}
	if p.ids && !slices.Contains(j.p.Grants, "prompt_token_ids") && !j.shadowed("prompt_token_ids") {
		return j.refuse(fault.FieldNotGranted, fault.Field("prompt_token_ids"))
	}
	if !p.ids {
		for i := range p.items {
			r.Text += int64(p.items[i].size)
		}
	}
	return true
}

// talk judges what the messages of a chat use.
func (j *judge) talk(c *talk) bool {
	may := uses(j.p.Dialect)
	for u := range usesThere {
		if at := c.uses[u]; at.known && !may.has(u) {
			return j.misused(u, at)
		}
	}
	for i := range c.strays {
		if !j.shadowed(c.strays[i].name) {
			return j.refuse(fault.UnknownField, fault.Field(c.strays[i].path))
		}
	}
	for i := range c.urls {
		if !allowedURL(string(decode(j.b, c.urls[i].url)), j.p.Domains) {
			return j.refuse(fault.URLNotAllowed, fault.Field(path(c.urls[i].at)))
		}
	}
	return true
}

// path is the path of a place: of a part of a message's content.
func path(at place) string {
	return "messages[" + strconv.Itoa(int(at.message)) + "].content[" + strconv.Itoa(int(at.part)) + "]"
}

// misused refuses something in a message that the engine does not take.
func (j *judge) misused(u use, at place) bool {
	in := "messages[" + strconv.Itoa(int(at.message)) + "]."
	switch {
	case u >= talkImage:
		return j.refuse(fault.UnsupportedContent, fault.Field(path(at)))
	case u == talkToolRole || u == talkFunctionRole:
		return j.refuse(fault.WrongType, fault.Field(in+"role"), fault.Fixed("one of system, developer, user and assistant"))
	case u == talkNoContent:
		return j.refuse(fault.MissingField, fault.Field(in+"content"))
	case u == talkNullContent:
		return j.refuse(fault.WrongType, fault.Field(in+"content"), fault.Fixed("a string, or an array of text parts"))
	}
	name, _ := nth(optional, int(u))
	return j.refuse(fault.UnsupportedField, fault.Field(in+name))
}

// together judges what only all the fields together tell.
func (j *judge) together() bool {
	r := j.req
	if r.Sequences() > j.p.MaxSequences {
		name := "n"
		if r.Prompts > 1 {
			name = "prompt"
		}
		return j.refuse(fault.TooManyValues, fault.Field(name), fault.Int(int64(j.p.MaxSequences)))
	}
	for i := range r.writes {
		if j.taken(i) {
			return j.refuse(fault.ConflictingFields, fault.Field(r.Mapped[i]))
		}
	}
	return true
}

// taken says whether the member that a mapped field became is there already, or the
// request has another constraint beside it: engines take one.
func (j *judge) taken(i int) bool {
	name := target(&j.req.writes[i])
	for k := range i {
		if target(&j.req.writes[k]) == name {
			return true
		}
	}
	e := j.body.entry(name)
	return e != nil && name != j.req.Mapped[i] && j.b[e.value.from] != 'n' || j.req.writes[i].constrains && j.constraints > 1
}

// target is the name of the member that is written.
func target(w *write) string {
	name, _, _ := strings.Cut(w.before[1:], `"`)
	return name
}

// edits makes the edits of the legs.
func (j *judge) edits() {
	r, b := j.req, j.body
	if r.Seed.Known && r.N > 1 && j.p.Dialect.Traits().Lists == Split {
		r.reseed = true
		e := b.entry("seed")
		for i := range j.kept {
			if j.kept[i].from == e.from {
				j.kept[i].keep, j.first[i].keep = false, false
			}
		}
	}
	inner := b.chat.edits
	if len(b.chat.developers) > 0 && asSystem(j.p.Dialect) {
		inner = slices.Grow(slices.Clone(inner), len(b.chat.developers))
		for _, d := range b.chat.developers {
			inner = append(inner, edit{d, "system"})
		}
		slices.SortFunc(inner, func(x, y edit) int { return x.from - y.from })
	}
	r.edits = merge(j.kept, inner)
	r.prefill = r.edits
	if !slices.Equal(j.kept, j.first) {
		r.prefill = merge(j.first, inner)
	}
}

// asSystem says whether an engine knows the role developer by its older name only.
func asSystem(d Dialect) bool { return d == Bulkhead || d == LlamaCPP }

// merge puts the edits that cut members out together with those inside of one of them.
func merge(members []member, inner []edit) []edit {
	outer := cuts(make([]edit, 0, 4), members)
	if len(inner) == 0 {
		return outer
	}
	at, _ := slices.BinarySearchFunc(outer, inner[0].from, func(e edit, from int) int { return e.from - from })
	all := make([]edit, 0, len(outer)+len(inner))
	all = append(all, outer[:at]...)
	all = append(all, inner...)
	return append(all, outer[at:]...)
}

package upstream

import (
	"slices"
	"strconv"

	"bulkhead.dev/bulkhead/internal/fault"
)

// talk is what was scanned of the messages of a chat.
type talk struct {
	given bool
	// count is the number of messages, text the length of their decoded text in bytes,
	// and more that of names, calls of tools and the like.
	count      int
	text, more int64
	// media counts pictures, sounds and files.
	media int
	// uses says what the messages use besides plain text, each with its first place.
	uses [usesThere]place
	// urls are the places that the content names, data: URLs apart.
	urls []reference
	// strays are keys that are on no list.
	strays []stray
	// edits cut out what is empty; developers are the roles of that name. Both are in
	// the order of the body.
	edits      []edit
	developers []span
}

// use is something in a message that not every engine takes.
type use uint8

const (
	talkName use = iota
	talkRefusal
	talkToolCalls
	talkToolCallID
	talkFunctionCall
	talkAudio
	talkAnnotations
	talkReasoningContent
	talkReasoning
	talkToolRole
	talkFunctionRole
	talkNullContent
	talkNoContent
	// Parts of content from here on.
	talkImage
	talkInputAudio
	talkAudioURL
	talkVideoURL
	talkFile
	talkRefusalPart

	usesThere // how many there are
)

// useSet is a set of uses.
type useSet uint32

func (s useSet) has(u use) bool { return s&(1<<u) != 0 }

// uses returns what the messages of a dialect may use.
func uses(d Dialect) useSet {
	const (
		tools = 1<<talkName | 1<<talkToolCalls | 1<<talkToolCallID | 1<<talkToolRole | 1<<talkNullContent | 1<<talkNoContent
		think = 1<<talkReasoningContent | 1<<talkReasoning
	)
	switch d {
	case Bulkhead:
		return 0
	case SGLang, SGLangPD:
		return tools | think | 1<<talkImage | 1<<talkAudioURL | 1<<talkVideoURL
	case VLLM, VLLMNixl, VLLMMooncake:
		return tools | think | 1<<talkImage | 1<<talkAudioURL | 1<<talkVideoURL | 1<<talkInputAudio | 1<<talkRefusalPart
	case LlamaCPP:
		return tools | think | 1<<talkImage | 1<<talkInputAudio
	default:
		return tools | think | 1<<talkRefusal | 1<<talkFunctionCall | 1<<talkFunctionRole | 1<<talkAnnotations |
			1<<talkImage | 1<<talkInputAudio | 1<<talkFile | 1<<talkRefusalPart
	}
}

// place is where something stands: messages[message].content[part].
type place struct {
	known         bool
	message, part int32
}

// stray is a key inside a message that is on no list.
type stray struct {
	name   string // the path without numbers, as a policy may name it
	path   string // the path of the first one
	object int    // the last object that had it
}

// maxMessages bounds the messages of a chat: each may cost an edit of the body.
const maxMessages = 1 << 16

// optional names the members of a message that are read only if they are there. What is
// null or empty is cut out: client libraries send back whole answers.
const optional = "name refusal tool_calls tool_call_id function_call audio annotations reasoning_content reasoning"

// messages scans the messages of a chat. Their text is measured, not decoded.
func (s *scanner) messages() bool {
	at := fault.Field("messages")
	if s.peek() != '[' {
		return s.wrong(at, fault.Fixed("an array of messages"))
	}
	s.body.chat.given = true
	return s.array(1, func(i int) bool {
		if i >= maxMessages {
			return s.refuse(fault.TooManyValues, at, fault.Int(maxMessages))
		}
		s.message = i
		s.body.chat.count++
		if s.peek() != '{' {
			return s.wrong(fault.Field("messages["+strconv.Itoa(i)+"]"), fault.Fixed("an object"))
		}
		return s.oneMessage()
	})
}

// in is the path of a field of the message at hand.
func (s *scanner) in(name string) string {
	return "messages[" + strconv.Itoa(s.message) + "]." + name
}

// note notes that the message or the part at hand uses something.
func (s *scanner) note(u use) bool {
	if p := &s.body.chat.uses[u]; !p.known {
		*p = place{true, int32(s.message), int32(s.part)}
	}
	return true
}

// oneMessage scans one message.
func (s *scanner) oneMessage() bool {
	s.mid = s.mid[:0]
	s.object++
	object, from := s.object, len(s.body.chat.edits)
	var seen uint64
	content, called := byte(0), false // how the content begins; whether something stands for it
	ok := s.reader.object(2, func(key str) bool {
		name := decode(s.b, key)
		which := 0
		switch {
		case string(name) == "role":
		case string(name) == "content":
			which = 1
		default:
			_, i := word(optional, name)
			if i < 0 {
				return s.strayKey(string(name), "messages.", s.in, object) && s.skip(3)
			}
			which = i + 2
		}
		if seen&(1<<which) != 0 {
			return s.refuse(fault.RepeatedField, fault.Field(s.in(string(name))))
		}
		seen |= 1 << which
		keep, ok := true, false
		switch which {
		case 0:
			ok = s.role()
		case 1:
			content = s.peek()
			ok = s.content()
		default:
			keep, ok = s.optional(use(which - 2))
			called = called || keep && which != 2
		}
		s.mid = append(s.mid, member{span{key.raw.from - 1, s.i}, keep})
		return ok
	})
	if !ok {
		return false
	}
	if seen&1 == 0 {
		return s.refuse(fault.MissingField, fault.Field(s.in("role")))
	}
	if !s.hasContent(content, called) {
		return false
	}
	edits := cuts(s.body.chat.edits, s.mid)
	slices.SortFunc(edits[from:], func(x, y edit) int { return x.from - y.from })
	s.body.chat.edits = edits
	return true
}

// hasContent checks that a message has content, or something in its place.
func (s *scanner) hasContent(content byte, called bool) bool {
	switch {
	case content == 0 && !called:
		return s.refuse(fault.MissingField, fault.Field(s.in("content")))
	case content == 'n' && !called:
		return s.refuse(fault.WrongType, fault.Field(s.in("content")), fault.Fixed("a string, or an array of text parts"))
	case content == 0:
		return s.note(talkNoContent)
	case content == 'n':
		return s.note(talkNullContent)
	}
	return true
}

// skip scans a value that is not looked into. depth is that of the value.
func (s *scanner) skip(depth int) bool {
	_, ok := s.value(depth)
	return ok
}

// strayKey notes a key that is on no list, and refuses it if it is reserved, if it came
// twice in the object, or if there are many.
func (s *scanner) strayKey(name, prefix string, path func(string) string, object int) bool {
	if reason, yes := forbidden([]byte(name)); yes {
		return s.refuse(fault.ReservedField, fault.Field(path(name)), reason)
	}
	c := &s.body.chat
	for i := range c.strays {
		if c.strays[i].name != prefix+name {
			continue
		}
		if c.strays[i].object == object {
			return s.refuse(fault.RepeatedField, fault.Field(path(name)))
		}
		c.strays[i].object = object
		return true
	}
	if len(c.strays) >= maxStrays {
		return s.refuse(fault.UnknownField, fault.Field(path(name)))
	}
	c.strays = append(c.strays, stray{prefix + name, path(name), object})
	return true
}

// role scans the role of a message.
func (s *scanner) role() bool {
	v, ok := s.textIn(s.in, "role")
	if !ok {
		return false
	}
	switch string(decode(s.b, v)) {
	case "system", "user", "assistant":
		return true
	case "developer":
		s.body.chat.developers = append(s.body.chat.developers, v.raw)
		return true
	case "tool":
		return s.note(talkToolRole)
	case "function":
		return s.note(talkFunctionRole)
	default:
		return s.refuse(fault.WrongType, fault.Field(s.in("role")), fault.Fixed("one of system, developer, user, assistant and tool"))
	}
}

// optional scans an optional member of a message and says whether it is there: null and
// empty values are cut out.
func (s *scanner) optional(u use) (keep, ok bool) {
	c := &s.body.chat
	name, _ := nth(optional, int(u))
	s.part = -1
	s.space()
	from := s.i
	switch s.peek() {
	case 'n':
		return false, s.word("null")
	case '"':
		v, ok := s.str()
		if !ok || v.size == 0 {
			return false, ok
		}
		if u == talkToolCalls || u == talkFunctionCall || u == talkAudio || u == talkAnnotations {
			return false, s.refuse(fault.WrongType, fault.Field(s.in(name)), fault.Fixed("an array or an object"))
		}
		c.more += int64(v.size)
		return true, s.note(u)
	case '[', '{':
	default:
		return false, s.wrong(fault.Field(s.in(name)), fault.Fixed("a string, an array or an object"))
	}
	open := s.b[s.i]
	if isEmpty(s.b[s.i:]) {
		return false, s.skip(3)
	}
	switch {
	case u == talkToolCalls && open == '[':
		ok = s.array(3, s.toolCall)
	case u == talkFunctionCall && open == '{':
		ok = s.called(3, func(name string) string { return s.in("function_call." + name) }, "messages.function_call.")
	case u == talkAudio && open == '{', u == talkAnnotations && open == '[':
		ok = s.skip(3)
	default:
		return false, s.wrong(fault.Field(s.in(name)), fault.Fixed("what its name says"))
	}
	c.more += int64(s.i - from)
	s.note(u)
	return true, ok
}

// isEmpty says whether b begins with an empty array or object.
func isEmpty(b []byte) bool {
	l := lexer{b: b, i: 1}
	c := l.peek()
	return c == ']' && b[0] == '[' || c == '}' && b[0] == '{'
}

// nth returns the word at a place.
func nth(words string, at int) (string, bool) {
	from := 0
	for i := 0; i <= len(words); i++ {
		if i < len(words) && words[i] != ' ' {
			continue
		}
		if at == 0 {
			return words[from:i], true
		}
		at, from = at-1, i+1
	}
	return "", false
}

// toolCall scans one call of a tool that an assistant made.
func (s *scanner) toolCall(i int) bool {
	path := func(name string) string {
		p := s.in("tool_calls[" + strconv.Itoa(i) + "]")
		if name == "" {
			return p
		}
		return p + "." + name
	}
	s.object++
	object := s.object
	keep := func(name string) bool { return s.strayKey(name, "messages.tool_calls.", path, object) }
	return s.keyed(4, "id type index function custom", path, keep, func(name string) bool {
		switch {
		case s.peek() == '{' && (name == "function" || name == "custom"):
			return s.called(5, func(in string) string { return path(name + "." + in) }, "messages.tool_calls."+name+".")
		case name == "function" || name == "custom":
			return s.wrong(fault.Field(path(name)), fault.Fixed("an object"))
		}
		return s.scalar(path, name)
	})
}

// called scans the name and the arguments of a call. What the arguments say is the
// caller's own.
func (s *scanner) called(depth int, path func(string) string, prefix string) bool {
	s.object++
	object := s.object
	keep := func(name string) bool { return s.strayKey(name, prefix, path, object) }
	return s.keyed(depth, "name arguments input", path, keep, func(name string) bool {
		if name == "name" {
			_, ok := s.textIn(path, name)
			return ok
		}
		return s.skip(depth + 1)
	})
}

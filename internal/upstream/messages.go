package upstream

import (
	"strconv"

	"bulkhead.dev/bulkhead/internal/fault"
)

// maxMessages bounds the messages of a chat: each may cost an edit of the body.
const maxMessages = 1 << 16

// messages scans the messages of a chat. Their text is measured, not decoded.
func (s *scanner) messages(at fault.Arg) bool {
	if s.peek() != '[' {
		return s.wrong(at, fault.Fixed("an array of messages"))
	}
	return s.array(1, func(i int) bool {
		if i >= maxMessages {
			return s.refuse(fault.TooManyValues, at, fault.Int(maxMessages))
		}
		s.message = i
		s.req.Messages++
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

// oneMessage scans one message.
func (s *scanner) oneMessage() bool {
	seen := uint(0)
	s.mid = s.mid[:0]
	ok := s.object(2, func(key str) bool {
		name := decode(s.b, key)
		which := -1
		for i := range messageFields {
			if string(name) == messageFields[i].name {
				which = i
				break
			}
		}
		if which < 0 {
			return s.unlisted(string(name), s.in(string(name)))
		}
		if seen&(1<<which) != 0 {
			return s.refuse(fault.RepeatedField, fault.Field(s.in(messageFields[which].name)))
		}
		seen |= 1 << which
		keep, ok := true, false
		switch which {
		case 0:
			ok = s.role()
		case 1:
			ok = s.content()
		default:
			keep, ok = s.field(messageFields[which], fault.Field(s.in(messageFields[which].name)))
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
	if seen&2 == 0 {
		return s.refuse(fault.MissingField, fault.Field(s.in("content")))
	}
	s.req.edits = cuts(s.req.edits, s.mid)
	return true
}

// role scans the role of a message. Workers know three; developer is the newer name of
// system and is written so.
func (s *scanner) role() bool {
	v, ok := s.text(fault.Field(s.in("role")))
	if !ok {
		return false
	}
	switch string(decode(s.b, v)) {
	case "system", "user", "assistant":
		return true
	case "developer":
		s.req.edits = append(s.req.edits, edit{v.raw, "system"})
		return true
	default:
		return s.refuse(fault.WrongType, fault.Field(s.in("role")), fault.Fixed("one of system, developer, user and assistant"))
	}
}

// content scans the text of a message: a string, or an array of text parts.
func (s *scanner) content() bool {
	switch s.peek() {
	case '"':
		v, ok := s.str()
		s.req.Text += int64(v.size)
		return ok
	case '[':
		return s.array(3, func(i int) bool {
			s.part = i
			return s.onePart()
		})
	default:
		return s.wrong(fault.Field(s.in("content")), fault.Fixed("a string, or an array of text parts"))
	}
}

// inPart is the path of a field of the content part at hand.
func (s *scanner) inPart(name string) string {
	path := s.in("content[" + strconv.Itoa(s.part) + "]")
	if name == "" {
		return path
	}
	return path + "." + name
}

// onePart scans one part of a message's content.
func (s *scanner) onePart() bool {
	if s.peek() != '{' {
		return s.wrong(fault.Field(s.inPart("")), fault.Fixed("an object"))
	}
	typed, texted := false, false
	ok := s.object(4, func(key str) bool {
		switch name := string(decode(s.b, key)); name {
		case "type":
			if typed {
				return s.refuse(fault.RepeatedField, fault.Field(s.inPart(name)))
			}
			typed = true
			v, ok := s.text(fault.Field(s.inPart(name)))
			if ok && string(decode(s.b, v)) != "text" {
				return s.refuse(fault.UnsupportedContent, fault.Field(s.inPart("")))
			}
			return ok
		case "text":
			if texted {
				return s.refuse(fault.RepeatedField, fault.Field(s.inPart(name)))
			}
			texted = true
			v, ok := s.text(fault.Field(s.inPart(name)))
			s.req.Text += int64(v.size)
			return ok
		case "image_url", "input_audio", "file", "refusal":
			return s.refuse(fault.UnsupportedContent, fault.Field(s.inPart("")))
		default:
			return s.unlisted(name, s.inPart(name))
		}
	})
	if ok && !typed {
		return s.refuse(fault.MissingField, fault.Field(s.inPart("type")))
	}
	if ok && !texted {
		return s.refuse(fault.MissingField, fault.Field(s.inPart("text")))
	}
	return ok
}

// prompt scans the prompt of a completion: a string, or a list of one string, which is
// unpacked by cutting the brackets away. A list of more would be several sequences under
// one hand-off (G-11).
func (s *scanner) prompt(at fault.Arg) bool {
	s.req.Messages = 1
	switch s.peek() {
	case '"':
		v, ok := s.str()
		s.req.Text = int64(v.size)
		return ok
	case '[':
		open := s.i
		var only span
		ok := s.array(1, func(i int) bool {
			if s.peek() != '"' || i > 0 {
				if _, ok := s.value(2); !ok {
					return false
				}
				return s.refuse(fault.UnsupportedList, at)
			}
			v, ok := s.str()
			s.req.Text = int64(v.size)
			only = span{v.raw.from - 1, v.raw.to + 1}
			return ok
		})
		if !ok {
			return false
		}
		if only.to == 0 {
			return s.refuse(fault.EmptyPrompt, at)
		}
		s.req.edits = append(s.req.edits, edit{span: span{open, only.from}}, edit{span: span{only.to, s.i}})
		return true
	default:
		return s.wrong(at, fault.Fixed("a string"))
	}
}

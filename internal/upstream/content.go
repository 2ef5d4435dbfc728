package upstream

import (
	"bytes"
	"strconv"

	"bulkhead.dev/bulkhead/internal/fault"
)

// reference is a place that a part of the content names.
type reference struct {
	url str
	at  place
}

// maxURLs bounds the places that one request may name.
const maxURLs = 64

// content scans the content of a message: a string, or an array of parts, or null where
// something stands in its place.
func (s *scanner) content() bool {
	switch s.peek() {
	case '"':
		v, ok := s.str()
		s.body.chat.text += int64(v.size)
		return ok
	case '[':
		return s.array(3, func(i int) bool {
			s.part = i
			return s.onePart()
		})
	case 'n':
		return s.word("null")
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

// partTypes are the types of a part, each of which is also the name of what it holds.
const partTypes = "text image_url input_audio audio_url video_url file refusal"

// The places of some of these types.
const (
	noPart      = -1
	textPart    = 0
	refusalPart = 6
)

// onePart scans one part of a message's content.
func (s *scanner) onePart() bool {
	if s.peek() != '{' {
		return s.wrong(fault.Field(s.inPart("")), fault.Fixed("an object"))
	}
	s.object++
	object := s.object
	typed, held := noPart, noPart
	keep := func(name string) bool { return s.strayKey(name, "messages.content.", s.inPart, object) }
	ok := s.keyed(4, "type "+partTypes, s.inPart, keep, func(name string) bool {
		if name == "type" {
			v, ok := s.textIn(s.inPart, name)
			if !ok {
				return false
			}
			if _, typed = word(partTypes, decode(s.b, v)); typed == noPart {
				return s.refuse(fault.UnsupportedContent, fault.Field(s.inPart("")))
			}
			return true
		}
		if held != noPart {
			return s.refuse(fault.UnsupportedContent, fault.Field(s.inPart("")))
		}
		_, held = word(partTypes, []byte(name))
		return s.held(held, name)
	})
	switch {
	case !ok:
		return false
	case typed == noPart && held > textPart, typed != noPart && held != noPart && typed != held:
		return s.refuse(fault.UnsupportedContent, fault.Field(s.inPart("")))
	case typed == noPart:
		return s.refuse(fault.MissingField, fault.Field(s.inPart("type")))
	case held == noPart:
		name, _ := nth(partTypes, typed)
		return s.refuse(fault.MissingField, fault.Field(s.inPart(name)))
	}
	return true
}

// held scans what a part holds.
func (s *scanner) held(which int, name string) bool {
	c := &s.body.chat
	switch which {
	case textPart:
		v, ok := s.textIn(s.inPart, name)
		c.text += int64(v.size)
		return ok
	case refusalPart:
		v, ok := s.textIn(s.inPart, name)
		c.more += int64(v.size)
		s.note(talkRefusalPart)
		return ok
	}
	c.media++
	s.note(talkImage + use(which-1))
	s.object++
	object := s.object
	path := func(in string) string {
		if in == "" {
			return s.inPart(name)
		}
		return s.inPart(name + "." + in)
	}
	keep := func(in string) bool { return s.strayKey(in, "messages.content."+name+".", path, object) }
	keys := "url detail"
	switch name {
	case "input_audio":
		keys = "data format"
	case "file":
		keys = "file_data filename file_id"
	}
	return s.keyed(5, keys, path, keep, func(in string) bool {
		v, ok := s.textIn(path, in)
		if !ok {
			return false
		}
		switch in {
		case "url", "data", "file_data":
			return s.inline(v, in == "url")
		case "file_id":
			return s.refuse(fault.UnsupportedContent, fault.Field(s.inPart("")))
		}
		return true
	})
}

// inline notes where the content of a part comes from, if that is not the part itself
// (G-13). Only the front of the text is looked at: it may be millions of bytes long.
func (s *scanner) inline(v str, isURL bool) bool {
	raw := s.b[v.raw.from:v.raw.to]
	front := raw[:min(len(raw), 64)]
	if bytes.HasPrefix(raw, []byte("data:")) {
		return true
	}
	if !isURL && bytes.IndexByte(front, ':') < 0 && bytes.IndexByte(front, '\\') < 0 {
		return true
	}
	c := &s.body.chat
	if len(c.urls) >= maxURLs {
		return s.refuse(fault.TooManyValues, fault.Field(s.inPart("")), fault.Int(maxURLs))
	}
	c.urls = append(c.urls, reference{v, place{true, int32(s.message), int32(s.part)}})
	return true
}

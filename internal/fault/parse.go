package fault

import (
	"encoding/json"
	"strconv"
	"strings"
)

// maxParsed is the longest error body, in bytes, that Parse reads.
const maxParsed = 64 << 10

// Parse reads the error body that a leg sent with the given HTTP status. It never
// fails: what it cannot read it names by the status alone. No text of the body reaches
// the result: the code must be registered, the numbers are taken out of the registered
// sentence, and the field goes through [Field]. A body of over 64 KiB is not read.
func Parse(status int, body []byte) *Error {
	code, message, param := decode(body)
	r, ok := lookup(code)
	if !ok || r.status != status && status != 0 {
		// A code that contradicts the status is not to be believed: the status decides
		// what may be retried, and a leg of ours never sends such a pair.
		return New(byStatus(status))
	}
	args, ok := numbers(r.sentence, message)
	if !ok {
		args = nil
	}
	e := New(r.code, args...)
	if param != "" && e.Param == "" {
		e.Param = printable(param)
	}
	return e
}

// decode takes code, message and param out of an error body; each is empty if absent.
func decode(body []byte) (code Code, message, param string) {
	if len(body) == 0 || len(body) > maxParsed {
		return "", "", ""
	}
	var v struct {
		Error struct {
			Code    json.RawMessage `json:"code"`
			Message json.RawMessage `json:"message"`
			Param   json.RawMessage `json:"param"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &v) != nil {
		return "", "", ""
	}
	return Code(text(v.Error.Code)), text(v.Error.Message), text(v.Error.Param)
}

// text is raw as a string, or empty if it is anything else.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// numbers reads the arguments back out of a message that New made from sentence. It
// takes whole numbers and field names; any other argument becomes unknown.
func numbers(sentence, message string) ([]Arg, bool) {
	var args []Arg
	before, rest, found := cutPlaceholder(sentence)
	message, ok := strings.CutPrefix(message, before)
	for ok && found {
		var value string
		before, rest, found = cutPlaceholder(rest)
		if before == "" && !found {
			value, message = message, ""
		} else {
			value, message, ok = strings.Cut(message, before)
		}
		if !ok {
			return nil, false
		}
		args = append(args, reread(value))
	}
	return args, ok && message == ""
}

// reread turns a printed argument into an argument again.
func reread(value string) Arg {
	digits, bound := strings.CutPrefix(value, "at least ")
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		if bound {
			return AtLeast(n)
		}
		return Int(n)
	}
	if value != "" && printable(value) == value {
		return Field(value)
	}
	return Arg{text: unknownArg}
}

// byStatus names a leg's failure of which only the status is known.
func byStatus(status int) Code {
	switch status {
	case 400, 413, 422:
		return BadInput
	case 401, 403:
		return BadPass
	case 409:
		return DuplicateAttempt
	case 429, 503:
		return Busy
	case 499:
		return Cancelled
	case 504:
		return Deadline
	default:
		return EngineFailed
	}
}

package fault

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// Code is the stable name of an error, for programs. A code is never renamed and
// never given another meaning.
type Code string

// Type is the class of an error in OpenAI's sense, as its client libraries expect it.
type Type string

// The types in use.
const (
	// InvalidRequest: the request cannot succeed as it stands.
	InvalidRequest Type = "invalid_request_error"
	// Authentication: the key is missing or not known.
	Authentication Type = "authentication_error"
	// RateLimit: a budget of the caller's own is used up for now.
	RateLimit Type = "rate_limit_error"
	// Server: the fault lies on our side.
	Server Type = "server_error"
)

// Error is one error as people see it. Every text in it comes from the registry.
type Error struct {
	// Code is the registered code.
	Code Code
	// Status is the HTTP status, 400 to 599.
	Status int
	// Type is OpenAI's class of the error.
	Type Type
	// Message is the registered sentence with its numbers and field names filled in.
	Message string
	// Hint says what to do about it, in one sentence.
	Hint string
	// Param is the path of the field that the error is about; empty if there is none.
	Param string
	// ID is the public id of the request; empty until [Error.WithID] set it.
	ID string
}

// Error returns the code and the sentence; both come from the registry.
func (e *Error) Error() string {
	return "fault: " + string(e.Code) + ": " + e.Message
}

// WithID returns a copy of e that carries the public id of the request.
func (e *Error) WithID(id string) *Error {
	c := *e
	c.ID = id
	return &c
}

// Body renders e as `{"error":{"message","type","param","code","hint","id"}}`, without
// a trailing newline. param is null if the error is about no field, id if it has none.
func (e *Error) Body() []byte {
	type inner struct {
		Message string  `json:"message"`
		Type    Type    `json:"type"`
		Param   *string `json:"param"`
		Code    Code    `json:"code"`
		Hint    string  `json:"hint"`
		ID      *string `json:"id"`
	}
	v := struct {
		Error inner `json:"error"`
	}{inner{Message: e.Message, Type: e.Type, Code: e.Code, Hint: e.Hint}}
	if e.Param != "" {
		v.Error.Param = &e.Param
	}
	if e.ID != "" {
		v.Error.ID = &e.ID
	}
	b, err := json.Marshal(v)
	if err != nil {
		// Strings cannot fail to marshal; a constant keeps the promise if they ever did.
		return []byte(`{"error":{"message":"Something failed on our side.","type":"server_error","param":null,"code":"internal","hint":"Try again.","id":null}}`)
	}
	return b
}

// Arg fills one placeholder of a sentence. Only [Int], [AtLeast], [Num], [Field] and
// [Fixed] make one, so that no free text can enter a sentence.
type Arg struct {
	text  string
	field bool
}

// Int is a whole number, of whatever unit the sentence names.
func Int(n int64) Arg { return Arg{text: strconv.FormatInt(n, 10)} }

// AtLeast is a whole number that is known only as a lower bound.
func AtLeast(n int64) Arg { return Arg{text: "at least " + strconv.FormatInt(n, 10)} }

// Num is a number that need not be whole, such as a bound of a sampling value.
func Num(x float64) Arg { return Arg{text: strconv.FormatFloat(x, 'g', -1, 64)} }

// maxField is the longest field path, in bytes, that is printed.
const maxField = 96

// Field is the path of a field, such as `messages[0].role`. A caller chooses its own
// keys, so only letters, digits and `_ . - [ ]` are printed, and at most 96 bytes; any
// other name is described by its length.
func Field(path string) Arg { return Arg{text: printable(path), field: true} }

func printable(path string) string {
	if path == "" {
		return "(a field with an empty name)"
	}
	for i := 0; i < len(path); i++ {
		c := path[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '_' || c == '.' || c == '-' || c == '[' || c == ']'
		if !plain || i >= maxField {
			return "(a field whose name has " + strconv.Itoa(len(path)) + " bytes)"
		}
	}
	return path
}

// constant can be given from outside the package only as an untyped constant, which
// makes the compiler check that a [Fixed] text was written by the programmer.
type constant string

// Fixed is a text that is a constant of the program.
func Fixed(text constant) Arg { return Arg{text: string(text)} }

// unknownArg stands where a value is not known. Unknown is never shown as zero.
const unknownArg = "(unknown)"

// New makes the error that is registered under code. args fill the placeholders of its
// sentence in order; a missing one is printed as unknown, surplus ones are ignored. The
// first [Field] among them becomes Param. A code that is not registered gives Internal.
func New(code Code, args ...Arg) *Error {
	r, ok := lookup(code)
	if !ok {
		r, _ = lookup(Internal)
		args = nil
	}
	e := &Error{Code: r.code, Status: r.status, Type: r.kind, Hint: r.hint}
	for _, a := range args {
		if a.field {
			e.Param = a.text
			break
		}
	}
	e.Message = fill(r.sentence, args)
	return e
}

// fill replaces the placeholders of sentence by args, in order. A range whose upper end
// is the largest number there is has none.
func fill(sentence string, args []Arg) string {
	var b strings.Builder
	for {
		lit, rest, found := cutPlaceholder(sentence)
		if from, ranged := strings.CutSuffix(lit, " to "); found && ranged && len(args) > 0 && args[0].text == strconv.Itoa(math.MaxInt64) {
			b.WriteString(from + " upwards")
			args, sentence = args[1:], rest
			continue
		}
		b.WriteString(lit)
		if !found {
			return b.String()
		}
		if len(args) > 0 {
			b.WriteString(args[0].text)
			args = args[1:]
		} else {
			b.WriteString(unknownArg)
		}
		sentence = rest
	}
}

// cutPlaceholder splits sentence around its first {placeholder}.
func cutPlaceholder(sentence string) (before, after string, found bool) {
	before, rest, found := strings.Cut(sentence, "{")
	if !found {
		return sentence, "", false
	}
	_, after, found = strings.Cut(rest, "}")
	return before, after, found
}

// ForClient returns the error that a client sees when a leg failed with e. What
// concerns only the gateway and its workers (a pass, an attempt, a peer) is told as
// the plain fact that the gateway's workers refused it; the rest stays as it is.
func (e *Error) ForClient() *Error {
	r, ok := lookup(e.Code)
	if !ok || r.client == "" {
		return e
	}
	return New(r.client).WithID(e.ID)
}

func lookup(code Code) (row, bool) {
	for i := range registry {
		if registry[i].code == code {
			return registry[i], true
		}
	}
	return row{}, false
}

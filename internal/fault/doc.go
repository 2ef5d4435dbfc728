// Package fault is the registry of every error that people see: a stable code, the
// HTTP status, the OpenAI error type, one sentence and one hint.
//
// It promises that an error body can hold nothing but registered sentences, numbers
// and field names: an argument of a sentence is a number, a field name that passed
// [Field], or a constant of the program, and no other kind can be made. A body that
// another process sent is read into the same registry by [Parse]; its free text is
// thrown away, only its code and the numbers of its sentence survive.
//
// What must not come in: causes, prompts, answers, keys, addresses, and any import
// outside the standard library.
package fault

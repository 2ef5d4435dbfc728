// Package upstream is the dialect of Bulkhead's own workers, the shape of an SGLang
// prefill and decode pair: what a client may send (G-1), what each leg is sent, and
// what the legs' answers say.
//
// It promises to look at every byte of a body once and to decode no prompt: a request
// is scanned strictly, and the bodies of the legs are the client's own bytes with
// control fields spliced in and controlled members cut out (G-4). What is on no list is
// refused by name. An answer is read with the same strictness; what it does not say is
// unknown, never zero, and two legs agree only if both said the same (G-3, G-12).
//
// The package is pure: bytes in, values out. What must not come in: HTTP, clocks,
// randomness, connections, and tenants.
package upstream

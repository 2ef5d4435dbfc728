// Package upstream is the dialects of the engines behind the gateway: what a client may
// send (G-1), what each leg of a request is sent (G-4), and what the legs' answers say.
//
// It promises to look at every byte of a body once and to decode no prompt: a body is
// scanned strictly whatever engine it is for, then judged by the list of one dialect,
// and the bodies of the legs are the client's own bytes with control fields spliced in
// and controlled members cut out. What is on no list is refused by name, and what steers
// an engine is refused as that. An answer is read with the same strictness; what it does
// not say is unknown, never zero, and two legs agree only if both said the same (G-3,
// G-12).
//
// The package is pure: bytes in, values out. What must not come in: HTTP, clocks,
// randomness, connections, and tenants.
package upstream

// Package twin is a scripted inference server: it answers as a named engine of a named
// version does, with that engine's shapes, limits and faults, and it misbehaves on
// demand. Gateways are tested against it where the real engine is too large to run.
//
// It promises to be exact where isolation is at stake: a twin keeps its prompts in pages,
// slots and caches, and an answer is made from what those hold at the moment, so that an
// engine that reads another request's pages says another request's words. What it says is
// otherwise of no interest: it repeats the last secret that it can see, or counts.
//
// A twin remembers what it was sent, bodies included, so that a test can see what arrived.
// It is for tests; no real prompt belongs there. What must not come in: randomness that a
// test cannot repeat, and anything of the gateway that it tests.
package twin

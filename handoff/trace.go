package handoff

// Tracer takes what a driver does with its machines, in the order in which it does it. A
// trace can be held against the machine afterwards: that every step was a step of it, and
// that pages were touched only when a step asked for it. machine numbers the machines of
// one driver; a number is used once.
type Tracer interface {
	// Stepped says that a machine took an event, what it asked for, and its state since, as
	// AppendCanonical gives it. state must not be kept.
	Stepped(machine uint64, e Event, fx Effects, state []byte)
	// Did says that the driver touched pages: it reserved, sealed, revoked, verified, read or
	// freed. It is told where pages are touched, not where effects are read.
	Did(machine uint64, do Do)
}

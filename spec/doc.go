// Package spec holds two specifications of the hand-off that share nothing with its code:
// handoff.smt2, an inductive invariant for any number of pages, generations and writes,
// and handoff.pml, a model for the Spin checker. Its tests run the solvers and tie the
// names of the three together (events.md).
package spec

//go:build race

package world

// underRace says that the race detector is on: the proof is told in part, for it
// would take ten times as long and has no more to show.
const underRace = true

package twin

import (
	"errors"
	"fmt"
	"slices"
)

// Fault is a way to misbehave.
type Fault struct {
	// Name is how it is armed.
	Name string
	// Does says what the twin then does, once, with the next completion.
	Does string
}

// Faults lists what any twin can be told to do.
func Faults() []Fault {
	return []Fault{
		{"reset", "closes the connection without an answer, after it read the request"},
		{"hang", "does not answer until the client leaves"},
		{"crash", "ends as a crashed engine does: every connection is cut until it is revived"},
		{"busy", "answers 503"},
		{"broken", "answers 500"},
		{"refuse", "answers 400"},
		{"error-in-200", "answers 200 with an error object"},
		{"abort-in-200", "answers 200 with the finish reason abort"},
		{"error-first", "streams an error event first, then [DONE]"},
		{"error-then-done", "streams some words, an error event, then [DONE]"},
		{"cut", "cuts the connection in the middle of an event"},
		{"no-end", "ends the stream cleanly without finish reason and [DONE]"},
		{"no-done", "ends the stream cleanly with a finish reason, without [DONE]"},
		{"no-finish", "ends the stream with [DONE] and no finish reason"},
		{"finish-error", "finishes with the reason error"},
		{"no-content", "leaves the text out of an answer of 200"},
		{"surplus", "sends an event behind [DONE]"},
		{"silence", "sends some words, then comments and nothing else"},
		{"unfinished", "finishes all choices but the last"},
		{"foreign-id", "answers under another request's id"},
		{"count-off", "counts one prompt token more"},
		{"usage-missing", "leaves the usage out"},
		{"usage-twice", "sends the usage chunk twice"},
		{"usage-negative", "counts -1 completion tokens"},
		{"usage-off", "gives a total that does not add up"},
		{"usage-nan", "counts NaN completion tokens"},
		{"usage-over", "counts more completion tokens than were asked for"},
		{"usage-zero", "counts nothing at all"},
		{"cached-over", "tells more cached tokens than the prompt has"},
		{"cached-all", "tells that all of the prompt but one token was cached"},
		{"junk", "answers with other words than it should"},
		{"swapped", "waits for the next request that has this fault too, and each gets the other's answer"},
		{"no-handle", "prefill answers without a handle"},
		{"old-handle", "prefill answers with the handle of an earlier request"},
		{"short-handle", "prefill answers with a handle for fewer tokens"},
		{"pool-halved", "says from now on that its pool is half as large; stays"},
		{"two-faces", "says from now on at every second look that it is another engine; stays"},
		{"frozen", "answers looks and hangs at everything else; stays"},
		{"unmet", "at prefill: nothing that it computes reaches decode; stays"},
	}
}

// armed is a fault that will happen.
type armed struct {
	name string
	left int // times; below 0: for ever
}

// ErrFault says that there is no such fault.
var ErrFault = errors.New("twin: no such fault")

// stays lists the faults that do not wear off.
func stays(name string) bool {
	return name == "pool-halved" || name == "two-faces" || name == "frozen" || name == "unmet"
}

// Arm makes a fault happen at the next count completions; below 0 at all of them.
func (t *Twin) Arm(name string, count int) error {
	if !slices.ContainsFunc(Faults(), func(f Fault) bool { return f.Name == name }) || count == 0 {
		return fmt.Errorf("%w: %s", ErrFault, name)
	}
	if stays(name) {
		count = -1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, armed{name, count})
	return nil
}

// Disarm takes every fault back.
func (t *Twin) Disarm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = nil
}

// draw takes the fault for a completion: the first one that is armed and does not stay.
func (t *Twin) draw() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, f := range t.faults {
		if stays(f.name) {
			continue
		}
		if f.left > 0 {
			t.faults[i].left--
			if t.faults[i].left == 0 {
				t.faults = slices.Delete(t.faults, i, i+1)
			}
		}
		return f.name
	}
	return ""
}

// on says whether a fault that stays is armed.
func (t *Twin) on(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.faults, func(f armed) bool { return f.name == name })
}

// pool is what the twin says its pool is, in tokens.
func (t *Twin) pool() int {
	if t.on("pool-halved") {
		return t.opts.Pool / 2
	}
	return t.opts.Pool
}

// face is what the twin says it is called: with two faces every second time another name.
func (t *Twin) face() string {
	if !t.on("two-faces") {
		return t.opts.Model
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.epoch++
	if t.epoch%2 == 0 {
		return t.opts.Model
	}
	return t.opts.Model + "-other"
}

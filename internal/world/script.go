package world

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bulkhead.dev/bulkhead/handoff"
)

// The script language. A script says where a World starts, then what happens,
// then what must be true of it. A line is one command; # begins a comment.
//
//	world                         a new World; what follows says where it starts
//	pools decode 2 source 2       pages of the two pools
//	reads 2                       decode steps of an attempt
//	torn                          writes land in halves
//	attempt a domain 1 room 1 prompt 0 pages 2 [prefill CONDUCT] [last-rank CONDUCT] [stub 1]
//	    [decode refuses] [decode-prompt 1 decode-pages 1] [handle b] [after b]
//	ranks 2                       writers of every attempt; the second is written a/2
//	cached domain 2 prompt 0      decode's prefix cache
//	publishes                     an attempt that was served leaves its first page to the cache
//	budget cancel 1 again 1       what the adversary may do
//	guards all                    or: none; all but seal; seal digest
//	habits defer clock            what the system does beside its guards
//	hold V1                       hold this invariant alone
//
//	door decode a                 any enabled move, by name
//	finish                        let everything take its course until it rests
//	expect impossible land a.0    the move is not enabled
//	expect answer decode a ok     the leg has this answer
//	expect served a               both legs were served
//	expect refused a              neither leg was
//	expect broken V2              the last move broke this invariant
//	expect sound                  nothing broke
//	expect rest                   nothing happens by itself any more, and all pages are free
//
// Moves that happen by themselves: door ROLE A; deliver KIND A; reserve, sealed,
// revoked, verify, read, source, compute A; land A.PAGE; complete A.PAGE; gone ROLE;
// connect; evict. Once nothing else can: deadline ROLE A; tick ROLE A; clock ROLE A. The adversary's:
// repeat KIND A; lose KIND A; again, early, write-error A.PAGE; crash ROLE; cut;
// cancel ROLE A; busy, busy-source, engine A; second ROLE A; stray ROLE A; forge KIND A
// to ROLE; truncate KIND A. Seen, quiet and
// abort say where they go: deliver abort a to prefill. Where a name fits more
// than one message or write, "nth 2" is the second. What follows a line of four dashes, up
// to an empty line, is what was printed once, and is not played.

// dashes begin what a block of commands printed, up to an empty line; it is not played.
const dashes = "----"

// Replay plays a script. It returns what happened, line by line, and the
// violation of the last move, if any. An error is a line that cannot be played,
// or an expectation that was not met; a violation that nothing expects is one.
func Replay(script string) (transcript string, broken Violation, err error) {
	p, output := newPlayer(), false
	for n, line := range strings.Split(script, "\n") {
		output = line == dashes || output && strings.TrimSpace(line) != ""
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" || output {
			continue
		}
		p.say("%s\n", line)
		if err := p.play(line); err != nil {
			return string(p.out), p.broken, fmt.Errorf("world: line %d: %s: %w", n+1, line, err)
		}
	}
	return string(p.out), p.broken, p.end()
}

// player plays one script.
type player struct {
	sc       Scenario
	guards   handoff.Guards
	only     Invariant
	m        *Model // nil until the first move
	w        World
	broken   Violation
	expected bool
	out      []byte // transcript
	moves    []Move
}

func newPlayer() *player { return &player{guards: handoff.All} }

func (p *player) say(format string, args ...any) { p.out = fmt.Appendf(p.out, format, args...) }

// end holds that every violation was expected.
func (p *player) end() error {
	if p.broken.Invariant != NoInvariant && !p.expected {
		return fmt.Errorf("world: %v broke: %v", p.broken.Invariant, p.broken)
	}
	return nil
}

// play plays one line that is neither empty nor a comment.
func (p *player) play(line string) error {
	words := strings.Fields(line)
	if words[0] == "world" {
		err := p.end()
		*p = player{guards: handoff.All, moves: p.moves, out: p.out}
		return err
	}
	if p.m == nil {
		if done, err := p.setting(words); done || err != nil {
			return err
		}
		m, err := NewModel(p.sc, p.guards)
		if err != nil {
			return err
		}
		p.m, p.w = m, m.Start()
	}
	switch words[0] {
	case "expect":
		return p.expect(words[1:])
	case "finish":
		return p.finish()
	}
	return p.move(strings.Join(words, " "))
}

// move takes the enabled move of a name.
func (p *player) move(name string) error {
	if err := p.end(); err != nil {
		return err
	}
	mv, ok := p.find(name)
	if !ok {
		return errors.New("not possible here")
	}
	p.apply(mv)
	return nil
}

func (p *player) find(name string) (Move, bool) {
	p.moves, _ = p.m.Moves(&p.w, p.moves)
	for _, mv := range p.moves {
		if p.m.Name(&p.w, mv) == name {
			return mv, true
		}
	}
	return Move{}, false
}

func (p *player) apply(mv Move) {
	s := Step{Only: p.only, say: func(line string) { p.say("  %s\n", line) }}
	p.m.Apply(&p.w, mv, &s)
	p.breaks(s.Broken)
}

func (p *player) breaks(v Violation) {
	if p.broken = v; v.Invariant != NoInvariant {
		p.expected = false
		p.say("  BROKEN %v: %v\n", v.Invariant, v)
	}
}

// finish lets everything take its course: the first enabled move that happens by
// itself, and again, until there is none.
func (p *player) finish() error {
	for {
		if err := p.end(); err != nil {
			return err
		}
		n := 0
		if p.moves = p.m.course(&p.w, p.moves[:0]); len(p.moves) == 0 {
			p.moves = p.m.patience(&p.w, p.moves)
		}
		if n = len(p.moves); n == 0 {
			return nil
		}
		p.say(" %s\n", p.m.Name(&p.w, p.moves[0]))
		p.apply(p.moves[0])
	}
}

// expect checks what must be true.
func (p *player) expect(words []string) error {
	what := strings.Join(words, " ")
	switch {
	case what == "sound":
		return p.end()
	case what == "rest":
		return p.rest()
	case len(words) == 2 && words[0] == "broken":
		if p.broken.Invariant == NoInvariant {
			p.rested()
		}
		if p.broken.Invariant.String() != words[1] {
			return fmt.Errorf("broken: %v", p.broken.Invariant)
		}
		p.expected = true
		return nil
	case len(words) > 1 && words[0] == "impossible":
		if _, ok := p.find(strings.Join(words[1:], " ")); ok {
			return errors.New("it is possible")
		}
		return nil
	case len(words) == 2 && (words[0] == "served" || words[0] == "refused"):
		a, err := p.attempt(words[1])
		if err != nil {
			return err
		}
		return p.verdict(a, words[0] == "served")
	case len(words) == 4 && words[0] == "answer":
		a, err := p.attempt(words[2])
		if err != nil {
			return err
		}
		l := p.w.pre[p.m.side(a, 0)].leg
		if words[1] == Decode.String() {
			l = p.w.dec[a].leg
		}
		if l.String() != words[3] {
			return fmt.Errorf("it is %v", l)
		}
		return nil
	}
	return errors.New("unknown expectation")
}

// verdict expects that every leg of an attempt was served, or that none was.
func (p *player) verdict(a int, served bool) error {
	d := p.w.dec[a].leg
	for rank := range p.m.ranks {
		pre := p.w.pre[p.m.side(a, rank)].leg
		if ok := func(l leg) bool { return (l.is == legServed) == served && l.is > legWaiting }; !ok(d) || !ok(pre) {
			return fmt.Errorf("decode %v, prefill %v", d, pre)
		}
	}
	return nil
}

// rest expects that nothing happens by itself any more and nothing is broken.
func (p *player) rest() error {
	if !p.rested() {
		return errors.New("things still happen by themselves")
	}
	return p.end()
}

// rested holds the invariants of rest, if the World rests.
func (p *player) rested() bool {
	var fair int
	if p.moves, fair = p.m.Moves(&p.w, p.moves); fair > 0 {
		return false
	}
	s := Step{Only: p.only}
	p.m.CheckRest(&p.w, &s)
	if p.broken.Invariant == NoInvariant {
		p.breaks(s.Broken)
	}
	return true
}

// String is how a leg stands, for scripts.
func (l leg) String() string {
	switch l.is {
	case legAhead:
		return "none"
	case legWaiting:
		return "waiting"
	case legBroken:
		return "broken-off"
	case legReset:
		return "reset"
	}
	return l.code.String()
}

func (p *player) attempt(name string) (int, error) {
	if len(name) != 1 || name[0] < 'a' || int(name[0]-'a') >= len(p.sc.Attempts) {
		return 0, fmt.Errorf("no attempt %q", name)
	}
	return int(name[0] - 'a'), nil
}

// setting reads a line that says where the World starts.
func (p *player) setting(words []string) (done bool, err error) {
	f := fields{words: words[1:]}
	switch words[0] {
	case "pools":
		p.sc.DecodePages, p.sc.SourcePages = f.number("decode"), f.number("source")
	case "reads":
		p.sc.Reads = f.bare()
	case "torn":
		p.sc.Torn = true
	case "cached":
		p.sc.CachedDomain, p.sc.CachedPrompt = f.number("domain"), f.number("prompt")
	case "attempt":
		p.setAttempt(&f)
	case "ranks":
		p.sc.Ranks = f.bare()
	case "publishes":
		p.sc.Publishes = true
	case "habits":
		for f.more() {
			p.setHabit(f.word(), &f)
		}
	case "budget":
		for f.more() {
			p.setBudget(&f)
		}
	case "guards":
		p.guards = f.guards()
	case "hold":
		name := f.word()
		for _, i := range Invariants() {
			if i.String() == name {
				p.only = i
			}
		}
		if p.only == NoInvariant {
			f.fail("unknown invariant " + name)
		}
	default:
		return false, nil
	}
	if f.more() {
		f.fail("unknown word " + f.words[0])
	}
	return true, f.err
}

func (p *player) setAttempt(f *fields) {
	if name := f.word(); name != attemptName(len(p.sc.Attempts)) {
		f.fail("attempts are named a, b, c in order")
	}
	a := Attempt{Domain: f.number("domain"), Room: f.number("room"), Prompt: f.number("prompt"), Pages: f.number("pages")}
	for f.err == nil && f.more() {
		switch key := f.word(); key {
		case "prefill":
			a.Prefill = f.conduct()
		case "last-rank":
			a.Odd = f.conduct()
		case "decode":
			a.Decode = f.conduct()
		case "stub":
			a.Stub = f.bare()
		case "decode-prompt":
			a.DecodePrompt = f.bare()
		case "decode-pages":
			a.DecodePages = f.bare()
		case "handle":
			a.Handle = f.word()[0] - 'a' + 1
		case "after":
			a.After = f.word()[0] - 'a' + 1
		default:
			f.fail("unknown word " + key)
		}
	}
	p.sc.Attempts = append(p.sc.Attempts, a)
}

func (p *player) setHabit(name string, f *fields) {
	for i, n := range habitNames {
		if n == name {
			p.sc.Habits |= 1 << i
			return
		}
	}
	f.fail("unknown habit " + name)
}

func (p *player) setBudget(f *fields) {
	name := f.word()
	for i := range faults {
		if i.String() == name {
			p.sc.Budget[i] = f.bare()
			return
		}
	}
	f.fail("unknown fault " + name)
}

// fields reads the words of a line.
type fields struct {
	words []string
	err   error
}

func (f *fields) more() bool { return f.err == nil && len(f.words) > 0 }

func (f *fields) fail(why string) {
	if f.err == nil {
		f.err = errors.New(why)
	}
}

func (f *fields) word() string {
	if len(f.words) == 0 {
		f.fail("a word is missing")
		return "?"
	}
	w := f.words[0]
	f.words = f.words[1:]
	return w
}

// number reads a key and its number.
func (f *fields) number(key string) uint8 {
	if w := f.word(); w != key {
		f.fail("want " + key + ", not " + w)
	}
	return f.bare()
}

// conduct reads what a worker does with its leg; conducts if it is none.
func (f *fields) conduct() Conduct {
	value, c := f.word(), Serves
	for c < conducts && c.String() != value {
		c++
	}
	return c
}

func (f *fields) bare() uint8 {
	n, err := strconv.ParseUint(f.word(), 10, 3)
	if err != nil {
		f.fail("want a number from 0 to 7")
	}
	return uint8(n)
}

func (f *fields) guards() handoff.Guards {
	rest := strings.Join(f.words, " ")
	f.words = nil
	names, g, but := rest, handoff.Guards(0), false
	switch {
	case rest == "all":
		return handoff.All
	case rest == "none":
		return 0
	case strings.HasPrefix(rest, "all but "):
		names, but = rest[len("all but "):], true
	}
	for _, name := range strings.Fields(names) {
		found := handoff.Guards(0)
		for _, one := range handoff.Each() {
			if one.String() == name {
				found = one
			}
		}
		if found == 0 {
			f.fail("unknown guard " + name)
		}
		g |= found
	}
	if but {
		return handoff.All.Without(g)
	}
	return g
}

// Name is the move in the script language, in the World in which it is enabled.
func (m *Model) Name(w *World, mv Move) string {
	a := attemptName(int(mv.A))
	switch mv.Kind {
	case moveDoor, moveDeadline, moveTick, moveCancel, moveSecond, moveStray, moveClock:
		if Role(mv.B) == Prefill {
			a = m.sideName(int(mv.A))
		}
		return fmt.Sprintf("%s %v %s", mv.Kind, Role(mv.B), a)
	case moveForge:
		if Role(mv.B&1) == Prefill {
			a = m.sideName(int(mv.A))
		}
		return fmt.Sprintf("%s %v %s to %v", mv.Kind, handoff.Kind(mv.B>>1), a, Role(mv.B&1))
	case moveDeliver, moveRepeat, moveLose, moveTruncate:
		return fmt.Sprintf("%s %s", mv.Kind, w.nameMessage(int(mv.B)))
	case moveLand, moveComplete, moveAgain, moveEarly, moveWriteError:
		return fmt.Sprintf("%s %s", mv.Kind, m.nameWrite(w, int(mv.B)))
	case moveSource, moveCompute, moveBusySource, moveEngine:
		a = m.sideName(int(mv.A))
	case moveGone, moveCrash:
		return fmt.Sprintf("%s %v", mv.Kind, Role(mv.B))
	case moveConnect, moveCut, moveEvict:
		return mv.Kind.String()
	}
	return mv.Kind.String() + " " + a
}

// String is the move's verb in the script language.
func (k MoveKind) String() string {
	return [moveKinds]string{
		"none", "door", "deliver", "reserve", "sealed", "revoked", "verify", "read", "source", "compute", "land", "complete", "gone", "connect", "evict",
		"deadline", "tick", "clock", "repeat", "lose", "again", "early", "write-error", "crash", "cut", "cancel", "busy", "busy-source", "engine",
		"second", "stray", "forge", "truncate",
	}[k]
}

func (w *World) nameMessage(i int) string {
	base := func(l letter) string {
		s := l.kind.String() + " " + attemptName(int(l.slot))
		if l.rank > 0 {
			s += fmt.Sprintf("/%d", l.rank+1)
		}
		if l.kind >= handoff.Abort {
			s += " to " + l.to.String()
		}
		return s
	}
	name, nth := base(w.msgs[i].unpack()), 1
	for j := range i {
		if w.msgs[j] != w.msgs[i] && (j == 0 || w.msgs[j] != w.msgs[j-1]) && base(w.msgs[j].unpack()) == name {
			nth++
		}
	}
	return numbered(name, nth)
}

func (m *Model) nameWrite(w *World, i int) string {
	wr, nth := &w.writes[i], 1
	for j := range i {
		if o := &w.writes[j]; o.used && o.slot == wr.slot && o.ord == wr.ord {
			nth++
		}
	}
	return numbered(fmt.Sprintf("%s.%d", m.sideName(int(wr.slot)), wr.ord), nth)
}

// sideName names an attempt at a rank of prefill: a is the first rank, a/2 the second.
func (m *Model) sideName(side int) string {
	name := attemptName(m.owner(side))
	if rank := m.rank(side); rank > 0 {
		name += fmt.Sprintf("/%d", rank+1)
	}
	return name
}

func numbered(name string, nth int) string {
	if nth == 1 {
		return name
	}
	return fmt.Sprintf("%s nth %d", name, nth)
}

// Story prints a path as a script that can be replayed, with what happens beside
// each move, and the violation it ends in. only is the invariant that was held
// alone, if one was.
func (m *Model) Story(path []Move, broken Violation, only Invariant) string {
	var b strings.Builder
	b.WriteString(m.Text())
	if only != NoInvariant {
		fmt.Fprintf(&b, "hold %v\n", only)
	}
	w := m.Start()
	for _, mv := range path {
		var said []string
		name := m.Name(&w, mv)
		m.Apply(&w, mv, &Step{Only: only, say: func(line string) { said = append(said, line) }})
		if len(said) == 0 {
			fmt.Fprintf(&b, "%s\n", name)
			continue
		}
		fmt.Fprintf(&b, "%-24s # %s\n", name, strings.Join(said, "; "))
	}
	if broken.Invariant == NoInvariant {
		b.WriteString("expect sound\n")
	} else {
		fmt.Fprintf(&b, "%-24s # %v\n", "expect broken "+broken.Invariant.String(), broken)
	}
	return b.String()
}

// shortStory is [Model.Story] without what the path does not need: attempts that
// never come, and faults that are not spent.
func (m *Model) shortStory(path []Move, broken Violation, only Invariant) string {
	story := m.Story(path, broken, only)
	w := m.Start()
	for _, mv := range path {
		m.Apply(&w, mv, &Step{Only: only})
	}
	less := *m
	less.sc.About = "Without " + (handoff.All &^ m.guards).String() + ": " + broken.String() + "."
	if m.guards == 0 {
		less.sc.About = "With every guard off: " + broken.String() + "."
	}
	for f := range less.sc.Budget {
		less.sc.Budget[f] -= w.left[f]
	}
	for n := m.n; n > 0; n-- {
		less.n, less.sides, less.sc.Attempts = n, n*m.ranks, m.sc.Attempts[:n]
		if _, err := NewModel(less.sc, less.guards); err != nil {
			break // one that is left needs one that is not
		}
		try, ok := less.retell(path, broken, only)
		if !ok {
			break
		}
		story = try
	}
	return story
}

// retell tells a path in another World, if it ends there in the same violation.
func (m *Model) retell(path []Move, broken Violation, only Invariant) (story string, ok bool) {
	w, room := m.Start(), make([]Move, 0, 96)
	var last Step
	for _, mv := range path {
		moves, _ := m.Moves(&w, room)
		if !slices.Contains(moves, mv) || last.Broken.Invariant != NoInvariant {
			return "", false
		}
		last = Step{Only: only}
		m.Apply(&w, mv, &last)
	}
	if _, fair := m.Moves(&w, room); fair == 0 && last.Broken.Invariant == NoInvariant {
		m.CheckRest(&w, &last)
	}
	return m.Story(path, broken, only), last.Broken == broken
}

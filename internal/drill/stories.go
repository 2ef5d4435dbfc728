package drill

import (
	"context"
	"fmt"
	"strings"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/wire"
)

// stories are the drills, in the order in which they are shown.
func stories() []story {
	return []story{september(), onePage(), lateWrite(), sourceReuse(), staleRoom()}
}

// unread are the guards that the incident's engine did not have: decode did not
// read prefill's answer, nor how much was written, nor for what, and did not look
// at the pages.
const unread = handoff.GuardOffer | handoff.GuardExtent | handoff.GuardInput | handoff.GuardDigest

// september is the incident of September 2026.
//
// The text: of B's prompt only the placeholder reaches decode's pages, so what
// B's answer continues must stand in A's stale pages. A asks for its record, and
// its answer recites it: decode's pages then hold the record twice. B's prompt
// ends inside the second copy, in the same pages, and B's answer goes on with it.
func september() story {
	record := "Ticket 4471: Ada Byron of Turin asks for a refund to her card 4929 1188 0345 7716, by Friday."
	lead := "\n\nTicket 4471:"
	a := ask{prompt: record + lead, max: 81}
	b := ask{prompt: fill("Quarterly report of the orchard cooperative. ", 139), max: 50}
	return story{
		name:  "september",
		title: "an over-long prompt, a rejection that nobody reads, pages that nobody wrote",
		lines: []string{
			"Prefill's pool holds 128 tokens, decode's 256, and 256 are advertised.",
			"Tenant A asks for its record. Its pages are freed, not cleared.",
			"Tenant B sends 140 tokens. Prefill's validator refuses, keeps that to itself, and lets the engine",
			"run a placeholder of one token. It writes one page and says done. Decode reserved A's pages for B.",
			"With the guards on the gateway refuses first, by the smaller pool; one-page below passes every limit.",
		},
		off: unread,
		shape: shape{
			prefillPages: 8, decodePages: 16, a: a, b: b,
			secret: "4929 1188 0345 7716", wantA: after(record, lead),
		},
		act: func(ctx context.Context, r *rig) (reply, error) {
			r.stub = func(prompt string) bool { return len(prompt) >= 128 }
			return r.ask(ctx, tenantB, b)
		},
	}
}

// onePage is the same with a request of one page: the page count is right, and
// the refusal has nothing to do with length.
func onePage() story {
	record := "pin of safe 7 is 4471-90."
	lead := "\npin of safe 7"
	a := ask{prompt: record + lead, max: 12}
	b := ask{prompt: fill("What is a good name for a tall ship? ", len(a.prompt)), max: 12}
	return story{
		name:  "one-page",
		title: "a request of one page, refused for another reason than its length",
		lines: []string{
			"Tenant B's request fits one page and every limit. Prefill's validator refuses it for a reason that this",
			"drill injects, and the engine runs a placeholder of one token. One page was reserved and one page was",
			"written: the count is right. One row of it is new; the rest is tenant A's.",
		},
		off: unread,
		shape: shape{
			pageTokens: 64, prefillPages: 4, decodePages: 4, a: a, b: b,
			secret: "4471-90", wantA: after(record, lead),
		},
		act: func(ctx context.Context, r *rig) (reply, error) {
			r.stub = func(prompt string) bool { return prompt == b.prompt }
			return r.ask(ctx, tenantB, b)
		},
	}
}

// memo is the prompt that both tenants' applications send: the same template
// around a text of their own, so that what differs stands in the same pages.
func memo(text string) ask {
	const lead = "Memo 12 of the board:"
	return ask{
		prompt: lead + " " + text + "\n" + fill("Kept in the archive, shelf four. ", 40) + "\n" + lead,
		max:    1 + len(text),
	}
}

// The two texts. They lie in the pages with ordinals 1 to 3.
const (
	textA = "sell the Lisbon plant in May"
	textB = "buy four new buses this year"
)

// memoPages is the number of pages of a memo.
func memoPages() int { return (memo(textA).tokens() + smallPage - 1) / smallPage }

// middle says yes to the pages that hold the text of a memo.
func middle(ordinal int) bool { return ordinal >= 1 && ordinal <= middlePages }

const middlePages = 3

func memoShape() shape {
	return shape{
		prefillPages: 24, decodePages: 24, a: memo(textA), b: memo(textB),
		secret: textA, wantA: " " + textA, wantB: " " + textB,
	}
}

// lateWrite: the peer still writes into pages that were freed and given away.
func lateWrite() story {
	return story{
		name:  "late-write",
		title: "an abort in mid-transfer, the pages reused, the old write lands",
		lines: []string{
			"Three pages of tenant A are on their way when A's client leaves. Decode frees A's pages.",
			"Tenant B gets the same pages, and all of B's pages land. Then A's three pages land.",
		},
		off:   handoff.GuardKey | handoff.GuardSeal | handoff.GuardDigest,
		shape: memoShape(),
		act: func(ctx context.Context, r *rig) (reply, error) {
			late := wire.NewGate()
			defer late.Open()
			r.set(policy{pages: late, ordinal: middle})
			leave := r.begin(ctx, tenantA)
			if err := r.until(ctx, "three pages of A are on their way", func() bool { return late.Held() == middlePages }); err != nil {
				return reply{}, err
			}
			leave.cancel()
			<-leave.done
			if err := r.until(ctx, "decode has freed A's pages", func() bool { return free(r.decode) }); err != nil {
				return reply{}, err
			}
			notice := wire.NewGate()
			defer notice.Open()
			r.set(policy{notices: notice})
			b := r.begin(ctx, tenantB)
			if err := r.until(ctx, "all of B's pages have landed", func() bool { return notice.Held() == 1 }); err != nil {
				return reply{}, err
			}
			done := r.watch.completed()
			late.Open()
			if err := r.until(ctx, "A's pages were taken or refused", func() bool { return r.watch.completed() == done+middlePages }); err != nil {
				return reply{}, err
			}
			notice.Open()
			return b.wait()
		},
	}
}

// sourceReuse: prefill's own pages are computed over while the transfer reads
// them. Address, key and generation are all right.
func sourceReuse() story {
	return story{
		name:  "source-reuse",
		title: "prefill's pages are reused while the transfer still reads them",
		lines: []string{
			"Tenant B's pages are computed and handed to the network card, which is slow to read them.",
			"Prefill takes them back and computes tenant A's prompt into them. Then the card reads.",
		},
		off:   handoff.GuardSourceHold | handoff.GuardDigest,
		shape: memoShape(),
		act: func(ctx context.Context, r *rig) (reply, error) {
			slow := wire.NewGate()
			defer slow.Open()
			r.set(policy{pages: slow, ordinal: every})
			b := r.begin(ctx, tenantB)
			if err := r.until(ctx, "B's pages are handed over", func() bool { return slow.Held() == memoPages() }); err != nil {
				return reply{}, err
			}
			r.set(policy{})
			a, err := r.ask(ctx, tenantA, r.shape.a)
			if err != nil {
				return reply{}, err
			}
			if a.status != 200 {
				return reply{}, fmt.Errorf("tenant A was answered %d", a.status)
			}
			slow.Open()
			return b.wait()
		},
	}
}

// staleRoom: a router uses a room again, and a message of the first use acts on
// the second.
func staleRoom() story {
	s := memoShape()
	s.router = true // the gateway never uses a room twice; a foreign router may
	return story{
		name:  "stale-room",
		title: "a room is used again, and the first one's \"done\" is taken for the second's",
		lines: []string{
			"Tenant A's pages have landed; prefill's \"done\" for them is late, and A's client leaves.",
			"The router gives tenant B's request the same room. B's pages have not landed when A's \"done\" comes.",
		},
		off:   handoff.GuardGeneration | handoff.GuardInput | handoff.GuardDomain | handoff.GuardDigest,
		shape: s,
		act: func(ctx context.Context, r *rig) (reply, error) {
			late, own := wire.NewGate(), wire.NewGate()
			defer late.Open()
			defer own.Open()
			r.set(policy{notices: late})
			a := r.begin(ctx, tenantA)
			if err := r.until(ctx, "A's notice is on its way", func() bool { return late.Held() == 1 }); err != nil {
				return reply{}, err
			}
			a.cancel()
			<-a.done
			if err := r.until(ctx, "both workers are done with A", r.idle); err != nil {
				return reply{}, err
			}
			r.set(policy{pages: own, ordinal: every})
			r.room-- // the same room again
			b := r.begin(ctx, tenantB)
			if err := r.until(ctx, "B's pages are on their way", func() bool { return own.Held() == memoPages() }); err != nil {
				return reply{}, err
			}
			late.Open()
			if r.guards == handoff.All {
				own.Open() // A's notice acts on nothing; B waits for its own pages
			}
			return b.wait()
		},
	}
}

// fill repeats text to exactly n bytes.
func fill(text string, n int) string {
	return strings.Repeat(text, n/len(text)+1)[:n]
}

// after is what stands behind the first occurrence of lead in text.
func after(text, lead string) string {
	_, rest, _ := strings.Cut(text, strings.TrimSpace(lead))
	return rest
}

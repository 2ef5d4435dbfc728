package world

// budget makes a scenario's budget: one of each fault that is named.
func budget(of ...Fault) (b [faults]uint8) {
	for _, f := range of {
		b[f]++
	}
	return b
}

// Suite returns the scenarios that, between them, have every adversary. They
// are small enough to be explored whole, and large enough that the removal of
// each guard is found in one of them.
func Suite() []Scenario {
	one := []Attempt{{Domain: 1, Room: 1, Pages: 2}}
	short := []Attempt{{Domain: 1, Room: 1, Pages: 1}}
	both := []Attempt{{Domain: 1, Room: 1, Pages: 2}, {Domain: 2, Room: 2, Prompt: 1, Pages: 2}}
	turns := []Attempt{{Domain: 1, Room: 1, Pages: 2}, {Domain: 2, Room: 2, Prompt: 1, Pages: 2, After: 1}}
	retry := []Attempt{{Domain: 1, Room: 1, Pages: 1}, {Domain: 1, Room: 1, Pages: 1, After: 1}}
	three := []Attempt{
		{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1}, {Domain: 3, Room: 3, Prompt: 2, Pages: 1},
	}
	swap := func(c Conduct, pages, stub uint8) []Attempt {
		return []Attempt{{Domain: 1, Room: 1, Pages: pages, Stub: stub, Prefill: c}}
	}
	return []Scenario{
		{Name: "two-tenants", About: "Two tenants share both pools; nothing goes wrong.",
			Attempts: both, DecodePages: 2, SourcePages: 4, Reads: 2, Torn: true},
		{Name: "three-tenants", About: "Three tenants compete for a pool in which two of them fit.",
			Attempts: three, DecodePages: 2, SourcePages: 3},
		{Name: "one-page-left", About: "Three tenants compete for a single page; a client leaves.",
			Attempts: three, DecodePages: 1, SourcePages: 3, Torn: true, Budget: budget(FaultCancel)},
		{Name: "both-pools-scarce", About: "Three tenants compete for a single page at decode and a single one at prefill: nobody waits in a circle.",
			Attempts: three, DecodePages: 1, SourcePages: 1, Budget: budget(FaultCancel)},
		{Name: "three-pages", About: "A prompt of three pages beside a spare one; clients leave, writes complete early and land again.",
			Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 3}}, DecodePages: 4, SourcePages: 3, Torn: true,
			Budget: budget(FaultEarly, FaultAgain, FaultCancel, FaultCancel)},
		{Name: "one-token-stub", About: "A validator at prefill puts a one-page placeholder in the place of a two-page prompt.",
			Attempts: swap(SwapsBefore, 2, 1), DecodePages: 2, SourcePages: 2, Budget: budget(FaultRepeat, FaultCancel)},
		{Name: "one-page-stub", About: "The same for a prompt of one page: the page count cannot tell.",
			Attempts: swap(SwapsBefore, 1, 1), DecodePages: 1, SourcePages: 1, Budget: budget(FaultRepeat, FaultCancel)},
		{Name: "careless-prefill", About: "Prefill has a placeholder and offers it without comparing: decode compares.",
			Attempts: swap(Careless, 1, 1), DecodePages: 1, SourcePages: 1, Budget: budget(FaultRepeat, FaultCancel)},
		{Name: "late-swap", About: "The placeholder takes the prompt's place after the offer, and fills as many pages.",
			Attempts: swap(SwapsAfter, 2, 2), DecodePages: 2, SourcePages: 2, Budget: budget(FaultRepeat, FaultCancel)},
		{Name: "stops-short", About: "Prefill's engine says complete after one page of two.",
			Attempts: swap(StopsShort, 2, 1), DecodePages: 2, SourcePages: 2, Budget: budget(FaultRepeat, FaultCancel)},
		{Name: "refused-at-prefill", About: "Prefill's door refuses an over-long prompt; another tenant is served.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 2, Prefill: Refuses}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1}},
			DecodePages: 2, SourcePages: 2, Budget: budget(FaultRepeat, FaultCancel)},
		{Name: "refused-at-decode", About: "Decode's door refuses, or finds an abort that came before the leg; another tenant is served.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 2, Decode: Refuses}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1}},
			DecodePages: 2, SourcePages: 2, Budget: budget(FaultRepeat, FaultStray)},
		{Name: "lost-and-repeated", About: "Messages are lost and repeated, a client leaves, time runs out.",
			Attempts: short, DecodePages: 1, SourcePages: 1, Budget: budget(FaultRepeat, FaultLose, FaultCancel, FaultDeadline)},
		{Name: "ends-at-any-step", About: "A client leaves, time runs out, an engine fails, a write fails, decode finds no room: at any step of a prompt in chunks.",
			Attempts: one, DecodePages: 2, SourcePages: 2, Torn: true, Budget: budget(FaultCancel, FaultDeadline, FaultEngine, FaultBusy, FaultWrite, FaultEarly)},
		{Name: "stray-aborts", About: "A peer aborts out of nothing, before, while and after the attempt runs; aborts are repeated too early.",
			Attempts: one, DecodePages: 2, SourcePages: 2, Budget: budget(FaultStray, FaultTick, FaultCancel)},
		{Name: "late-writes", About: "A client leaves; writes complete before they have landed, and land again; the next tenant gets the same pages.",
			Attempts: turns, DecodePages: 2, SourcePages: 2, Torn: true, Budget: budget(FaultEarly, FaultAgain, FaultCancel)},
		{Name: "at-once", About: "Two tenants at once in one pool; a client leaves in mid-transfer.",
			Attempts: both, DecodePages: 2, SourcePages: 4, Reads: 2, Torn: true, Budget: budget(FaultCancel)},
		{Name: "restarts", About: "Both workers die and come back; what they had sent still lands, once more if it likes.",
			Attempts: turns, DecodePages: 2, SourcePages: 2, Torn: true, Budget: budget(FaultCrashDecode, FaultCrashPrefill, FaultAgain)},
		{Name: "restart-and-cancel", About: "Decode dies, a client leaves, a write completes early; then the next tenant comes.",
			Attempts: turns, DecodePages: 2, SourcePages: 2, Torn: true, Budget: budget(FaultCrashDecode, FaultCancel, FaultEarly)},
		{Name: "sender-dies", About: "Prefill dies with two tenants' writes under way, and a client leaves.",
			Attempts: both, DecodePages: 2, SourcePages: 4, Torn: true, Budget: budget(FaultCrashPrefill, FaultCancel)},
		{Name: "bad-day", About: "One request; messages lost and repeated, a write early and twice, both workers die, its client leaves.",
			Attempts: short, DecodePages: 1, SourcePages: 1, Torn: true,
			Budget: budget(FaultRepeat, FaultLose, FaultAgain, FaultEarly, FaultCancel, FaultCrashDecode, FaultCrashPrefill)},
		{Name: "cuts", About: "The connection breaks, a write ends in an error, time runs out.",
			Attempts: turns, DecodePages: 2, SourcePages: 2, Budget: budget(FaultCut, FaultWrite, FaultDeadline)},
		{Name: "retry", About: "A retry is a new attempt in the old one's room, with the same prompt; old messages are still about.",
			Attempts: retry, DecodePages: 1, SourcePages: 1, Budget: budget(FaultCancel, FaultRepeat, FaultAgain)},
		{Name: "retry-after-restart", About: "Decode dies; the retry comes to its new life, in the old room, with the same prompt.",
			Attempts: retry, DecodePages: 1, SourcePages: 1, Torn: true, Budget: budget(FaultCrashDecode, FaultAgain, FaultRepeat, FaultEarly)},
		{Name: "same-attempt-again", About: "Legs that were answered come again, after a restart or a broken connection.",
			Attempts: short, DecodePages: 1, SourcePages: 1, Budget: budget(FaultSecond, FaultSecond, FaultCrashDecode, FaultCut, FaultRepeat)},
		{Name: "own-prefix", About: "Decode holds the first page of the prompt for this tenant; prefill writes the rest.",
			Attempts: both, DecodePages: 3, SourcePages: 4, CachedDomain: 1, Budget: budget(FaultCancel)},
		{Name: "foreign-prefix", About: "Decode holds the first page of the very same prompt for another tenant.",
			Attempts: one, DecodePages: 2, SourcePages: 2, CachedDomain: 2, Budget: budget(FaultCancel)},
		{Name: "shared-prefix", About: "A tenant's second request finds the first page of its first one; another tenant's request needs the room.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 2}, {Domain: 1, Room: 2, Pages: 2, After: 1}, {Domain: 2, Room: 3, Pages: 2, After: 1}},
			DecodePages: 3, SourcePages: 2, Publishes: true},
		{Name: "evicted-prefix", About: "The prefix cache must give its page back before a prompt fits; a reader may hold it, and may leave.",
			Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 2}, {Domain: 2, Room: 2, Prompt: 1, Pages: 2}}, DecodePages: 2, SourcePages: 4, CachedDomain: 1,
			Budget: budget(FaultCancel)},
		{Name: "two-ranks", About: "A group of two ranks writes half of every page each; a message is lost, a rank's engine fails.",
			Attempts: short, DecodePages: 1, SourcePages: 2, Ranks: 2, Budget: budget(FaultEngine, FaultLose)},
		{Name: "two-ranks-and-left", About: "The same; a client leaves.",
			Attempts: short, DecodePages: 1, SourcePages: 2, Ranks: 2, Budget: budget(FaultCancel)},
		{Name: "two-ranks-two-pages", About: "Two ranks, a prompt in two chunks, and the connection breaks.",
			Attempts: one, DecodePages: 2, SourcePages: 4, Ranks: 2, Budget: budget(FaultCut)},
		{Name: "rank-disagrees", About: "The last rank has another prompt than its group; another tenant is served.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 1, Odd: SwapsBefore, Stub: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1, After: 1}},
			DecodePages: 1, SourcePages: 2, Ranks: 2},
		{Name: "rank-refuses", About: "The last rank's door refuses; the group has one verdict.",
			Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 1, Odd: Refuses}}, DecodePages: 1, SourcePages: 2, Ranks: 2, Budget: budget(FaultRepeat, FaultCancel)},
		{Name: "unequal-legs", About: "The two legs bring prompts of different length; another tenant is served.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 1, DecodePages: 2, DecodePrompt: 1}, {Domain: 2, Room: 2, Prompt: 2, Pages: 1}},
			DecodePages: 2, SourcePages: 2, Budget: budget(FaultRepeat)},
		{Name: "stolen-room", About: "A stranger's decode leg comes with the room of a request whose prefill leg waits, and with another prompt.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 1, Prompt: 1, Pages: 1, Prefill: Absent}},
			DecodePages: 2, SourcePages: 2, Budget: budget(FaultRepeat)},
		{Name: "room-without-identity", About: "Behind a foreign router a room leads to one attempt: the legs of two requests meet there, and do not agree.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 1, DecodePages: 1, DecodePrompt: 1}, {Domain: 1, Room: 1, Pages: 1, After: 1}},
			DecodePages: 1, SourcePages: 1, Budget: budget(FaultRepeat, FaultSecond)},
		{Name: "half-a-pair", About: "One attempt has no prefill leg, another no decode leg: each ends, and nothing is kept.",
			Attempts:    []Attempt{{Domain: 1, Room: 1, Pages: 1, Prefill: Absent}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1, Decode: Absent}},
			DecodePages: 1, SourcePages: 1, Budget: budget(FaultRepeat, FaultLose, FaultCancel)},
		{Name: "forged-and-cut-off", About: "A stranger's messages have everything right but the generation; a message arrives cut off, and its connection breaks.",
			Attempts: one, DecodePages: 2, SourcePages: 2, Budget: budget(FaultForge, FaultForge, FaultTruncate)},
		{Name: "forged-and-left", About: "The same while a client leaves.",
			Attempts: short, DecodePages: 1, SourcePages: 1, Budget: budget(FaultForge, FaultTruncate, FaultCancel, FaultRepeat)},
	}
}

// Deep returns larger scenarios, for a proof that may take minutes and a few GB.
func Deep() []Scenario {
	three := []Attempt{
		{Domain: 1, Room: 1, Pages: 1}, {Domain: 2, Room: 2, Prompt: 1, Pages: 1}, {Domain: 3, Room: 3, Prompt: 2, Pages: 1},
	}
	turns := []Attempt{{Domain: 1, Room: 1, Pages: 2}, {Domain: 2, Room: 2, Prompt: 1, Pages: 2, After: 1}}
	retry := []Attempt{{Domain: 1, Room: 1, Pages: 1}, {Domain: 1, Room: 1, Pages: 1, After: 1}}
	return []Scenario{
		{Name: "deep-three", About: "Three tenants for two pages; a client leaves.",
			Attempts: three, DecodePages: 2, SourcePages: 3, Budget: budget(FaultCancel)},
		{Name: "deep-retry", About: "A retry in the old room after a restart, with every kind of late and repeated delivery.",
			Attempts: retry, DecodePages: 1, SourcePages: 1, Torn: true,
			Budget: budget(FaultCrashDecode, FaultAgain, FaultRepeat, FaultEarly, FaultCancel)},
		{Name: "deep-turns", About: "Two tenants in turn; both workers die, a client leaves, writes land early and again.",
			Attempts: turns, DecodePages: 2, SourcePages: 2, Torn: true,
			Budget: budget(FaultCrashDecode, FaultCrashPrefill, FaultCancel, FaultEarly, FaultAgain)},
		{Name: "deep-day", About: "One request and nearly everything that can go wrong.",
			Attempts: []Attempt{{Domain: 1, Room: 1, Pages: 1}}, DecodePages: 1, SourcePages: 1, Torn: true,
			Budget: budget(FaultRepeat, FaultLose, FaultAgain, FaultEarly, FaultWrite, FaultCrashDecode, FaultCrashPrefill, FaultCut,
				FaultCancel, FaultDeadline, FaultEngine)},
	}
}

package handoff

import "bulkhead.dev/bulkhead/kv"

// Guards says which protections are on. Production runs [All]. A guard that is
// off is a test: the explorer must find what it prevented, and a drill shows
// it on the real engine.
type Guards uint32

const (
	// Offer: decode reserves only on an offer equal to its own view, and a
	// refusal ends the attempt (H-1).
	GuardOffer Guards = 1 << iota
	// Extent: the notice must cover exactly the tokens and pages of the grant (H-3).
	GuardExtent
	// Input: the notice must name the hash of the prompt that decode was sent (H-3).
	GuardInput
	// Seal: the write key is revoked before the digest is compared and before
	// any page is read (H-5).
	GuardSeal
	// Digest: pages must hold what prefill computed (H-7).
	GuardDigest
	// Key: every reservation has its own write key, checked where bytes land,
	// and revoked before its pages are freed (H-6, H-9).
	GuardKey
	// Generation: messages act by attempt and generation, not by room (H-2).
	GuardGeneration
	// Epoch: generations and keys never repeat across restarts (H-2).
	GuardEpoch
	// Completion: the notice leaves after every write has completed (H-7).
	GuardCompletion
	// SourceHold: source pages are held until every write has completed (H-8).
	GuardSourceHold
	// Stop: an abort stops further writes (H-11).
	GuardStop
	// Quiet: the second acknowledgement comes after the last write (H-11).
	GuardQuiet
	// Tombstone: an attempt that ended is remembered (H-2, H-10).
	GuardTombstone
	// Retry: an abort is repeated until it is acknowledged (H-11).
	GuardRetry
	// Fence: a closed connection ends what waited on its peer (H-8, H-9).
	GuardFence
	// Connection: messages of a connection that is closed act on nothing (H-2).
	GuardConnection
	// Domain: cached pages are shared only inside one domain (H-12).
	GuardDomain
	// Header: no header of an answer leaves before its proof (H-14).
	GuardHeader
	// Writers: decode waits for the word of every writer that it expects: for each
	// offer before it reserves, for each notice before it seals (H-3, H-11).
	GuardWriters

	guardEnd
)

// All is every guard: the only value for production.
const All = guardEnd - 1

// Has reports whether all guards of x are on.
func (g Guards) Has(x Guards) bool { return g&x == x }

// Without returns g with the guards of x off. For tests and drills only.
func (g Guards) Without(x Guards) Guards { return g &^ x }

// Each returns every single guard, in order.
func Each() []Guards {
	var all []Guards
	for g := GuardOffer; g < guardEnd; g <<= 1 {
		all = append(all, g)
	}
	return all
}

// String names a single guard, or says all or several.
func (g Guards) String() string {
	names := [...]string{
		"offer", "extent", "input", "seal", "digest", "key", "generation", "epoch", "completion",
		"source-hold", "stop", "quiet", "tombstone", "retry", "fence", "connection", "domain", "header", "writers",
	}
	switch {
	case g == All:
		return "all"
	case g == 0:
		return "none"
	}
	s := ""
	for i, n := range names {
		if g&(1<<i) != 0 {
			if s != "" {
				s += "+"
			}
			s += n
		}
	}
	return s
}

// agrees reports whether the peer's view equals v, as far as the guards
// look. what says which parts count: GuardExtent, GuardInput, GuardDomain.
func (v View) agrees(peer View, what Guards) bool {
	if what.Has(GuardExtent) && (v.Tokens != peer.Tokens || v.Pages != peer.Pages ||
		v.Prefix != peer.Prefix || v.PrefixHash != peer.PrefixHash || v.Layout != peer.Layout) {
		return false
	}
	if what.Has(GuardInput) && v.Input != peer.Input {
		return false
	}
	return !what.Has(GuardDomain) || v.Domain == peer.Domain
}

// beside returns v, this leg's own view, as it looks to a peer that holds a
// prefix of the prompt already (H-3). Which tokens the prefix hash names follows
// from the input hash, and that must be equal anyway; that the pages add up is
// seen when the notice says how many were written.
func (v View) beside(peer View) View {
	if peer.Prefix > v.Prefix && peer.Prefix < v.Tokens && peer.Pages < v.Pages && peer.PrefixHash != (kv.Hash{}) {
		v.Pages, v.Prefix, v.PrefixHash = peer.Pages, peer.Prefix, peer.PrefixHash
	}
	return v
}

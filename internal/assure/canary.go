package assure

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
)

// canaryWords are what a canary is made of: short words that small models can repeat,
// and that are not found side by side by chance. 64 of them, six bits each.
const canaryWords = "amber falcon river copper meadow winter silver garden thunder orchid marble lantern velvet harbor cedar comet " +
	"ember willow quartz raven tulip saffron glacier canyon breeze walnut pebble cobalt heron juniper lagoon maple " +
	"nectar otter prairie quiver ribbon sable timber umber violet wagon yarrow zephyr acorn basil clover dahlia " +
	"elm ferry ginger hazel indigo jasper kettle lilac mango nutmeg olive pepper russet sage thistle anchor"

const (
	canaryLength = 11 // words: 66 random bits
	minHit       = 12 // characters in a row: two words at least and the sign between them
)

// canary is a secret of this run. Its text never leaves the process except in prompts.
type canary struct {
	owner int
	text  string
}

// cage holds the canaries of a run and the key of its fingerprints.
type cage struct {
	mu   sync.Mutex
	key  [32]byte
	held []canary
}

func newCage() *cage {
	c := &cage{}
	rand.Read(c.key[:])
	return c
}

// redraws is how often a canary is drawn anew because it has a part in common with
// another. With sixty of them in a run one draw in five will do.
const redraws = 1000

// mint makes a canary that has no telling part in common with another, and remembers it.
func (c *cage) mint(owner int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := draw()
	for range redraws {
		if !c.shares(text) {
			break
		}
		text = draw()
	}
	c.held = append(c.held, canary{owner: owner, text: text})
	return text
}

// shares says whether a text has a telling part in common with a canary of the run.
func (c *cage) shares(text string) bool {
	for _, k := range c.held {
		if common(text, k.text) >= minHit {
			return true
		}
	}
	return false
}

// draw draws random words.
func draw() string {
	words := strings.Fields(canaryWords)
	var bits [canaryLength]byte
	rand.Read(bits[:])
	parts := make([]string, canaryLength)
	for i, b := range bits {
		parts[i] = words[int(b)%len(words)]
	}
	return strings.Join(parts, "-")
}

// fingerprint is the keyed fingerprint of a text: equal texts of one run have the same.
func (c *cage) fingerprint(text string) string {
	mac := hmac.New(sha256.New, c.key[:])
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil)[:4])
}

// Hit is a part of somebody's canary where it does not belong.
type Hit struct {
	Owner  int // the tenant whose canary it is
	Length int // characters of it in a row
	Of     int // characters that it has
	// Print is the keyed fingerprint of the whole canary: equal within a run for the same.
	Print string
}

// String says it without any text.
func (h Hit) String() string {
	return fmt.Sprintf("%d of %d characters of a secret of tenant %d [%s]", h.Length, h.Of, h.Owner, h.Print)
}

// find returns what text holds of the canaries that tenant mine does not own, the
// longest of each.
func (c *cage) find(text string, mine int) []Hit {
	c.mu.Lock()
	defer c.mu.Unlock()
	var hits []Hit
	for _, k := range c.held {
		if k.owner == mine {
			continue
		}
		if n := common(text, k.text); n >= minHit {
			hits = append(hits, Hit{Owner: k.owner, Length: n, Of: len(k.text), Print: c.fingerprint(k.text)})
		}
	}
	return hits
}

// scrub takes every piece of a canary out of a text that is to be reported.
func (c *cage) scrub(text string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.held {
		for {
			at, n := longest(text, k.text)
			if n < minHit {
				break
			}
			text = text[:at] + "[" + c.fingerprint(k.text) + "]" + text[at+n:]
		}
	}
	return text
}

// common is the length of the longest run of characters that both hold.
func common(text, secret string) int {
	_, n := longest(text, secret)
	return n
}

// longest returns where in text the longest run of secret begins, and its length in
// bytes; upper and lower case of ASCII are one.
func longest(text, secret string) (at, n int) {
	row := make([]int, len(secret)+1)
	for i := range len(text) {
		diagonal := 0
		for j := range len(secret) {
			above := row[j+1]
			row[j+1] = 0
			if lower(text[i]) == secret[j] {
				row[j+1] = diagonal + 1
				if row[j+1] > n {
					n, at = row[j+1], i-diagonal
				}
			}
			diagonal = above
		}
	}
	return at, n
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

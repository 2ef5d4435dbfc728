package account

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/kv"
)

func TestKeys(t *testing.T) {
	pepper := []byte("0123456789abcdef")
	text, hash, err := NewKey(rand.Reader, pepper)
	if err != nil || !strings.HasPrefix(text, "bk-") || len(text) != 3+32 {
		t.Fatalf("%q, %v", text, err)
	}
	if strings.Contains(hash.String(), text[3:]) || Hash(pepper, text) != hash || Hash([]byte("another pepper.."), text) == hash {
		t.Error("the hash is not keyed")
	}
	back, err := ParseKeyHash(hash.String())
	if err != nil || back != hash {
		t.Errorf("%v, %v", back, err)
	}
	for _, bad := range []string{"", "00", strings.Repeat("g", 64), strings.Repeat("0", 66), text} {
		if _, err := ParseKeyHash(bad); err == nil || strings.Contains(err.Error(), "bk-") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if text2, hash2, _ := NewKey(rand.Reader, pepper); text2 == text || hash2 == hash {
		t.Error("two keys are equal")
	}
	if _, _, err := NewKey(bytes.NewReader(make([]byte, 15)), pepper); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("too little randomness: %v", err)
	}
}

func TestDomains(t *testing.T) {
	key, key2 := []byte("0123456789abcdef"), []byte("0123456789abcdeF")
	base := Own(key, "a", 1)
	if base != Own(key, "a", 1) {
		t.Error("a domain has two names")
	}
	for name, other := range map[string]kv.Domain{
		"another tenant": Own(key, "b", 1), "a named domain of that name": Named(key, "a", 1),
		"another epoch": Own(key, "a", 2), "another key": Own(key2, "a", 1), "empty": Own(key, "", 1),
		"zero": {},
	} {
		if other == base {
			t.Errorf("%s has the same domain", name)
		}
	}
}

// TestDerived: what follows from a domain tells neither the domain nor one from the other.
func TestDerived(t *testing.T) {
	key := []byte("0123456789abcdef")
	d, e := Own(key, "a", 1), Own(key, "b", 1)
	if Narrowed(key, d, "x") == Narrowed(key, e, "x") || Narrowed(key, d, "x") == d || Narrowed(key, d, "x") == Narrowed(key, d, "y") {
		t.Error("a part of a domain is not its own")
	}
	seen := map[string]string{fmt.Sprintf("%x", d[:]): "the domain"}
	for name, text := range map[string]string{
		"salt": Salt(key, d), "another's salt": Salt(key, e), "attempt's salt": FreshSalt(key, d, []byte{1}), "next attempt's salt": FreshSalt(key, d, []byte{2}),
		"pseudonym": strings.TrimPrefix(Pseudonym(key, d), "bh-"), "another key's": Salt([]byte("another key here"), d),
	} {
		if other := seen[text]; other != "" || len(text) != 32 {
			t.Errorf("%s is %s: %s", name, other, text)
		}
		seen[text] = name
	}
	if Salt(key, d) != Salt(key, Own(key, "a", 1)) {
		t.Error("replicas have different salts")
	}
	if len(Short(key, d)) != 12 || Short(key, d) == Short(key, e) || strings.HasPrefix(Salt(key, d), Short(key, d)) {
		t.Error("short")
	}
	if Affinity(key, "session", d, []byte("x")) == Affinity(key, "prefix", d, []byte("x")) || Affinity(key, "session", d, []byte("x")) == Affinity(key, "session", e, []byte("x")) {
		t.Error("affinity")
	}
}

func TestBudget(t *testing.T) {
	b := NewBudget(10)
	if !b.Take(10) || b.Take(1) || b.Held() != 10 {
		t.Error("take")
	}
	b.Give(4)
	if b.Take(5) || !b.Take(4) {
		t.Error("give")
	}
	r := NewRetries(0)
	n := 0
	for r.Spend() {
		n++
	}
	r.Earn()
	if n != retryBurst || r.Spend() {
		t.Errorf("%d retries without a share", n)
	}
}

// TestBucket holds the arithmetic of rates at its ends.
func TestBucket(t *testing.T) {
	now := time.Now()
	b := NewBucket(60)
	if _, ok := b.Take(1000, now); !ok {
		t.Error("a request of more than a minute's worth never passes")
	}
	if wait, ok := b.Take(1, now); ok || wait != 941*time.Second {
		t.Errorf("%v, %v", wait, ok)
	}
	b.Settle(-990, now)
	if _, ok := b.Take(50, now); !ok {
		t.Error("what was not used does not come back")
	}
	if _, ok := b.Take(1, now); ok {
		t.Error("more than there is")
	}
	if _, ok := b.Take(1, now.Add(-time.Hour)); ok {
		t.Error("a clock that goes back gives tokens")
	}
	var none *Bucket
	none.Settle(5, now)
	if _, ok := none.Take(1<<40, now); !ok {
		t.Error("no limit is a limit")
	}
}

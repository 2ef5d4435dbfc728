package account

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"bulkhead.dev/bulkhead/kv"
)

// keyed is HMAC-SHA256 under key over a label and the parts, each behind its length.
func keyed(key []byte, label string, parts ...[]byte) [sha256.Size]byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(label))
	var n [8]byte
	for _, p := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		m.Write(n[:])
		m.Write(p)
	}
	return [sha256.Size]byte(m.Sum(nil))
}

// Own is a tenant's own cache domain, which no named domain ever equals. It changes with
// the epoch.
func Own(key []byte, tenant string, epoch uint64) kv.Domain {
	return domain(key, ownDomain, tenant, epoch)
}

// Named is a cache domain that tenants share by its name.
func Named(key []byte, name string, epoch uint64) kv.Domain {
	return domain(key, namedDomain, name, epoch)
}

// domain names a cache domain: a keyed hash over its framed name and epoch, so that
// neither can be guessed nor confused with another (G-7).
func domain(key []byte, kind byte, name string, epoch uint64) kv.Domain {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("bulkhead-domain-v1"))
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(name)))
	m.Write([]byte{kind})
	m.Write(n[:])
	m.Write([]byte(name))
	binary.BigEndian.PutUint64(n[:], epoch)
	m.Write(n[:])
	return kv.Domain(m.Sum(nil)[:16])
}

// Kinds of domain names. A tenant's own never equals one that the configuration names.
const (
	ownDomain   = 'o'
	namedDomain = 'n'
)

// Narrowed is the part of a domain that a value names. It is never the domain itself,
// nor a part of another one.
func Narrowed(key []byte, d kv.Domain, value string) kv.Domain {
	h := keyed(key, "bulkhead-narrow-v1", d[:], []byte(value))
	return kv.Domain(h[:16])
}

// Salt is the prefix-cache salt of a domain: equal on all replicas, and it does not
// tell the domain's name, nor that its salt (G-7).
func Salt(key []byte, d kv.Domain) string {
	h := keyed(key, "bulkhead-salt-v1", d[:])
	return hex.EncodeToString(h[:16])
}

// FreshSalt is a salt for one attempt. No other attempt has it, and the domain is in it.
func FreshSalt(key []byte, d kv.Domain, attempt []byte) string {
	h := keyed(key, "bulkhead-attempt-salt-v1", d[:], attempt)
	return hex.EncodeToString(h[:16])
}

// Pseudonym is what an engine outside the house is told of a domain.
func Pseudonym(key []byte, d kv.Domain) string {
	h := keyed(key, "bulkhead-pseudonym-v1", d[:])
	return "bh-" + hex.EncodeToString(h[:16])
}

// Short is what records show of a domain: enough to compare two, and no salt.
func Short(key []byte, d kv.Domain) string {
	h := keyed(key, "bulkhead-record-v1", d[:])
	return hex.EncodeToString(h[:6])
}

// Affinity is a keyed hash of a session's name or of the beginning of a prompt, inside
// one domain. It is never 0, which means none.
func Affinity(key []byte, kind string, d kv.Domain, value []byte) uint64 {
	h := keyed(key, "bulkhead-affinity-v1", []byte(kind), d[:], value)
	return max(1, binary.BigEndian.Uint64(h[:8]))
}

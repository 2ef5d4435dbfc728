package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/kv"
)

// keyPrefix marks an API key of ours; 32 hexadecimal digits follow.
const keyPrefix = "bk-"

// KeyHash is what is stored of an API key: HMAC-SHA256 under the pepper.
type KeyHash [sha256.Size]byte

// String returns the hash in hexadecimal.
func (h KeyHash) String() string { return hex.EncodeToString(h[:]) }

// ParseKeyHash reads a hash that String wrote.
func ParseKeyHash(s string) (KeyHash, error) {
	var h KeyHash
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(h) {
		return h, fmt.Errorf("gateway: parse key hash: want %d hexadecimal digits", 2*len(h))
	}
	return KeyHash(b), nil
}

// NewKey makes an API key of 128 random bits. The text is to be shown once and forgotten;
// the hash is to be stored.
func NewKey(random io.Reader, pepper []byte) (text string, hash KeyHash, err error) {
	var bits [16]byte
	if _, err := io.ReadFull(random, bits[:]); err != nil {
		return "", KeyHash{}, fmt.Errorf("gateway: make key: %w", err)
	}
	text = keyPrefix + hex.EncodeToString(bits[:])
	return text, hashKey(pepper, text), nil
}

// Lengths of an API key that a tenant brought along, in bytes.
const (
	minKeyText = 16
	maxKey     = 128 // no longer one is looked at
)

// HashKey is the hash of a key that was not made by [NewKey]. It refuses a key that is
// shorter than 16 bytes, longer than 128, or not of printable ASCII without spaces. The
// error does not hold the key.
func HashKey(pepper []byte, text string) (KeyHash, error) {
	if len(text) < minKeyText || len(text) > maxKey {
		return KeyHash{}, fmt.Errorf("gateway: hash key: want %d to %d bytes", minKeyText, maxKey)
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return KeyHash{}, errors.New("gateway: hash key: want printable ASCII without spaces")
		}
	}
	return hashKey(pepper, text), nil
}

func hashKey(pepper []byte, text string) KeyHash {
	m := hmac.New(sha256.New, pepper)
	m.Write([]byte("bulkhead-key-v1"))
	m.Write([]byte(text))
	return KeyHash(m.Sum(nil))
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

// tenant is one tenant at work.
type tenant struct {
	id     string
	domain kv.Domain
	models map[string]*model
	names  []string // of models, as configured
	seats  *budget
	bytes  *budget
	retry  *retryBudget
}

// door finds tenants by key.
type door struct {
	pepper []byte
	// byTag finds the entries of a hash by its first bytes; the rest is compared in
	// constant time. The hash is keyed, so a caller cannot steer where it lands.
	byTag map[[8]byte][]entry
	// byID finds tenants by what the configuration calls them.
	byID map[string]*tenant
}

type entry struct {
	hash   KeyHash
	tenant *tenant
}

func newDoor(c Config, models map[string]*model) *door {
	d := &door{pepper: c.Pepper, byTag: map[[8]byte][]entry{}, byID: map[string]*tenant{}}
	for _, t := range c.Tenants {
		kind, name := byte(ownDomain), t.ID
		if t.Domain != "" {
			kind, name = namedDomain, t.Domain
		}
		t = t.WithDefaults()
		made := &tenant{
			id: t.ID, domain: domain(c.DomainKey, kind, name, c.DomainEpoch), models: map[string]*model{},
			seats: newBudget(int64(t.InFlight)), bytes: newBudget(t.Bytes), retry: newRetryBudget(c.Bounds.RetryPercent),
		}
		d.byID[t.ID] = made
		for _, m := range t.Models {
			if made.models[m] == nil {
				made.names = append(made.names, m)
			}
			made.models[m] = models[m]
		}
		for _, k := range t.Keys {
			tag := [8]byte(k[:8])
			d.byTag[tag] = append(d.byTag[tag], entry{k, made})
		}
	}
	return d
}

// tenant authenticates a request by its one Authorization header.
func (d *door) tenant(h http.Header) (*tenant, *fault.Error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return nil, fault.New(fault.MissingKey)
	}
	scheme, key, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || len(key) > maxKey {
		return nil, fault.New(fault.InvalidKey)
	}
	hash := hashKey(d.pepper, key)
	for _, e := range d.byTag[[8]byte(hash[:8])] {
		if subtle.ConstantTimeCompare(e.hash[:], hash[:]) == 1 {
			return e.tenant, nil
		}
	}
	return nil, fault.New(fault.InvalidKey)
}

// budget is a number of units of which some are taken.
type budget struct {
	limit int64
	*meter
}

// meter counts what is taken. Budgets of several configurations may share one, so that a
// new configuration counts what requests of an earlier one still hold.
type meter struct {
	mu    sync.Mutex
	taken int64
}

func newBudget(limit int64) *budget { return &budget{limit, &meter{}} }

// take takes n units, or none and returns false.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.limit-b.taken {
		return false
	}
	b.taken += n
	return true
}

// give gives n units back.
func (m *meter) give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken -= n
}

// held returns the units that are taken.
func (m *meter) held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken
}

// retryBurst is how many second attempts a tenant may have before earning more.
const retryBurst = 10

// retryBudget lets a share of a tenant's requests have a second attempt, so that
// retries cannot double the load on workers that are failing.
type retryBudget struct {
	mu      sync.Mutex
	percent int
	credit  int // hundredths of an attempt
}

func newRetryBudget(percent int) *retryBudget {
	return &retryBudget{percent: percent, credit: 100 * retryBurst}
}

// earn counts a request.
func (b *retryBudget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.credit = min(b.credit+b.percent, 100*retryBurst)
}

// spend takes one attempt, if there is one.
func (b *retryBudget) spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.credit < 100 {
		return false
	}
	b.credit -= 100
	return true
}

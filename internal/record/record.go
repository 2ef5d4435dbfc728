package record

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead.dev/bulkhead/internal/admit"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// Entry is what is remembered of a request for its operator: the event and what led to
// it. It holds no text of a client or an engine except Client.
type Entry struct {
	Event
	// Legs are the calls to engines, in the order in which they ended.
	Legs []Leg
	// Domain is a short keyed hash of the cache domain, to compare two records.
	Domain string
	// Client is the client's own id of the request, as it was echoed.
	Client string
}

// Lease is a lease and what was used of it.
type Lease struct{ Of, Used time.Duration }

// Leg is one call to an engine.
type Leg struct {
	Role upstream.Role
	// Node is its name in the configuration.
	Node string
	// ID is the id that the leg was given.
	ID string
	// Sequence is the number of the answer among those of its request.
	Sequence int
	// Status is the engine's HTTP status; 0 if none came.
	Status int
	// Prompt, Completion, Total and Cached are the tokens that the leg told, as it told them.
	Prompt, Completion, Total, Cached admit.Tokens
	// First is how long the first event or the whole answer took, Took the whole call.
	First, Took time.Duration
}

// Note keeps the numbers of a leg as it told them.
func (l *Leg) Note(r *upstream.Reply) {
	for _, n := range [...]struct {
		to   *admit.Tokens
		from upstream.Count
	}{{&l.Prompt, r.Prompt}, {&l.Completion, r.Completion}, {&l.Total, r.Total}, {&l.Cached, r.Cached}} {
		if n.from.Known {
			*n.to = admit.Known(n.from.N)
		}
	}
}

// Ring remembers the last records: those of requests that reached an engine, and a quarter
// as many of others, which cost their sender nothing and must not push out the former. It
// is safe for concurrent use.
type Ring struct {
	mu              sync.Mutex
	served, refused slots
	at              map[string]*Entry // by id
}

// slots are places for records, used in turn.
type slots struct {
	size int
	all  []Entry // of that size; nil until there is a record
	next int     // where the next one goes
}

// defaultRecords is how many records a ring holds unless told otherwise.
const defaultRecords = 4096

// NewRing makes a ring of n records of requests that reached an engine; 0 means 4096.
func NewRing(n int) *Ring {
	if n == 0 {
		n = defaultRecords
	}
	r := &Ring{}
	r.clear(n)
	return r
}

// clear makes the ring empty. It takes its memory with the first record: a configuration
// that is checked only, or that goes on with an earlier one's ring, needs none.
func (r *Ring) clear(n int) {
	r.served, r.refused, r.at = slots{size: n}, slots{size: (n + 3) / 4}, map[string]*Entry{}
}

// Size is how many records of requests that reached an engine the ring holds at most.
func (r *Ring) Size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served.size
}

// Resize makes the ring hold n records, and keeps the newest of what it has.
func (r *Ring) Resize(n int) {
	if n == 0 {
		n = defaultRecords
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n == r.served.size {
		return
	}
	old := [...]slots{r.served, r.refused}
	r.clear(n)
	for _, s := range old {
		for i := range s.all {
			if rec := s.all[(s.next+i)%len(s.all)]; rec.ID != "" {
				r.put(rec)
			}
		}
	}
}

// Add remembers a record in place of the oldest one.
func (r *Ring) Add(rec Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(rec)
}

// put is Add under the lock.
func (r *Ring) put(rec Entry) {
	s := &r.served
	if rec.Attempts == 0 {
		s = &r.refused
	}
	if s.all == nil {
		s.all = make([]Entry, s.size)
	}
	slot := &s.all[s.next]
	if slot.ID != "" {
		delete(r.at, slot.ID)
	}
	*slot = rec
	r.at[rec.ID] = slot
	s.next = (s.next + 1) % len(s.all)
}

// Get finds a record.
func (r *Ring) Get(id string) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, found := r.at[id]
	if !found {
		return Entry{}, false
	}
	return *e, true
}

// Shadows counts what passed only because a control is in shadow. It is safe for
// concurrent use.
type Shadows struct {
	mu  sync.Mutex
	all map[shadowed]int64
	// kinds counts those of each tenant, for fields are named by clients: one that makes up
	// names must not hide what others use.
	kinds map[string]int
}

type shadowed struct{ field, tenant, model string }

// ShadowCount is one kind of use that passed only because a control is in shadow.
type ShadowCount struct {
	// Field is the name of the field, or of the control.
	Field, Tenant, Model string
	Count                int64
	// Grantable says that a grant in the configuration lets it pass when the control is
	// enforced; else nothing does.
	Grantable bool
}

// NewShadows makes counts of nothing.
func NewShadows() *Shadows { return &Shadows{all: map[shadowed]int64{}, kinds: map[string]int{}} }

// Count counts fields that one request used.
func (s *Shadows) Count(fields []string, tenant, model string) {
	if len(fields) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range fields {
		k := shadowed{f, tenant, model}
		if _, known := s.all[k]; !known {
			switch {
			case len(s.all) >= maxShadows:
				k = shadowed{"(more)", "", ""}
			case s.kinds[tenant] >= maxOfTenant:
				k = shadowed{"(more)", tenant, ""}
			default:
				s.kinds[tenant]++
			}
		}
		s.all[k]++
	}
}

// All returns the counts, the most frequent first. None is Grantable: that is not known here.
func (s *Shadows) All() []ShadowCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []ShadowCount
	for k, n := range s.all {
		all = append(all, ShadowCount{Field: k.field, Tenant: k.tenant, Model: k.model, Count: n})
	}
	slices.SortFunc(all, func(a, b ShadowCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Field, b.Field))
	})
	return all
}

// Shown are names of fields as they may be shown: a client chooses its own keys, so what
// is not plainly the name of a field is told by its length, and of many only the first.
func Shown(names []string) []string {
	all := make([]string, 0, min(len(names), maxShown))
	for _, n := range names {
		if len(all) == maxShown {
			break
		}
		if len(n) > maxShownName || strings.ContainsFunc(n, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_.-*", c)
		}) {
			n = "(a field whose name has " + strconv.Itoa(len(n)) + " bytes)"
		}
		all = append(all, n)
	}
	return all
}

// Limits of the names of fields that are shown, in names and in bytes.
const (
	maxShown     = 16
	maxShownName = 64
)

// How many kinds of shadowed use are told apart, of all and of one tenant.
const (
	maxShadows  = 4096
	maxOfTenant = 256
)

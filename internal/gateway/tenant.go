package gateway

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fault"
	"bulkhead.dev/bulkhead/kv"
)

// tenant is one tenant at work.
type tenant struct {
	Tenant
	domain kv.Domain
	// short and salt are what records and engines are told of the domain.
	short, salt string
	routes      map[string]route
	names       []string // of routes, in the order of the configuration
	seats       *account.Budget
	bytes       *account.Budget
	counts      *account.Budget // counts by engines in progress
	// uncollected counts prompt tokens that a prefill holds for decode.
	uncollected *account.Budget
	spent       *account.Budget // tokens of all time; nil means no limit
	requests    *account.Bucket // nil means no limit
	tokens      *account.Bucket // nil means no limit
	retry       *account.Retries
}

// route is what a name means to one tenant.
type route struct {
	name   string
	model  *model
	served string
	grants []string
}

// door finds tenants by key.
type door struct {
	hasher *account.Hasher
	// byTag finds the entries of a hash by its first bytes; the rest is compared in
	// constant time. The hash is keyed, so a caller cannot steer where it lands.
	byTag map[[8]byte][]entry
	// byID finds tenants by what the configuration calls them.
	byID map[string]*tenant
}

type entry struct {
	Key
	tenant *tenant
}

func newDoor(c Config, models map[string]*model) *door {
	d := &door{hasher: account.NewHasher(c.Pepper), byTag: map[[8]byte][]entry{}, byID: map[string]*tenant{}}
	for _, t := range c.Tenants {
		made := newTenant(c, t, models)
		d.byID[t.ID] = made
		for _, k := range t.Keys {
			tag := [8]byte(k.Hash[:8])
			d.byTag[tag] = append(d.byTag[tag], entry{k, made})
		}
	}
	return d
}

func newTenant(c Config, t Tenant, models map[string]*model) *tenant {
	d := account.Own(c.DomainKey, t.ID, c.DomainEpoch)
	if t.Domain != "" {
		d = account.Named(c.DomainKey, t.Domain, c.DomainEpoch)
	}
	t = t.WithDefaults()
	setDefault(&t.RetryPercent, c.Bounds.RetryPercent)
	made := &tenant{
		Tenant: t, domain: d, short: account.Short(c.DomainKey, d), salt: account.Salt(c.DomainKey, d), routes: map[string]route{},
		seats: account.NewBudget(int64(t.InFlight)), bytes: account.NewBudget(t.Bytes), counts: account.NewBudget(int64(c.Bounds.Counts)),
		uncollected: account.NewBudget(t.Uncollected), retry: account.NewRetries(t.RetryPercent),
		requests: account.NewBucket(t.RequestsPerMinute), tokens: account.NewBucket(t.TokensPerMinute),
	}
	if t.Budget > 0 {
		made.spent = account.NewBudget(t.Budget)
	}
	for _, m := range t.Models {
		made.add(route{name: m, model: models[m], served: models[m].Served})
	}
	for name, a := range t.Aliases {
		served := a.Served
		if served == "" {
			served = models[a.Model].Served
		}
		made.add(route{name: name, model: models[a.Model], served: served})
	}
	slices.Sort(made.names[len(made.names)-len(t.Aliases):]) // aliases come from a map
	return made
}

// add gives the tenant a name for a model.
func (t *tenant) add(r route) {
	r.grants = slices.Concat(r.model.Grants, t.Grants)
	if _, known := t.routes[r.name]; !known {
		t.names = append(t.names, r.name)
	}
	t.routes[r.name] = r
}

// follow makes the tenant's budgets count what requests of an earlier configuration hold.
func (t *tenant) follow(before *tenant) {
	t.seats.Follow(before.seats)
	t.bytes.Follow(before.bytes)
	t.counts.Follow(before.counts)
	t.uncollected.Follow(before.uncollected)
	if t.spent != nil && before.spent != nil {
		t.spent.Follow(before.spent)
	}
	t.requests.Follow(before.requests)
	t.tokens.Follow(before.tokens)
}

// tenant authenticates a request by its one Authorization header.
func (d *door) tenant(h http.Header, now time.Time) (*tenant, *fault.Error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return nil, fault.New(fault.MissingKey)
	}
	scheme, key, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || len(key) > account.MaxKey {
		return nil, fault.New(fault.InvalidKey)
	}
	hash := d.hasher.Hash(key)
	for _, e := range d.byTag[[8]byte(hash[:8])] {
		if subtle.ConstantTimeCompare(e.Hash[:], hash[:]) != 1 {
			continue
		}
		if !e.Expires.IsZero() && !now.Before(e.Expires) {
			return nil, fault.New(fault.ExpiredKey)
		}
		return e.tenant, nil
	}
	return nil, fault.New(fault.InvalidKey)
}

// Package gateway is the HTTP front of Bulkhead: it authenticates, admits, sends the two
// legs of a request to a pair of workers, holds the first byte until both have proved
// that they answered the same request, and relays the answer.
//
// It promises that no byte of an answer leaves before the legs agree (G-3, G-12), that a
// failure is never a 200 and never looks like an end (G-5, H-14), that a request which
// ends early ends at both workers (G-6), and that what a client can push is bounded
// before it is read (G-14). Errors come from package fault alone.
//
// What must not come in: logging and metrics (it emits one event a request), the
// environment, an HTTP stack of our own, and any text of a prompt or an answer in an
// error, an event or a header.
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

// Passer authorises one leg of one attempt towards our own workers (H-16). It returns
// the value of the header X-Bulkhead-Pass. It is called from several goroutines.
type Passer interface {
	Mint(attempt handoff.Attempt, domain kv.Domain, expiry time.Time, room int64, body []byte) string
}

// Counter counts the tokens of a request's prompt exactly, template and all. path is the
// HTTP path and body the client's own, already scanned. It must not keep body, and it is
// called from several goroutines.
type Counter interface {
	Count(ctx context.Context, path string, body []byte) (tokens int, err error)
}

// Clock is where time comes from.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in its own goroutine once d has passed, as time.AfterFunc does.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is what AfterFunc returns; *time.Timer is one.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// SystemClock is the clock of the machine.
type SystemClock struct{}

// Now returns the present.
func (SystemClock) Now() time.Time { return time.Now() }

// AfterFunc calls f once d has passed.
func (SystemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Config is everything that a gateway needs to know. Nothing in it may change afterwards.
type Config struct {
	// Tenants are those who may ask. Without one, every request is refused.
	Tenants []Tenant
	// Models are what may be asked.
	Models []Model
	// Pepper is the key under which API keys are hashed, at least 16 bytes.
	Pepper []byte
	// DomainKey is the key under which cache domains are named, at least 16 bytes, equal
	// on all replicas (G-7).
	DomainKey []byte
	// DomainEpoch, when it changes, gives every domain another name.
	DomainEpoch uint64
	// Passer authorises the legs. Required.
	Passer Passer
	// Events takes one event for each request. Required.
	Events Events
	// Random is a cryptographic source. Required.
	Random io.Reader
	// Clock is where time comes from. Required.
	Clock Clock
	// Bounds limits what clients and workers can make us hold or wait for.
	Bounds Bounds
}

// Tenant is one who may ask, known by the keys.
type Tenant struct {
	// ID names the tenant in events. It is never shown to clients.
	ID string
	// Keys are the hashes of the API keys, from NewKey.
	Keys []KeyHash
	// Models are the names that the tenant may use.
	Models []string
	// Domain is the cache domain; tenants with the same one share cached prompts (G-7).
	// Empty means a domain of the tenant's own, which no named domain ever equals.
	Domain string
	// InFlight is how many requests the tenant may have in progress; 0 means 64.
	InFlight int
	// Bytes is how many body bytes the tenant's requests in progress may hold, each body
	// counted three times, for it is kept for both legs; 0 means 192 MiB.
	Bytes int64
}

// Model is what a client can ask for by name.
type Model struct {
	// Name is what clients write, matched exactly (G-13).
	Name string
	// Served is what the workers call it; empty means Name.
	Served string
	// Pairs serve the model. At least one.
	Pairs []Pair
	// Window caps the context length, in tokens; 0 means what the workers say.
	Window int64
	// DefaultMaxTokens is the answer length for a client that asked for none, in tokens;
	// 0 means 1024.
	DefaultMaxTokens int64
	// Sizes bounds a prompt's tokens by its bytes.
	Sizes Sizes
	// Counter counts where the bounds do not decide; nil means that such requests are
	// refused with 503.
	Counter Counter
}

// Sizes says how many tokens a text can be. With B bytes of decoded text in M messages,
// a prompt has at least B/BytesPerToken (rounded up) and at most
// B + M*PerMessage + PerRequest tokens.
type Sizes struct {
	// BytesPerToken is the most bytes of text that one token stands for. 0 means that it
	// is not known, and the lower bound is 1 token.
	BytesPerToken int64
	// PerMessage and PerRequest are the most tokens that a template adds.
	PerMessage, PerRequest int64
}

// Pair is one prefill and one decode worker.
type Pair struct {
	// Name names the pair in events; empty means its bootstrap label.
	Name string
	// BootstrapHost and BootstrapPort are the label under which the decode worker knows
	// the prefill worker (H-13). Port 0 means 8998.
	BootstrapHost string
	BootstrapPort int
	// Prefill and Decode are the two workers.
	Prefill, Decode Leg
}

// Leg is one worker as the gateway reaches it.
type Leg struct {
	// URL is scheme and host, without a path: http://127.0.0.1:30100.
	URL string
	// ControlKey authorises /abort_request.
	ControlKey string
	// TLS is used for an https URL; nil means the system's defaults.
	TLS *tls.Config
}

// Bounds limits what others can make the gateway hold or wait for. A zero value means
// the default that stands beside it.
type Bounds struct {
	Body         int64         // bytes of one body: 32 MiB
	Bytes        int64         // body bytes of all requests in progress, each counted three times: 768 MiB
	InFlight     int           // requests in progress: 256
	BodyGrace    time.Duration // head start of a body: 10 s
	BodyRate     int64         // bytes a second that a body must bring after that: 16 KiB
	FirstByte    time.Duration // from admission to the first byte, retry and a whole answer's generation included: 5 min
	Idle         time.Duration // between two events of a stream: 1 min
	Write        time.Duration // for one write that a client does not take: 30 s
	Event        int           // bytes of one event of a stream: 1 MiB
	Held         int           // bytes of a stream held before the verdict: 1 MiB
	Answer       int64         // bytes of a whole answer: 32 MiB
	PassLife     time.Duration // life of a leg's authorisation: 1 min
	Refresh      time.Duration // between two looks at the workers: 2 s
	Fresh        time.Duration // how long a look holds: 7 s
	Probe        time.Duration // for one look: 2 s
	Connect      time.Duration // for a connection to a worker: 2 s
	Abort        time.Duration // for an abort at a worker: 2 s
	RetryPercent int           // second attempts per hundred requests of a tenant, after a burst of 10: 10
}

// WithDefaults returns the bounds with the default in place of each zero.
func (b Bounds) WithDefaults() Bounds {
	setDefault(&b.Body, 32<<20)
	setDefault(&b.Bytes, 768<<20)
	setDefault(&b.InFlight, 256)
	setDefault(&b.BodyGrace, 10*time.Second)
	setDefault(&b.BodyRate, 16<<10)
	setDefault(&b.FirstByte, 5*time.Minute)
	setDefault(&b.Idle, time.Minute)
	setDefault(&b.Write, 30*time.Second)
	setDefault(&b.Event, 1<<20)
	setDefault(&b.Held, 1<<20)
	setDefault(&b.Answer, 32<<20)
	setDefault(&b.PassLife, time.Minute)
	setDefault(&b.Refresh, 2*time.Second)
	setDefault(&b.Fresh, 7*time.Second)
	setDefault(&b.Probe, 2*time.Second)
	setDefault(&b.Connect, 2*time.Second)
	setDefault(&b.Abort, 2*time.Second)
	setDefault(&b.RetryPercent, 10)
	return b
}

// WithDefaults returns the tenant with the default in place of each zero that has one.
func (t Tenant) WithDefaults() Tenant {
	setDefault(&t.InFlight, 64)
	setDefault(&t.Bytes, 192<<20)
	return t
}

// WithDefaults returns the model with the default in place of each zero that has one. Its
// pairs are untouched.
func (m Model) WithDefaults() Model {
	if m.Served == "" {
		m.Served = m.Name
	}
	setDefault(&m.DefaultMaxTokens, 1024)
	return m
}

// WithDefaults returns the pair with the default in place of each zero that has one.
func (p Pair) WithDefaults() Pair {
	setDefault(&p.BootstrapPort, 8998)
	if p.Name == "" {
		p.Name = net.JoinHostPort(p.BootstrapHost, strconv.Itoa(p.BootstrapPort))
	}
	return p
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// minKey is the least length of a secret key, in bytes.
const minKey = 16

// check says what is wrong with the configuration, with the path of the setting.
func (c *Config) check() error {
	switch {
	case len(c.Pepper) < minKey:
		return fmt.Errorf("gateway: configure: pepper: at least %d bytes", minKey)
	case len(c.DomainKey) < minKey:
		return fmt.Errorf("gateway: configure: domain key: at least %d bytes", minKey)
	case c.Passer == nil || c.Events == nil || c.Random == nil || c.Clock == nil:
		return errors.New("gateway: configure: passer, events, random and clock are required")
	case c.Bounds.RetryPercent < 0 || c.Bounds.RetryPercent > 100:
		return errors.New("gateway: configure: bounds.retry_percent: from 0 to 100")
	}
	models := map[string]bool{}
	for i, m := range c.Models {
		if m.Name == "" || models[m.Name] {
			return fmt.Errorf("gateway: configure: models[%d].name: empty or used twice", i)
		}
		models[m.Name] = true
		if err := m.check(i); err != nil {
			return err
		}
	}
	return c.checkTenants(models)
}

func (c *Config) checkTenants(models map[string]bool) error {
	ids, keys := map[string]bool{}, map[KeyHash]bool{}
	for i, t := range c.Tenants {
		if t.ID == "" || ids[t.ID] {
			return fmt.Errorf("gateway: configure: tenants[%d].id: empty or used twice", i)
		}
		ids[t.ID] = true
		if t.InFlight < 0 || t.Bytes < 0 {
			return fmt.Errorf("gateway: configure: tenants[%d]: a budget is negative", i)
		}
		for j, k := range t.Keys {
			if k == (KeyHash{}) || keys[k] {
				return fmt.Errorf("gateway: configure: tenants[%d].keys[%d]: empty or used twice", i, j)
			}
			keys[k] = true
		}
		for j, m := range t.Models {
			if !models[m] {
				return fmt.Errorf("gateway: configure: tenants[%d].models[%d]: there is no such model", i, j)
			}
		}
	}
	return nil
}

func (m *Model) check(i int) error {
	if len(m.Pairs) == 0 {
		return fmt.Errorf("gateway: configure: models[%d].pairs: at least one", i)
	}
	if m.Window < 0 || m.DefaultMaxTokens < 0 || m.Sizes.BytesPerToken < 0 || m.Sizes.PerMessage < 0 || m.Sizes.PerRequest < 0 {
		return fmt.Errorf("gateway: configure: models[%d]: a number is negative", i)
	}
	for j, p := range m.Pairs {
		if p.BootstrapHost == "" || p.BootstrapPort < 0 || p.BootstrapPort > 65535 {
			return fmt.Errorf("gateway: configure: models[%d].pairs[%d]: bootstrap host or port", i, j)
		}
		for _, l := range []Leg{p.Prefill, p.Decode} {
			u, err := url.Parse(l.URL)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
				return fmt.Errorf("gateway: configure: models[%d].pairs[%d]: a leg's url must be scheme and host", i, j)
			}
		}
	}
	return nil
}

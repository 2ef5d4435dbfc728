// Package gateway is the HTTP front of Bulkhead: it authenticates, admits, sends the
// legs of a request to engines, holds the first byte until they have proved that they
// answered this request, and relays the answer.
//
// It promises that no byte of an answer leaves before the verdict (G-3, G-12), that a
// failure is never a 200 and never looks like an end (G-5, H-14), that a request which
// ends early ends at the engines (G-6), that a handle serves one sequence of one attempt
// within its lease (G-11), and that what a client can push is bounded before it is read
// (G-14). Errors come from package fault alone.
//
// What must not come in: logging and metrics (it emits one event a request), the
// environment, an HTTP stack of our own, and any text of a prompt or an answer in an
// error, an event, a record or a header.
package gateway

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/upstream"
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
type Clock = fleet.Clock

// Timer is what Clock's AfterFunc returns; *time.Timer is one.
type Timer = fleet.Timer

// SystemClock is the clock of the machine.
type SystemClock = fleet.SystemClock

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
	// Passer authorises the legs towards our own workers. Required if a model is of the
	// dialect bulkhead.
	Passer Passer
	// Events takes one event for each request. Required.
	Events Events
	// Fleet takes what happens to the engines; nil drops it. It must not block.
	Fleet func(fleet.Event)
	// Random is a cryptographic source. Required.
	Random io.Reader
	// Clock is where time comes from. Required.
	Clock Clock
	// Bounds limits what clients and engines can make us hold or wait for.
	Bounds Bounds
	// Modes relax controls (G-10). What is not named is enforced.
	Modes map[Control]Mode
	// Records is how many requests [Gateway.Explain] remembers; 0 means 4096.
	Records int
}

// Control names a control that has a mode (G-10). That nothing is released before the
// verdict, that handles and ids are checked, and that the reserved fields are refused,
// has none.
type Control string

const (
	// AllowList is the refusal of fields that are on no list or not granted (G-1). It has
	// no state off: what is shadowed or off passes only as long as it is not reserved.
	AllowList Control = "allow_list"
	// Admission is the refusal of what does not fit the engines (G-2).
	Admission Control = "admission"
	// Affinity is the preference of an engine that served the same session or prompt
	// prefix of the same domain before.
	Affinity Control = "affinity"
)

// Controls lists the controls that have a mode.
func Controls() []Control { return []Control{AllowList, Admission, Affinity} }

// Mode is how a control is applied.
type Mode struct {
	State ModeState
	// Until ends Shadow: from then on the control is enforced. Required with Shadow.
	Until time.Time
}

// ModeState is the state of a control.
type ModeState uint8

const (
	// Enforce applies the control.
	Enforce ModeState = iota
	// Shadow counts what the control would have refused, and lets it pass.
	Shadow
	// Off lets everything pass.
	Off
)

// String returns the state as configurations write it.
func (s ModeState) String() string {
	names := [...]string{"enforce", "shadow", "off"}
	if int(s) < len(names) {
		return names[s]
	}
	return "no state"
}

// Tenant is one who may ask, known by the keys.
type Tenant struct {
	// ID names the tenant in events. It is never shown to clients.
	ID string
	// Keys are the API keys of the tenant.
	Keys []Key
	// Models are the names that the tenant may use.
	Models []string
	// Aliases are more names that this tenant alone may use: each stands for a model, and
	// for another name of it at the engine, such as an adapter.
	Aliases map[string]Alias
	// Domain is the cache domain; tenants with the same one share cached prompts (G-7).
	// Empty means a domain of the tenant's own, which no named domain ever equals.
	Domain string
	// Narrow says what may narrow the domain further: the name of a request header that
	// the tenant's own servers set, or NarrowSafetyID for the field safety_identifier.
	// Empty means nothing.
	Narrow string
	// InFlight is how many requests the tenant may have in progress; 0 means 64.
	InFlight int
	// Bytes is how many body bytes the tenant's requests in progress may hold, each body
	// counted three times, for it is kept for both legs, and answers held whole; 0 means 192 MiB.
	Bytes int64
	// RequestsPerMinute and TokensPerMinute are rates, with a burst of one minute's worth;
	// tokens are those of prompts and answers. 0 means no limit.
	RequestsPerMinute, TokensPerMinute int64
	// Budget is how many tokens, of prompts and answers, the tenant may use until the
	// process ends; 0 means no limit.
	Budget int64
	// Uncollected is how many prompt tokens the tenant's prefills may hold at an engine
	// that keeps them for a lease, until decode has fetched them (G-14); 0 means 65,536. A
	// longer prompt is answered while no other one is held.
	Uncollected int64
	// Priority is the tenant's class, as the engines take it. A client may lower its own
	// requests' below it, never raise it. Unknown means that no engine is told any.
	Priority upstream.Count
	// Grants are names of fields that this tenant may use, beside those of the model.
	Grants []string
	// Private is the name under which nodes in the state private take this tenant's
	// requests; empty means none.
	Private string
	// RetryPercent is the second attempts per hundred requests of this tenant; 0 means
	// those of the bounds.
	RetryPercent int
}

// NarrowSafetyID makes the field safety_identifier narrow a tenant's domain.
const NarrowSafetyID = "safety_identifier"

// Key is one API key of a tenant.
type Key struct {
	// Hash is the key's hash, from NewKey or HashKey.
	Hash account.KeyHash
	// Expires is when the key ends to hold; zero means never.
	Expires time.Time
}

// Alias is what a tenant's own name for a model stands for.
type Alias struct {
	// Model is a model of the configuration. The tenant need not be allowed it by its
	// own name.
	Model string
	// Served is what the engines call it; empty means as the model.
	Served string
}

// Model is what a client can ask for by name.
type Model struct {
	// Name is what clients write, matched exactly (G-13).
	Name string
	// Served is what the engines call it; empty means Name.
	Served string
	// Dialect is how the engines want to be asked; the zero value is our own workers.
	Dialect upstream.Dialect
	// Engines are the nodes, and how requests are spread over them. Dialect, Served,
	// Window and Lease in it are overwritten by those of the model.
	Engines fleet.Spec
	// Window caps the context length, in tokens; 0 means what the engines say.
	Window int64
	// Lease is how long prefill keeps what decode has not fetched. Required for the
	// dialect vllm-nixl, as its engine is configured (G-11).
	Lease time.Duration
	// DefaultMaxTokens is the answer length for a client that asked for none, in tokens;
	// 0 means 1024.
	DefaultMaxTokens int64
	// Sizes bounds a prompt's tokens by its bytes. The zero value means, for engines other
	// than our own, one token a byte at most, 64 more for a message and 512 for a request.
	Sizes Sizes
	// Counter counts where the bounds do not decide; nil means the engine's own tokenizer
	// endpoint, and where there is none such requests are refused with 503.
	Counter Counter
	// Grants are names of fields that every tenant may use with this model (G-1).
	Grants []string
	// URLs are the hosts that URLs in content may name (G-13).
	URLs []string
	// MaxSchema is the longest grammar or schema, in bytes; 0 means 64 KiB.
	MaxSchema int
	// MaxSequences is the most answers that one request may ask for: n times its prompts;
	// 0 means 16.
	MaxSequences int
	// SafetyID tells the engine a pseudonym of the cache domain as safety_identifier,
	// where the dialect has that field.
	SafetyID SafetyID
	// Probe is the known answer by which nodes are judged (G-9); without a prompt there
	// is no such probe.
	Probe Probe
	// Hold settles what is kept back while the verdict is open.
	Hold Hold
}

// SafetyID says whether an engine is told a pseudonym of the domain.
type SafetyID uint8

const (
	// NoSafetyID: it is told none.
	NoSafetyID SafetyID = iota
	// Pseudonym: it is told a keyed hash of the domain.
	Pseudonym
)

// Hold settles what is kept back while the verdict is open. There is no way to release
// any part of an answer earlier.
type Hold struct {
	// Bytes of one stream that are kept at most; 0 means those of the bounds.
	Bytes int
	// CommitAfter is how long after its admission the header of a stream leaves before the
	// verdict, as status 200, with a comment then and every time that as long passed again.
	// From there on a refusal is an error event and a cut connection, not a status. At least
	// 1 s and less than the bound FirstByte; 0 means never.
	CommitAfter time.Duration
}

// Probe is a question whose answer is known, asked through the path of every request.
type Probe struct {
	// Prompt is the one message of a chat request; it is sent with temperature 0.
	Prompt string
	// Want is what the answer must contain.
	Want string
	// MaxTokens is the answer's limit, in tokens; 0 means 16.
	MaxTokens int64
	// Every is the time between two probes of one target; 0 means 1 min.
	Every time.Duration
}

// question tells one such question from others; 0 if there is none.
func (p Probe) question() uint64 {
	if p.Prompt == "" {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d:%s %s", p.MaxTokens, len(p.Prompt), p.Prompt, p.Want)
	return max(1, h.Sum64())
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

// Bounds limits what others can make the gateway hold or wait for. A zero value means
// the default that stands beside it.
type Bounds struct {
	Body         int64         // bytes of one body: 32 MiB
	Bytes        int64         // body bytes of all requests in progress, each counted three times: 768 MiB
	InFlight     int           // requests in progress: 256
	BodyGrace    time.Duration // head start of a body: 10 s
	BodyRate     int64         // bytes a second that a body must bring after that: 16 KiB
	FirstByte    time.Duration // from admission to the first byte, queue, retry and a whole answer's generation included: 5 min
	Idle         time.Duration // between two events of a stream: 1 min
	Write        time.Duration // for one write that a client does not take: 30 s
	Event        int           // bytes of one event of a stream: 1 MiB
	Held         int           // bytes of a stream held before the verdict: 1 MiB
	Answer       int64         // bytes of a whole answer: 32 MiB
	PassLife     time.Duration // life of a leg's authorisation: 1 min
	Refresh      time.Duration // between two looks at the engines: 2 s
	Fresh        time.Duration // how long a look holds: 7 s
	Probe        time.Duration // for one look: 2 s
	Connect      time.Duration // for a connection to an engine: 2 s
	Resolve      time.Duration // between two resolutions of a DNS name or a file: 10 s
	Abort        time.Duration // for an engine to end a request that it is told to end: 2 s
	Count        time.Duration // for a count by an engine: 5 s
	Counts       int           // counts by engines that one tenant may have in progress: 4
	CountBytes   int64         // bytes of a body that an engine is asked to count: 4 MiB
	Sequences    int           // sequences of one request that run at a time: 4
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
	setDefault(&b.Resolve, 10*time.Second)
	setDefault(&b.Abort, 2*time.Second)
	setDefault(&b.Count, 5*time.Second)
	setDefault(&b.Counts, 4)
	setDefault(&b.CountBytes, 4<<20)
	setDefault(&b.Sequences, 4)
	setDefault(&b.RetryPercent, 10)
	return b
}

// WithDefaults returns the tenant with the default in place of each zero that has one,
// except the share of retries.
func (t Tenant) WithDefaults() Tenant {
	setDefault(&t.InFlight, 64)
	setDefault(&t.Bytes, 192<<20)
	setDefault(&t.Uncollected, 64<<10)
	return t
}

// WithDefaults returns the model with the default in place of each zero that has one. Its
// engines are untouched, but for what they share with the model.
func (m Model) WithDefaults() Model {
	if m.Served == "" {
		m.Served = m.Name
	}
	setDefault(&m.DefaultMaxTokens, 1024)
	if m.Sizes == (Sizes{}) && m.Dialect != upstream.Bulkhead {
		m.Sizes = Sizes{PerMessage: 64, PerRequest: 512}
	}
	setDefault(&m.Probe.MaxTokens, 16)
	setDefault(&m.Probe.Every, time.Minute)
	m.Engines.Question = m.Probe.question()
	m.Engines.Dialect, m.Engines.Served, m.Engines.Window, m.Engines.Lease = m.Dialect, m.Served, m.Window, m.Lease
	return m
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

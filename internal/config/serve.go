package config

// Serve is the configuration file of bulkhead serve. Unknown keys are refused. A
// setting without a default is required.
type Serve struct {
	// Listen is the address for clients, host:port. Anything but loopback is open to your
	// network.
	Listen Address `yaml:"listen"`
	// TLS is the certificate of that listener; without it, clients use plain HTTP.
	TLS *TLSPair `yaml:"tls,omitempty"`
	// Admin is the operator's own listener.
	Admin Admin `yaml:"admin"`
	// Drain is the time for answers in progress once it was told to stop.
	Drain Duration `yaml:"drain"`

	// PassKey is shared with workers of ours: 64 hex digits. Required if a model's engine
	// is bulkhead.
	PassKey Secret `yaml:"pass_key,omitempty"`
	// ControlKey is shared with workers of ours, for aborts. Required if a model's engine
	// is bulkhead.
	ControlKey Secret `yaml:"control_key,omitempty"`
	// Pepper is the key under which API keys are hashed: 64 hex digits.
	Pepper Secret `yaml:"pepper" need:"true"`
	// DomainKey is the key under which cache domains are named: 64 hex digits, equal on
	// all gateways before the same engines.
	DomainKey Secret `yaml:"domain_key" need:"true"`
	// DomainEpoch gives, with every other number, every cache domain another name.
	DomainEpoch uint64 `yaml:"domain_epoch"`
	// WorkerCA is PEM of who vouches for engines with an https URL; without it, the
	// authorities of the system do.
	WorkerCA Secret `yaml:"worker_ca,omitempty"`

	// Records is how many requests bulkhead explain can look up.
	Records Number `yaml:"records"`
	// Telemetry sends the metrics elsewhere too.
	Telemetry *Telemetry `yaml:"telemetry,omitempty"`
	// Modes relax controls for a time. What is not named is enforced.
	Modes Modes `yaml:"modes,omitempty"`

	// Models are what can be asked.
	Models []Model `yaml:"models" need:"true"`
	// Tenants are who may ask.
	Tenants []Tenant `yaml:"tenants" need:"true"`
	// Bounds limit what everybody together can make the gateway hold or wait for.
	Bounds Bounds `yaml:"bounds"`
}

// TLSPair is a certificate and its key.
type TLSPair struct {
	// Cert is PEM of the certificate, and of those between it and its authority.
	Cert Secret `yaml:"cert" need:"true"`
	// Key is PEM of its private key.
	Key Secret `yaml:"key" need:"true"`
}

// Admin is the listener for the operator. It asks for no key.
type Admin struct {
	// Listen is its address, host:port, or off.
	Listen Address `yaml:"listen"`
	// Pprof serves profiles of the process there.
	Pprof bool `yaml:"pprof"`
}

// Telemetry sends the metrics to a collector.
type Telemetry struct {
	// OTLP is where metrics are posted as OTLP over HTTP: the whole URL, such as
	// http://127.0.0.1:4318/v1/metrics.
	OTLP URL `yaml:"otlp" need:"true"`
	// Every is the time between two exports.
	Every Duration `yaml:"every"`
	// Key is sent as a bearer token.
	Key Secret `yaml:"key,omitempty"`
}

// Modes are the controls that have a mode.
type Modes struct {
	// AllowList is the refusal of fields that are on no list or not granted.
	AllowList *Mode `yaml:"allow_list,omitempty"`
	// Admission is the refusal of what does not fit the engines.
	Admission *Mode `yaml:"admission,omitempty"`
	// Affinity is the preference of an engine that served the same session or prefix before.
	Affinity *Mode `yaml:"affinity,omitempty"`
}

// Mode is how a control is applied.
type Mode struct {
	// Mode is enforce, shadow (what it would refuse passes and is counted) or off.
	Mode string `yaml:"mode" need:"true" oneof:"enforce,shadow,off"`
	// Until ends shadow; from then on the control is enforced. Required with shadow.
	Until Moment `yaml:"until,omitempty"`
}

// Model is what clients can ask for by name, and the engines that serve it.
type Model struct {
	// Name is what clients write as model, compared exactly.
	Name string `yaml:"name" need:"true"`
	// Served is what the engines call it, if otherwise.
	Served string `yaml:"served"`
	// Engine is how the engines want to be asked. With pairs, it is bulkhead unless told otherwise.
	Engine string `yaml:"engine" oneof:"bulkhead,sglang-pd,sglang,vllm-nixl,vllm-mooncake,vllm,llamacpp,openai"`
	// Tokenizer says who counts where a prompt's length does not decide: engine asks the
	// engine, recall is that of our own workers, none refuses such prompts with 503.
	Tokenizer string `yaml:"tokenizer" oneof:"engine,recall,none"`
	// Sizes bounds a prompt's tokens by its length.
	Sizes *Sizes `yaml:"sizes,omitempty"`
	// Window caps prompt plus answer, in tokens; without it, what the engines say holds.
	// Required for openai, which has no pool to read.
	Window Number `yaml:"window,omitempty"`
	// DefaultMaxTokens is the length of an answer, in tokens, for a client that asks for none.
	DefaultMaxTokens Number `yaml:"default_max_tokens"`
	// Lease is how long prefill keeps what decode has not fetched, as the engine is
	// configured. Required for vllm-nixl.
	Lease Duration `yaml:"lease,omitempty"`

	// Pairs are fixed pairs of our own workers, for the engine bulkhead.
	Pairs []Pair `yaml:"pairs,omitempty"`
	// Prefill are the prefill nodes of an engine in two parts.
	Prefill []Node `yaml:"prefill,omitempty"`
	// Decode are the decode nodes of an engine in two parts.
	Decode []Node `yaml:"decode,omitempty"`
	// Nodes are the nodes of an engine in one part.
	Nodes []Node `yaml:"nodes,omitempty"`
	// CA is PEM of who vouches for https nodes of this model; without it, worker_ca does.
	CA Secret `yaml:"ca,omitempty"`

	// Affinity says how far a session, or the same beginning of a prompt of the same cache
	// domain, may unbalance the load.
	Affinity Affinity `yaml:"affinity"`
	// SlowStart is the time in which a node that came back takes up its share.
	SlowStart Duration `yaml:"slow_start"`
	// Overcommit is how many tokens may be in flight at a node, in percent of its pool. A
	// single request never exceeds the pool.
	Overcommit Percent `yaml:"overcommit"`
	// Queue is where requests wait that no node has room for.
	Queue Queue `yaml:"queue"`
	// Breaker leaves a node alone that fails.
	Breaker Breaker `yaml:"breaker"`
	// Probe is a question with a known answer by which nodes are judged.
	Probe *Probe `yaml:"probe,omitempty"`

	// Grants are names of fields that every tenant may use with this model.
	Grants []string `yaml:"grants,omitempty"`
	// URLs are the hosts that URLs in content may name.
	URLs []string `yaml:"urls,omitempty"`
	// MaxSchema is the longest grammar or schema of a request.
	MaxSchema Size `yaml:"max_schema"`
	// MaxSequences is the most answers that one request may ask for: n times its prompts.
	MaxSequences Number `yaml:"max_sequences"`
	// Hold settles what of a stream is held until both legs agree.
	Hold Hold `yaml:"hold,omitempty"`
	// SafetyID tells the engine a pseudonym of the cache domain as safety_identifier.
	SafetyID bool `yaml:"safety_id"`
}

// Hold settles what of a stream is held until both legs agree.
type Hold struct {
	// Bytes is how much of it is held; without it, bounds.held.
	Bytes Size `yaml:"bytes,omitempty"`
	// CommitAfter is when the header of a stream leaves all the same, and comments from then
	// on; without it, never. A refusal after that is a broken stream and not a status.
	CommitAfter Duration `yaml:"commit_after,omitempty"`
}

// Sizes bounds a prompt's tokens by its bytes.
type Sizes struct {
	// BytesPerToken is the most bytes of text that one token stands for.
	BytesPerToken Number `yaml:"bytes_per_token,omitempty"`
	// PerMessage is the most tokens that the template adds to a message.
	PerMessage Number `yaml:"per_message,omitempty"`
	// PerRequest is the most tokens that the template adds to a request.
	PerRequest Number `yaml:"per_request,omitempty"`
}

// Pair is a fixed pair of our own workers.
type Pair struct {
	// Name is for events and state; without it, the bootstrap label.
	Name string `yaml:"name"`
	// Bootstrap is the label, host:port, under which decode knows prefill.
	Bootstrap Address `yaml:"bootstrap" need:"true"`
	// Prefill is the prefill worker: scheme and host.
	Prefill URL `yaml:"prefill" need:"true"`
	// Decode is the decode worker: scheme and host.
	Decode URL `yaml:"decode" need:"true"`
}

// Node is where engines are: one URL, a name with all its addresses, or a file of URLs.
type Node struct {
	// URL is one node: scheme and host, for openai also a path.
	URL URL `yaml:"url,omitempty"`
	// DNS is scheme, name and port; every address of the name is a node.
	DNS URL `yaml:"dns,omitempty"`
	// File is a file with one URL a line, read again when it changes.
	File string `yaml:"file,omitempty"`
	// Name is for events and state; without it, host and port.
	Name string `yaml:"name,omitempty"`
	// Bootstrap is where decode meets this prefill node, host:port, or :port on the
	// node's own host. Without it, port 8998 there.
	Bootstrap Address `yaml:"bootstrap,omitempty"`
	// State is active, draining (takes nothing new), private (only of tenants that name
	// it) or canary (a share of the requests).
	State string `yaml:"state" oneof:"active,draining,private,canary"`
	// Share is what a canary takes of all requests, in percent.
	Share Percent `yaml:"share,omitempty"`
	// Weight is the node's capacity beside the others'.
	Weight Number `yaml:"weight"`
	// Key is sent to the engine as a bearer token.
	Key Secret `yaml:"key,omitempty"`
	// ControlKey is sent instead to endpoints that control the engine, such as aborts.
	ControlKey Secret `yaml:"control_key,omitempty"`
}

// Queue is where requests wait that no node has room for.
type Queue struct {
	// PerTenant is how many requests of one tenant may wait.
	PerTenant Number `yaml:"per_tenant"`
	// Total is how many requests may wait.
	Total Number `yaml:"total"`
	// Wait is the longest wait.
	Wait Duration `yaml:"wait"`
}

// Affinity says how far a session or a prefix may unbalance the load.
type Affinity struct {
	// Slack is by how much a preferred node may be busier than the mean.
	Slack Percent `yaml:"slack"`
}

// Breaker leaves a node alone that fails.
type Breaker struct {
	// Failures one after another open it.
	Failures Number `yaml:"failures"`
	// Rate of failures among the calls within Window opens it too.
	Rate Percent `yaml:"rate"`
	// Least is how many calls there must be for that.
	Least Number `yaml:"least"`
	// Window is the time over which the rate is taken.
	Window Duration `yaml:"window"`
	// Open is how long the node is left alone before one request tries it.
	Open Duration `yaml:"open"`
}

// Probe is a question with a known answer.
type Probe struct {
	// Prompt is the one message of the question, sent with temperature 0.
	Prompt string `yaml:"prompt" need:"true"`
	// Want is what the answer must contain.
	Want string `yaml:"want" need:"true"`
	// MaxTokens is the answer's limit, in tokens.
	MaxTokens Number `yaml:"max_tokens"`
	// Every is the time between two questions to one node or pair.
	Every Duration `yaml:"every"`
}

// Tenant is one who may ask.
type Tenant struct {
	// ID is for events; clients never see it.
	ID string `yaml:"id" need:"true"`
	// Keys open, each of them.
	Keys []Key `yaml:"keys"`
	// Models are names of models; any other is 404.
	Models []string `yaml:"models"`
	// Aliases are the tenant's own names for models or their adapters.
	Aliases map[string]Alias `yaml:"aliases,omitempty"`
	// Grants are names of fields that this tenant may use.
	Grants []string `yaml:"grants,omitempty"`
	// Domain is the cache domain; tenants with the same one share cached prompts. Without
	// it, the tenant has one of its own.
	Domain string `yaml:"domain,omitempty"`
	// Narrow is what narrows the domain further: the name of a header that the tenant's own
	// servers set, or safety_identifier.
	Narrow string `yaml:"narrow,omitempty"`
	// InFlight is how many requests may be in progress.
	InFlight Number `yaml:"in_flight"`
	// Bytes is what the bodies of requests in progress may take, each counted three times.
	Bytes Size `yaml:"bytes"`
	// RequestsPerMinute is a rate, with a burst of one minute's worth; without it, no limit.
	RequestsPerMinute Number `yaml:"requests_per_minute,omitempty"`
	// TokensPerMinute is a rate of prompt and answer tokens; without it, no limit.
	TokensPerMinute Number `yaml:"tokens_per_minute,omitempty"`
	// Budget is how many tokens may be used until serve is started anew; without it, no limit.
	Budget Number `yaml:"budget,omitempty"`
	// Uncollected is how many prompt tokens prefills may hold for decode at a leased engine.
	Uncollected Number `yaml:"uncollected"`
	// Priority is the tenant's class, as the engines take it. Clients may only lower theirs.
	Priority *int64 `yaml:"priority,omitempty"`
	// Private is the name under which private nodes take this tenant's requests.
	Private string `yaml:"private,omitempty"`
	// RetryPercent is the second attempts per hundred requests; without it, that of the bounds.
	RetryPercent Number `yaml:"retry_percent,omitempty"`
}

// Key is an API key: its hash, or where the key is.
type Key struct {
	// Hash is 64 hex digits, from bulkhead key.
	Hash string `yaml:"hash,omitempty"`
	// Key is the key itself, 16 to 128 bytes of printable ASCII without spaces.
	Key Secret `yaml:"key,omitempty"`
	// Expires is when it no longer opens.
	Expires Moment `yaml:"expires,omitempty"`
}

// Alias is what a tenant's own name for a model stands for.
type Alias struct {
	// Model is the name of a model.
	Model string `yaml:"model" need:"true"`
	// Served is what the engines call it, such as an adapter; without it, as the model.
	Served string `yaml:"served,omitempty"`
}

// Bounds limit what everybody together can make the gateway hold or wait for.
type Bounds struct {
	// Body is the longest body of a request.
	Body Size `yaml:"body"`
	// Bytes is what all bodies in progress may take, each counted three times.
	Bytes Size `yaml:"bytes"`
	// InFlight is how many requests may be in progress.
	InFlight Number `yaml:"in_flight"`
	// BodyGrace is the head start of a body.
	BodyGrace Duration `yaml:"body_grace"`
	// BodyRate is what a body must bring after that, in bytes a second.
	BodyRate Size `yaml:"body_rate"`
	// FirstByte is the time from admission to the first byte of an answer.
	FirstByte Duration `yaml:"first_byte"`
	// Idle is the time between two events of a stream.
	Idle Duration `yaml:"idle"`
	// Write is the time for one write that a client does not take.
	Write Duration `yaml:"write"`
	// Event is the longest event of a stream.
	Event Size `yaml:"event"`
	// Held is how much of a stream is held until both legs agree.
	Held Size `yaml:"held"`
	// Answer is the longest answer in one piece.
	Answer Size `yaml:"answer"`
	// PassLife is the life of a leg's authorisation.
	PassLife Duration `yaml:"pass_life"`
	// Refresh is the time between two looks at the engines.
	Refresh Duration `yaml:"refresh"`
	// Fresh is how long a look holds.
	Fresh Duration `yaml:"fresh"`
	// Probe is the time for one look.
	Probe Duration `yaml:"probe"`
	// Connect is the time for a connection to an engine.
	Connect Duration `yaml:"connect"`
	// Resolve is the time between two readings of a DNS name or a file of nodes.
	Resolve Duration `yaml:"resolve"`
	// Abort is the time for an abort at an engine.
	Abort Duration `yaml:"abort"`
	// Count is the time for a count by an engine.
	Count Duration `yaml:"count"`
	// Counts is how many counts by engines one tenant may have in progress.
	Counts Number `yaml:"counts"`
	// CountBytes is the longest body that an engine is asked to count.
	CountBytes Size `yaml:"count_bytes"`
	// Sequences is how many answers of one request run at a time.
	Sequences Number `yaml:"sequences"`
	// RetryPercent is the second attempts per hundred requests of a tenant, after a burst of 10.
	RetryPercent Number `yaml:"retry_percent"`
}

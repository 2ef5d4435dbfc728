package config

import "io"

// Worker is the configuration file of one worker. Unknown keys are refused. Every
// field without a default is required.
type Worker struct {
	// Role is prefill or decode.
	Role string `yaml:"role"`
	// Name is as in its certificate.
	Name string `yaml:"name"`
	// Listen is host:port of its HTTP side.
	Listen string `yaml:"listen"`
	// Bootstrap is, for prefill, host:port where decode workers connect.
	Bootstrap string `yaml:"bootstrap"`
	// Peers are, for decode, the prefill workers that it may be paired with.
	Peers []Peer `yaml:"peers"`
	// Model is recall.
	Model string `yaml:"model"`

	// Pages of the KV pool.
	Pages int `yaml:"pages"`
	// PageSize is the tokens of a page: 64 or 16.
	PageSize int `yaml:"page_size"`
	// Window is the longest prompt plus output, in tokens; without it, the pool.
	Window int `yaml:"window"`
	// Digest is xxh3 or gmac.
	Digest string `yaml:"digest"`
	// Chunk is the tokens of a prefill chunk.
	Chunk int `yaml:"chunk"`
	// Batch is the sequences of a decode step.
	Batch int `yaml:"batch"`
	// Threads of the engine.
	Threads int `yaml:"threads"`
	// Attempts is how many requests may be in progress.
	Attempts int `yaml:"attempts"`

	// OpenDialect also serves requests without the gateway's pass, as routers of SGLang send
	// them. Whoever reaches the worker can then ask it.
	OpenDialect bool `yaml:"open_dialect"`

	// PassKey is shared with the gateway: 64 hex digits. With open_dialect it may be missing.
	PassKey Secret `yaml:"pass_key"`
	// ControlKey is for /abort_request; none refuses all calls.
	ControlKey Secret `yaml:"control_key"`

	// TLS is its identity towards its peers.
	TLS Identity `yaml:"tls"`
	// HTTPTLS is the certificate of its HTTP side; none means plain HTTP.
	HTTPTLS *TLSPair `yaml:"http_tls,omitempty"`
	// PlainData moves pages without TLS: for loopback, or a network that you trust.
	PlainData bool `yaml:"plain_data"`
	// Streams is the connections for pages.
	Streams int `yaml:"streams"`
}

// Peer is a prefill worker as decode knows it.
type Peer struct {
	// Label is bootstrap_host:bootstrap_port as requests name it.
	Label string `yaml:"label"`
	// Addr is host:port to dial; without it, the label.
	Addr string `yaml:"addr"`
}

// Identity is the identity of a worker. See bulkhead certs.
type Identity struct {
	// CA is PEM of the authority that both workers trust.
	CA Secret `yaml:"ca"`
	// Cert is PEM of this worker's certificate.
	Cert Secret `yaml:"cert"`
	// Key is PEM of its private key.
	Key Secret `yaml:"key"`
}

// NewWorker is a worker's configuration with the defaults that a file need not write.
func NewWorker() Worker {
	return Worker{Model: "recall", Pages: 256, PageSize: 64, Digest: "xxh3", Streams: 2}
}

// DecodeWorker reads a worker's configuration strictly, and does not check it. Errors
// name line and column.
func DecodeWorker(r io.Reader) (Worker, error) {
	c := NewWorker()
	_, err := Decode(r, &c)
	return c, err
}

// Check finds what is wrong without reading a secret, and fills in the peers' addresses.
func (c *Worker) Check() error {
	switch {
	case c.Role != "prefill" && c.Role != "decode":
		return errorf("role: want prefill or decode")
	case c.Name == "":
		return errorf("name is required")
	case c.Listen == "":
		return errorf("listen is required")
	case c.Role == "prefill" && c.Bootstrap == "":
		return errorf("bootstrap is required for a prefill worker")
	case c.Role == "decode" && len(c.Peers) == 0:
		return errorf("peers is required for a decode worker")
	case c.Model != "recall":
		return errorf("model: only recall is built in")
	case c.PassKey == "" && !c.OpenDialect:
		return errorf("pass_key is required")
	case c.TLS.CA == "" || c.TLS.Cert == "" || c.TLS.Key == "":
		return errorf("tls: ca, cert and key are required")
	}
	for i, p := range c.Peers {
		if p.Label == "" {
			return errorf("peers[%d]: label is required", i)
		}
		if p.Addr == "" {
			c.Peers[i].Addr = p.Label
		}
	}
	return nil
}

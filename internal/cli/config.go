package cli

import (
	"encoding/hex"
	"io"
	"os"
	"strings"
	"time"
)

// WorkerConfig is the configuration file of one worker. Unknown keys are
// refused. Every field without a default is required.
type WorkerConfig struct {
	Role      string       `yaml:"role"`      // prefill or decode
	Name      string       `yaml:"name"`      // as in its certificate
	Listen    string       `yaml:"listen"`    // host:port of its HTTP side
	Bootstrap string       `yaml:"bootstrap"` // prefill: host:port where decode workers connect
	Peers     []PeerConfig `yaml:"peers"`     // decode: the prefill workers it may be paired with
	Model     string       `yaml:"model"`     // recall (the default)

	Pages    int    `yaml:"pages"`     // KV pool, in pages; default 256
	PageSize int    `yaml:"page_size"` // tokens of a page: 64 (default) or 16
	Window   int    `yaml:"window"`    // longest prompt plus output, in tokens; default: the pool
	Digest   string `yaml:"digest"`    // xxh3 (default) or gmac
	Chunk    int    `yaml:"chunk"`     // tokens of a prefill chunk; default 256
	Batch    int    `yaml:"batch"`     // sequences of a decode step; default 32
	Threads  int    `yaml:"threads"`   // of the engine; default 1
	Attempts int    `yaml:"attempts"`  // requests in progress; default 256

	PassKey    Secret `yaml:"pass_key"`    // shared with the gateway: 64 hex digits
	ControlKey Secret `yaml:"control_key"` // for /abort_request; none refuses all calls

	TLS       TLSConfig `yaml:"tls"`
	HTTPTLS   *TLSPair  `yaml:"http_tls,omitempty"` // of its HTTP side; none means plain HTTP
	PlainData bool      `yaml:"plain_data"`         // pages without TLS: for loopback, or a network you trust
	Streams   int       `yaml:"streams"`            // connections for pages; default 2
}

// PeerConfig is a prefill worker as decode knows it.
type PeerConfig struct {
	Label string `yaml:"label"` // bootstrap_host:bootstrap_port as requests name it
	Addr  string `yaml:"addr"`  // host:port to dial; default: the label
}

// TLSConfig is the identity of a worker. See bulkhead certs.
type TLSConfig struct {
	CA   Secret `yaml:"ca"`   // PEM of the authority that both workers trust
	Cert Secret `yaml:"cert"` // PEM of this worker's certificate
	Key  Secret `yaml:"key"`  // PEM of its private key
}

// Secret is a value that a configuration names and does not hold: env:NAME or
// file:PATH. Only a configuration that came over a pipe from the parent may
// hold the value itself, as value:TEXT.
type Secret string

// named says whether s names a value instead of holding it.
func (s Secret) named() bool {
	kind, rest, _ := strings.Cut(string(s), ":")
	return rest != "" && (kind == "env" || kind == "file")
}

// resolve reads the value. name is the setting, for errors, which never hold
// the value.
func (s Secret) resolve(sys System, src source, name string) (string, error) {
	kind, rest, _ := strings.Cut(string(s), ":")
	switch {
	case s == "":
		return "", nil
	case kind == "env":
		v := sys.Getenv(rest)
		if v == "" {
			return "", usage("configuration: %s: the environment variable is empty", name)
		}
		return v, nil
	case kind == "file":
		b, err := os.ReadFile(rest)
		if err != nil {
			return "", usage("configuration: %s: %v", name, err)
		}
		return strings.TrimRight(string(b), "\r\n"), nil
	case kind == "value" && src == fromParent:
		return rest, nil
	}
	return "", usage("configuration: %s: a secret is given as env:NAME or file:PATH, never as itself", name)
}

// source is where a configuration came from.
type source uint8

const (
	fromFile source = iota
	fromParent
)

// decodeWorker reads a worker's configuration strictly. Errors name line and
// column.
func decodeWorker(r io.Reader) (WorkerConfig, error) {
	c := WorkerConfig{Model: "recall", Pages: 256, PageSize: 64, Digest: "xxh3", Streams: 2}
	if _, err := decode(r, &c); err != nil {
		return c, err
	}
	return c, c.check()
}

func (c *WorkerConfig) check() error {
	switch {
	case c.Role != "prefill" && c.Role != "decode":
		return usage("configuration: role: want prefill or decode")
	case c.Name == "":
		return usage("configuration: name is required")
	case c.Listen == "":
		return usage("configuration: listen is required")
	case c.Role == "prefill" && c.Bootstrap == "":
		return usage("configuration: bootstrap is required for a prefill worker")
	case c.Role == "decode" && len(c.Peers) == 0:
		return usage("configuration: peers is required for a decode worker")
	case c.Model != "recall":
		return usage("configuration: model: only recall is built in")
	case c.PassKey == "":
		return usage("configuration: pass_key is required")
	case c.TLS.CA == "" || c.TLS.Cert == "" || c.TLS.Key == "":
		return usage("configuration: tls: ca, cert and key are required")
	}
	for i, p := range c.Peers {
		if p.Label == "" {
			return usage("configuration: peers[%d]: label is required", i)
		}
		if p.Addr == "" {
			c.Peers[i].Addr = p.Label
		}
	}
	return nil
}

// hexKey reads a key of 32 bytes.
func hexKey(name, s string) ([]byte, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 32 {
		return nil, usage("%s: want 64 hex digits", name)
	}
	return b, nil
}

// HTTP server limits of a worker.
const (
	headerTime = 10 * time.Second
	idleTime   = 120 * time.Second
	headerMax  = 64 << 10
)

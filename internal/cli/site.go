package cli

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/wire"
)

// ServeConfig is the configuration file of bulkhead serve. Unknown keys are
// refused. A setting without a default is required; docs/config.md lists all.
type ServeConfig struct {
	Listen string      `yaml:"listen"`        // host:port for clients; default 127.0.0.1:8080
	TLS    *TLSPair    `yaml:"tls,omitempty"` // of that listener; none means plain HTTP
	Admin  AdminConfig `yaml:"admin"`
	Drain  Duration    `yaml:"drain"` // for answers in progress once it was told to stop; default 25s

	PassKey     Secret `yaml:"pass_key"`            // shared with the workers: 64 hex digits
	ControlKey  Secret `yaml:"control_key"`         // shared with the workers, for aborts
	Pepper      Secret `yaml:"pepper"`              // under which API keys are hashed: 64 hex digits
	DomainKey   Secret `yaml:"domain_key"`          // under which cache domains are named: 64 hex digits
	DomainEpoch uint64 `yaml:"domain_epoch"`        // another number gives every domain another name; default 0
	WorkerCA    Secret `yaml:"worker_ca,omitempty"` // PEM of who vouches for https workers; default: the system's

	Models  []ModelConfig  `yaml:"models"`
	Tenants []TenantConfig `yaml:"tenants"`
	Bounds  BoundsConfig   `yaml:"bounds"`
}

// TLSPair is a certificate and its key.
type TLSPair struct {
	Cert Secret `yaml:"cert"` // PEM of the certificate, and of those between it and its authority
	Key  Secret `yaml:"key"`  // PEM of its private key
}

// AdminConfig is the listener for the operator. It asks for no key.
type AdminConfig struct {
	Listen string `yaml:"listen"` // host:port, or off; default 127.0.0.1:8081
	Pprof  bool   `yaml:"pprof"`  // serves profiles; default false
}

// ModelConfig is a model that clients can ask for.
type ModelConfig struct {
	Name             string       `yaml:"name"`               // as clients write it
	Served           string       `yaml:"served"`             // as the workers call it; default: the name
	Tokenizer        string       `yaml:"tokenizer"`          // recall, or none if nothing is known of it
	Window           Number       `yaml:"window,omitempty"`   // caps prompt plus output, in tokens; default: what the workers say
	DefaultMaxTokens Number       `yaml:"default_max_tokens"` // tokens of an answer that names no number; default 1024
	Pairs            []PairConfig `yaml:"pairs"`
}

// PairConfig is a pair of workers.
type PairConfig struct {
	Name      string `yaml:"name"`      // for events and status; default: bootstrap
	Bootstrap string `yaml:"bootstrap"` // host:port, the label under which decode knows prefill
	Prefill   string `yaml:"prefill"`   // URL of the prefill worker: scheme and host
	Decode    string `yaml:"decode"`    // URL of the decode worker
}

// TenantConfig is one who may ask.
type TenantConfig struct {
	ID       string      `yaml:"id"`     // for events; never shown to clients
	Keys     []KeyConfig `yaml:"keys"`   // each of them opens
	Models   []string    `yaml:"models"` // names of models
	Domain   string      `yaml:"domain"` // cache domain; tenants with the same one share; default: one of its own
	InFlight Number      `yaml:"in_flight"`
	Bytes    Size        `yaml:"bytes"`
}

// KeyConfig is an API key: its hash, or where the key is.
type KeyConfig struct {
	Hash string `yaml:"hash,omitempty"` // 64 hex digits, from bulkhead key
	Key  Secret `yaml:"key,omitempty"`
}

// BoundsConfig is gateway.Bounds as a file writes it.
type BoundsConfig struct {
	Body         Size     `yaml:"body"`
	Bytes        Size     `yaml:"bytes"`
	InFlight     Number   `yaml:"in_flight"`
	BodyGrace    Duration `yaml:"body_grace"`
	BodyRate     Size     `yaml:"body_rate"`
	FirstByte    Duration `yaml:"first_byte"`
	Idle         Duration `yaml:"idle"`
	Write        Duration `yaml:"write"`
	Event        Size     `yaml:"event"`
	Held         Size     `yaml:"held"`
	Answer       Size     `yaml:"answer"`
	PassLife     Duration `yaml:"pass_life"`
	Refresh      Duration `yaml:"refresh"`
	Fresh        Duration `yaml:"fresh"`
	Probe        Duration `yaml:"probe"`
	Connect      Duration `yaml:"connect"`
	Abort        Duration `yaml:"abort"`
	RetryPercent Number   `yaml:"retry_percent"`
}

func (b BoundsConfig) bounds() gateway.Bounds {
	return gateway.Bounds{
		Body: int64(b.Body), Bytes: int64(b.Bytes), InFlight: int(b.InFlight),
		BodyGrace: time.Duration(b.BodyGrace), BodyRate: int64(b.BodyRate),
		FirstByte: time.Duration(b.FirstByte), Idle: time.Duration(b.Idle), Write: time.Duration(b.Write),
		Event: int(b.Event), Held: int(b.Held), Answer: int64(b.Answer), PassLife: time.Duration(b.PassLife),
		Refresh: time.Duration(b.Refresh), Fresh: time.Duration(b.Fresh), Probe: time.Duration(b.Probe),
		Connect: time.Duration(b.Connect), Abort: time.Duration(b.Abort), RetryPercent: int(b.RetryPercent),
	}
}

// withDefaults gives each bound that was not written its default.
func (b BoundsConfig) withDefaults() BoundsConfig {
	if b.Body == 0 {
		b.Body = workerBody
	}
	g := b.bounds().WithDefaults()
	return BoundsConfig{
		Body: Size(g.Body), Bytes: Size(g.Bytes), InFlight: Number(g.InFlight),
		BodyGrace: Duration(g.BodyGrace), BodyRate: Size(g.BodyRate),
		FirstByte: Duration(g.FirstByte), Idle: Duration(g.Idle), Write: Duration(g.Write),
		Event: Size(g.Event), Held: Size(g.Held), Answer: Size(g.Answer), PassLife: Duration(g.PassLife),
		Refresh: Duration(g.Refresh), Fresh: Duration(g.Fresh), Probe: Duration(g.Probe),
		Connect: Duration(g.Connect), Abort: Duration(g.Abort), RetryPercent: Number(g.RetryPercent),
	}
}

// workerBody is the longest body, in bytes, that a leg can carry: a worker takes
// 8 MiB, and a leg is a little longer than what the client sent.
const workerBody = 8<<20 - 4<<10

// off is what stands in place of an address that is not to be listened on.
const off = "off"

// decodeServe reads the configuration of bulkhead serve strictly, and fills in
// the defaults. It reads no secret. The error holds all that it found.
func decodeServe(r io.Reader) (ServeConfig, *document, error) {
	c := ServeConfig{
		Listen: "127.0.0.1:8080", Admin: AdminConfig{Listen: "127.0.0.1:8081"}, Drain: Duration(25 * time.Second),
	}
	doc, err := decode(r, &c)
	if err != nil {
		return c, nil, err
	}
	c.fill()
	p := &problems{doc: doc}
	c.check(p)
	return c, doc, p.err()
}

// problems collects what is wrong with a file.
type problems struct {
	doc  *document
	list []error
}

func (p *problems) add(path, format string, args ...any) {
	p.list = append(p.list, p.doc.wrong(path, format, args...))
}

// require adds a problem if a value was not written.
func (p *problems) require(path, value string) {
	if value == "" {
		p.add(path, "it is required")
	}
}

func (p *problems) err() error { return errors.Join(p.list...) }

// fill puts defaults in place of what was not written.
func (c *ServeConfig) fill() {
	c.Bounds = c.Bounds.withDefaults()
	for i, m := range c.Models {
		g := gateway.Model{Name: m.Name, Served: m.Served, DefaultMaxTokens: int64(m.DefaultMaxTokens)}.WithDefaults()
		c.Models[i].Served, c.Models[i].DefaultMaxTokens = g.Served, Number(g.DefaultMaxTokens)
		for j, p := range m.Pairs {
			if p.Name == "" {
				m.Pairs[j].Name = p.Bootstrap
			}
		}
	}
	for i, t := range c.Tenants {
		g := gateway.Tenant{InFlight: int(t.InFlight), Bytes: int64(t.Bytes)}.WithDefaults()
		c.Tenants[i].InFlight, c.Tenants[i].Bytes = Number(g.InFlight), Size(g.Bytes)
	}
}

// check finds what is wrong without reading a secret or asking the network. The
// rest is the gateway's to check.
func (c *ServeConfig) check(p *problems) {
	checkAddress(p, "listen", c.Listen)
	if c.Admin.Listen != off {
		checkAddress(p, "admin.listen", c.Admin.Listen)
	}
	if c.TLS != nil {
		checkSecret(p, "tls.cert", c.TLS.Cert)
		checkSecret(p, "tls.key", c.TLS.Key)
	}
	for _, s := range []struct {
		path  string
		value Secret
	}{{"pass_key", c.PassKey}, {"control_key", c.ControlKey}, {"pepper", c.Pepper}, {"domain_key", c.DomainKey}} {
		checkSecret(p, s.path, s.value)
	}
	if c.WorkerCA != "" {
		checkSecret(p, "worker_ca", c.WorkerCA)
	}
	if len(c.Models) == 0 {
		p.add("models", "at least one is required")
	}
	if len(c.Tenants) == 0 {
		p.add("tenants", "at least one is required")
	}
	pairs := map[string]bool{}
	for i, m := range c.Models {
		m.check(p, "models["+strconv.Itoa(i)+"]", pairs)
	}
	for i, t := range c.Tenants {
		for j, k := range t.Keys {
			k.check(p, "tenants["+strconv.Itoa(i)+"].keys["+strconv.Itoa(j)+"]")
		}
	}
	if c.Bounds.Fresh <= c.Bounds.Refresh {
		p.add("bounds.fresh", "must be longer than bounds.refresh")
	}
}

func (m ModelConfig) check(p *problems, path string, pairs map[string]bool) {
	p.require(path+".name", m.Name)
	if m.Tokenizer != "recall" && m.Tokenizer != "none" {
		p.add(path+".tokenizer", "want recall or none")
	}
	for i, pair := range m.Pairs {
		at := path + ".pairs[" + strconv.Itoa(i) + "]"
		checkAddress(p, at+".bootstrap", pair.Bootstrap)
		p.require(at+".prefill", pair.Prefill)
		p.require(at+".decode", pair.Decode)
		if pair.Name != "" && pairs[pair.Name] {
			p.add(at+".name", "it is used twice")
		}
		pairs[pair.Name] = true
	}
}

func (k KeyConfig) check(p *problems, path string) {
	switch {
	case (k.Hash == "") == (k.Key == ""):
		p.add(path, "want either hash or key")
	case k.Key != "":
		checkSecret(p, path+".key", k.Key)
	default:
		if _, err := gateway.ParseKeyHash(k.Hash); err != nil {
			p.add(path+".hash", "want 64 hex digits, from bulkhead key")
		}
	}
}

func checkAddress(p *problems, path, addr string) {
	if _, _, ok := splitAddress(addr); !ok {
		p.add(path, "want host:port")
	}
}

func splitAddress(addr string) (host string, port int, ok bool) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return host, int(n), err == nil
}

// checkSecret holds that a secret is named, without reading it.
func checkSecret(p *problems, path string, s Secret) {
	switch {
	case s == "":
		p.add(path, "it is required, as env:NAME or file:PATH")
	case !s.named():
		p.add(path, "a secret is given as env:NAME or file:PATH, never as itself")
	}
}

// site is a configuration of bulkhead serve with its secrets read.
type site struct {
	config  ServeConfig
	gateway gateway.Config
	cert    *tls.Certificate // nil: plain HTTP
	notes   []string         // what an operator should know at start
}

// loadSite reads a configuration file and its secrets and checks everything that
// can be checked without the network.
func loadSite(sys System, path string, events gateway.Events) (*site, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, exit{exitUsage, err}
	}
	defer file.Close()
	c, doc, err := decodeServe(file)
	if err != nil {
		return nil, err
	}
	r := &secretReader{sys: sys, problems: problems{doc: doc}}
	s := &site{config: c, gateway: c.gateway(r, events), cert: r.certificate("tls", c.TLS), notes: c.notes()}
	if err := r.err(); err != nil {
		return nil, err
	}
	if _, err := gateway.New(s.gateway); err != nil {
		// Its errors name the setting as this file does.
		text := strings.TrimPrefix(err.Error(), "gateway: configure: ")
		path, what, _ := strings.Cut(text, ": ")
		return nil, doc.wrong(path, "%s", what)
	}
	return s, nil
}

// secretReader reads secrets and collects what is wrong with them.
type secretReader struct {
	sys System
	problems
}

func (r *secretReader) text(path string, s Secret) string {
	text, err := s.resolve(r.sys, fromFile, path)
	if err == nil && text == "" {
		err = usage("configuration: %s: the secret is empty", path)
	}
	if err != nil {
		r.list = append(r.list, err)
	}
	return text
}

// key reads a key of 32 bytes; nil after an error.
func (r *secretReader) key(path string, s Secret) []byte {
	text := r.text(path, s)
	if text == "" {
		return nil
	}
	key, err := hexKey("configuration: "+path, text)
	if err != nil {
		r.list = append(r.list, err)
	}
	return key
}

// certificate reads a certificate and its key; nil if there is none, or after an error.
func (r *secretReader) certificate(path string, t *TLSPair) *tls.Certificate {
	if t == nil {
		return nil
	}
	cert, key := r.text(path+".cert", t.Cert), r.text(path+".key", t.Key)
	if cert == "" || key == "" {
		return nil
	}
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		r.add(path, "%v", err)
		return nil
	}
	return &pair
}

// authorities reads who vouches for https workers; nil is the system's.
func (r *secretReader) authorities(path string, s Secret) *tls.Config {
	if s == "" {
		return nil
	}
	pool := x509.NewCertPool()
	if text := r.text(path, s); text != "" && !pool.AppendCertsFromPEM([]byte(text)) {
		r.add(path, "it holds no certificate in PEM")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// minControl is the least length of a control key, in bytes.
const minControl = 16

// control reads the control key, which travels in a header.
func (r *secretReader) control(path string, s Secret) string {
	text := r.text(path, s)
	bad := func(c rune) bool { return c <= ' ' || c > '~' }
	if text != "" && (len(text) < minControl || strings.ContainsFunc(text, bad)) {
		r.add(path, "want at least %d bytes of printable ASCII without spaces", minControl)
	}
	return text
}

// gateway is the configuration as the gateway takes it. After an error that r
// collected it is of no use.
func (c *ServeConfig) gateway(r *secretReader, events gateway.Events) gateway.Config {
	g := gateway.Config{
		Pepper: r.key("pepper", c.Pepper), DomainKey: r.key("domain_key", c.DomainKey), DomainEpoch: c.DomainEpoch,
		Events: events, Random: rand.Reader, Clock: gateway.SystemClock{}, Bounds: c.Bounds.bounds(),
	}
	if key := r.key("pass_key", c.PassKey); key != nil {
		passer, err := wire.NewPasser(key)
		if err != nil {
			r.add("pass_key", "%v", err)
		}
		g.Passer = passer
	}
	control, vouch := r.control("control_key", c.ControlKey), r.authorities("worker_ca", c.WorkerCA)
	for _, m := range c.Models {
		g.Models = append(g.Models, m.model(control, vouch))
	}
	for i, t := range c.Tenants {
		g.Tenants = append(g.Tenants, t.tenant(r, "tenants["+strconv.Itoa(i)+"]", g.Pepper))
	}
	return g
}

func (m ModelConfig) model(control string, vouch *tls.Config) gateway.Model {
	g := gateway.Model{Name: m.Name, Served: m.Served, Window: int64(m.Window), DefaultMaxTokens: int64(m.DefaultMaxTokens)}
	if m.Tokenizer == "recall" {
		g.Sizes, g.Counter = recallSizes(), recallCounter{}
	}
	leg := func(url string) gateway.Leg { return gateway.Leg{URL: url, ControlKey: control, TLS: vouch} }
	for _, p := range m.Pairs {
		host, port, _ := splitAddress(p.Bootstrap)
		g.Pairs = append(g.Pairs, gateway.Pair{
			Name: p.Name, BootstrapHost: host, BootstrapPort: port, Prefill: leg(p.Prefill), Decode: leg(p.Decode),
		})
	}
	return g
}

func (t TenantConfig) tenant(r *secretReader, path string, pepper []byte) gateway.Tenant {
	g := gateway.Tenant{ID: t.ID, Models: t.Models, Domain: t.Domain, InFlight: int(t.InFlight), Bytes: int64(t.Bytes)}
	for i, k := range t.Keys {
		at := path + ".keys[" + strconv.Itoa(i) + "]"
		var hash gateway.KeyHash
		var err error
		if k.Key != "" {
			at += ".key"
			text := r.text(at, k.Key)
			if text == "" || pepper == nil {
				continue
			}
			hash, err = gateway.HashKey(pepper, text)
		} else {
			hash, err = gateway.ParseKeyHash(k.Hash)
		}
		if err != nil {
			r.add(at, "%s", strings.TrimPrefix(err.Error(), "gateway: "))
		}
		g.Keys = append(g.Keys, hash)
	}
	return g
}

// notes says what is open or readable that need not be.
func (c *ServeConfig) notes() []string {
	var all []string
	if !loopback(c.Listen) {
		all = append(all, "listen: "+c.Listen+" is open to your network")
		if c.TLS == nil {
			all = append(all, "listen: without tls, keys, prompts and answers travel readable to it")
		}
	}
	if c.Admin.Listen != off && !loopback(c.Admin.Listen) {
		all = append(all, "admin.listen: "+c.Admin.Listen+" is open to your network, and asks for no key")
	}
	for i, m := range c.Models {
		for j, p := range m.Pairs {
			for _, leg := range [...]struct{ name, url string }{{"prefill", p.Prefill}, {"decode", p.Decode}} {
				if addr, plain := strings.CutPrefix(leg.url, "http://"); plain && !loopback(addr) {
					all = append(all, fmt.Sprintf("models[%d].pairs[%d].%s: prompts and answers travel readable to %s", i, j, leg.name, leg.url))
				}
			}
		}
	}
	return all
}

// loopback says whether an address, with or without a port, stays on this machine.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

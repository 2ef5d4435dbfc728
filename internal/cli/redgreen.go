package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/assure"
	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// redgreen is what the flags of bulkhead redgreen say.
type redgreen struct {
	path, model, router  string
	direct, kills        bool
	asJSON, list         bool
	keys, only, facts    repeated
	prefill, decode, one string
	timeout              time.Duration
}

// repeated is a flag that may stand several times.
type repeated []string

// String implements flag.Value.
func (r *repeated) String() string { return strings.Join(*r, " ") }

// Set implements flag.Value.
func (r *repeated) Set(s string) error {
	*r = append(*r, s)
	return nil
}

// runRedgreen is bulkhead redgreen. It calls the engines and the listener of the
// configuration, the router if one is named, and nothing else.
func runRedgreen(ctx context.Context, sys System, args []string) error {
	var o redgreen
	f := flags(sys, "redgreen", "try the known leaks on your own engines,\n"+
		"with two tenants of your own and fresh secrets\n"+
		"usage: bulkhead redgreen --config FILE --key REF --key REF [flags] [CASE ...]\n"+
		"Only the addresses of the configuration and --router are called. Exit code, by\n"+
		"what is seen through Bulkhead: 0 all green, 1 some red, 3 void or failed;\n"+
		"2 wrong arguments.")
	f.StringVar(&o.path, "config", "", "configuration `FILE` of the bulkhead serve that is running")
	f.StringVar(&o.model, "model", "", "the model to try; needed if the configuration has several")
	f.Var(&o.keys, "key", "API key of a tenant, as `REF`: env:NAME or file:PATH; twice, of two tenants")
	f.StringVar(&o.router, "router", "", "`URL` of another router before the same engines, to be tried too")
	f.BoolVar(&o.direct, "engines-direct", false, "also try straight at the engines, which shows what is red without Bulkhead")
	f.BoolVar(&o.kills, "kills", false, "also run cases that may end an engine: on staging only")
	f.StringVar(&o.prefill, "prefill", "", "name or URL of the prefill node to call directly, if there are several")
	f.StringVar(&o.decode, "decode", "", "name or URL of the decode node to call directly, if there are several")
	f.StringVar(&o.one, "node", "", "name or URL of the node to call directly, if there are several")
	f.Var(&o.facts, "fact", "`NAME=VALUE` that cases may need, such as prefill_pool=512; may be repeated")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "for one case")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON document, schema "+assure.Schema)
	f.BoolVar(&o.list, "list", false, "list the cases, and stop")
	only, err := mixed(f, args)
	if err != nil {
		return err
	}
	o.only = only
	if o.list {
		return listCases(sys)
	}
	return o.run(ctx, sys)
}

// listCases prints the cases by name.
func listCases(sys System) error {
	for _, c := range assure.Cases() {
		var names []string
		for _, d := range c.Dialects {
			names = append(names, d.String())
		}
		note := ""
		if c.Kills {
			note = " (needs --kills)"
		}
		if _, err := fmt.Fprintf(sys.Stdout, "%-28s %s%s\n%-28s for %s\n", c.Name, c.Title, note, "", strings.Join(names, ", ")); err != nil {
			return err
		}
	}
	return nil
}

func (o *redgreen) run(ctx context.Context, sys System) error {
	if o.path == "" {
		return usage("--config is required: engines are named by the configuration of bulkhead serve alone")
	}
	c, doc, err := readServe(o.path)
	if err != nil {
		return err
	}
	r := &secretReader{sys: sys, Problems: config.Problems{Doc: doc}}
	site, err := o.site(r, c)
	if err != nil {
		return err
	}
	if err := r.Err(); err != nil {
		return asUsage(err)
	}
	options := assure.Options{Only: o.only, Kills: o.kills, Timeout: o.timeout, Ways: []assure.Way{assure.Bulkhead}}
	if o.direct {
		options.Ways = append(options.Ways, assure.Direct)
	}
	if o.router != "" {
		options.Ways = append(options.Ways, assure.Router)
	}
	if !o.asJSON {
		options.Before = func(c assure.Case, w assure.Way) { fmt.Fprintf(sys.Stderr, "%s, %s ...\n", c.Name, w) }
	}
	report, err := assure.Run(ctx, site, options)
	if err != nil {
		return usage("%s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "assure: "), "check site: "))
	}
	if o.asJSON {
		err = report.JSON(sys.Stdout)
	} else {
		report.Print(sys.Stdout, style(sys))
	}
	if err != nil {
		return err
	}
	return outcome(report)
}

// outcome turns a report into an exit code: what counts is the way that clients take.
func outcome(r assure.Report) error {
	front := r.Front()
	switch {
	case r.Count(front, assure.Red) > 0:
		return errFailed
	case !r.Pass():
		return fmt.Errorf("cli: %d void and %d green on the way %s: not everything was shown", r.Count(front, assure.Void), r.Count(front, assure.Green), front)
	}
	return nil
}

// style is that of a terminal, if standard output is one.
func style(sys System) assure.Style {
	file, ok := sys.Stdout.(*os.File)
	if !ok || sys.Getenv("NO_COLOR") != "" {
		return assure.Plain
	}
	if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return assure.Plain
	}
	return assure.Colored
}

// site is the model of the configuration as the cases take it. What is wrong with the
// configuration's secrets is collected in r.
func (o *redgreen) site(r *secretReader, c config.Serve) (assure.Site, error) {
	var none assure.Site
	i := slices.IndexFunc(c.Models, func(m config.Model) bool { return m.Name == o.model || o.model == "" && len(c.Models) == 1 })
	if i < 0 {
		return none, usage("--model: want one of the configuration's models")
	}
	m := c.Models[i]
	s := assure.Site{
		Dialect: m.Dialect(), Model: m.Name, Served: m.Served, Router: strings.TrimSuffix(o.router, "/"), Lease: time.Duration(m.Lease),
		Facts: map[string]string{},
	}
	for _, fact := range o.facts {
		name, value, ok := strings.Cut(fact, "=")
		if !ok {
			return none, usage("--fact: want NAME=VALUE")
		}
		s.Facts[name] = value
	}
	at := "models[" + strconv.Itoa(i) + "]"
	if err := o.engines(r, at, m, &s); err != nil {
		return none, err
	}
	if len(m.Pairs) > 0 {
		s.Prefill, s.Decode, s.Bootstrap = string(m.Pairs[0].Prefill), string(m.Pairs[0].Decode), string(m.Pairs[0].Bootstrap)
	}
	if len(o.keys) < 2 {
		return none, usage("--key is required twice: API keys of two tenants that may use the model, as env:NAME or file:PATH")
	}
	for _, ref := range o.keys {
		key, err := resolve(config.Secret(ref), r.sys, fromFile, "--key")
		if err != nil {
			return none, err
		}
		s.Keys = append(s.Keys, key)
	}
	if err := o.checkKeys(r.sys, c, m.Name, s.Keys); err != nil {
		return none, err
	}
	s.EngineTLS = engineTLS(m, r, at, r.authorities("worker_ca", c.WorkerCA))
	s.GatewayTLS = gatewayTLS(c, r)
	gateway, err := reach(c)
	s.Gateway = gateway
	return s, err
}

// gatewayTLS talks to a gateway that shows the very certificate of the configuration, and
// to no other. Who vouches for it, and for which name, is for clients: here the address is
// that of the listener.
func gatewayTLS(c config.Serve, r *secretReader) *tls.Config {
	if c.TLS == nil {
		return nil
	}
	own := r.certificates("tls.cert", c.TLS.Cert) // the first is the gateway's, the others vouch for it
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // it is compared below
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(own) == 0 || !s.PeerCertificates[0].Equal(own[0]) {
				return assure.ErrStranger
			}
			return nil
		},
	}
}

// engines fills in the engines of a model, and the key that they want; at is its path.
func (o *redgreen) engines(r *secretReader, at string, m config.Model, s *assure.Site) error {
	for i, n := range []struct {
		list, flag, name string
		nodes            []config.Node
		into             *string
	}{
		{"nodes", "--node", o.one, m.Nodes, &s.Plain}, {"prefill", "--prefill", o.prefill, m.Prefill, &s.Prefill},
		{"decode", "--decode", o.decode, m.Decode, &s.Decode},
	} {
		if len(n.nodes) == 0 {
			continue
		}
		k, err := chosen(n.flag, n.name, n.nodes)
		if err != nil {
			return err
		}
		node := n.nodes[k]
		*n.into = string(node.URL)
		if n.flag == "--prefill" && s.Dialect.Traits().Bootstrap {
			s.Bootstrap = bootstrapOf(node, s.Dialect)
		}
		key := r.optional(at+"."+n.list+"["+strconv.Itoa(k)+"].key", node.Key)
		if i == 2 && len(m.Prefill) > 0 && key != s.EngineKey {
			return usage("--prefill, --decode: want two nodes with the same key, or none")
		}
		s.EngineKey = key
	}
	return nil
}

// checkKeys holds that the keys are of different tenants that may use the model: with
// others a case could be green for nothing. Where the secrets of the configuration cannot
// be read here it is left to the gateway.
func (o *redgreen) checkKeys(sys System, c config.Serve, model string, keys []string) error {
	r := &secretReader{sys: sys}
	pepper := r.key("pepper", c.Pepper)
	if pepper == nil {
		return nil
	}
	owner := map[account.KeyHash]config.Tenant{}
	for _, t := range c.Tenants {
		for _, k := range t.Keys {
			if hash, err := keyHash(k, r, "", pepper); err == nil {
				owner[hash] = t
			}
		}
	}
	if r.Err() != nil { // serve tells of it; here it only means that keys cannot be compared
		return nil //nolint:nilerr // see above
	}
	seen := map[string]bool{}
	for i, key := range keys {
		hash, err := account.HashKey(pepper, key)
		t, known := owner[hash]
		usable := slices.Contains(t.Models, model)
		switch {
		case err != nil || !known:
			return usage("--key %s: no tenant of the configuration has this key", o.keys[i])
		case !usable:
			return usage("--key %s: its tenant, %s, may not use the model %s by that name", o.keys[i], t.ID, model)
		case seen[t.ID]:
			return usage("--key %s: another --key is of the same tenant, %s", o.keys[i], t.ID)
		}
		seen[t.ID] = true
	}
	return nil
}

// chosen is which node has a name or URL, or is the only one.
func chosen(flag, name string, nodes []config.Node) (int, error) {
	for i, n := range nodes {
		if n.URL != "" && (name == "" && len(nodes) == 1 || name != "" && (n.Name == name || string(n.URL) == name)) {
			return i, nil
		}
	}
	return 0, usage("%s: want the name or the url of one of the configuration's nodes; those by dns or file cannot be called alone", flag)
}

// bootstrapOf is the second address of a prefill node.
func bootstrapOf(n config.Node, d upstream.Dialect) string {
	host, port, ok := n.Bootstrap.Split()
	if u, err := url.Parse(string(n.URL)); host == "" && err == nil {
		host = u.Hostname()
	}
	if !ok || port == 0 {
		port = 8998
	}
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	if d == upstream.VLLMMooncake {
		return "http://" + addr
	}
	return addr
}

// reach is the URL of the listener that a configuration opens, from this machine.
func reach(c config.Serve) (string, error) {
	host, port, _ := c.Listen.Split()
	if port == 0 {
		return "", usage("configuration: listen: with port 0 nobody knows where serve listens: name a port")
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http://"
	if c.TLS != nil {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, strconv.Itoa(port)), nil
}

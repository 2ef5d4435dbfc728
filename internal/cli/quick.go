package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/internal/gateway"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// quickUsage says which flags serve takes in place of a file.
const quickUsage = `  --pd-disaggregation       prefill and decode are apart
  --prefill URL [PORT]      a prefill node and its bootstrap port (default
                            8998); repeat it
  --decode URL              a decode node; repeat it
  --worker-urls URL ...     nodes that do both
  --policy NAME             random, round_robin, power_of_two or cache_aware
                            (default)
  --host HOST, --port PORT  where clients connect (default 127.0.0.1:30000)
  --api-key KEY             what clients must present, and engines are given
  --served-model-name NAME  what clients write as model; --model-path if it is
                            the same. Without either, engines are asked
and of our own:
  --engine NAME             the kind of engine (default sglang)
  --lease TIME              with --engine vllm-nixl: how long prefill keeps what
                            decode has not fetched
  --window TOKENS           with --engine openai: the context length
  --admin HOST:PORT         the operator's listener, or off (default
                            127.0.0.1:8081)
  --print-config            print the same as a file for --config, and stop
Every other flag of sglang-router is refused by name.
`

// quick is what the flags say.
type quick struct {
	pd, print               bool
	prefill                 []config.Node
	decode, workers         []string
	policy                  string
	host                    string
	port                    int
	apiKey                  string
	served, path            string
	engine, lease, adminURL string
	window                  int64
}

// quickFlag is one flag of this form: how many words it takes, and what is done with them.
type quickFlag struct {
	least, most int
	take        func(q *quick, words []string) error
}

// anyNumber is for a flag that takes words up to the next flag.
const anyNumber = 1 << 20

// quickFlags are the flags that are understood.
func quickFlags() map[string]quickFlag {
	text := func(into func(*quick) *string) quickFlag {
		return quickFlag{1, 1, func(q *quick, w []string) error { *into(q) = w[0]; return nil }}
	}
	return map[string]quickFlag{
		"--pd-disaggregation": {0, 0, func(q *quick, _ []string) error { q.pd = true; return nil }},
		"--print-config":      {0, 0, func(q *quick, _ []string) error { q.print = true; return nil }},
		"--prefill":           {1, 2, (*quick).takePrefill},
		"--decode":            {1, 1, func(q *quick, w []string) error { q.decode = append(q.decode, w[0]); return nil }},
		"--worker-urls":       {0, anyNumber, func(q *quick, w []string) error { q.workers = append(q.workers, w...); return nil }},
		"--policy":            text(func(q *quick) *string { return &q.policy }),
		"--host":              text(func(q *quick) *string { return &q.host }),
		"--port": {1, 1, func(q *quick, w []string) (err error) {
			q.port, err = portOf(w[0])
			return err
		}},
		"--api-key":           text(func(q *quick) *string { return &q.apiKey }),
		"--served-model-name": text(func(q *quick) *string { return &q.served }),
		"--model-path":        text(func(q *quick) *string { return &q.path }),
		"--engine":            text(func(q *quick) *string { return &q.engine }),
		"--lease":             text(func(q *quick) *string { return &q.lease }),
		"--admin":             text(func(q *quick) *string { return &q.adminURL }),
		"--window": {1, 1, func(q *quick, w []string) (err error) {
			if q.window, err = strconv.ParseInt(w[0], 10, 64); err != nil || q.window <= 0 {
				return fmt.Errorf("want a number of tokens above zero")
			}
			return nil
		}},
	}
}

func portOf(word string) (int, error) {
	n, err := strconv.ParseUint(word, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("want a port")
	}
	return int(n), nil
}

// takePrefill takes a URL and, where it is given, a bootstrap port. The word none, and
// no word, stand for the engine's default.
func (q *quick) takePrefill(w []string) error {
	n := config.Node{URL: config.URL(w[0])}
	if len(w) == 2 && !strings.EqualFold(w[1], "none") {
		port, err := portOf(w[1])
		if err != nil || port == 0 {
			return fmt.Errorf("the second word is a bootstrap port, or none")
		}
		n.Bootstrap = config.Address(":" + strconv.Itoa(port))
	}
	q.prefill = append(q.prefill, n)
	return nil
}

// isQuick says whether the flags stand in place of a file.
func isQuick(args []string) bool {
	file, quick := false, false
	known := quickFlags()
	for _, a := range args {
		name, _, _ := strings.Cut(a, "=")
		if name == "--config" || name == "-config" {
			file = true
		}
		_, ours := known[name]
		quick = quick || ours || refusedFlag(name) != ""
	}
	return quick && !file
}

// parseQuick reads the flags as sglang-router's parser does: a flag takes the words that
// follow it, or what stands behind its =.
func parseQuick(args []string) (quick, error) {
	q := quick{policy: "cache_aware", host: "127.0.0.1", port: 30000, adminURL: "127.0.0.1:8081"}
	known := quickFlags()
	for i := 0; i < len(args); {
		name, value, assigned := strings.Cut(args[i], "=")
		i++
		if !strings.HasPrefix(name, "--") {
			return q, usage("unexpected argument %q", name)
		}
		f, ours := known[name]
		if !ours {
			if why := refusedFlag(name); why != "" {
				return q, usage("%s: %s", name, why)
			}
			return q, usage("%s: there is no such flag; see bulkhead serve -h", name)
		}
		var words []string
		if assigned {
			words = []string{value}
		}
		for !assigned && len(words) < f.most && i < len(args) && !strings.HasPrefix(args[i], "--") {
			words = append(words, args[i])
			i++
		}
		switch {
		case len(words) < f.least:
			return q, usage("%s: a value is missing", name)
		case len(words) > f.most:
			return q, usage("%s: it takes no value", name)
		}
		if err := f.take(&q, words); err != nil {
			return q, usage("%s: %v", name, err)
		}
	}
	return q, q.check()
}

// check finds flags that do not go together.
func (q *quick) check() error {
	if !slices.Contains([]string{"random", "round_robin", "power_of_two", "cache_aware"}, q.policy) {
		return usage("--policy: want random, round_robin, power_of_two or cache_aware")
	}
	switch {
	case q.pd && len(q.workers) > 0:
		return usage("--worker-urls: with --pd-disaggregation there are --prefill and --decode")
	case q.pd && (len(q.prefill) == 0 || len(q.decode) == 0):
		return usage("--pd-disaggregation: at least one --prefill and one --decode are needed")
	case !q.pd && len(q.prefill)+len(q.decode) > 0:
		return usage("--prefill and --decode: they need --pd-disaggregation")
	case !q.pd && len(q.workers) == 0:
		return usage("--worker-urls: at least one is needed, or --pd-disaggregation with --prefill and --decode")
	}
	for i, n := range q.prefill {
		u, err := bareURL("--prefill", string(n.URL))
		if err != nil {
			return err
		}
		q.prefill[i].URL = config.URL(u)
	}
	for flag, list := range map[string][]string{"--decode": q.decode, "--worker-urls": q.workers} {
		for i, text := range list {
			u, err := bareURL(flag, text)
			if err != nil {
				return err
			}
			list[i] = u
		}
	}
	return q.checkEngine()
}

// bareURL is a node's address without a slash at its end.
func bareURL(flag, text string) (string, error) {
	u, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return "", usage("%s: want a URL such as http://10.0.0.1:30000", flag)
	}
	return u.String(), nil
}

// checkEngine finds the dialect that --engine means.
func (q *quick) checkEngine() error {
	if q.engine == "" {
		q.engine = "sglang"
	}
	if q.engine == "sglang" && q.pd {
		q.engine = upstream.SGLangPD.String()
	}
	d, err := upstream.ParseDialect(q.engine)
	t := d.Traits()
	switch {
	case err != nil, d == upstream.Bulkhead:
		return usage("--engine: want one of %s", strings.Join(quickEngines(), ", "))
	case q.pd == (t.Legs == upstream.One):
		return usage("--engine %s: with --pd-disaggregation name an engine in two parts, without it one in one part", q.engine)
	case t.Leased && q.lease == "":
		return usage("--lease: it is needed with --engine %s: how long prefill keeps what decode has not fetched, as the engine is configured", q.engine)
	case !t.Leased && q.lease != "":
		return usage("--lease: --engine %s has none", q.engine)
	case t.Hosted && q.window == 0:
		return usage("--window: it is needed with --engine %s, which tells nobody how long a prompt may be", q.engine)
	}
	if q.lease != "" {
		if d, err := time.ParseDuration(q.lease); err != nil || d <= 0 {
			return usage("--lease: want a time such as 30s")
		}
	}
	return nil
}

func quickEngines() (names []string) {
	for _, d := range upstream.Dialects() {
		if d != upstream.Bulkhead {
			names = append(names, d.String())
		}
	}
	return names
}

// serveQuick is bulkhead serve without a file.
func serveQuick(ctx context.Context, sys System, args []string) error {
	q, err := parseQuick(args)
	if err != nil {
		return err
	}
	name := q.served
	if name == "" {
		name = q.path
	}
	if name == "" {
		if name, err = q.ask(ctx, sys.Stderr); err != nil {
			return err
		}
	}
	c := q.config(name)
	if q.print {
		return printServe(sys, c)
	}
	var secrets [3]string // pepper, domain key, the key of callers without one
	for i := range secrets {
		var b [32]byte
		_, _ = rand.Read(b[:]) // it never fails
		secrets[i] = hex.EncodeToString(b[:])
	}
	return serve(ctx, sys, func(events gateway.Events) (*site, error) { return q.site(c, secrets, events) })
}

// config is what the flags say as a file would.
func (q *quick) config(name string) config.Serve {
	m := config.Model{Name: name, Engine: q.engine, Window: config.Number(q.window)}
	if d, err := time.ParseDuration(q.lease); err == nil {
		m.Lease = config.Duration(d)
	}
	var key config.Secret
	if q.apiKey != "" {
		key = "file:api.key"
	}
	nodes := func(urls []string) (all []config.Node) {
		for _, u := range urls {
			all = append(all, config.Node{URL: config.URL(u), Key: key})
		}
		return all
	}
	m.Nodes, m.Decode = nodes(q.workers), nodes(q.decode)
	for _, n := range q.prefill {
		if !m.Dialect().Traits().Bootstrap {
			n.Bootstrap = ""
		}
		n.Key = key
		m.Prefill = append(m.Prefill, n)
	}
	c := config.Serve{
		Listen: config.Address(net.JoinHostPort(q.host, strconv.Itoa(q.port))), Admin: config.Admin{Listen: config.Address(q.adminURL)},
		Drain: config.Duration(25 * time.Second), Pepper: "file:pepper.key", DomainKey: "file:domain.key",
		Models:  []config.Model{m},
		Tenants: []config.Tenant{{ID: "default", Models: []string{name}, Keys: []config.Key{{Key: "file:api.key"}}}},
	}
	if q.policy != "cache_aware" {
		c.Modes.Affinity = &config.Mode{Mode: "off"}
	}
	config.Fill(&c)
	fill(&c)
	return c
}

// site is the configuration with secrets of its own: made at the start, except the API
// key.
func (q *quick) site(c config.Serve, secrets [3]string, events gateway.Events) (*site, error) {
	key := q.apiKey
	if key == "" {
		key = secrets[2]
	}
	held := map[string]string{"PEPPER": secrets[0], "DOMAIN": secrets[1], "KEY": key, "ENGINE": q.apiKey}
	c.Pepper, c.DomainKey = "env:PEPPER", "env:DOMAIN"
	c.Tenants[0].Keys = []config.Key{{Key: "env:KEY"}}
	m := &c.Models[0]
	for _, list := range [...][]config.Node{m.Nodes, m.Prefill, m.Decode} {
		for i := range list {
			if list[i].Key != "" {
				list[i].Key = "env:ENGINE"
			}
		}
	}
	r := &secretReader{sys: System{Getenv: func(name string) string { return held[name] }}}
	s := &site{config: c, gateway: gatewayConfig(c, r, events), notes: append(q.says(c), notes(c, time.Now())...)}
	if err := r.Err(); err != nil {
		return nil, q.inFlags(err)
	}
	if err := s.sound(nil); err != nil {
		return nil, q.inFlags(err)
	}
	if q.apiKey == "" {
		s.open = key
	}
	return s, nil
}

// inFlags names the flag where an error names a setting.
func (q *quick) inFlags(err error) error {
	return usage("%s", strings.NewReplacer(
		"configuration: ", "", "tenants[0].keys[0].key", "--api-key", "tenants[0].keys[0]", "--api-key", "models[0].prefill", "--prefill", "models[0].decode", "--decode", "models[0].nodes", "--worker-urls",
	).Replace(err.Error()))
}

// says what an operator should know who comes from sglang-router.
func (q *quick) says(c config.Serve) []string {
	who := "whoever reaches " + string(c.Listen)
	if q.apiKey != "" {
		who += " and has the key of --api-key"
	}
	all := []string{
		"all callers are one tenant, \"default\": " + who + ". They share cached prompts; to tell callers apart, give serve a file (--print-config prints one)",
		"model: clients must write " + c.Models[0].Name + "; any other name is 404",
		"--policy " + q.policy + ": " + map[string]string{
			"random":       "of two nodes drawn at random, the one with fewer tokens in flight takes a request",
			"round_robin":  "of two nodes drawn at random, the one with fewer tokens in flight takes a request, which spreads as evenly",
			"power_of_two": "of two nodes drawn at random, the one with fewer tokens in flight takes a request",
			"cache_aware":  "a node that saw the same session or beginning of a prompt is preferred, as long as it is not much busier; else of two nodes drawn at random, the one with fewer tokens in flight takes a request",
		}[q.policy],
		"the keys of cache domains are new at each start: what engines cached before is not found again",
	}
	if q.apiKey != "" {
		all = append(all, "--api-key: it is given to the engines too, and other users of this machine can see it in the list of processes")
	}
	return all
}

// Asking an engine for its model.
const (
	askEvery = 2 * time.Second
	askLong  = 30 * time.Minute // as long as sglang-router waits for a worker
	askLook  = 5 * time.Second  // for one look
)

// ask finds out what the first engine calls its model. It waits until the engine is up.
func (q *quick) ask(ctx context.Context, say io.Writer) (string, error) {
	at := slices.Concat(q.decode, q.workers)[0]
	ctx, cancel := context.WithTimeout(ctx, askLong)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: askLook}
	told := ""
	for {
		name, missing := q.askOnce(ctx, client, at)
		if name != "" {
			return name, nil
		}
		if told != missing && ctx.Err() == nil {
			fmt.Fprintf(say, "note: waiting for %s to tell the name of its model: %s; --served-model-name names it\n", at, missing)
			told = missing
		}
		t := time.NewTimer(askEvery)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return "", fmt.Errorf("cli: %s did not tell the name of its model; name it with --served-model-name", at)
		}
	}
}

// askOnce is the model's name, or what is missing.
func (q *quick) askOnce(ctx context.Context, client *http.Client, at string) (name, missing string) {
	d, role := q.dialect(), upstream.Plain
	if q.pd {
		role = upstream.DecodeRole
	}
	var seen []upstream.Seen
	for _, l := range upstream.Looks(d, role) {
		if l.Bootstrap {
			continue
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+l.Path, nil)
		if err != nil {
			return "", "it is no URL"
		}
		if q.apiKey != "" {
			req.Header.Set("Authorization", "Bearer "+q.apiKey)
		}
		resp, err := client.Do(req)
		if err != nil {
			missing = cmp.Or(missing, fmt.Sprint(cause(err)))
			continue
		}
		if resp.StatusCode != http.StatusOK {
			missing = cmp.Or(missing, "it answers "+l.Path+" with "+strconv.Itoa(resp.StatusCode))
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
		_ = resp.Body.Close()
		if err == nil {
			seen = append(seen, upstream.Seen{Path: l.Path, Status: resp.StatusCode, Body: body})
		}
	}
	info, err := upstream.ReadInfo(d, role, seen)
	if err == nil && info.Model == "" && len(info.Models) > 0 {
		return info.Models[0], ""
	}
	if err == nil && info.Model != "" {
		return info.Model, ""
	}
	return "", cmp.Or(missing, "it does not answer as "+q.engine+" does")
}

func (q *quick) dialect() upstream.Dialect {
	d, _ := upstream.ParseDialect(q.engine) // it was parsed before
	return d
}

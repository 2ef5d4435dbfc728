package config

import (
	"io"
	"maps"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// Off is what stands in place of an address that is not to be listened on.
const Off = "off"

// Address is host:port. Whether it may be :port or off is said where it stands.
type Address string

// Split returns its two parts.
func (a Address) Split() (host string, port int, ok bool) {
	host, text, err := net.SplitHostPort(string(a))
	if err != nil {
		return "", 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return host, int(n), err == nil
}

// URL is an address with its scheme, http or https.
type URL string

// Parse returns its parts.
func (u URL) Parse() (*url.URL, bool) {
	p, err := url.Parse(string(u))
	return p, err == nil && (p.Scheme == "http" || p.Scheme == "https") && p.Host != "" && p.User == nil && p.Fragment == ""
}

// bare says whether it is scheme and host and no more.
func (u URL) bare() bool {
	p, ok := u.Parse()
	return ok && p.Path == "" && p.RawQuery == "" && !p.ForceQuery
}

// ReadServe reads the configuration of bulkhead serve strictly, and fills in the
// defaults that depend on nothing else. It reads no secret. The error holds all that
// it found. now is the time at which modes with an end are judged.
func ReadServe(r io.Reader, now time.Time) (Serve, *Document, error) {
	c := Serve{Listen: "127.0.0.1:8080", Admin: Admin{Listen: "127.0.0.1:8081"}, Drain: Duration(25 * time.Second)}
	doc, err := Decode(r, &c)
	if err != nil {
		return c, nil, err
	}
	Fill(&c)
	p := &Problems{Doc: doc}
	words(p, "", reflect.ValueOf(c))
	c.check(p, now)
	return c, doc, p.Err()
}

// Fill puts the defaults that depend on nothing else in place of what was not written.
func Fill(c *Serve) {
	if c.Telemetry != nil && c.Telemetry.Every == 0 {
		c.Telemetry.Every = Duration(15 * time.Second)
	}
	for i := range c.Models {
		m := &c.Models[i]
		if len(m.Pairs) > 0 {
			m.Engine = or(m.Engine, upstream.Bulkhead.String())
		}
		if t := m.traits(); m.Tokenizer == "" && m.Engine != upstream.Bulkhead.String() {
			m.Tokenizer = "none"
			if t.Tokenizes {
				m.Tokenizer = "engine"
			}
		}
		for j, p := range m.Pairs {
			m.Pairs[j].Name = or(p.Name, string(p.Bootstrap))
		}
		for _, nodes := range [...][]Node{m.Nodes, m.Prefill, m.Decode} {
			for j := range nodes {
				nodes[j].State = or(nodes[j].State, "active")
				nodes[j].Weight = or(nodes[j].Weight, 1)
			}
		}
	}
}

// or is a, or b where a is zero.
func or[T comparable](a, b T) T {
	var zero T
	if a == zero {
		return b
	}
	return a
}

// Dialect is the dialect of the model's engine.
func (m Model) Dialect() upstream.Dialect {
	d, err := upstream.ParseDialect(m.Engine)
	if err != nil {
		return upstream.OpenAI // a wrong word was refused before
	}
	return d
}

func (m Model) traits() upstream.Traits { return m.Dialect().Traits() }

// words holds the settings to what their tags say: need, for what must be written, and
// oneof, for words of a list.
func words(p *Problems, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			words(p, path, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			words(p, path+"["+strconv.Itoa(i)+"]", v.Index(i))
		}
	case reflect.Map:
		for _, k := range sorted(v) {
			words(p, path+"."+k.String(), v.MapIndex(k))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			at := strings.TrimPrefix(path+"."+name(f), ".")
			if f.Tag.Get("need") != "" && missing(v.Field(i)) {
				p.Add(at, "%s", required(v.Field(i)))
				continue
			}
			if list := f.Tag.Get("oneof"); list != "" && !v.Field(i).IsZero() && !among(list, v.Field(i).String()) {
				p.Add(at, "want %s", spoken(list))
				continue
			}
			words(p, at, v.Field(i))
		}
	case reflect.String:
		if s, ok := v.Interface().(Secret); ok && s != "" && !s.Named() {
			p.Add(path, "a secret is given as env:NAME or file:PATH, never as itself")
		}
	}
}

// name is a setting's key in a file.
func name(f reflect.StructField) string {
	n, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return n
}

func missing(v reflect.Value) bool {
	return v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
}

func required(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Slice:
		return "at least one is required"
	case v.Type() == reflect.TypeFor[Secret]():
		return "it is required, as env:NAME or file:PATH"
	}
	return "it is required"
}

func among(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// spoken is a list of words as a sentence has it.
func spoken(list string) string {
	all := strings.Split(list, ",")
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// check finds what is wrong beyond single words. The rest is the gateway's to check.
func (c *Serve) check(p *Problems, now time.Time) {
	checkAddress(p, "listen", c.Listen)
	if c.Admin.Listen != Off {
		checkAddress(p, "admin.listen", c.Admin.Listen)
	}
	if c.Telemetry != nil {
		if _, ok := c.Telemetry.OTLP.Parse(); !ok && c.Telemetry.OTLP != "" {
			p.Add("telemetry.otlp", "want a URL with http or https, such as http://127.0.0.1:4318/v1/metrics")
		}
	}
	c.Modes.check(p, now)
	ours := false
	names := map[string]bool{}
	for i, m := range c.Models {
		ours = ours || m.Engine == upstream.Bulkhead.String()
		m.check(p, "models["+strconv.Itoa(i)+"]", names)
	}
	for _, s := range [...]struct {
		path  string
		value Secret
	}{{"pass_key", c.PassKey}, {"control_key", c.ControlKey}} {
		switch {
		case ours && s.value == "":
			p.Add(s.path, "it is required, as env:NAME or file:PATH, for a model has the engine bulkhead")
		case !ours && s.value != "" && len(c.Models) > 0:
			p.Add(s.path, "no model has the engine bulkhead, so nobody shares it")
		}
	}
	for i, t := range c.Tenants {
		if c.knows(t, p, "tenants["+strconv.Itoa(i)+"]") {
			checkGrants(p, "tenants["+strconv.Itoa(i)+"].grants", t.Grants, c.models(t))
		}
		for j, k := range t.Keys {
			if (k.Hash == "") == (k.Key == "") {
				p.Add("tenants["+strconv.Itoa(i)+"].keys["+strconv.Itoa(j)+"]", "want either hash or key")
			}
		}
	}
}

// models are those that a tenant may ask for.
func (c *Serve) models(t Tenant) (all []Model) {
	named := map[string]bool{}
	for _, n := range t.Models {
		named[n] = true
	}
	for _, a := range t.Aliases {
		named[a.Model] = true
	}
	for _, m := range c.Models {
		if named[m.Name] {
			all = append(all, m)
		}
	}
	return all
}

// knows says whether every model that a tenant names exists and has a known engine, and
// adds those that do not exist.
func (c *Serve) knows(t Tenant, p *Problems, path string) bool {
	whole := true
	look := func(at, name string) {
		i := slices.IndexFunc(c.Models, func(m Model) bool { return m.Name == name })
		if i < 0 && name != "" {
			p.Add(at, "there is no such model")
		}
		whole = whole && i >= 0 && c.Models[i].Dialect().String() == c.Models[i].Engine
	}
	for i, name := range t.Models {
		look(path+".models["+strconv.Itoa(i)+"]", name)
	}
	for _, alias := range slices.Sorted(maps.Keys(t.Aliases)) {
		look(path+".aliases."+alias+".model", t.Aliases[alias].Model)
	}
	return whole
}

// checkGrants holds that each grant opens something at one of the models.
func checkGrants(p *Problems, path string, grants []string, models []Model) {
	for i, g := range grants {
		if !slices.ContainsFunc(models, func(m Model) bool { return upstream.Grantable(m.Dialect(), g) }) {
			p.Add(path+"["+strconv.Itoa(i)+"]", "it opens nothing: no field of that name can be granted there; it passes anyway, or never")
		}
	}
}

// Each calls f with every control that is written, by its name in a file.
func (m Modes) Each(f func(control string, mode Mode)) {
	v := reflect.ValueOf(m)
	for i := range v.NumField() {
		if mode := v.Field(i).Interface().(*Mode); mode != nil {
			f(name(v.Type().Field(i)), *mode)
		}
	}
}

func (m Modes) check(p *Problems, now time.Time) {
	m.Each(func(control string, mode Mode) {
		path := "modes." + control
		until, err := mode.Until.Time()
		switch {
		case err != nil: // was refused where it stands
		case mode.Mode != "shadow" && mode.Until != "":
			p.Add(path+".until", "only shadow has an end")
		case mode.Mode == "shadow" && mode.Until == "":
			p.Add(path+".until", "shadow needs an end: a date, or a time of RFC 3339")
		case mode.Mode == "shadow" && !until.After(now):
			p.Add(path+".until", "it is in the past: extend it, or take the mode out")
		}
	})
	if m.AllowList != nil && m.AllowList.Mode == Off {
		p.Add("modes.allow_list.mode", "the list is enforced, or shadowed for a time; it cannot be off")
	}
}

// Lists are a model's lists of nodes with their keys.
func (m Model) Lists() [3]struct {
	Key   string
	Nodes []Node
} {
	return [3]struct {
		Key   string
		Nodes []Node
	}{{"prefill", m.Prefill}, {"decode", m.Decode}, {"nodes", m.Nodes}}
}

func (m Model) check(p *Problems, path string, names map[string]bool) {
	if m.Engine == "" {
		p.Add(path+".engine", "it is required: what kind of engine answers at these nodes (with pairs, it is bulkhead)")
		return
	}
	t, engine := m.traits(), m.Dialect()
	if engine.String() != m.Engine {
		return // a wrong word was refused already; what such an engine needs nobody knows
	}
	ours := engine == upstream.Bulkhead
	switch {
	case ours && m.Tokenizer != "recall" && m.Tokenizer != "none":
		p.Add(path+".tokenizer", "want recall or none")
	case !ours && m.Tokenizer == "recall":
		p.Add(path+".tokenizer", "recall is the tokenizer of our own workers: want engine or none")
	case m.Tokenizer == "engine" && !t.Tokenizes:
		p.Add(path+".tokenizer", "%s has no endpoint that counts: want none", m.Engine)
	}
	switch {
	case t.Leased && m.Lease == 0:
		p.Add(path+".lease", "it is required for %s: how long prefill keeps what decode has not fetched, as the engine is configured", m.Engine)
	case !t.Leased && m.Lease != 0:
		p.Add(path+".lease", "%s has no lease", m.Engine)
	}
	if t.Hosted && m.Window == 0 {
		p.Add(path+".window", "it is required for %s, which tells nobody how long a prompt may be", m.Engine)
	}
	if d := time.Duration(m.Hold.CommitAfter); d != 0 && d < time.Second {
		p.Add(path+".hold.commit_after", "want at least 1s, for an answer that comes sooner needs no comments")
	}
	m.checkShape(p, path)
	checkGrants(p, path+".grants", m.Grants, []Model{m})
	for i, pair := range m.Pairs {
		pair.check(p, path+".pairs["+strconv.Itoa(i)+"]", names)
	}
	for _, list := range m.Lists() {
		for i, n := range list.Nodes {
			n.check(p, path+"."+list.Key+"["+strconv.Itoa(i)+"]", t.Hosted, t.Bootstrap && list.Key == "prefill", names)
		}
	}
}

// checkShape holds that the model has the nodes that its engine needs, and no others.
func (m Model) checkShape(p *Problems, path string) {
	want := []string{"nodes"}
	switch {
	case m.Dialect() == upstream.Bulkhead:
		want = []string{"pairs"}
	case m.traits().Legs != upstream.One:
		want = []string{"prefill", "decode"}
	}
	for _, list := range [...]struct {
		key string
		n   int
	}{{"pairs", len(m.Pairs)}, {"prefill", len(m.Prefill)}, {"decode", len(m.Decode)}, {"nodes", len(m.Nodes)}} {
		needed := among(strings.Join(want, ","), list.key)
		switch {
		case needed && list.n == 0:
			p.Add(path+"."+list.key, "at least one is required for the engine %s", m.Engine)
		case !needed && list.n > 0:
			p.Add(path+"."+list.key, "the engine %s has %s", m.Engine, strings.Join(want, " and "))
		}
	}
}

func (n Pair) check(p *Problems, path string, names map[string]bool) {
	if n.Bootstrap != "" {
		checkAddress(p, path+".bootstrap", n.Bootstrap)
	}
	for _, u := range [...]struct {
		key string
		url URL
	}{{".prefill", n.Prefill}, {".decode", n.Decode}} {
		if u.url != "" && !u.url.bare() {
			p.Add(path+u.key, "want scheme and host, such as http://10.0.0.1:30000")
		}
	}
	unique(p, path, n.Name, names)
}

func (n Node) check(p *Problems, path string, hosted, bootstraps bool, names map[string]bool) {
	places := 0
	for _, s := range [...]string{string(n.URL), string(n.DNS), n.File} {
		if s != "" {
			places++
		}
	}
	if places != 1 {
		p.Add(path, "want one of url, dns and file")
	}
	if u, ok := n.URL.Parse(); n.URL != "" && !n.URL.bare() && !(hosted && ok && u.RawQuery == "" && !u.ForceQuery && !strings.HasSuffix(u.Path, "/")) {
		p.Add(path+".url", "want scheme and host, such as http://10.0.0.1:30000")
	}
	if u, _ := n.DNS.Parse(); n.DNS != "" && (!n.DNS.bare() || u.Port() == "") {
		p.Add(path+".dns", "want scheme, name and port, such as http://engines.default.svc:30000")
	}
	switch host, _, ok := n.Bootstrap.Split(); {
	case n.Bootstrap == "":
	case !bootstraps:
		p.Add(path+".bootstrap", "only a prefill node of an engine whose parts meet there has one")
	case !ok:
		p.Add(path+".bootstrap", "want host:port, or :port")
	case host != "" && n.URL == "":
		p.Add(path+".bootstrap", "each of several nodes has its own host: want :port")
	}
	switch {
	case n.State == "canary" && n.Share == 0:
		p.Add(path+".share", "a canary needs its share of the requests, such as 5%%")
	case n.State != "canary" && n.Share != 0:
		p.Add(path+".share", "only a canary has one")
	case n.Share > 100:
		p.Add(path+".share", "want at most 100%%")
	}
	unique(p, path, n.Name, names)
}

func unique(p *Problems, path, name string, names map[string]bool) {
	if name != "" && names[name] {
		p.Add(path+".name", "it is used twice")
	}
	names[name] = true
}

func checkAddress(p *Problems, path string, a Address) {
	if _, _, ok := a.Split(); !ok {
		p.Add(path, "want host:port")
	}
}

// sorted are a map's keys in their order.
func sorted(m reflect.Value) []reflect.Value {
	keys := m.MapKeys()
	for i := range keys {
		for j := i; j > 0 && keys[j].String() < keys[j-1].String(); j-- {
			keys[j], keys[j-1] = keys[j-1], keys[j]
		}
	}
	return keys
}

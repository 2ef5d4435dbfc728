package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"bulkhead.dev/bulkhead/internal/account"
	"bulkhead.dev/bulkhead/internal/admin"
	"bulkhead.dev/bulkhead/internal/config"
	"bulkhead.dev/bulkhead/internal/fleet"
	"bulkhead.dev/bulkhead/internal/gateway"
)

// noEvents is for a gateway that is only checked.
type noEvents struct{}

func (noEvents) Request(gateway.RequestEvent) {}

// configUsage says what bulkhead config takes.
const configUsage = `check, print or begin a configuration of serve
usage: bulkhead config check [--live] FILE
           read it and its secrets as serve does, and say what is wrong; --live
           also looks at every engine, and exits 1 if a model takes no requests
       bulkhead config print FILE
           print it with its defaults; secrets stay references
       bulkhead config init [FILE]
           write a commented example to a new file, or to standard output
       bulkhead config schema [FILE]
           write the JSON schema, for editors`

// runConfig is bulkhead config.
func runConfig(ctx context.Context, sys System, args []string) error {
	f := flags(sys, "config", configUsage)
	live := f.Bool("live", false, "with check: look at every engine, and print its limits and what is wrong with its set-up")
	verb := ""
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	rest, err := mixed(f, args)
	if err != nil {
		return err
	}
	path := ""
	if len(rest) > 0 {
		path = rest[0]
	}
	switch {
	case len(rest) > 1, *live && verb != "check", path == "" && (verb == "check" || verb == "print"):
	case verb == "check":
		return checkConfig(ctx, sys, path, *live)
	case verb == "print":
		return printConfig(sys, path)
	case verb == "init":
		return writeConfig(sys, path, config.Example())
	case verb == "schema":
		return writeConfig(sys, path, config.Schema())
	}
	return usage("want check FILE, print FILE, init [FILE] or schema [FILE]")
}

func checkConfig(ctx context.Context, sys System, path string, live bool) error {
	s, err := loadSite(sys, path, noEvents{})
	if err != nil {
		return err
	}
	for _, n := range s.notes {
		fmt.Fprintln(sys.Stderr, "note:", n)
	}
	if _, err = fmt.Fprintf(sys.Stdout, "%s is sound: %s\n", path, count(s.config)); err != nil || !live {
		return err
	}
	nodes, models, err := look(ctx, s.gateway)
	if err != nil {
		return err
	}
	fmt.Fprintln(sys.Stdout)
	if err := admin.NodesText(sys.Stdout, models, nodes); err != nil {
		return err
	}
	if slices.ContainsFunc(models, func(m admin.ModelState) bool { return !m.Ready }) {
		return errFailed
	}
	return nil
}

// look asks every engine of a configuration about itself, once.
func look(ctx context.Context, g gateway.Config) ([]admin.NodeState, []admin.ModelState, error) {
	b := g.Bounds.WithDefaults()
	c := fleet.Config{
		Models: map[string]fleet.Spec{}, Clock: gateway.SystemClock{}, Random: rand.Reader,
		Bounds: fleet.Bounds{Refresh: b.Refresh, Fresh: b.Fresh, Probe: b.Probe, Connect: b.Connect, Resolve: b.Resolve},
	}
	for _, m := range g.Models {
		c.Models[m.Name] = m.WithDefaults().Engines
	}
	f, err := fleet.New(c)
	if err != nil {
		return nil, nil, usage("configuration: %v", err)
	}
	f.Refresh(ctx)
	var models []admin.ModelState
	for _, m := range g.Models {
		group := f.Model(m.Name)
		models = append(models, admin.ModelState{
			Model: m.Name, Engine: m.Dialect.String(), Ready: group.Ready(), Advertised: pointer(group.Advertised()),
		})
	}
	status := f.Status()
	nodes := nodeStates(status, time.Now())
	for i, n := range status {
		nodes[i].Findings = append(nodes[i].Findings, notServed(n, g.Tenants)...)
	}
	return nodes, models, ctx.Err()
}

// notServed are the aliases whose adapter an engine does not list. An engine that lists
// nothing tells nothing.
func notServed(n fleet.NodeStatus, tenants []gateway.Tenant) (all []string) {
	if n.Why != fleet.NodeReady || len(n.Info.Models) == 0 {
		return nil
	}
	for _, t := range tenants {
		for _, name := range slices.Sorted(maps.Keys(t.Aliases)) {
			if a := t.Aliases[name]; a.Model == n.Model && a.Served != "" && !slices.Contains(n.Info.Models, a.Served) {
				all = append(all, fmt.Sprintf("it does not list %s, which the alias %s of tenant %s stands for", a.Served, name, t.ID))
			}
		}
	}
	return all
}

func printConfig(sys System, path string) error {
	c, _, err := readServe(path)
	if err != nil {
		return err
	}
	return printServe(sys, c)
}

func printServe(sys System, c config.Serve) error {
	data, err := config.Marshal(c)
	if err != nil {
		return err
	}
	_, err = sys.Stdout.Write(data)
	return err
}

// writeConfig writes a text to a new file. It overwrites nothing.
func writeConfig(sys System, path, text string) error {
	if path == "" {
		_, err := io.WriteString(sys.Stdout, text)
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		return usage("%s exists already and is left alone: name a new file", path)
	}
	if err != nil {
		return exit{exitUsage, err}
	}
	_, err = io.WriteString(file, text)
	return errors.Join(err, file.Close())
}

// runKey is bulkhead key. The key is shown here and nowhere else.
func runKey(_ context.Context, sys System, args []string) error {
	f := flags(sys, "key", "make an API key for a tenant: prints the key, once, and the line with its hash for the tenant's keys")
	pepper := f.String("pepper", "", "the pepper of the configuration, as `REF`: env:NAME or file:PATH")
	expires := f.String("expires", "", "when it no longer opens: a `DATE`, or a time of RFC 3339")
	if err := parse(f, args); err != nil {
		return err
	}
	if *pepper == "" {
		return usage("--pepper is required, as env:NAME or file:PATH")
	}
	until, err := config.Moment(*expires).Time()
	if err != nil || *expires != "" && !until.After(time.Now()) {
		return usage("--expires: want a date to come such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z")
	}
	text, err := resolve(config.Secret(*pepper), sys, fromFile, "--pepper")
	if err != nil {
		return err
	}
	secret, err := hexKey(text)
	if err != nil {
		return usage("--pepper: %w", err)
	}
	key, hash, err := account.NewKey(rand.Reader, secret)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("- hash: %q\n", hash)
	if *expires != "" {
		line += fmt.Sprintf("  expires: %s\n", *expires)
	}
	_, err = fmt.Fprintf(sys.Stdout, "%s\n%s", key, line)
	return err
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/assure"
	"bulkhead.dev/bulkhead/internal/upstream"
)

// model is one entry of the generated configuration, but for what the site says.
type model struct {
	// extra are further lines of the model, such as "lease: 5s".
	extra []string
	// tenant are further lines of each tenant.
	tenant []string
	// top are further lines of the whole file.
	top []string
}

// tenants is how many tenants the generated configuration has.
const tenants = 4

// gateway is a running `bulkhead serve`.
type gateway struct {
	*process
	url, admin string
}

// serve writes a configuration for the site with fresh keys, starts `bulkhead serve` with
// it, waits until it is ready, and puts its address and keys into the site.
func (d *driver) serve(ctx context.Context, site *assure.Site, m model) (*gateway, error) {
	front, err := d.port()
	if err != nil {
		return nil, err
	}
	admin, err := d.port()
	if err != nil {
		return nil, err
	}
	config, keys, err := d.configure(site, m, front, admin)
	if err != nil {
		return nil, err
	}
	p, err := d.start("bulkhead", d.bin, nil, "serve", "--config", config)
	if err != nil {
		return nil, err
	}
	g := &gateway{process: p, url: fmt.Sprintf("http://127.0.0.1:%d", front), admin: fmt.Sprintf("http://127.0.0.1:%d", admin)}
	if err := d.ready(ctx, p, g.admin+"/readyz", 30*time.Second); err != nil {
		return nil, err
	}
	site.Gateway, site.Keys = g.url, keys
	return g, nil
}

// configure writes the configuration and the files of its secrets.
func (d *driver) configure(site *assure.Site, m model, front, admin int) (path string, keys []string, err error) {
	secret := func(name, prefix string, bytes int) (string, error) {
		b := make([]byte, bytes)
		rand.Read(b)
		text := prefix + hex.EncodeToString(b)
		return text, os.WriteFile(filepath.Join(d.dir, name+".key"), []byte(text+"\n"), 0o600)
	}
	for _, name := range []string{"pepper", "domain"} {
		if _, err := secret(name, "", 32); err != nil {
			return "", nil, fmt.Errorf("interop: write secret: %w", err)
		}
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("listen: 127.0.0.1:%d", front)
	line("admin:\n  listen: 127.0.0.1:%d", admin)
	line("pepper: file:pepper.key\ndomain_key: file:domain.key")
	for _, l := range m.top {
		line("%s", l)
	}
	line("models:\n  - name: %s\n    engine: %s\n    served: %q", site.Model, site.Dialect, site.Served)
	for _, l := range engines(site) {
		line("    %s", l)
	}
	for _, l := range m.extra {
		line("    %s", l)
	}
	line("tenants:")
	for i := range tenants {
		key, err := secret(fmt.Sprintf("tenant%d", i), "bk-", 16)
		if err != nil {
			return "", nil, fmt.Errorf("interop: write secret: %w", err)
		}
		keys = append(keys, key)
		line("  - id: tenant%d\n    keys:\n      - key: file:tenant%d.key\n    models: [%s]", i, i, site.Model)
		for _, l := range m.tenant {
			line("    %s", l)
		}
	}
	path = filepath.Join(d.dir, "bulkhead.yaml")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return "", nil, fmt.Errorf("interop: write configuration: %w", err)
	}
	return path, keys, nil
}

// engines are the lines of a model that name its engines.
func engines(site *assure.Site) []string {
	if site.Dialect.Traits().Legs == upstream.One {
		return []string{fmt.Sprintf("nodes: [{url: %q}]", site.Plain)}
	}
	prefill := fmt.Sprintf("url: %q", site.Prefill)
	if site.Bootstrap != "" {
		prefill += fmt.Sprintf(", bootstrap: %q", strings.TrimPrefix(site.Bootstrap, "http://"))
	}
	return []string{"prefill: [{" + prefill + "}]", fmt.Sprintf("decode: [{url: %q}]", site.Decode)}
}

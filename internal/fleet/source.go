package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/internal/upstream"
)

// source is where engines come from, at work. Whoever looks owns it; failed and current
// are also read under the board's lock, and written under it.
type source struct {
	Source
	role     upstream.Role
	pair     int // of the specification's pairs; -1: works with any
	resolver Resolver
	// current is what it names now.
	current []*address
	// failed says that it gave no usable list last time, and current is older.
	failed bool
	// resolved is when it was last asked.
	resolved time.Time
	// stamp is what told the file's last content from others.
	stamp fileStamp
}

// address is where an engine is.
type address struct{ *url.URL }

type fileStamp struct {
	changed time.Time
	size    int64
}

// resolve asks the sources that are due what they name. The caller is the holder of
// looking.
func (g *Group) resolve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer g.clock.AfterFunc(g.bounds.Probe, cancel).Stop()
	changed := false
	for _, s := range g.sources {
		found, err := s.find(ctx, g.clock.Now(), g.bounds, g.spec.Dialect.Traits())
		if err != nil || found != nil {
			changed = g.take(s, found, err) || changed
		}
	}
	if changed {
		g.board.lock()
		defer g.board.unlock()
		g.settle()
	}
}

// take notes what a source names, and says whether that is new. One that fails keeps what
// it named last.
func (g *Group) take(s *source, found []*address, err error) bool {
	g.board.lock()
	defer g.board.unlock()
	if failed := err != nil; failed != s.failed {
		s.failed = failed
		kind, why := SourceRecovered, NodeReady
		if failed {
			kind, why = SourceFailed, Unresolved
		}
		g.tell(Event{Node: s.Name, Role: s.role, Kind: kind, Why: why})
	}
	equal := func(a, b *address) bool { return a.String() == b.String() }
	if err != nil || slices.EqualFunc(found, s.current, equal) {
		return false
	}
	s.current = found
	return true
}

// find asks what the source names. It returns nothing, and no error, while that is not
// due or has not changed.
func (s *source) find(ctx context.Context, now time.Time, b Bounds, traits upstream.Traits) ([]*address, error) {
	due := s.resolved.IsZero() || now.Sub(s.resolved) >= b.Resolve || s.failed
	switch {
	case s.DNS != "" && due:
		s.resolved = now
		return s.lookup(ctx, b.Nodes, traits)
	case s.File != "":
		info, err := os.Stat(s.File)
		if err != nil || !info.Mode().IsRegular() {
			return nil, errFile // to open a pipe could wait for ever
		}
		stamp := fileStamp{info.ModTime(), info.Size()}
		if stamp == s.stamp && !due {
			return nil, nil
		}
		s.resolved, s.stamp = now, stamp
		return s.read(b.Nodes, traits)
	}
	return nil, nil
}

// lookup resolves a name to all its addresses, in a steady order.
func (s *source) lookup(ctx context.Context, most int, traits upstream.Traits) ([]*address, error) {
	u, err := parseURL(s.DNS, traits)
	if err != nil {
		return nil, err
	}
	hosts, err := s.resolver.LookupHost(ctx, u.Hostname())
	if err != nil {
		return nil, fmt.Errorf("fleet: resolve: %w", err)
	}
	var ips []netip.Addr
	for _, h := range hosts {
		ip, err := netip.ParseAddr(h)
		if err != nil {
			return nil, errors.New("fleet: resolve: an address that is none")
		}
		ips = append(ips, ip.Unmap())
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	ips = slices.Compact(ips)
	if len(ips) == 0 || len(ips) > most {
		return nil, errors.New("fleet: resolve: no address, or too many")
	}
	var found []*address
	for _, ip := range ips {
		at := *u
		at.Host = net.JoinHostPort(ip.String(), u.Port())
		found = append(found, &address{&at})
	}
	return found, nil
}

// errFile says that a file gives no usable list. The path stands in the configuration.
var errFile = errors.New("fleet: read file of nodes: it cannot be read, is empty, too long, or has a line that is no address")

// maxFileOfNodes is the longest file of nodes, in bytes.
const maxFileOfNodes = 1 << 20

// read reads a file of one address a line. A file that is being written is broken at
// worst, and then read again.
func (s *source) read(most int, traits upstream.Traits) ([]*address, error) {
	f, err := os.Open(s.File)
	if err != nil {
		return nil, errFile
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFileOfNodes+1))
	if err != nil || len(data) > maxFileOfNodes {
		return nil, errFile
	}
	var found []*address
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		u, err := parseURL(text, traits)
		if err != nil || len(found) >= most {
			return nil, errFile
		}
		if !slices.ContainsFunc(found, func(a *address) bool { return a.String() == u.String() }) {
			found = append(found, &address{u})
		}
	}
	if len(found) == 0 {
		return nil, errFile
	}
	return found, nil
}

// inherit takes over what an earlier source named.
func (s *source) inherit(prev *source) {
	if len(s.current) == 0 && s.DNS+s.File == prev.DNS+prev.File {
		s.current = slices.Clone(prev.current)
	}
}

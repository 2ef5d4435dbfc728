package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

// transferRuns is how often each transfer is cut.
const transferRuns = 3

// transferPeer shows what of a write lands after its receiver has taken the memory back:
// with Mooncake's transfer engine over TCP, and with our own transport. It is alone, for
// Mooncake listens on every interface.
func transferPeer() peer {
	return peer{name: "transfer", title: "Writes that land after the memory was taken back", alone: true, prepare: "transfer/install.sh",
		parts: []part{{name: "tcp", run: lateWrites}}}
}

// late is what one run showed. Samples are bytes or rows that the next owner has written.
type late struct {
	Samples int `json:"samples"`
	Before  int `json:"before"` // landed before the memory was taken back
	After   int `json:"after"`  // written over what the next owner had written
	// Unregister is what taking back answered; 0 is success.
	Unregister int     `json:"unregister"`
	Took       float64 `json:"unregister_ms"`
	// Writer is what the writer was told; 0 is success.
	Writer *int `json:"writer"`
}

// lateWrites runs both, one after the other.
func lateWrites(ctx context.Context, d *driver, s *section) error {
	if err := loopback(); err != nil {
		return err
	}
	facts, err := d.install(ctx, "transfer/install.sh")
	if err != nil {
		return err
	}
	s.fact("Mooncake: mooncake-transfer-engine-non-cuda 0.3.13.post1 of PyPI, TCP; one write of 512 MiB, one byte sampled of each 64 KiB")
	s.fact("ours: package wire over plain TCP, one reservation of 256 MiB in 16 pages, sealed after the first page; every row is looked at")
	shown := 0
	for run := range transferRuns {
		theirs, err := d.mooncakeLate(ctx, facts, 512)
		if err != nil {
			return err
		}
		writer := "no answer"
		if theirs.Writer != nil {
			writer = strconv.Itoa(*theirs.Writer)
		}
		line := fmt.Sprintf("Mooncake, run %d: unregister answered %d after %.2f ms; of %d samples %d had landed before; %d landed afterwards, over the next owner's; the writer was told %s",
			run+1, theirs.Unregister, theirs.Took, theirs.Samples, theirs.Before, theirs.After, writer)
		d.say("%s", line)
		s.note("%s", line)
		if theirs.Unregister == 0 && theirs.After > 0 {
			shown++
		}
	}
	if shown == 0 {
		s.fail("no late write was seen with Mooncake, so that none with ours shows nothing")
	}
	for run := range transferRuns {
		ours, err := ownLate(ctx)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("ours, run %d: sealed in %.2f ms with %d of 16 pages written; of the next owner's %d rows %d were written over",
			run+1, ours.Took, ours.Before, ours.Samples, ours.After)
		d.say("%s", line)
		s.note("%s", line)
		switch {
		case ours.After > 0:
			s.fail("ours, run %d: %d rows were written over after the seal", run+1, ours.After)
		case ours.Before == 0 || ours.Before == latePages:
			s.fail("ours, run %d: nothing was under way at the seal", run+1)
		}
	}
	return nil
}

// mooncakeLate runs interop/transfer/late.py.
func (d *driver) mooncakeLate(ctx context.Context, facts map[string]string, mebibytes int) (late, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, facts["PYTHON"], filepath.Join(d.root, "interop/transfer/late.py"), strconv.Itoa(mebibytes))
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+facts["SITE"])
	ownGroup(cmd)
	cmd.Cancel = func() error { killGroup(cmd.Process.Pid); return nil }
	out, err := cmd.Output()
	if err != nil {
		return late{}, fmt.Errorf("interop: run late.py: %w", err)
	}
	var l late
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, `{"samples"`) && json.Unmarshal([]byte(line), &l) == nil {
			return l, nil
		}
	}
	return late{}, errors.New("interop: run late.py: it reported nothing")
}

// Sizes of our own transfer: 16 pages of 16 MiB.
const latePages = 16

func lateLayout() kv.Layout { return kv.Layout{Layers: 32, Heads: 8, Dim: 128, PageTokens: 64} }

// lateEnd is one end of our link.
type lateEnd struct {
	opened  chan wire.Link
	written chan error
	closed  chan error
}

func newLateEnd() *lateEnd {
	return &lateEnd{make(chan wire.Link, 1), make(chan error, latePages), make(chan error, 1)}
}

// Opened implements [wire.Handler].
func (e *lateEnd) Opened(l wire.Link) { e.opened <- l }

// Receive implements [wire.Handler].
func (*lateEnd) Receive(wire.Link, wire.Message) {}

// Written implements [wire.Handler].
func (e *lateEnd) Written(_ wire.Link, _ uint64, err error) { e.written <- err }

// Closed implements [wire.Handler].
func (e *lateEnd) Closed(_ wire.Link, cause error) { e.closed <- cause }

// latePool makes a pool of exactly one reservation.
func latePool(epoch uint64) (*kv.Pool, error) {
	return kv.New(kv.Config{Layout: lateLayout(), Pages: latePages, Epoch: epoch, Keys: func() (k kv.Key) {
		_, _ = rand.Read(k[:]) // never fails
		return k
	}})
}

// fill makes a sequence of some pages that holds one value.
func fill(p *kv.Pool, pages int, value float32) (*kv.Sequence, error) {
	tokens := pages * p.Layout().PageTokens
	s, err := p.Local(kv.Domain{1}, tokens, nil)
	if err != nil {
		return nil, err
	}
	if err := s.Extend(tokens); err != nil {
		return nil, err
	}
	for layer := range p.Layout().Layers {
		for at := range tokens {
			k, v, err := s.Write(layer, at)
			if err != nil {
				return nil, err
			}
			for i := range k {
				k[i], v[i] = value, value
			}
		}
	}
	return s, s.Commit()
}

// foreign counts the rows that hold anything but the value.
func foreign(s *kv.Sequence, value float32) (rows, wrong int, err error) {
	width := s.Layout().Heads * s.Layout().Dim
	for layer := range s.Layout().Layers {
		for page := range s.Tokens() / s.Layout().PageTokens {
			k, v, err := s.Rows(layer, page, s.Tokens())
			if err != nil {
				return 0, 0, err
			}
			for r := 0; r < len(k)/width; r++ {
				rows++
				for i := r * width; i < (r+1)*width; i++ {
					if k[i] != value || v[i] != value {
						wrong++
						break
					}
				}
			}
		}
	}
	return rows, wrong, nil
}

// ownLate hands a reservation over, takes it back in mid-write, gives its pages to the
// next owner at once, and looks at them when the writer is done.
func ownLate(ctx context.Context) (late, error) {
	var result late
	source, err := latePool(1)
	if err != nil {
		return result, err
	}
	target, err := latePool(2)
	if err != nil {
		return result, err
	}
	const sent, own = 1, 2
	from, err := fill(source, latePages, sent)
	if err != nil {
		return result, err
	}
	prefill, stop, err := lateLink(ctx, target.Landing())
	if err != nil {
		return result, err
	}
	defer stop()
	r, err := target.Reserve(kv.Domain{2}, latePages*lateLayout().PageTokens, 0, nil)
	if err != nil {
		return result, err
	}
	writer := <-prefill.opened
	for page := range latePages {
		segments, rows := from.Segments(page)
		if err := writer.Write(wire.PageWrite{ID: uint64(page), Key: r.Key(), Page: page, Rows: rows, Segments: segments}); err != nil {
			return result, err
		}
	}
	if err := <-prefill.written; err != nil {
		return result, err
	}
	result.Before = 1
	asked := time.Now()
	if _, err := target.Seal(r); err != nil {
		return result, err
	}
	result.Took = float64(time.Since(asked).Microseconds()) / 1000
	result.Before += len(prefill.written)
	if err := target.Free(r); err != nil {
		return result, err
	}
	next, err := fill(target, latePages, own)
	if err != nil {
		return result, err
	}
	// The writer is done when every write has completed or the link is closed.
	done := time.NewTimer(20 * time.Second)
	defer done.Stop()
	for left := latePages - 1; left > 0; left-- {
		select {
		case <-prefill.written: //nolint:errcheck // only that it came
		case cause := <-prefill.closed:
			prefill.closed <- cause
			left = 0
		case <-done.C:
			return result, errors.New("interop: our writer does not come to an end")
		}
	}
	result.Samples, result.After, err = foreign(next, own)
	return result, err
}

// lateLink joins two ends over loopback TCP.
func lateLink(ctx context.Context, landing *kv.Landing) (prefill *lateEnd, stop func(), err error) {
	ca, err := wire.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		return nil, nil, err
	}
	carrier := func(role wire.Role) (wire.TCP, error) {
		c, err := ca.Issue(time.Now(), time.Hour, wire.Identity{Role: role, Name: role.String()})
		return wire.TCP{Options: wire.Options{Streams: 2}, Credential: c, Protection: wire.PlainData}, err
	}
	hello := func(role wire.Role) wire.Hello {
		return wire.Hello{Role: role, Name: role.String(), Incarnation: uint64(role), Layout: lateLayout()}
	}
	from, err := carrier(wire.RolePrefill)
	if err != nil {
		return nil, nil, err
	}
	to, err := carrier(wire.RoleDecode)
	if err != nil {
		return nil, nil, err
	}
	decode := newLateEnd()
	prefill = newLateEnd()
	listener, err := from.Listen("127.0.0.1:0", hello(wire.RolePrefill), prefill, nil)
	if err != nil {
		return nil, nil, err
	}
	link, err := to.Dial(ctx, listener.Addr(), hello(wire.RoleDecode), decode, landing)
	if err != nil {
		_ = listener.Close() // the error that counts is err
		return nil, nil, err
	}
	return prefill, func() {
		link.Close(nil)
		<-decode.closed      //nolint:errcheck // that it has closed is all
		<-prefill.closed     //nolint:errcheck // as above
		_ = listener.Close() // nothing is left to accept
	}, nil
}

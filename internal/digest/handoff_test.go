package digest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

// pair is a prefill pool and a decode pool, and one hand-off between them.
type pair struct {
	prefill, decode *kv.Pool
}

func newPair(t *testing.T) *pair {
	t.Helper()
	l := kv.Layout{Layers: 2, Heads: 2, Dim: 4, PageTokens: 16}
	pool := func(name string) *kv.Pool {
		n := 0
		p, err := kv.New(kv.Config{Layout: l, Pages: 8, Epoch: 1, Keys: func() kv.Key {
			n++
			sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", name, n))
			return kv.Key(sum[:16])
		}})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return &pair{pool("prefill"), pool("decode")}
}

// compute makes a sequence of n tokens in chunks, each page digested once, as
// soon as its last row is there (H-7).
func (p *pair) compute(t *testing.T, d kv.Digester, n, chunk int) (*kv.Sequence, []kv.Digest) {
	t.Helper()
	s, err := p.prefill.Local(kv.Domain{'t'}, n, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []kv.Digest
	for s.Tokens() < n {
		from := s.Tokens()
		if err := s.Extend(min(chunk, n-from)); err != nil {
			t.Fatal(err)
		}
		for layer := range 2 {
			for pos := from; pos < min(from+chunk, n); pos++ {
				k, v, err := s.Write(layer, pos)
				if err != nil {
					t.Fatal(err)
				}
				for j := range k {
					k[j], v[j] = float32(layer*1000+pos*10+j), -float32(layer*1000+pos*10+j)
				}
			}
		}
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
		for len(list) < s.Tokens()/16 || s.Tokens() == n && len(list)*16 < n {
			list = append(list, s.Digest(d, len(list)))
		}
	}
	return s, list
}

// onWire is the bytes of one page on their way.
type onWire struct{ segs [][]byte }

func (f *onWire) Read(b []byte) (n int, err error) {
	for len(f.segs) > 0 && len(f.segs[0]) == 0 {
		f.segs = f.segs[1:]
	}
	if len(f.segs) == 0 {
		return 0, io.EOF
	}
	n = copy(b, f.segs[0])
	f.segs[0] = f.segs[0][n:]
	return n, nil
}

func (f *onWire) Interrupt() {}

// TestHandOff takes prompts of several lengths through both algorithms: what was
// computed in chunks verifies, and what was sent wrongly does not.
func TestHandOff(t *testing.T) {
	for _, a := range algorithms() {
		for _, n := range []int{1, 15, 16, 17, 40, 64} {
			for _, fault := range []string{"none", "page missing", "byte", "pages swapped", "other key", "list of another"} {
				p := newPair(t)
				s, list := p.compute(t, digester(t, a, counting()), n, 7)
				r, err := p.decode.Reserve(kv.Domain{'t'}, n, 8, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := range list {
					segs, rows := s.Segments(i)
					switch {
					case fault == "page missing" && i == len(list)-1:
						continue
					case fault == "pages swapped" && n == 64: // all whole
						segs, rows = s.Segments(3 - i)
					case fault == "byte" && i == 0:
						segs[0] = append([]byte{segs[0][0] ^ 1}, segs[0][1:]...)
					}
					if _, err := p.decode.Landing().Land(r.Key(), i, rows, &onWire{segs}); err != nil {
						t.Fatal(err)
					}
				}
				key, want := counting(), kv.ErrDigest
				switch {
				case fault == "none", fault == "pages swapped" && n != 64:
					want = nil
				case fault == "other key":
					key[31]++
				case fault == "list of another":
					_, list = newPair(t).compute(t, digester(t, a, [32]byte{1}), n, 7)
				}
				sealed, err := p.decode.Seal(r)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.decode.Verify(sealed, digester(t, a, key), list); !errors.Is(err, want) {
					t.Errorf("%v, %d tokens, fault %q: %v, want %v", a, n, fault, err, want)
				}
			}
		}
	}
}

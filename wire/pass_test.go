package wire

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead.dev/bulkhead/handoff"
	"bulkhead.dev/bulkhead/kv"
)

func testPasser(t testing.TB) *Passer {
	t.Helper()
	p, err := NewPasser(count(make([]byte, 32), 1))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPass mints a pass and checks it under everything that could be different.
func TestPass(t *testing.T) {
	p := testPasser(t)
	other, err := NewPasser(count(make([]byte, 32), 2))
	if err != nil {
		t.Fatal(err)
	}
	const room = 1<<63 - 1
	now := time.Unix(1_790_000_000, 0)
	expiry := now.Add(time.Minute)
	attempt, domain := handoff.Attempt(count(make([]byte, 16), 0xa0)), kv.Domain(count(make([]byte, 16), 0xd0))
	body := []byte(`{"prompt":"x"}`)
	header := p.Mint(attempt, domain, expiry, room, body)

	got, err := p.Check(header, room, body, now)
	if err != nil || got != (Pass{attempt, domain, expiry}) {
		t.Fatalf("%+v, %v", got, err)
	}
	parts := strings.Split(header, ".")
	with := func(i int, s string) string {
		changed := append([]string{}, parts...)
		changed[i] = s
		return strings.Join(changed, ".")
	}
	for _, c := range []struct {
		name   string
		by     *Passer
		header string
		room   int64
		body   string
		now    time.Time
		want   error
	}{
		{"as minted", p, header, room, string(body), now, nil},
		{"in its last second", p, header, room, string(body), expiry.Add(-1), nil},
		{"expired", p, header, room, string(body), expiry, ErrPassExpired},
		{"another key", other, header, room, string(body), now, ErrPass},
		{"another room", p, header, room - 1, string(body), now, ErrPass},
		{"another body", p, header, room, string(body) + " ", now, ErrPass},
		{"no body", p, header, room, "", now, ErrPass},
		{"another version", p, with(0, "v2"), room, string(body), now, ErrPass},
		{"longer, and of another key", p, with(3, "1999999999"), room, string(body), now, ErrPass},
		{"expired, and of another key", other, header, room, string(body), expiry, ErrPass},
		{"upper case", p, with(1, strings.ToUpper(parts[1])), room, string(body), now, ErrPass},
		{"a plus sign", p, with(3, "+"+parts[3]), room, string(body), now, ErrPass},
		{"a leading zero", p, with(3, "0"+parts[3]), room, string(body), now, ErrPass},
		{"a short mac", p, header[:len(header)-2], room, string(body), now, ErrPass},
		{"a long mac", p, header + "00", room, string(body), now, ErrPass},
		{"a space", p, " " + header, room, string(body), now, ErrPass},
		{"another part", p, header + ".v1", room, string(body), now, ErrPass},
		{"nothing", p, "", room, string(body), now, ErrPass},
		{"a megabyte", p, header + strings.Repeat("0", 1<<20), room, string(body), now, ErrPass},
	} {
		if pass, err := c.by.Check(c.header, c.room, []byte(c.body), c.now); !errors.Is(err, c.want) || (c.want != nil && pass != Pass{}) {
			t.Errorf("%s: %+v, %v; want %v", c.name, pass, err, c.want)
		}
	}
	// Every single character.
	for i := range header {
		for _, to := range []byte("0123456789abcdef.v-") {
			changed := header[:i] + string(to) + header[i+1:]
			if _, err := p.Check(changed, room, body, now); changed != header && !errors.Is(err, ErrPass) {
				t.Fatalf("%q at %d: %v", to, i, err)
			}
		}
	}
}

// TestPassFields: a byte that moves from one field to the next changes the MAC.
func TestPassFields(t *testing.T) {
	p := testPasser(t)
	a := p.mac(handoff.Attempt{15: 1}, kv.Domain{}, 0, 0, nil)
	b := p.mac(handoff.Attempt{}, kv.Domain{1}, 0, 0, nil)
	c := p.mac(handoff.Attempt{}, kv.Domain{}, 1, 0, nil)
	d := p.mac(handoff.Attempt{}, kv.Domain{}, 0, 1, nil)
	seen := map[string]bool{}
	for _, m := range [][]byte{a, b, c, d} {
		seen[string(m)] = true
	}
	if len(seen) != 4 {
		t.Fatalf("%d different MACs of 4", len(seen))
	}
}

// TestPassKey refuses short keys, and keeps a key of its own.
func TestPassKey(t *testing.T) {
	if _, err := NewPasser(make([]byte, passKey-1)); err == nil {
		t.Error("31 bytes were taken")
	}
	key := make([]byte, passKey)
	p, err := NewPasser(key)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_790_000_000, 0)
	header := p.Mint(handoff.Attempt{1}, kv.Domain{2}, now.Add(time.Minute), 5, nil)
	key[0]++
	if _, err := p.Check(header, 5, nil, now); err != nil {
		t.Errorf("the passer shares the caller's key: %v", err)
	}
}

// TestGoldenPass holds the header to its file.
func TestGoldenPass(t *testing.T) {
	header := testPasser(t).Mint(handoff.Attempt(count(make([]byte, 16), 0xa0)), kv.Domain(count(make([]byte, 16), 0xd0)),
		time.Unix(1_790_000_000, 999), 1<<63-1, []byte(`{"prompt":"x"}`))
	file := filepath.Join("testdata", "v1", "pass.txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(header+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || header+"\n" != string(want) {
		t.Fatalf("%v; minted\n%s, the file has\n%s", err, header, want)
	}
}

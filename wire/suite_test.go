package wire_test

import (
	"testing"
	"time"

	"bulkhead.dev/bulkhead/wire"
	"bulkhead.dev/bulkhead/wire/wiretest"
)

// credentials are those of the suite's pair, under one authority.
func credentials(t testing.TB) (prefill, decode *wire.Credential) {
	t.Helper()
	authority, err := wire.NewAuthority(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role wire.Role, name string) *wire.Credential {
		c, err := authority.Issue(time.Now(), time.Hour, wire.Identity{Role: role, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return issue(wire.RolePrefill, wiretest.PrefillName), issue(wire.RoleDecode, wiretest.DecodeName)
}

func tcp(p wire.Protection) func(testing.TB, wire.Options) wiretest.Fabric {
	return func(t testing.TB, o wire.Options) wiretest.Fabric {
		prefill, decode := credentials(t)
		return wiretest.Fabric{
			Prefill: wire.TCP{Options: o, Credential: prefill, Protection: p},
			Decode:  wire.TCP{Options: o, Credential: decode, Protection: p},
			Addr:    "127.0.0.1:0",
		}
	}
}

func mem(_ testing.TB, o wire.Options) wiretest.Fabric {
	m := wire.NewMem(o)
	return wiretest.Fabric{Prefill: m, Decode: m, Addr: "prefill"}
}

// TestTransports holds every transport to the suite, bare and behind a wrapper
// of faults that passes everything.
func TestTransports(t *testing.T) {
	for _, c := range []struct {
		name   string
		fabric func(testing.TB, wire.Options) wiretest.Fabric
	}{
		{"mem", mem},
		{"tcp tls", tcp(wire.TLSAll)},
		{"tcp plain data", tcp(wire.PlainData)},
	} {
		t.Run(c.name, func(t *testing.T) {
			wiretest.Run(t, func(t *testing.T, o wire.Options) wiretest.Fabric { return c.fabric(t, o) })
		})
		t.Run(c.name+" behind faults", func(t *testing.T) {
			wiretest.Run(t, func(t *testing.T, o wire.Options) wiretest.Fabric {
				f := c.fabric(t, o)
				f.Decode = &wire.Faults{Transport: f.Decode}
				f.Prefill = &wire.Faults{
					Transport: f.Prefill,
					Message:   func(wire.Message) wire.Fault { return wire.Fault{} },
					Page:      func(wire.PageWrite) wire.Fault { return wire.Fault{} },
				}
				return f
			})
		})
	}
}

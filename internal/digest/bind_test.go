package digest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"reflect"
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

// statement has no two fields alike.
func statement() Statement {
	s := Statement{
		Generation: kv.Generation{Epoch: 0x0102030405060708, Counter: 9},
		Tokens:     137, Pages: 2, Prefix: 64, Layout: 0x1112131415161718, Algorithm: GMAC, First: 77,
	}
	for i := range s.Attempt {
		s.Attempt[i], s.Domain[i] = byte(0x20+i), byte(0x40+i)
	}
	for i := range s.Input {
		s.Input[i], s.PrefixHash[i] = byte(0x60+i), byte(0x80+i)
	}
	s.Digests = []kv.Digest{{0: 0xa0, 15: 1}, {0: 0xb0, 15: 2}}
	return s
}

// TestBindEncoding builds the bytes by hand, so that the format is written down
// twice.
func TestBindEncoding(t *testing.T) {
	var b []byte
	field := func(v ...any) {
		n := 0
		for _, x := range v {
			n += binary.Size(x)
		}
		b = binary.BigEndian.AppendUint64(b, uint64(n))
		for _, x := range v {
			var err error
			if b, err = binary.Append(b, binary.BigEndian, x); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := statement()
	field([]byte("bulkhead notice v1"))
	field(s.Attempt)
	field(s.Generation.Epoch)
	field(s.Generation.Counter)
	field(s.Input)
	field(s.Tokens)
	field(s.Pages)
	field(s.Prefix)
	field(s.PrefixHash)
	field(s.Layout)
	field(s.Domain)
	field(uint8(s.Algorithm))
	field(s.First)
	b = binary.BigEndian.AppendUint64(b, 2) // digests, 16 bytes each
	b = append(b, s.Digests[0][:]...)
	b = append(b, s.Digests[1][:]...)
	key := counting()
	mac := hmac.New(sha256.New, key[:])
	mac.Write(b)
	if got := Bind(key, s); hex.EncodeToString(got[:]) != hex.EncodeToString(mac.Sum(nil)) {
		t.Errorf("MAC %x", got)
	}
}

func TestBindGolden(t *testing.T) {
	const (
		want  = "eccd6dc322f03cd6bf0b2e62cae9228d19413d5acd9cacb5e5dac87b19a7a653"
		empty = "e24f337167426800f83e56aa78794204ef8c3ece68ef8c4feab770bf6404d404"
	)
	if got := Bind(counting(), statement()); hex.EncodeToString(got[:]) != want {
		t.Errorf("%x, want %s", got, want)
	}
	if got := Bind([32]byte{}, Statement{}); hex.EncodeToString(got[:]) != empty {
		t.Errorf("the empty statement: %x, want %s", got, empty)
	}
}

// flipEach calls f with every variant of s in which one bit of one field is
// flipped. It walks the struct, so that a field added later is not forgotten.
func flipEach(s Statement, f func(what string, v Statement)) {
	var walk func(what string, v reflect.Value)
	walk = func(what string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(what+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Array, reflect.Slice:
			for i := range v.Len() {
				walk(fmt.Sprintf("%s[%d]", what, i), v.Index(i))
			}
		default:
			was := v.Uint()
			for bit := range v.Type().Bits() {
				v.SetUint(was ^ 1<<bit)
				f(fmt.Sprintf("%s bit %d", what, bit), s)
			}
			v.SetUint(was)
		}
	}
	walk("", reflect.ValueOf(&s).Elem())
}

// Every field is bound, each apart from the others, and so are number and order
// of the digests.
func TestBindIsInjective(t *testing.T) {
	seen := map[[32]byte]string{}
	differs := func(what string, key [32]byte, s Statement) {
		t.Helper()
		mac := Bind(key, s)
		if other, ok := seen[mac]; ok {
			t.Fatalf("%s and %s have one MAC", what, other)
		}
		seen[mac] = what
		if !Check(key, s, mac) {
			t.Fatalf("%s: its own MAC does not pass", what)
		}
	}
	key, s := counting(), statement()
	good := Bind(key, s)
	differs("the statement", key, s)
	flips := 0
	flipEach(s, func(what string, v Statement) {
		flips++
		differs(what, key, v)
		if Check(key, v, good) {
			t.Fatalf("%s: the MAC of another statement passes", what)
		}
	})
	if want := (16+16+32+12+32+8+16+1+4)*8 + 2*128; flips != want {
		t.Fatalf("%d bits flipped, want %d: a field is not reached", flips, want)
	}
	for bit := range 256 {
		k := key
		k[bit/8] ^= 1 << (bit % 8)
		differs(fmt.Sprint("key bit ", bit), k, s)
		m := good
		m[bit/8] ^= 1 << (bit % 8)
		if Check(key, s, m) {
			t.Fatalf("a MAC with bit %d flipped passes", bit)
		}
	}
	for what, list := range map[string][]kv.Digest{
		"no digests": nil, "one digest": s.Digests[:1], "swapped digests": {s.Digests[1], s.Digests[0]},
		"a digest twice": {s.Digests[0], s.Digests[0]}, "a zero digest more": {s.Digests[0], s.Digests[1], {}},
	} {
		v := s
		v.Digests = list
		differs(what, key, v)
	}
	// Values that change places between neighbours of one width.
	v := s
	v.Tokens, v.Pages = s.Pages, s.Tokens
	differs("tokens and pages swapped", key, v)
	v = s
	v.Input, v.PrefixHash = s.PrefixHash, s.Input
	differs("input and prefix hash swapped", key, v)
	v = s
	v.Attempt, v.Domain = s.Domain, s.Attempt
	differs("attempt and domain swapped", key, v)
	v = s
	v.Generation.Epoch, v.Generation.Counter = s.Generation.Counter, s.Generation.Epoch
	differs("epoch and counter swapped", key, v)
}

// BenchmarkBind is a notice of 128 pages: 8k tokens.
func BenchmarkBind(b *testing.B) {
	s := statement()
	s.Digests = make([]kv.Digest, 128)
	b.ReportAllocs()
	for range b.N {
		Bind(counting(), s)
	}
}

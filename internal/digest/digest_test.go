package digest

import (
	"bytes"
	"crypto/aes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"bulkhead.dev/bulkhead/kv"
)

func algorithms() []Algorithm { return []Algorithm{XXH3, GMAC} }

func digester(t testing.TB, a Algorithm, key [32]byte) kv.Digester {
	t.Helper()
	d, err := New(a, key)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// counting is the key 00 01 02 ... 1f.
func counting() (key [32]byte) {
	for i := range key {
		key[i] = byte(i)
	}
	return key
}

// content is n bytes that depend on a seed.
func content(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestAlgorithmNames(t *testing.T) {
	for a := range Algorithm(math.MaxUint8) {
		got, err := Parse(a.String())
		known := a == XXH3 || a == GMAC
		if known != (err == nil) || known && got != a {
			t.Errorf("%d is %q, and that parses to %d, %v", uint8(a), a, got, err)
		}
		if _, err := New(a, counting()); known != (err == nil) {
			t.Errorf("new digester of algorithm %d: %v", uint8(a), err)
		}
	}
	for _, s := range []string{"", "none", "XXH3", "xxh3 ", "sha256"} {
		if a, err := Parse(s); err == nil {
			t.Errorf("%q parses to %v", s, a)
		}
	}
	if XXH3 != 1 || GMAC != 2 {
		t.Error("the numbers go on the wire and must stay")
	}
}

// The hash under XXH3 is XXH3-64 as its authors publish it: the vectors of the
// reference implementation's self-test.
func TestXXH3Vectors(t *testing.T) {
	const prime32, prime64 = 2654435761, 11400714785074694797
	b := make([]byte, 2240)
	gen := uint64(prime32)
	for i := range b {
		b[i] = byte(gen >> 56)
		gen *= prime64
	}
	for _, v := range []struct {
		n    int
		seed uint64
		want uint64
	}{
		{0, 0, 0x2D06800538D394C2}, {1, 0, 0xC44BDFF4074EECDB}, {6, 0, 0x27B56A84CD2D7325}, {12, 0, 0xA713DAF0DFBB77E7},
		{24, 0, 0xA3FE70BF9D3510EB}, {48, 0, 0x397DA259ECBA1F11}, {80, 0, 0xBCDEFBBB2C47C90A}, {195, 0, 0xCD94217EE362EC3A},
		{403, 0, 0xCDEB804D65C6DEA4}, {512, 0, 0x617E49599013CB6B}, {2048, 0, 0xDD59E2C3A5F038E0}, {2240, 0, 0x6E73A90539CF2948},
		{0, prime64, 0xA8A6B918B2F0364A}, {1, prime64, 0x032BE332DD766EF8}, {6, prime64, 0x84589C116AB59AB9},
		{195, prime64, 0xBA68003D370CB3D9}, {403, prime64, 0x6259F6ECFD6443FD}, {512, prime64, 0x3CE457DE14C27708},
		{2048, prime64, 0x66F81670669ABABC}, {2240, prime64, 0x757BA8487D1B5247},
	} {
		if got := xxh3.HashSeed(b[:v.n], v.seed); got != v.want {
			t.Errorf("%d bytes, seed %x: %016X, want %016X", v.n, v.seed, got, v.want)
		}
	}
}

// xxh3Reference is the digest as its description says, in other words.
func xxh3Reference(key [32]byte, index int, page []byte) (out kv.Digest) {
	mac := hmac.New(sha256.New, key[:])
	fmt.Fprint(mac, "bulkhead page seed v1")
	_ = binary.Write(mac, binary.BigEndian, uint64(index))
	seed := binary.LittleEndian.Uint64(mac.Sum(nil))
	binary.BigEndian.PutUint64(out[:], xxh3.HashSeed(page, seed))
	return out
}

// gmacReference is GMAC by the book (NIST SP 800-38D), bit by bit.
func gmacReference(key [32]byte, index int, page []byte) kv.Digest {
	mac := hmac.New(sha256.New, key[:])
	fmt.Fprint(mac, "bulkhead page gmac key v1")
	block, err := aes.NewCipher(mac.Sum(nil))
	if err != nil {
		panic(err)
	}
	var h, y, j, out [16]byte
	block.Encrypt(h[:], h[:])
	times := func(b []byte) { // y = (y + b) * h
		for i := range b {
			y[i] ^= b[i]
		}
		var z [16]byte
		v := h
		for i := range 128 {
			if y[i/8]>>(7-i%8)&1 == 1 {
				for k := range z {
					z[k] ^= v[k]
				}
			}
			odd := v[15] & 1
			for k := 15; k > 0; k-- {
				v[k] = v[k]>>1 | v[k-1]<<7
			}
			v[0] = v[0]>>1 ^ odd*0xe1
		}
		y = z
	}
	for part := range slices.Chunk(page, 16) {
		times(part)
	}
	times(binary.BigEndian.AppendUint64(nil, uint64(len(page))*8)) // and no ciphertext: 8 zero bytes
	binary.BigEndian.PutUint64(j[4:], uint64(index))
	j[15] = 1
	block.Encrypt(out[:], j[:])
	for i := range out {
		out[i] ^= y[i]
	}
	return kv.Digest(out)
}

func reference(a Algorithm, key [32]byte, index int, page []byte) kv.Digest {
	if a == XXH3 {
		return xxh3Reference(key, index, page)
	}
	return gmacReference(key, index, page)
}

func TestAgainstReference(t *testing.T) {
	for _, a := range algorithms() {
		d := digester(t, a, counting())
		for i, n := range []int{0, 1, 15, 16, 17, 240, 241, 1024, 1025, 4096, 9999} {
			for _, index := range []int{0, 1, i, 255, 256, 1 << 20, math.MaxInt} {
				page := content(uint64(n), n)
				got := d.Page(index, [][]byte{page})
				if want := reference(a, counting(), index, page); got != want {
					t.Fatalf("%v of %d bytes as page %d: %x, want %x", a, n, index, got, want)
				}
			}
		}
	}
}

// Values that must never change: two workers of different versions compare
// them.
func TestGolden(t *testing.T) {
	page := make([]byte, 1000)
	for i := range page {
		page[i] = byte(i)
	}
	for _, v := range []struct {
		a     Algorithm
		index int
		n     int
		want  string
	}{
		{XXH3, 0, 1000, "455525309c380bd50000000000000000"},
		{XXH3, 7, 1000, "793a37a07c50fdd80000000000000000"},
		{XXH3, 0, 0, "208ebcf45a4e48fa0000000000000000"},
		{GMAC, 0, 1000, "e3e7d7f378f91e91b26462db852bce9e"},
		{GMAC, 7, 1000, "a9c0c588d933ab0c849937263954c627"},
		{GMAC, 0, 0, "343ac0bf3883a034da9e3dc449bc82e4"},
	} {
		got := digester(t, v.a, counting()).Page(v.index, [][]byte{page[:v.n]})
		if hex.EncodeToString(got[:]) != v.want {
			t.Errorf("%v of %d bytes as page %d: %x, want %s", v.a, v.n, v.index, got, v.want)
		}
	}
}

// A digest is of the bytes, not of how they are cut; and a digester carries
// nothing from page to page.
func TestSegmentsDoNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	for _, a := range algorithms() {
		d := digester(t, a, counting())
		for _, n := range []int{0, 1, 63, 64, 65, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 5000, 70000} {
			page := content(uint64(n), n)
			want := reference(a, counting(), n, page)
			for range 30 {
				var segs [][]byte
				for rest := page; len(rest) > 0 || len(segs) < 2; {
					// Also empty segments, and some of exactly the hash's block sizes.
					cut := min(len(rest), []int{r.IntN(len(rest) + 1), 0, 64, 1024, r.IntN(100)}[r.IntN(5)])
					segs, rest = append(segs, rest[:cut]), rest[cut:]
				}
				if got := d.Page(n, segs); got != want {
					t.Fatalf("%v of %d bytes in %d segments: %x, want %x", a, n, len(segs), got, want)
				}
				if r.IntN(3) == 0 {
					d.Page(r.IntN(100), [][]byte{content(r.Uint64(), 100), content(r.Uint64(), r.IntN(3000))})
				}
			}
			if got := d.Page(n, [][]byte{page}); got != want {
				t.Fatalf("%v of %d bytes after many: %x, want %x", a, n, got, want)
			}
		}
		if d.Page(3, nil) != d.Page(3, [][]byte{{}}) {
			t.Errorf("%v: no segment and an empty one differ", a)
		}
	}
}

// Every bit of the page, the index and the key matters.
func TestEveryBitMatters(t *testing.T) {
	page := content(1, 600)
	for _, a := range algorithms() {
		d := digester(t, a, counting())
		seen := map[kv.Digest]string{}
		differs := func(got kv.Digest, what string) {
			t.Helper()
			if other := seen[got]; other != "" {
				t.Fatalf("%v: %s and %s have one digest", a, what, other)
			}
			seen[got] = what
		}
		differs(d.Page(0, [][]byte{page}), "the page")
		for bit := range len(page) * 8 {
			page[bit/8] ^= 1 << (bit % 8)
			differs(d.Page(0, [][]byte{page}), fmt.Sprint("bit ", bit))
			page[bit/8] ^= 1 << (bit % 8)
		}
		for i := 1; i < 300; i++ {
			differs(d.Page(i, [][]byte{page}), fmt.Sprint("index ", i))
		}
		for bit := range 31 {
			differs(d.Page(1<<(32+bit), [][]byte{page}), fmt.Sprint("index bit ", 32+bit))
		}
		for bit := range 256 {
			key := counting()
			key[bit/8] ^= 1 << (bit % 8)
			differs(digester(t, a, key).Page(0, [][]byte{page}), fmt.Sprint("key bit ", bit))
		}
		differs(d.Page(0, [][]byte{page[:599]}), "a byte less")
		differs(d.Page(0, [][]byte{append(bytes.Clone(page), 0)}), "a zero more")
	}
}

// Seeds of pages are spread: a derivation that lost bits would show.
func TestSeedsAreSpread(t *testing.T) {
	d := digester(t, XXH3, counting()).(*xxh3Digester)
	ones := [64]int{}
	for i := range 4096 {
		for s := d.seed(i); s != 0; s &= s - 1 {
			ones[bits.TrailingZeros64(s)]++
		}
	}
	for bit, n := range ones { // mean 2048, sigma 32
		if n < 1800 || n > 2300 {
			t.Errorf("bit %d is set in %d of 4096 seeds", bit, n)
		}
	}
}

// Nothing of a prompt stays in a digester that is kept.
func TestGMACForgetsTheLastPage(t *testing.T) {
	d := digester(t, GMAC, counting()).(*gmacDigester)
	d.Page(0, [][]byte{content(1, 500), content(2, 500)})
	if d.Page(1, [][]byte{{1}, {2}}); cap(d.joint) < 1000 {
		t.Fatal("the scratch was not kept: this shows nothing")
	}
	if i := slices.IndexFunc(d.joint[:cap(d.joint)], func(b byte) bool { return b != 0 }); i >= 0 {
		t.Errorf("byte %d of a page is still there", i)
	}
}

func TestPageAllocatesNothing(t *testing.T) {
	page := content(1, 1<<16)
	for _, a := range algorithms() {
		for name, segs := range map[string][][]byte{
			"whole": {page}, "partial": {page[:1000], page[2000:2500], page[4000:9000]}, "small": {page[:100]},
		} {
			d := digester(t, a, counting())
			i := 0
			if n := testing.AllocsPerRun(100, func() { i++; d.Page(i, segs) }); n != 0 {
				t.Errorf("%v, %s page: %v allocations", a, name, n)
			}
		}
	}
}

// BenchmarkPage walks pages of a 64 MiB area (cold), or one page (hot).
func BenchmarkPage(b *testing.B) {
	area := content(1, 64<<20)
	for _, a := range algorithms() {
		for _, size := range []int{12 << 10, 64 << 10, 256 << 10, 1 << 20} {
			for name, pages := range map[string]int{"hot": 1, "cold": len(area) / size} {
				b.Run(fmt.Sprintf("%v/%dKiB/%s", a, size>>10, name), func(b *testing.B) {
					d := digester(b, a, counting())
					segs := make([][]byte, 1)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					for i := range b.N {
						at := i % pages * size
						segs[0] = area[at : at+size]
						d.Page(i, segs)
					}
				})
			}
		}
	}
}

// BenchmarkPartial is the last page of a prompt: 60 segments of half of their
// rows.
func BenchmarkPartial(b *testing.B) {
	area := content(1, 1<<20)
	var segs [][]byte
	for s := range 60 {
		segs = append(segs, area[s*16<<10:][:8<<10])
	}
	for _, a := range algorithms() {
		b.Run(a.String(), func(b *testing.B) {
			d := digester(b, a, counting())
			b.SetBytes(60 * 8 << 10)
			b.ReportAllocs()
			for i := range b.N {
				d.Page(i, segs)
			}
		})
	}
}

// BenchmarkNew is what a hand-off pays before its first page.
func BenchmarkNew(b *testing.B) {
	for _, a := range algorithms() {
		b.Run(a.String(), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				digester(b, a, counting())
			}
		})
	}
}

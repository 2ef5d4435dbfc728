package upstream

import (
	"strconv"
	"strings"
	"testing"
)

// benchBodies are a chat of 1 kB in 8 messages, and one with a prompt of 4 MB.
func benchBodies() map[string][]byte {
	var b strings.Builder
	b.WriteString(`{"model":"recall","stream":true,"temperature":0.7,"max_tokens":128,"user":"u-17","messages":[{"role":"system","content":"You are brief."}`)
	for i := range 7 {
		role := [2]string{"user", "assistant"}[i%2]
		b.WriteString(`,{"role":"` + role + `","content":"` + strconv.Itoa(i) + strings.Repeat(" The quick brown fox jumps.", 4) + `"}`)
	}
	b.WriteString("]}")
	long := `{"model":"recall","messages":[{"role":"user","content":"` + strings.Repeat("The quick brown fox jumps over the lazy dog. ", 93000) + `"}]}`
	return map[string][]byte{"1kB": []byte(b.String()), "4MB": []byte(long)}
}

func BenchmarkScan(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := Scan(Chat, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkJudge(b *testing.B) {
	for name, body := range benchBodies() {
		for _, d := range []Dialect{Bulkhead, VLLMNixl} {
			b.Run(name+"/"+d.String(), func(b *testing.B) {
				scanned, err := Scan(Chat, body)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := scanned.Judge(Policy{Dialect: d}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkLeg(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			scanned, err := Scan(Chat, body)
			if err != nil {
				b.Fatal(err)
			}
			r, err := scanned.Judge(Policy{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				r.Leg(Bulkhead, DecodeRole, control())
			}
		})
	}
}

func BenchmarkPieces(b *testing.B) {
	for name, body := range benchBodies() {
		b.Run(name, func(b *testing.B) {
			scanned, err := Scan(Chat, body)
			if err != nil {
				b.Fatal(err)
			}
			r, err := scanned.Judge(Policy{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r.Pieces(Bulkhead, DecodeRole, control())
			}
		})
	}
}

// TestAllocations holds that neither messages nor a long prompt cost allocations.
func TestAllocations(t *testing.T) {
	for name, body := range benchBodies() {
		b, err := Scan(Chat, body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Judge(Policy{Dialect: VLLM})
		if err != nil {
			t.Fatal(err)
		}
		c := goldenControl(VLLM, Plain, 0)
		for _, tc := range []struct {
			what string
			most float64
			do   func()
		}{
			{"Scan", 6, func() { _, _ = Scan(Chat, body) }},
			{"Judge", 5, func() { _, _ = b.Judge(Policy{Dialect: VLLM}) }},
			{"Leg", 2, func() { r.Leg(VLLM, Plain, c) }},
			{"Pieces", 3, func() { r.Pieces(VLLM, Plain, c) }},
		} {
			if got := testing.AllocsPerRun(5, tc.do); got > tc.most || got == 0 {
				t.Errorf("%s %s: %v allocations, at most %v are right", name, tc.what, got, tc.most)
			}
		}
	}
}

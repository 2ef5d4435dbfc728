package llm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
)

// ggufReader reads a file back, by the format's own description.
type ggufReader struct {
	t  *testing.T
	b  []byte
	at int
}

func (r *ggufReader) take(n int) []byte {
	r.t.Helper()
	if n < 0 || r.at+n > len(r.b) {
		r.t.Fatalf("the file ends at %d, want %d bytes at %d", len(r.b), n, r.at)
	}
	r.at += n
	return r.b[r.at-n : r.at]
}

func (r *ggufReader) u32() uint32  { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *ggufReader) u64() uint64  { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *ggufReader) text() string { return string(r.take(int(r.u64()))) }

func (r *ggufReader) value(kind uint32) any {
	switch kind {
	case ggufUint32, ggufInt32:
		return r.u32()
	case ggufFloat32:
		return math.Float32frombits(r.u32())
	case ggufBool:
		return r.take(1)[0] == 1
	case ggufString:
		return r.text()
	case ggufArray:
		kind := r.u32()
		list := make([]any, r.u64())
		for i := range list {
			list[i] = r.value(kind)
		}
		return list
	}
	r.t.Fatalf("unknown kind %d", kind)
	return nil
}

func TestWriteRecall(t *testing.T) {
	var file bytes.Buffer
	if err := WriteRecall(&file); err != nil {
		t.Fatal(err)
	}
	r := &ggufReader{t: t, b: file.Bytes()}
	if magic := string(r.take(4)); magic != "GGUF" || r.u32() != 3 {
		t.Fatalf("magic %q, or the version", magic)
	}
	count, keys := int(r.u64()), int(r.u64())
	meta := map[string]any{}
	for range keys {
		name := r.text()
		if _, twice := meta[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		meta[name] = r.value(r.u32())
	}
	c, w := recallWeights()
	for name, want := range map[string]any{
		"general.architecture": "llama", "llama.context_length": uint32(c.Window), "llama.attention.key_length": uint32(c.HeadDim),
		"llama.rope.freq_base": float32(c.Theta), "tokenizer.ggml.bos_token_id": uint32(BOS), "tokenizer.ggml.add_bos_token": true,
	} {
		if meta[name] != want {
			t.Errorf("%s is %v, want %v", name, meta[name], want)
		}
	}
	tokens, _ := meta["tokenizer.ggml.tokens"].([]any)
	if len(tokens) != c.Vocab || tokens['A'] != "A" || tokens[' '] != "\u0120" || tokens[0xad] != "\u0143" || tokens[End] != "<|end|>" {
		t.Errorf("tokens: %d", len(tokens))
	}
	seen := map[any]bool{}
	for _, s := range tokens {
		if seen[s] {
			t.Errorf("token %q is there twice", s)
		}
		seen[s] = true
	}
	checkTensors(t, r, count, ggufTensors(&c, &w))
}

func checkTensors(t *testing.T, r *ggufReader, count int, want []ggufTensor) {
	t.Helper()
	type entry struct {
		name string
		dims []uint64
		at   uint64
	}
	var table []entry
	for range count {
		e := entry{name: r.text()}
		for range r.u32() {
			e.dims = append(e.dims, r.u64())
		}
		if kind := r.u32(); kind != ggufTensorF32 {
			t.Errorf("%s has kind %d", e.name, kind)
		}
		e.at = r.u64()
		table = append(table, e)
	}
	base := int(aligned(uint64(r.at)))
	if len(table) != len(want) {
		t.Fatalf("%d tensors, want %d", len(table), len(want))
	}
	for i, e := range table {
		n := uint64(1)
		for _, d := range e.dims {
			n *= d
		}
		if e.name != want[i].name || n != uint64(len(want[i].w)) || e.dims[0] != uint64(want[i].cols) || e.at%ggufAlign != 0 {
			t.Errorf("%s %v at %d", e.name, e.dims, e.at)
		}
		r.at = base + int(e.at)
		got := make([]float32, n)
		for k := range got {
			got[k] = math.Float32frombits(r.u32())
		}
		if !slices.Equal(got, want[i].w) {
			t.Errorf("%s has other values", e.name)
		}
	}
	if int(aligned(uint64(r.at))) != len(r.b) {
		t.Errorf("the file goes on behind its tensors")
	}
}

type fullDisk struct{ left int }

var errFull = errors.New("full")

func (d *fullDisk) Write(b []byte) (int, error) {
	if len(b) > d.left {
		return d.left, errFull
	}
	d.left -= len(b)
	return len(b), nil
}

func TestWriteRecallFails(t *testing.T) {
	for _, left := range []int{0, 5000, 1 << 20} {
		if err := WriteRecall(&fullDisk{left}); !errors.Is(err, errFull) {
			t.Errorf("after %d bytes: %v", left, err)
		}
	}
}

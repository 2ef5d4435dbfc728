package llm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// The GGUF format, version 3, as far as a Llama in float32 needs it. Source: the format's
// specification in ggml's documentation.
const (
	ggufMagic   = "GGUF"
	ggufVersion = 3
	ggufAlign   = 32 // bytes, of every tensor

	ggufUint32  = 4
	ggufInt32   = 5
	ggufFloat32 = 6
	ggufBool    = 7
	ggufString  = 8
	ggufArray   = 9

	ggufTensorF32 = 0

	ggufTokenNormal  = 1
	ggufTokenControl = 3
)

// WriteRecall writes the model recall, with its tokenizer, as a GGUF file that llama.cpp
// runs, in float32. There a chat template and the text of special tokens stand in place
// of [Bytes.Chat]: text that spells a special token becomes one, which never happens here.
//
// Errors: those of w.
func WriteRecall(w io.Writer) error {
	c, weights := recallWeights()
	g := &ggufWriter{w: bufio.NewWriter(w)}
	g.model(&c)
	g.tokenizer()
	return g.write(ggufTensors(&c, &weights))
}

// ggufWriter collects the metadata of a file and writes it.
type ggufWriter struct {
	w    *bufio.Writer
	meta []byte
	keys uint64
}

func (g *ggufWriter) text(s string) {
	g.meta = binary.LittleEndian.AppendUint64(g.meta, uint64(len(s)))
	g.meta = append(g.meta, s...)
}

func (g *ggufWriter) word(n uint32) { g.meta = binary.LittleEndian.AppendUint32(g.meta, n) }

func (g *ggufWriter) key(name string, kind uint32) {
	g.keys++
	g.text(name)
	g.word(kind)
}

func (g *ggufWriter) list(name string, kind uint32, n int) {
	g.key(name, ggufArray)
	g.word(kind)
	g.meta = binary.LittleEndian.AppendUint64(g.meta, uint64(n))
}

// model writes the shape. llama.cpp knows no layer without an MLP, so there is one of
// zeros.
func (g *ggufWriter) model(c *Config) {
	for _, s := range [...][2]string{{"general.architecture", "llama"}, {"general.name", c.Name}} {
		g.key(s[0], ggufString)
		g.text(s[1])
	}
	for _, n := range [...]struct {
		key   string
		value int
	}{
		{"general.alignment", ggufAlign}, {"general.file_type", ggufTensorF32}, {"llama.context_length", c.Window},
		{"llama.embedding_length", c.Dim}, {"llama.block_count", c.Layers}, {"llama.feed_forward_length", ggufHidden},
		{"llama.attention.head_count", c.Heads}, {"llama.attention.head_count_kv", c.KVHeads},
		{"llama.attention.key_length", c.HeadDim}, {"llama.attention.value_length", c.HeadDim},
		{"llama.rope.dimension_count", c.HeadDim}, {"llama.vocab_size", c.Vocab},
	} {
		g.key(n.key, ggufUint32)
		g.word(uint32(n.value))
	}
	for _, x := range [...]struct {
		key   string
		value float64
	}{{"llama.attention.layer_norm_rms_epsilon", c.Eps}, {"llama.rope.freq_base", c.Theta}} {
		g.key(x.key, ggufFloat32)
		g.word(math.Float32bits(float32(x.value)))
	}
}

// ggufHidden is the width of the MLP of zeros.
const ggufHidden = 32

// specials are the texts of the special tokens, from BOS up.
func specials() [byteVocab - 256]string {
	return [...]string{"<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"}
}

// chatTemplate does what [Bytes.Chat] does.
const chatTemplate = `{%- for m in messages -%}` +
	`{%- if m.role == 'assistant' and not loop.first and messages[loop.index0 - 1].role == 'user' -%}{{ m.content }}` +
	`{%- else -%}{%- if not loop.first -%}{{ '<|end|>' }}{%- endif -%}` +
	`{{ '<|' + ('system' if m.role == 'developer' else m.role) + '|>' + m.content }}{%- endif -%}{%- endfor -%}`

// tokenizer writes a byte tokenizer as a byte-level BPE that merges nothing.
func (g *ggufWriter) tokenizer() {
	for _, s := range [...][2]string{
		{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", "default"}, {"tokenizer.chat_template", chatTemplate},
	} {
		g.key(s[0], ggufString)
		g.text(s[1])
	}
	g.list("tokenizer.ggml.tokens", ggufString, byteVocab)
	for b := range 256 {
		g.text(string(byteRune(b)))
	}
	for _, s := range specials() {
		g.text(s)
	}
	g.list("tokenizer.ggml.token_type", ggufInt32, byteVocab)
	for t := range byteVocab {
		kind := uint32(ggufTokenNormal)
		if t > 255 {
			kind = ggufTokenControl
		}
		g.word(kind)
	}
	g.list("tokenizer.ggml.merges", ggufString, 0)
	for _, n := range [...]struct {
		key string
		t   Token
	}{{"tokenizer.ggml.bos_token_id", BOS}, {"tokenizer.ggml.eos_token_id", End}} {
		g.key(n.key, ggufUint32)
		g.word(uint32(n.t))
	}
	for _, b := range [...]struct {
		key string
		on  byte
	}{{"tokenizer.ggml.add_bos_token", 1}, {"tokenizer.ggml.add_eos_token", 0}} {
		g.key(b.key, ggufBool)
		g.meta = append(g.meta, b.on)
	}
}

// byteRune is how byte-level BPE writes a byte: printable ones as themselves, the others
// from U+0100 up.
func byteRune(b int) rune {
	printable := func(b int) bool { return b > ' ' && b < 0x7f || b > 0xa0 && b != 0xad }
	if printable(b) {
		return rune(b)
	}
	n := 0
	for i := range b {
		if !printable(i) {
			n++
		}
	}
	return rune(256 + n)
}

// ggufTensor is one tensor: rows of cols values.
type ggufTensor struct {
	name       string
	rows, cols int // rows 0: a vector of cols
	w          []float32
}

func ggufTensors(c *Config, w *Weights) []ggufTensor {
	q, r := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	all := []ggufTensor{{"token_embd.weight", c.Vocab, c.Dim, w.Embed}, {"output_norm.weight", 0, c.Dim, w.Norm}, {"output.weight", c.Vocab, c.Dim, w.Head}}
	for i := range w.Layers {
		l, p := &w.Layers[i], fmt.Sprintf("blk.%d.", i)
		all = append(all,
			ggufTensor{p + "attn_norm.weight", 0, c.Dim, l.AttnNorm},
			ggufTensor{p + "attn_q.weight", q, c.Dim, l.Q}, ggufTensor{p + "attn_k.weight", r, c.Dim, l.K},
			ggufTensor{p + "attn_v.weight", r, c.Dim, l.V}, ggufTensor{p + "attn_output.weight", c.Dim, q, l.O},
			ggufTensor{p + "ffn_norm.weight", 0, c.Dim, zeros(c.Dim, 1)},
			ggufTensor{p + "ffn_gate.weight", ggufHidden, c.Dim, zeros(ggufHidden, c.Dim)},
			ggufTensor{p + "ffn_up.weight", ggufHidden, c.Dim, zeros(ggufHidden, c.Dim)},
			ggufTensor{p + "ffn_down.weight", c.Dim, ggufHidden, zeros(c.Dim, ggufHidden)},
		)
	}
	return all
}

// write writes the file: header, metadata, the table of tensors, the tensors.
func (g *ggufWriter) write(tensors []ggufTensor) error {
	head := append([]byte(nil), ggufMagic...)
	head = binary.LittleEndian.AppendUint32(head, ggufVersion)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(tensors)))
	head = binary.LittleEndian.AppendUint64(head, g.keys)
	at := uint64(0)
	for _, t := range tensors {
		g.text(t.name)
		dims := []int{t.cols, t.rows}
		if t.rows == 0 {
			dims = dims[:1]
		}
		g.word(uint32(len(dims)))
		for _, n := range dims {
			g.meta = binary.LittleEndian.AppendUint64(g.meta, uint64(n))
		}
		g.word(ggufTensorF32)
		g.meta = binary.LittleEndian.AppendUint64(g.meta, at)
		at += aligned(uint64(4 * len(t.w)))
	}
	size := uint64(len(head) + len(g.meta))
	parts := [][]byte{head, g.meta, make([]byte, aligned(size)-size)}
	for _, t := range tensors {
		b := make([]byte, 0, aligned(uint64(4*len(t.w))))
		for _, x := range t.w {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		parts = append(parts, b[:cap(b)])
	}
	var failed error
	for _, p := range parts {
		_, err := g.w.Write(p)
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return fmt.Errorf("llm: write gguf: %w", failed)
	}
	if err := g.w.Flush(); err != nil {
		return fmt.Errorf("llm: write gguf: %w", err)
	}
	return nil
}

func aligned(n uint64) uint64 { return (n + ggufAlign - 1) / ggufAlign * ggufAlign }

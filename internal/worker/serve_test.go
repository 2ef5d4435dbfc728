package worker

import (
	crand "crypto/rand"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"bulkhead.dev/bulkhead/internal/digest"
	"bulkhead.dev/bulkhead/internal/llm"
	"bulkhead.dev/bulkhead/kv"
	"bulkhead.dev/bulkhead/wire"
)

var recite8k = flag.Bool("recite8k", false, "recite the first line of a prompt of 8,000 tokens too")

const (
	shipPrompt = "The code word of ship 7 is heliotrope. The code word of ship 7 is"
	shipAnswer = " heliotrope."
)

// TestServe sends one request in every shape of it.
func TestServe(t *testing.T) {
	p := newPair(t)
	for _, stream := range []bool{false, true} {
		for _, chat := range []bool{false, true} {
			t.Run(fmt.Sprintf("stream %v chat %v", stream, chat), func(t *testing.T) {
				p.t = t
				c := p.complete(shipPrompt, len(shipAnswer))
				tokens := len(shipPrompt) + 1
				if chat {
					c = p.call("/v1/chat/completions", map[string]any{
						"messages":   []any{map[string]any{"role": "user", "content": shipPrompt}},
						"max_tokens": len(shipAnswer),
					})
					tokens = len(shipPrompt) + 2
				}
				if stream {
					c = c.with(map[string]any{"stream": true, "stream_options": map[string]any{"include_usage": true, "continuous_usage_stats": true}})
				}
				pre, dec := p.both(c)
				first := parseAnswer(pre.body)
				if pre.status != 200 || first.text() != " " || first.ID != c.rid() || first.Choices[0].Finish != "length" ||
					*first.Usage != (usage{tokens, 1, tokens + 1}) {
					t.Errorf("prefill %d %s", pre.status, pre.body)
				}
				want := usage{tokens, len(shipAnswer), tokens + len(shipAnswer)}
				if stream {
					checkStream(t, c, dec, want)
				} else if v := parseAnswer(dec.body); dec.status != 200 || v.text() != shipAnswer || v.ID != c.rid() || *v.Usage != want ||
					v.Choices[0].Finish != "length" || v.Model != "recall" {
					t.Errorf("decode %d %s", dec.status, dec.body)
				}
				p.whole()
			})
		}
	}
}

func checkStream(t *testing.T, c legCall, r reply, want usage) {
	t.Helper()
	s := parseStream(t, r.body)
	if r.status != 200 || s.text != shipAnswer || s.finish != "length" || !s.done || r.header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("decode %d %v %q", r.status, r.header, r.body)
	}
	for i, v := range s.chunks {
		last := i == len(s.chunks)-1
		if v.ID != c.rid() || v.Usage == nil || v.Usage.Prompt != want.Prompt || (len(v.Choices) == 0) != last {
			t.Errorf("chunk %d: %+v", i, v)
		}
	}
	if got := s.chunks[len(s.chunks)-1].Usage; *got != want {
		t.Errorf("usage %+v, want %+v", *got, want)
	}
}

// TestOrders has the two legs arrive in either order: the second only once the
// first has been through its door.
func TestOrders(t *testing.T) {
	p := newPair(t)
	t.Run("prefill first", func(t *testing.T) {
		p.t = t
		c := p.complete(shipPrompt, 12)
		pre := p.beginPrefill(c)
		p.reaches(p.prefill, c)
		dec := p.beginDecode(c)
		if a, b := <-pre.done, <-dec.done; text(a) != " " || text(b) != shipAnswer {
			t.Errorf("prefill %s, decode %s", a.body, b.body)
		}
		p.whole()
	})
	t.Run("decode first", func(t *testing.T) {
		p.t = t
		c := p.complete(shipPrompt, 12)
		dec := p.beginDecode(c)
		p.reaches(p.prefill, c)
		pre := p.beginPrefill(c)
		if a, b := <-pre.done, <-dec.done; text(a) != " " || text(b) != shipAnswer {
			t.Errorf("prefill %s, decode %s", a.body, b.body)
		}
		p.whole()
	})
}

// TestShapes serves prompts around every boundary of pages and chunks.
func TestShapes(t *testing.T) {
	for _, shape := range []struct {
		page, chunk int
		alg         digest.Algorithm
		protection  wire.Protection
	}{
		{16, 256, digest.XXH3, wire.PlainData}, {16, 7, digest.GMAC, wire.PlainData}, {16, 16, digest.XXH3, wire.TLSAll},
		{64, 1, digest.XXH3, wire.PlainData}, {64, 33, digest.GMAC, wire.TLSAll},
	} {
		t.Run(fmt.Sprintf("%+v", shape), func(t *testing.T) {
			t.Parallel()
			p := newPair(t, func(c *Config) {
				c.PageTokens, c.Chunk, c.Digest = shape.page, shape.chunk, shape.alg
				tcp := c.Transport.(wire.TCP)
				tcp.Protection = shape.protection
				c.Transport = tcp
			})
			line := "Key 31 opens the north door. "
			for _, tokens := range []int{63, 64, 65, 79, 80, 81, 128, 129} {
				prompt := line + strings.Repeat("~", tokens-1-2*len(line)) + line
				pre, dec := p.both(p.complete(prompt[:len(prompt)-len("the north door. ")], 9))
				if want := "the north"; text(dec) != want || text(pre) != want[:1] {
					t.Errorf("%d tokens: prefill %d %s, decode %d %s", tokens, pre.status, pre.body, dec.status, dec.body)
				}
			}
			p.whole()
		})
	}
}

// noise is a small model whose answers depend on chance.
func noise(t *testing.T) *llm.Model {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	tensor := func(n int) []float32 {
		w := make([]float32, n)
		for i := range w {
			w[i] = float32(r.NormFloat64())
		}
		return w
	}
	c := llm.Config{Name: "noise", Vocab: llm.Bytes{}.Vocab(), Dim: 16, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 8, Window: 4096, Theta: 1e4, Eps: 1e-5}
	m, err := llm.New(c, llm.Weights{
		Embed: tensor(c.Vocab * c.Dim), Norm: tensor(c.Dim),
		Layers: []llm.LayerWeights{{AttnNorm: tensor(c.Dim), Q: tensor(16 * c.Dim), K: tensor(8 * c.Dim), V: tensor(8 * c.Dim), O: tensor(c.Dim * 16)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// alone is the answer that one engine gives by itself, as token ids.
func alone(t *testing.T, m *llm.Model, prompt []llm.Token, how llm.Sampling, n int) []llm.Token {
	t.Helper()
	pool, err := kv.New(kv.Config{Layout: m.Layout(16), Pages: 64, Epoch: 1, Keys: keySource(crand.Reader)})
	if err != nil {
		t.Fatal(err)
	}
	seq, err := pool.Local(kv.Domain{1}, len(prompt)+n, nil)
	if err != nil {
		t.Fatal(err)
	}
	runner, err := m.NewRunner(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	sampler, err := llm.NewSampler(how)
	if err != nil {
		t.Fatal(err)
	}
	var out []llm.Token
	for next := prompt; len(out) < n; next = out[len(out)-1:] {
		items := []llm.Item{{Seq: seq, Tokens: next, Logits: make([]float32, m.Config().Vocab)}}
		runner.Step(items)
		token, err := sampler.Next(items[0].Logits)
		if err != nil || items[0].Err != nil {
			t.Fatal(err, items[0].Err)
		}
		if out = append(out, token); (llm.Bytes{}).Ends(token) {
			break
		}
	}
	return out
}

// TestSampled samples at a high temperature: the two workers together say what
// one engine says with the same seed, to the last token, and other seeds say
// something else.
func TestSampled(t *testing.T) {
	m := noise(t)
	p := newPair(t, func(c *Config) { c.Model = m })
	const prompt = "the quick brown fox jumps over"
	answers := map[string]bool{}
	for seed := range 12 {
		how := llm.Sampling{Temperature: 1.5, TopP: 0.95, Seed: uint64(seed)}
		var a llm.Assembler
		var want []byte
		for _, token := range alone(t, m, llm.Bytes{}.Text(prompt), how, 60) {
			want = a.Write(want, llm.Bytes{}.Append(nil, token))
		}
		want = a.Flush(want)
		c := p.complete(prompt, 60).with(map[string]any{"temperature": 1.5, "top_p": 0.95, "seed": seed})
		pre, dec := p.both(c)
		if got := text(dec); got != string(want) || !strings.HasPrefix(got, text(pre)) || pre.status != 200 {
			t.Errorf("seed %d: prefill %q, decode %q, want %q", seed, text(pre), got, want)
		}
		answers[string(want)] = true
	}
	if len(answers) < 10 {
		t.Errorf("12 seeds gave %d answers: the model leaves nothing to chance", len(answers))
	}
	p.whole()
}

// TestStops cuts answers in front of stop strings, wherever the chunks end.
func TestStops(t *testing.T) {
	p := newPair(t)
	for _, c := range []struct {
		stop   any
		text   string
		finish string
	}{
		{nil, shipAnswer, "length"},
		{"trope", " helio", "stop"},
		{[]string{"zz", "trop", "helix"}, " helio", "stop"},
		{" ", "", "stop"},
		{".", " heliotrope", "stop"},
		{[]string{". The code of", "tropes"}, shipAnswer, "length"},
	} {
		for _, stream := range []bool{false, true} {
			pre, dec := p.both(p.complete(shipPrompt, 12).with(map[string]any{"stop": c.stop, "stream": stream}))
			got, finish := text(dec), ""
			if stream {
				s := parseStream(t, dec.body)
				got, finish = s.text, s.finish
			} else {
				finish = parseAnswer(dec.body).Choices[0].Finish
			}
			if got != c.text || finish != c.finish || text(pre) != " " {
				t.Errorf("stop %v stream %v: %q %s, prefill %q", c.stop, stream, got, finish, text(pre))
			}
		}
	}
	p.whole()
}

// TestMany has more requests than either pool can hold, of two domains.
func TestMany(t *testing.T) {
	p := newPair(t, func(c *Config) { c.Pages, c.Chunk = 24, 32 })
	queued := make(chan struct{})
	watch := sync.OnceFunc(func() { close(queued) })
	var all sync.WaitGroup
	const requests = 60
	for i := range requests {
		all.Go(func() {
			prompt, want := recital(40+3*i, i)
			c := p.complete(prompt, len(want)).with(map[string]any{"stream": i%3 == 0})
			c.domain[1] = byte(i % 2)
			pre, dec := p.both(c)
			got := text(dec)
			if i%3 == 0 {
				got = parseStream(t, dec.body).text
			}
			if got != want || text(pre) != want[:1] {
				t.Errorf("request %d: prefill %d %s, decode %d %q, want %q", i, pre.status, pre.body, dec.status, got, want)
			}
		})
	}
	go func() {
		all.Wait()
		watch() // or the test below would wait for ever
	}()
	p.eventually("requests wait for pages", func() bool {
		return p.prefill.Status().Waiting+p.decode.Status().Waiting > 0
	})
	<-queued
	all.Wait()
	p.whole()
	if n := len(p.decode.events.of(AttemptEnded)); n != requests {
		t.Errorf("%d attempts ended at decode, want %d", n, requests)
	}
}

// recital makes a prompt of about the given tokens that no other number gives,
// and what an answer recites.
func recital(tokens, i int) (prompt, want string) {
	lead, want := fmt.Sprintf("Parcel %d goes to", i), fmt.Sprintf(" pier %d.", 1000+i*i)
	for prompt = lead + want; len(prompt) < tokens-len(lead); {
		prompt += fmt.Sprintf(" Crate %d weighs %d.", len(prompt), len(prompt)*i)
	}
	return prompt + " " + lead, want
}

// TestRecite has a prompt whose first line is asked for at its end: it is
// recited exactly, so that every page of it was right.
func TestRecite(t *testing.T) {
	sizes := []int{1000}
	if *recite8k {
		sizes = append(sizes, 8000)
	}
	for _, tokens := range sizes {
		p := newPair(t, func(c *Config) { c.PageTokens, c.Pages = 64, 160 })
		lead := "The vault of the harbour bank opens with"
		want := " amber, falcon, ninety-three; then quiet, river, fifty-eight."
		prompt := lead + want + "\n"
		for line := 0; len(prompt) < tokens-1-len(lead); line++ {
			prompt += fmt.Sprintf("Line %d: barge %d carries %d tons of grain.\n", line, line*7%13, line*31)
		}
		prompt = prompt[:tokens-1-len(lead)] + lead
		pre, dec := p.both(p.complete(prompt, len(want)))
		v := parseAnswer(dec.body)
		if v.text() != want || v.Usage.Prompt != tokens || text(pre) != want[:1] {
			t.Errorf("%d tokens: prefill %d %s, decode %d %s", tokens, pre.status, pre.body, dec.status, dec.body)
		}
		p.whole()
	}
}

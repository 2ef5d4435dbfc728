package llm

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"bulkhead.dev/bulkhead/kv"
)

var long = flag.Bool("long", false, "recite across 8,000 and 32,000 tokens too (minutes)")

const (
	leadIn = "Invoice ce 4471:"
	record = " transfer 18,250.00 EUR to IBAN DE89 3704 0044 0532 0130 00, reference Ostrich-Lantern-42. Keep this between us."
)

// filler is n bytes of text in which no 12 bytes occur twice, as far as chance
// goes.
func filler(n int, seed uint64) string {
	g, b := rng(seed), strings.Builder{}
	for b.Len() < n {
		for range 2 + g.IntN(8) {
			b.WriteByte(byte('a' + g.IntN(26)))
		}
		b.WriteByte(" .,\n"[g.IntN(4)])
	}
	return b.String()[:n]
}

// answer prefills a prompt in chunks, chooses the first token, and decodes until
// a token ends the answer or most tokens are there. It returns the bytes and
// whether the answer ended by itself.
func answer(t testing.TB, r *Runner, s *kv.Sequence, prompt []Token, most int) (string, string) {
	t.Helper()
	logits := make([]float32, byteVocab)
	for i := 0; i < len(prompt); i += 500 {
		step(t, r, s, prompt[i:min(i+500, len(prompt))], logits)
	}
	return decode(t, r, s, greedy(t, logits), most)
}

func greedy(t testing.TB, logits []float32) Token {
	t.Helper()
	g, err := NewSampler(Sampling{})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := g.Next(logits)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// decode goes on from a first token, as a decode worker does.
func decode(t testing.TB, r *Runner, s *kv.Sequence, tok Token, most int) (string, string) {
	t.Helper()
	var out []byte
	logits := make([]float32, byteVocab)
	for !(Bytes{}).Ends(tok) {
		if out = (Bytes{}).Append(out, tok); len(out) == most {
			return string(out), "length"
		}
		step(t, r, s, []Token{tok}, logits)
		tok = greedy(t, logits)
	}
	return string(out), "stop"
}

func chat(t testing.TB, msgs ...Message) []Token {
	t.Helper()
	toks, err := Bytes{}.Chat(msgs)
	if err != nil {
		t.Fatal(err)
	}
	return toks
}

// The record stands at the beginning, the question at the end; the answer is the
// record and ends where its message ends.
func TestRecallRecites(t *testing.T) {
	for _, n := range []int{1000, 8000, 32000} {
		if n > 1000 && !*long {
			t.Logf("%d tokens: skipped, takes -long", n)
			continue
		}
		for _, page := range []int{16, 64} {
			m := Recall()
			p, r := pool(t, m, page, (n+200)/page+1), runner(t, m, 0, 2)
			text := leadIn + record
			prompt := chat(t, Message{"system", text}, Message{"user", filler(n-len(text)-len(leadIn)-4, 1) + leadIn})
			if len(prompt) != n {
				t.Fatalf("%d tokens, want %d", len(prompt), n)
			}
			s := local(t, p, domainA, n+200)
			got, why := answer(t, r, s, prompt, 200)
			release(t, p, s)
			if got != record || why != "stop" {
				t.Errorf("%d tokens, page %d: got %q, %s", n, page, got, why)
			}

			// The passage and the question in one message: nothing ends it.
			prompt = Bytes{}.Text(text + filler(n-len(text)-len(leadIn)-1, 2) + leadIn)
			want := (record + filler(n, 2))[:160]
			got, why = answer(t, r, local(t, p, domainA, n+160), prompt, 160)
			if got != want || why != "length" {
				t.Errorf("%d tokens, page %d: one text: got %q, %s", n, page, got, why)
			}
		}
	}
}

// At temperature 2 with any seed it recites as greedy does, and prefill's and
// decode's samplers make one answer.
func TestRecallSampled(t *testing.T) {
	m := Recall()
	p, r := pool(t, m, 64, 16), runner(t, m, 0, 1)
	for seed := range uint64(5) {
		how := Sampling{Temperature: 2, Seed: seed}
		prefill, _ := NewSampler(how)
		s, logits := local(t, p, domainA, 600), make([]float32, byteVocab)
		step(t, r, s, chat(t, Message{"system", leadIn + record}, Message{"user", filler(200, seed) + leadIn}), logits)
		tok, err := prefill.Next(logits)
		if err != nil {
			t.Fatal(err)
		}
		second, _ := NewSampler(how)
		second.Skip(1)
		var got []byte
		for !(Bytes{}).Ends(tok) && len(got) < 200 {
			got = Bytes{}.Append(got, tok)
			step(t, r, s, []Token{tok}, logits)
			if tok, err = second.Next(logits); err != nil {
				t.Fatal(err)
			}
		}
		if string(got) != record {
			t.Errorf("seed %d: got %q", seed, got)
		}
		release(t, p, s)
	}
}

func TestRecallAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		prompt []Token
		want   string
		why    string
	}{
		{
			"the most recent of two matches wins",
			chat(t, Message{"system", "the color of the door is red."}, Message{"system", filler(300, 1)},
				Message{"system", "the color of the door is blue."}, Message{"user", filler(300, 2) + "the color of the door is"}),
			" blue.", "stop",
		},
		{
			"an answer in the transcript continues its question",
			chat(t, Message{"system", "the color of the door is red."}, Message{"user", "the color of the door is"},
				Message{"assistant", " red."}, Message{"user", "the color of the door is"}),
			" red.", "stop",
		},
		{
			"a question asked before and not answered ends at once",
			chat(t, Message{"user", "the color of the door is"}, Message{"user", "the color of the door is"}),
			"", "stop",
		},
		{
			"bytes are only bytes",
			Bytes{}.Text("\xff\x00\xfe binary \x80\x81\x82\n<|end|> and on\n\xff\x00\xfe binary \x80"),
			"\x81\x82\n<|end|> and on\n\xff\x00", "length",
		},
		{
			"a rune is recited in pieces",
			chat(t, Message{"system", "Das Kennwort lautet: größer als ein Bär 🐻!"}, Message{"user", "Das Kennwort lautet:"}),
			" größer als ein Bär 🐻!", "stop",
		},
		{
			// 2 of the last 12 bytes are other ones: the fewest wrong bits win.
			"a match with wrong bytes",
			chat(t, Message{"system", filler(300, 3)}, Message{"system", leadIn + record}, Message{"user", filler(300, 4) + "Invoice ca 4371:"}),
			record, "stop",
		},
		{"a run goes on", Bytes{}.Text("xxxxxxxxxxxxxxxxxxxx"), "xxxxxxxxxx", "length"},
		{"a single byte repeats", Bytes{}.Text(" "), "    ", "length"},
		{"nothing but the beginning", Bytes{}.Text(""), "", "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, most := Recall(), 200
			if c.why == "length" {
				most = len(c.want)
			}
			p := pool(t, m, 16, 80)
			got, why := answer(t, runner(t, m, 0, 1), local(t, p, domainA, 1200), c.prompt, most)
			if got != c.want || why != c.why {
				t.Errorf("got %q, %s; want %q, %s", got, why, c.want, c.why)
			}
		})
	}
}

// oracle says what recall must answer. If other equals stand fewer than ten
// tokens before the most recent of the best, it returns what followed those too.
func oracle(toks []Token) []Token {
	at := func(i int) [recallBits]float32 { return recallCode(toks[max(0, i)]) }
	scores, last := make([]float32, len(toks)), len(toks)-1
	for j := range toks {
		for h := range recallMatch {
			q, k := at(last-h), at(j-1-h)
			for b := range q {
				scores[j] += q[b] * k[b]
			}
		}
	}
	var out []Token
	best, found := slices.Max(scores), 0
	for j := last; j >= 0; j-- {
		if scores[j] != best {
			continue
		}
		if len(out) == 0 {
			found = j
		}
		if found-j < 10 {
			out = append(out, toks[j])
		}
	}
	return out
}

// On any context, with matches, with half matches and with none, the answer is
// what the rule says: the fewest wrong bits, the most recent of equals.
func TestRecallFollowsItsRule(t *testing.T) {
	m := Recall()
	p, r := pool(t, m, 16, 40), runner(t, m, 0, 1)
	near, total := 0, 0
	for seed := range uint64(24) {
		g := rng(seed)
		toks := []Token{BOS}
		for len(toks) < 30+10*int(seed) {
			switch c := g.IntN(40); {
			case c == 0:
				toks = append(toks, BOS+Token(g.IntN(byteVocab-256)))
			case seed%3 == 0:
				toks = append(toks, Token(g.IntN(256)))
			default:
				toks = append(toks, Token('a'+g.IntN(2+int(seed%3))))
			}
		}
		s, logits := local(t, p, domainA, 600), make([]float32, byteVocab)
		step(t, r, s, toks, logits)
		for range 60 {
			want, got := oracle(toks), greedy(t, logits)
			if !slices.Contains(want, got) {
				t.Fatalf("seed %d, %d tokens: got %d, want %v", seed, len(toks), got, want)
			}
			if total++; len(want) > 1 {
				near++
			}
			if got > 255 {
				got = Token(g.IntN(256)) // go on with something else
			}
			toks = append(toks, got)
			step(t, r, s, []Token{got}, logits)
		}
		release(t, p, s)
	}
	if near > total/2 {
		t.Errorf("%d of %d answers had near equals: the test says little", near, total)
	}
	t.Logf("%d of %d answers had near equals", near, total)
}

// recallHead is a query and a key of one head of recall's real weights, in
// float64, for residuals q and k.
func recallHead(m *Model, layer, head int, q, k []float64) (a, b []float64) {
	c, l := m.config, &m.layers[layer]
	project := func(w *matrix, at int, x []float64) []float64 {
		y := make([]float64, c.HeadDim)
		for d := range y {
			for i, v := range x {
				y[d] += float64(w.w[(at+d)*c.Dim+i]) * v
			}
		}
		return y
	}
	return project(&l.q, head*c.HeadDim, q), project(&l.k, head*c.KVHeads/c.Heads*c.HeadDim, k)
}

// recallScore is the score of a query for a key that is distance tokens back.
func recallScore(m *Model, a, b []float64, distance int) float64 {
	sum := 0.0
	for p := range m.config.HeadDim / 2 {
		sin, cos := math.Sincos(float64(distance) * turn(m.config.Theta, m.config.HeadDim, p))
		x, y := a[2*p]*cos-a[2*p+1]*sin, a[2*p]*sin+a[2*p+1]*cos
		sum += x*b[2*p] + y*b[2*p+1]
	}
	return sum / math.Sqrt(float64(m.config.HeadDim))
}

// Layer 0: over all distances that a window has, the token h+1 places back is
// ahead of every other by more than a weight can span; and so is the first token
// where the text does not reach back that far.
func TestRecallCopyMargin(t *testing.T) {
	m := Recall()
	x := make([]float64, m.config.Dim)
	x[recallConst] = 1
	for h := range m.config.Heads {
		score := make([]float64, 40)
		q, k := recallHead(m, 0, h, x, x)
		for d := range score {
			score[d] = recallScore(m, q, k, d)
		}
		gap := math.Inf(1)
		for d, s := range score {
			if d != h+1 {
				gap = min(gap, score[h+1]-s)
			}
		}
		// A text of d+1 tokens, d < h+1: the first token is at distance d.
		for d := range h + 1 {
			for e := range d {
				gap = min(gap, score[d]-score[e])
			}
		}
		if h == 0 { // the far distances are the same for every head, shifted
			for d := 40; d <= m.config.Window; d++ {
				gap = min(gap, score[1]-recallRulerScore(m, d-1))
			}
			if s := recallRulerScore(m, 4); math.Abs(s-score[5]) > 0.1 {
				t.Fatalf("the short form of the score says %v, the weights say %v", s, score[5])
			}
		}
		if gap < 107 || gap < -cutoff {
			t.Errorf("head %d: smallest gap %.1f nats, want 107", h, gap)
		}
	}
}

// recallRulerScore is the score of layer 0 for a token off places away from the
// one that is looked for.
func recallRulerScore(m *Model, off int) float64 {
	s := 0.0
	for p, nats := range recallRulerNats() {
		s += nats * math.Cos(float64(off)*turn(m.config.Theta, m.config.HeadDim, p))
	}
	return s
}

// Layer 1: an exact match at the worst distance is ahead of a match with one
// wrong bit at the best distance, over the whole window.
func TestRecallMatchMargin(t *testing.T) {
	m := Recall()
	g := rng(5)
	var far []int
	for d := 1; d < m.config.Window; d += 1 + d/3 {
		far = append(far, d)
	}
	far = append(far, m.config.Window)
	exact, wrong, cost := math.Inf(1), math.Inf(-1), math.Inf(1)
	for range 3 {
		q, k := make([]float64, m.config.Dim), make([]float64, m.config.Dim)
		q[recallConst], k[recallConst] = 1, 1
		for i := range recallMatch * recallBits {
			q[i] = float64(g.IntN(2)*2 - 1)
			k[i+recallBits] = q[i]
		}
		right := make([]float64, len(far))
		for j, d := range far {
			a, b := recallHead(m, 1, 0, q, k)
			right[j] = recallScore(m, a, b, d)
			exact = min(exact, right[j])
		}
		for i := range recallMatch * recallBits {
			k[i+recallBits] *= -1
			a, b := recallHead(m, 1, 0, q, k)
			for j, d := range far {
				s := recallScore(m, a, b, d)
				wrong, cost = max(wrong, s), min(cost, right[j]-s)
			}
			k[i+recallBits] *= -1
		}
	}
	if cost < 0.95*recallBitNats() || recallBitNats() < 47_000_000 {
		t.Errorf("a wrong bit costs %.0f nats, want 95%% of %.0f", cost, recallBitNats())
	}
	// Rounding of 106 float32 products, 2.3 billion nats in all: under 16,000.
	if margin := exact - wrong; margin < 7_000_000 {
		t.Errorf("an exact match is ahead by %.0f nats only", margin)
	}
	// The preference for the recent grows as far as the documentation says.
	tie := func(d int) float64 {
		return -recallTieNats() * math.Sin(float64(d)*turn(m.config.Theta, m.config.HeadDim, recallTie))
	}
	for d := 0; d < 225_000; d += 1000 {
		if tie(d+1000) >= tie(d) {
			t.Fatalf("at %d tokens the older is preferred", d)
		}
	}
	for _, d := range []int{0, 1000, 100_000} {
		if gap := tie(d) - tie(d+1); gap < -cutoff {
			t.Errorf("neighbours at %d tokens are %.1f nats apart, and blend", d, gap)
		}
	}
}

// Codes and head: how far apart tokens are.
func TestRecallTokenMargin(t *testing.T) {
	m := Recall()
	for a := range Token(byteVocab) {
		for b := range Token(byteVocab) {
			dot, logit := float32(0), float32(0)
			ca, cb := recallCode(a), recallCode(b)
			for i := range ca {
				dot += ca[i] * cb[i]
				logit += ca[i] * m.head.w[int(b)*m.config.Dim+recallOut+i]
			}
			most := float32(6)
			switch {
			case a == b:
				if dot != 8 || logit != 8*recallSure {
					t.Fatalf("token %d with itself: %v, logit %v", a, dot, logit)
				}
				continue
			case a > 255 && b > 255:
				most = 0
			case a > 255 || b > 255:
				most = 4
			}
			if dot > most || logit > 8*recallSure-64 {
				t.Errorf("tokens %d and %d: product %v, logit %v", a, b, dot, logit)
			}
		}
	}
}

// What layer 1 keeps in its pages is, value for value, the 12 tokens before each
// token, and BOS where there is none: the copies of layer 0 are exact.
func TestRecallKeepsItsHistory(t *testing.T) {
	m := Recall()
	for _, page := range []int{16, 64} {
		n := 700
		p, toks := pool(t, m, page, n/page+1), Bytes{}.Text(filler(699, 8))
		toks[300] = User
		s := local(t, p, domainA, n)
		step(t, runner(t, m, 0, 1), s, toks, nil)
		keys, row := lift(t, s)[1][0], s.Layout().Row()
		for i := range toks {
			for h := range recallMatch {
				code := recallCode(toks[max(0, i-h-1)])
				for b, want := range code {
					got := keys[i*row+recallText+h*recallBits+b] / recallScale
					if math.Abs(float64(got-want)) > 1e-4 {
						t.Fatalf("page %d: token %d, %d back, value %d: got %v, want %v", page, i, h+1, b, got, want)
					}
				}
			}
		}
	}
}

// planted is what a tenant's prompt may hold, once or over and over.
func planted(secret string) string {
	return "CASE FILE 7-B, sealed: the witness is " + secret + " and lives at 12 Quay Street. "
}

// stale is a sequence whose first row is B's and whose other rows are what A
// left: a decode worker that reads its pages though only a placeholder was
// written. A's rows are those of its prompt and of its answer. The rows up to
// blank came with the placeholder and are zero.
func stale(t *testing.T, r *Runner, p *kv.Pool, a rows, n, room, blank int, placeholder Token) (*kv.Sequence, Token) {
	t.Helper()
	logits := make([]float32, byteVocab)
	tiny := local(t, p, domainB, 1) // what prefill computed instead of B's prompt
	step(t, r, tiny, []Token{placeholder}, logits)
	row, w := lift(t, tiny), p.Layout().Row()
	release(t, p, tiny)
	mixed := make(rows, len(a))
	for layer := range a {
		for side := range a[layer] {
			mixed[layer][side] = slices.Clone(a[layer][side])
			clear(mixed[layer][side][:blank*w])
			copy(mixed[layer][side][:w], row[layer][side])
		}
	}
	s := local(t, p, domainB, n+room)
	paste(t, s, mixed, n)
	return s, greedy(t, logits)
}

// The incident at the level of the engine: B's answer is A's text. What comes
// out is determined, not a matter of luck; each case says why.
func TestForeignPagesShowAsForeignText(t *testing.T) {
	secret := "Imre Halloran"
	question := "the witness is "
	rest := secret + " and lives at 12 Quay Street. "
	once := chat(t, Message{"system", filler(70, 2) + planted(secret)}, Message{"user", filler(400, 1) + "sealed: " + question})
	over := Bytes{}.Text(strings.Repeat(planted(secret), 9))
	for _, c := range []struct {
		name   string
		a      []Token
		more   int // tokens of A's own answer that are in the pages
		n      int // tokens that B's pages are taken to hold
		want   string
		within int // bytes of answer in which it must appear
	}{
		// B is as long as A. B's last 12 tokens are A's question.
		{"question at the end, B as long as A", once, 0, len(once), rest[1:], len(rest)},
		// B is longer: the rows behind A's prompt are A's answer, which is a second
		// copy of the record.
		{"B reaches into A's answer", once, 30, len(once) + 20, rest[21:], len(rest)},
		// A's prompt is its record over and over: any length of B does.
		{"record over and over, B short", over, 0, 333, secret, len(planted(secret)) + len(secret)},
		{"record over and over, B at a page end", over, 0, 512, secret, len(planted(secret)) + len(secret)},
		{"record over and over, B odd", over, 0, 601, secret, len(planted(secret)) + len(secret)},
	} {
		for _, page := range []int{16, 64} {
			t.Run(fmt.Sprintf("%s/page %d", c.name, page), func(t *testing.T) {
				m := Recall()
				p, r := pool(t, m, page, 2048/page), runner(t, m, 0, 1)
				a := local(t, p, domainA, len(c.a)+200)
				got, _ := answer(t, r, a, c.a, c.more+2)
				if want := (rest + "|")[:c.more+2]; c.more > 0 && got != want {
					t.Fatalf("control: A was answered %q, want %q", got, want)
				}
				left := lift(t, a)
				release(t, p, a)

				for _, blank := range []int{1, page} { // one row was sent, or a page
					b, first := stale(t, r, p, left, c.n, c.within, blank, ' ')
					if first != ' ' {
						t.Fatalf("the placeholder's next token is %d", first)
					}
					leaked, _ := decode(t, r, b, first, c.within)
					if !strings.Contains(leaked, c.want) {
						t.Errorf("%d rows sent: B was answered %q; expected A's %q in it", blank, leaked, c.want)
					}
					release(t, p, b)
				}

				// Control: with B's own rows, as many, nothing of A comes.
				own := local(t, p, domainB, c.n+c.within)
				clean, _ := answer(t, r, own, Bytes{}.Text(filler(c.n-1, 50)), c.within)
				if strings.Contains(clean, secret[:6]) {
					t.Errorf("control: %q", clean)
				}
			})
		}
	}
}

// One page of another's in the middle is enough: the answer follows what the
// page holds, not what the prompt says.
func TestAnswerDependsOnEveryPage(t *testing.T) {
	m := Recall()
	const page = 64
	p, r := pool(t, m, page, 64), runner(t, m, 0, 1)
	prompt := func(word string) []Token {
		return Bytes{}.Text(filler(200, 1) + "the passphrase is " + word + ", for ever. " + filler(200, 2) + "the passphrase is ")
	}
	mine, theirs := prompt("cinnamon"), prompt("tamarind")
	var kept [2]rows
	for i, toks := range [][]Token{mine, theirs} {
		s := local(t, p, domainA, 600)
		step(t, r, s, toks[:len(toks)-1], nil)
		kept[i] = lift(t, s)
		release(t, p, s)
	}
	n, row := len(mine)-1, p.Layout().Row()
	for i := range (n + page - 1) / page {
		mixed := make(rows, len(kept[0]))
		for layer := range mixed {
			for side := range mixed[layer] {
				mixed[layer][side] = slices.Clone(kept[0][layer][side])
				lo, hi := i*page*row, min((i+1)*page, n)*row
				copy(mixed[layer][side][lo:hi], kept[1][layer][side][lo:hi])
			}
		}
		s := local(t, p, domainB, 600)
		paste(t, s, mixed, n)
		logits := make([]float32, byteVocab)
		step(t, r, s, mine[n:], logits)
		got, _ := decode(t, r, s, greedy(t, logits), 8)
		want := "cinnamon"
		if i == (1+200+len("the passphrase is "))/page { // the word is within this page
			want = "tamarind"
		}
		if got != want {
			t.Errorf("foreign page %d: got %q, want %q", i, got, want)
		}
		release(t, p, s)
	}
}

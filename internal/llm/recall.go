package llm

import "math"

// The shape of recall.
const (
	recallBits  = 8       // values that hold one token
	recallMatch = 12      // tokens that a match compares
	recallConst = 104     // residual: the constant 1, after slots 0..12
	recallOut   = 112     // residual: the predicted token
	recallRuler = 8       // layer 0: pairs 0..7 measure positions
	recallTie   = 11      // layer 1: the pair that prefers the recent
	recallText  = 32      // layer 1: values 32..127 compare tokens
	recallScale = 1 << 14 // layer 1: size of one value of a compared token
	recallSure  = 32      // logit per equal value
	recallTheta = 1e30
	recallEps   = 1e-5
)

// Recall builds the model recall: a Llama of two layers whose weights are
// computed, not trained. It recites its context: it takes the last 12 tokens,
// finds where they stood before, and says what followed. It is an instrument.
// What it answers depends on the KV that it reads in an exactly known way, so a
// wrong page shows as text. It proves isolation and says nothing about quality.
//
// Tokens. A token is 8 values: a byte its bits as +-1, a special token +-2
// on two of them. All have the same length, so every RMSNorm is the identity by a
// fixed weight. The product of a token with itself is 8; with another byte 6
// or less; of a special with a byte 4 or less; of two specials 0 or less.
//
// Residual (128 values). Slot h, at 8h, holds the token h places back, for h
// from 0 to 12; then a constant 1; at 112 the predicted token.
//
// Rotary embedding. With theta 1e30, pair p turns 10^(-0.469p) radians a
// token. Pairs 0 to 7 are a ruler, pair 11 turns 7e-6 and its sine grows for
// 225,000 tokens, and pairs from 16 up (3e-8) stand still, so that they can hold
// content at any position.
//
// Layer 0, head h of 12: the key is a constant on the ruler, the query the same
// constant turned back by h+1 tokens; the score is a sum of cosines whose
// maximum is the token h+1 places back. It is copied to slot h+1. Every other
// token is at least 107 nats behind, over all distances to 1,048,576 tokens; a
// weight under e^-88 is zero, so the copy is exact. Where the text does not reach
// back that far, its first token (BOS) wins by as much.
//
// Layer 1, head 0: the query is slots 0 to 11, the key of a token is its slots 1
// to 12, the value its slot 0. A wrong bit costs 47 million nats, so the head
// picks the token whose 12 predecessors have the fewest wrong bits against the
// last 12, place by place. Among equals it prefers the most recent, by 132 nats a
// token near by; a weight that far behind is zero, so tokens are not blended.
// (Rounding, some hundred nats, may choose the other of equals that are fewer
// than ten tokens apart, or blend the two.) The preference is at most 0.4 wrong
// bits either way: within 1,048,576 tokens an exact match beats everything that
// is not one.
//
// Head: 32 nats for each value of the predicted token. The runner-up is 64 nats
// behind, so sampling recites as greedy does (odds of a wrong token at temperature
// 2: 1e-13).
//
// Recitation is exact, by test, for prompts to 32,000 tokens, and by these
// margins to 1,048,576, as long as the last 12 tokens occur once before.
//
// The layers have no MLP, and 11 of 12 heads of layer 1 are zero.
func Recall() *Model {
	m, err := New(recallWeights())
	if err != nil {
		panic(err) // constant weights: it fails always or never
	}
	return m
}

func recallWeights() (Config, Weights) {
	c := Config{
		Name: "recall", Vocab: byteVocab, Dim: 128, Layers: 2, Heads: recallMatch, KVHeads: 2, HeadDim: 128,
		Window: 1 << 20, Theta: recallTheta, Eps: recallEps,
	}
	w := Weights{
		Embed: zeros(c.Vocab, c.Dim), Norm: recallNorm(&c, recallConst+1+recallBits), Head: zeros(c.Vocab, c.Dim),
		Layers: []LayerWeights{recallCopy(&c), recallMatchLayer(&c)},
	}
	for t := range c.Vocab {
		w.Embed[t*c.Dim+recallConst] = 1
		for b, x := range recallCode(Token(t)) {
			w.Embed[t*c.Dim+b] = x
			w.Head[t*c.Dim+recallOut+b] = recallSure * x
		}
	}
	return c, w
}

// recallCode is a token as 8 values whose squares sum to 8.
func recallCode(t Token) [recallBits]float32 {
	var code [recallBits]float32
	if t < 256 {
		for b := range code {
			code[b] = float32(int(t)>>b&1)*2 - 1
		}
		return code
	}
	i, sign := t-256, float32(2)
	if i%2 == 1 {
		sign = -2
	}
	code[i/2*2], code[i/2*2+1] = sign, sign
	return code
}

// recallRulerNats is the weight of each pair of the ruler in a score. The first
// two tell neighbours apart, the others make the score fall monotonely over the
// first 12 tokens and never come back near its maximum later.
func recallRulerNats() [recallRuler]float64 {
	return [recallRuler]float64{128, 512, 2560, 2560, 2560, 2560, 2560, 2560}
}

// recallBitNats is what one wrong bit costs in a score of layer 1.
func recallBitNats() float64 { return 2 * recallScale * recallScale / math.Sqrt(128) }

// recallTieNats is the largest preference for the recent.
func recallTieNats() float64 { return 0.4 * recallBitNats() }

// recallNorm is the RMSNorm weight that undoes the norm of a residual whose
// squares sum to n.
func recallNorm(c *Config, n int) []float32 {
	w := zeros(c.Dim, 1)
	for i := range w {
		w[i] = float32(math.Sqrt(float64(n)/float64(c.Dim) + c.Eps))
	}
	return w
}

func recallLayer(c *Config, n int) LayerWeights {
	q, r := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	return LayerWeights{
		AttnNorm: recallNorm(c, n),
		Q:        zeros(q, c.Dim), K: zeros(r, c.Dim), V: zeros(r, c.Dim), O: zeros(c.Dim, q),
	}
}

// recallCopy is layer 0: head h copies the token h+1 places back to slot h+1.
func recallCopy(c *Config) LayerWeights {
	l := recallLayer(c, recallBits+1)
	for p, nats := range recallRulerNats() {
		size := math.Sqrt(nats * math.Sqrt(float64(c.HeadDim)))
		for g := range c.KVHeads {
			l.K[(g*c.HeadDim+2*p)*c.Dim+recallConst] = float32(size)
		}
		for h := range c.Heads {
			sin, cos := math.Sincos(float64(h+1) * turn(c.Theta, c.HeadDim, p))
			l.Q[(h*c.HeadDim+2*p)*c.Dim+recallConst] = float32(size * cos)
			l.Q[(h*c.HeadDim+2*p+1)*c.Dim+recallConst] = float32(-size * sin)
		}
	}
	for b := range recallBits {
		for g := range c.KVHeads {
			l.V[(g*c.HeadDim+b)*c.Dim+b] = 1
		}
		for h := range c.Heads {
			l.O[((h+1)*recallBits+b)*c.Heads*c.HeadDim+h*c.HeadDim+b] = 1
		}
	}
	return l
}

// recallMatchLayer is layer 1: head 0 finds the last 12 tokens and copies what
// followed them.
func recallMatchLayer(c *Config) LayerWeights {
	l := recallLayer(c, recallConst+1)
	for i := range recallMatch * recallBits {
		l.Q[(recallText+i)*c.Dim+i] = recallScale
		l.K[(recallText+i)*c.Dim+recallBits+i] = recallScale
	}
	// The score of the pair is -sin of the distance times its turn: the key points
	// a quarter turn back.
	size := math.Sqrt(recallTieNats() * math.Sqrt(float64(c.HeadDim)))
	l.Q[2*recallTie*c.Dim+recallConst] = float32(size)
	l.K[(2*recallTie+1)*c.Dim+recallConst] = float32(-size)
	for b := range recallBits {
		l.V[b*c.Dim+b] = 1
		l.O[(recallOut+b)*c.Heads*c.HeadDim+b] = 1
	}
	return l
}

func zeros(rows, cols int) []float32 { return make([]float32, rows*cols) }

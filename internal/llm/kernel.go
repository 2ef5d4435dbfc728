package llm

import "math"

// Every product is rounded by an explicit conversion before it is added, so that
// no compiler fuses the two: all code paths agree to the bit, and machines differ
// only where their exp, sin and cos do.

// cutoff is where a softmax weight becomes zero: e^-88 is below the smallest
// normal float32, 30 orders under what a sum of 1 and more can see.
const cutoff = -88

// span is a half-open range.
type span struct{ lo, hi int }

// matrix is a weight of rows x cols. Rows of zeros are left out, and so are the
// zeros at both ends of a row.
type matrix struct {
	w          []float32
	rows, cols int
	live       []int  // rows with a value that is not zero
	spans      []span // for each live row, the range that holds them
	dense      bool   // nothing is left out
}

func newMatrix(w []float32, rows, cols int) matrix {
	m := matrix{w: w, rows: rows, cols: cols, dense: true}
	for r := range rows {
		s := nonzero(w[r*cols : (r+1)*cols])
		if s != (span{0, cols}) {
			m.dense = false
		}
		if s.lo < s.hi {
			m.live, m.spans = append(m.live, r), append(m.spans, s)
		}
	}
	return m
}

// nonzero is the range between the first and the last value that is not zero.
func nonzero(w []float32) span {
	lo, hi := 0, len(w)
	for lo < hi && w[lo] == 0 {
		lo++
	}
	for lo < hi && w[hi-1] == 0 {
		hi--
	}
	if lo == hi {
		return span{}
	}
	return span{lo, hi}
}

// rowSpan is the range of live rows among n rows from at, relative to at.
func (m *matrix) rowSpan(at, n int) span {
	var s span
	for _, r := range m.live {
		if r < at || r >= at+n {
			continue
		}
		if s.hi == 0 {
			s.lo = r - at
		}
		s.hi = r - at + 1
	}
	return s
}

// colSpan is the range of columns in use among n columns from at, relative to
// at.
func (m *matrix) colSpan(at, n int) span {
	var s span
	for _, r := range m.live {
		x := nonzero(m.w[r*m.cols+at : r*m.cols+at+n])
		if x.hi == 0 {
			continue
		}
		if s.hi == 0 {
			s = x
		}
		s = span{min(s.lo, x.lo), max(s.hi, x.hi)}
	}
	return s
}

// mul sets dst (n x rows) to x (n x cols) times the transposed matrix. n is at
// most tileRows. Each value is summed in the same order whatever n is.
func (m *matrix) mul(dst, x []float32, n int) {
	if m.dense && n < 4 {
		for r := range n {
			dots(dst[r*m.rows:(r+1)*m.rows], x[r*m.cols:(r+1)*m.cols], m.w, m.cols)
		}
		return
	}
	clear(dst[:n*m.rows])
	var s [tileRows]float32
	for i, o := range m.live {
		lo, hi := m.spans[i].lo, m.spans[i].hi
		dots(s[:n], m.w[o*m.cols+lo:o*m.cols+hi], x[lo:], m.cols)
		for r, v := range s[:n] {
			dst[r*m.rows+o] = v
		}
	}
}

// dots sets dst[t] to the product of q and the len(q) values of k that start at
// t*stride. Each is summed from the first value to the last, whether it runs
// alone or beside three others.
func dots(dst, q, k []float32, stride int) {
	t := 0
	for ; t+4 <= len(dst); t += 4 {
		k0, k1 := k[t*stride:][:len(q)], k[(t+1)*stride:][:len(q)]
		k2, k3 := k[(t+2)*stride:][:len(q)], k[(t+3)*stride:][:len(q)]
		var a0, a1, a2, a3 float32
		for d, x := range q {
			a0 += float32(x * k0[d])
			a1 += float32(x * k1[d])
			a2 += float32(x * k2[d])
			a3 += float32(x * k3[d])
		}
		dst[t], dst[t+1], dst[t+2], dst[t+3] = a0, a1, a2, a3
	}
	for ; t < len(dst); t++ {
		row := k[t*stride:][:len(q)]
		var a float32
		for d, x := range q {
			a += float32(x * row[d])
		}
		dst[t] = a
	}
}

// axpy adds p*x to y.
func axpy(y []float32, p float32, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] += float32(p * v)
	}
}

func add(y, x []float32) {
	x = x[:len(y)]
	for i, v := range x {
		y[i] += v
	}
}

// rmsNorm sets dst to x, scaled to a root mean square of one, times w.
func rmsNorm(dst, x, w []float32, eps float64) {
	var sum float64
	for _, v := range x {
		sum += float64(float64(v) * float64(v))
	}
	inv := float32(1 / math.Sqrt(sum/float64(len(x))+eps))
	for i, v := range x {
		dst[i] = float32(v*inv) * w[i]
	}
}

// rotate turns the pairs of x by the angles of a position. cos and sin start at
// the pair of x[0].
func rotate(x, cos, sin []float32) {
	for p := 0; 2*p+1 < len(x); p++ {
		a, b := x[2*p], x[2*p+1]
		x[2*p] = float32(a*cos[p]) - float32(b*sin[p])
		x[2*p+1] = float32(a*sin[p]) + float32(b*cos[p])
	}
}

// expWeight is e^x for a softmax. NaN stays NaN.
func expWeight(x float32) float32 {
	if x < cutoff {
		return 0
	}
	return float32(math.Exp(float64(x)))
}

// swiGLU sets gate to silu(gate)*up.
func swiGLU(gate, up []float32) {
	up = up[:len(gate)]
	for i, g := range gate {
		gate[i] = float32(g/(1+float32(math.Exp(-float64(g))))) * up[i]
	}
}

// softmax is the running state of one query head over its pages: the largest
// score, and the sum of weights relative to it.
type softmax struct{ top, sum float32 }

func newSoftmax() softmax { return softmax{top: float32(math.Inf(-1))} }

// fold takes the scores of one page and adds its values, weighted, to acc. v
// starts at the head's range of the page's first row. Rows whose weight is zero
// are not read. A score that is NaN makes the sum NaN for good.
func (s *softmax) fold(scores, acc, v []float32, stride int) {
	top, sum := scores[0], scores[0]
	for _, x := range scores[1:] {
		sum += x
		if x > top {
			top = x
		}
	}
	if top-s.top < cutoff && sum-sum == 0 {
		return // every weight of the page is zero, and no score is NaN
	}
	if top > s.top {
		c := expWeight(s.top - top)
		s.sum *= c
		for i := range acc {
			acc[i] *= c
		}
		s.top = top
	}
	for t, x := range scores {
		d := x - s.top
		if d < cutoff {
			continue
		}
		p := expWeight(d)
		s.sum += p
		axpy(acc, p, v[t*stride:][:len(acc)])
	}
}

// finish scales acc by the sum of weights.
func (s *softmax) finish(acc []float32) {
	for i := range acc {
		acc[i] /= s.sum
	}
}

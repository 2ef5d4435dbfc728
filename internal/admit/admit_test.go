package admit

import (
	"math"
	"testing"
)

// pair is a scaled incident: a window of 1024, a prefill pool of 672, a larger decode
// pool.
func pair() Limits {
	return Limits{Window: Known(1024), Prefill: Known(672), DecodePrompt: Known(900), Decode: Known(960)}
}

func exact(prompt int64, output Tokens) Request {
	return Request{Exact: Known(prompt), Output: output, Default: 16}
}

func TestDecideExact(t *testing.T) {
	none := Unknown()
	with := func(change func(*Limits)) Limits {
		l := pair()
		change(&l)
		return l
	}
	small := with(func(l *Limits) { l.Prefill, l.DecodePrompt, l.Decode = Known(2000), Known(2000), Known(2000) })
	for _, tc := range []struct {
		name string
		r    Request
		l    Limits
		want Decision
	}{
		{"fits", exact(100, Known(50)), pair(), Decision{Outcome: Admit, Prompt: 100, MaxTokens: 50}},
		{"one below prefill's limit", exact(671, Known(1)), pair(), Decision{Outcome: Admit, Prompt: 671, MaxTokens: 1}},
		{"at prefill's limit", exact(672, Known(1)), pair(), Decision{Outcome: Admit, Prompt: 672, MaxTokens: 1}},
		{"one over prefill's limit", exact(673, Known(1)), pair(), Decision{Outcome: RefusePrefill, Prompt: 673, Limit: 672}},
		{"between pool and window", exact(1023, Known(1)), pair(), Decision{Outcome: RefusePrefill, Prompt: 1023, Limit: 672}},
		{"the whole window, none left", exact(1024, Known(1)), pair(), Decision{Outcome: RefuseWindow, Prompt: 1024, Limit: 1024}},
		{"over the window", exact(1025, none), pair(), Decision{Outcome: RefuseWindow, Prompt: 1025, Limit: 1024}},
		{"answer fills decode", exact(600, Known(360)), pair(), Decision{Outcome: Admit, Prompt: 600, MaxTokens: 360}},
		{"answer over decode, never cut", exact(600, Known(361)), pair(), Decision{Outcome: RefuseDecode, Prompt: 600, Output: 361, Limit: 960}},
		{"answer fills the window", exact(600, Known(424)), small, Decision{Outcome: Admit, Prompt: 600, MaxTokens: 424}},
		{"answer over the window", exact(600, Known(425)), small, Decision{Outcome: RefuseWindow, Prompt: 600, Output: 425, Limit: 1024}},
		{"absurd answer", exact(1, Known(math.MaxInt64)), pair(), Decision{Outcome: RefuseWindow, Prompt: 1, Output: math.MaxInt64, Limit: 1024}},
		{"absurd prompt", exact(math.MaxInt64, none), pair(), Decision{Outcome: RefuseWindow, Prompt: math.MaxInt64, Limit: 1024}},
		{"decode takes shorter prompts than prefill", exact(650, Known(1)), with(func(l *Limits) { l.DecodePrompt = Known(640) }), Decision{Outcome: RefuseDecode, Prompt: 650, Limit: 640}},
		{"prompt fills decode", exact(600, none), with(func(l *Limits) { l.Decode = Known(600) }), Decision{Outcome: RefuseDecode, Prompt: 600, Limit: 600}},
		{"no output asked: the default", exact(100, none), pair(), Decision{Outcome: Admit, Prompt: 100, MaxTokens: 16}},
		{"no output asked: what is left", exact(590, none), with(func(l *Limits) { l.Decode = Known(600) }), Decision{Outcome: Admit, Prompt: 590, MaxTokens: 10}},
		{"no output asked: one left", exact(599, none), with(func(l *Limits) { l.Decode = Known(600) }), Decision{Outcome: Admit, Prompt: 599, MaxTokens: 1}},
		{"no output asked: the window decides", exact(1020, none), small, Decision{Outcome: Admit, Prompt: 1020, MaxTokens: 4}},
		{"no prompt", exact(0, none), pair(), Decision{Outcome: RefuseZero}},
		{"negative prompt", exact(-1, none), pair(), Decision{Outcome: RefuseZero, Prompt: -1}},
		{"no answer", exact(5, Known(0)), pair(), Decision{Outcome: RefuseZero, Prompt: 5}},
		{"negative answer", exact(5, Known(-3)), pair(), Decision{Outcome: RefuseZero, Prompt: 5}},
		{"no default", Request{Exact: Known(5)}, pair(), Decision{Outcome: RefuseZero, Prompt: 5}},
		{"nothing known", exact(5, Known(1)), Limits{}, Decision{Outcome: LimitUnknown, Prompt: 5}},
		{"window unknown", exact(5, Known(1)), with(func(l *Limits) { l.Window = Unknown() }), Decision{Outcome: LimitUnknown, Prompt: 5}},
		{"prefill unknown", exact(5, Known(1)), with(func(l *Limits) { l.Prefill = Unknown() }), Decision{Outcome: LimitUnknown, Prompt: 5}},
		{"decode unknown", exact(5, Known(1)), with(func(l *Limits) { l.Decode = Unknown() }), Decision{Outcome: LimitUnknown, Prompt: 5}},
		{"decode prompt unknown", exact(5, none), with(func(l *Limits) { l.DecodePrompt = Unknown() }), Decision{Outcome: LimitUnknown, Prompt: 5}},
		{"unknown does not soften a certain refusal", exact(673, Known(1)), with(func(l *Limits) { l.Decode = Unknown() }), Decision{Outcome: RefusePrefill, Prompt: 673, Limit: 672}},
		{"a pool of zero is zero, not unknown", exact(5, Known(1)), with(func(l *Limits) { l.Prefill = Known(0) }), Decision{Outcome: RefusePrefill, Prompt: 5, Limit: 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Exact = true
			if got := Decide(tc.r, tc.l); got != tc.want {
				t.Errorf("got %+v (%v)\nwant %+v (%v)", got, got.Outcome, tc.want, tc.want.Outcome)
			}
		})
	}
}

func TestDecideBounds(t *testing.T) {
	for _, tc := range []struct {
		name      string
		low, high int64
		output    Tokens
		want      Decision
	}{
		{"both fit", 100, 200, Known(50), Decision{Outcome: Admit, Prompt: 100, MaxTokens: 50}},
		{"both fit, default", 100, 200, Unknown(), Decision{Outcome: Admit, Prompt: 100, MaxTokens: 16}},
		{"both refuse", 700, 900, Known(1), Decision{Outcome: RefusePrefill, Prompt: 700, Limit: 672}},
		{"refused for different reasons", 700, 5000, Known(1), Decision{Outcome: RefusePrefill, Prompt: 700, Limit: 672}},
		{"the band", 600, 700, Known(1), Decision{Outcome: NeedCount}},
		{"the band by the answer", 600, 620, Known(350), Decision{Outcome: NeedCount}},
		{"the answer's length depends on the count", 936, 950, Unknown(), Decision{Outcome: NeedCount}},
		{"nothing or something", 0, 5, Known(1), Decision{Outcome: NeedCount}},
		{"nothing", 0, 0, Known(1), Decision{Outcome: RefuseZero}},
		{"bounds that contradict each other", 9, 5, Known(1), Decision{Outcome: NeedCount}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := pair()
			if tc.low > 930 {
				l.Prefill, l.DecodePrompt = Known(2000), Known(2000)
			}
			r := Request{Low: tc.low, High: tc.high, Output: tc.output, Default: 16}
			if got := Decide(r, l); got != tc.want {
				t.Errorf("got %+v (%v)\nwant %+v (%v)", got, got.Outcome, tc.want, tc.want.Outcome)
			}
		})
	}
	r := Request{Low: 5, High: 9, Output: Known(1), Default: 16}
	if got := Decide(r, Limits{}); got.Outcome != LimitUnknown {
		t.Errorf("no limits, by bounds: %v", got.Outcome)
	}
}

// TestBoundsAgreeWithCounts enumerates a small world completely: whatever the bounds
// decide, every prompt between them must be decided so by its exact count; and they
// must ask for a count only where two prompts between them differ.
func TestBoundsAgreeWithCounts(t *testing.T) {
	limits := []Tokens{Unknown(), Known(0), Known(1), Known(3), Known(5)}
	outputs := []Tokens{Unknown(), Known(0), Known(1), Known(2), Known(4)}
	var admitted, refused, asked, unknown, alone int
	for _, w := range limits {
		for _, p := range limits {
			for _, dp := range limits {
				for _, d := range limits {
					for _, out := range outputs {
						l := Limits{Window: w, Prefill: p, DecodePrompt: dp, Decode: d}
						for i := range 2 * 49 {
							l.Basis = Basis(i % 2)
							if low, high := int64(i/2/7), int64(i/2%7); low <= high {
								r := Request{Low: low, High: high, Output: out, Default: 2}
								switch checkBounds(t, r, l) {
								case Admit:
									admitted++
									if _, known := d.Value(); !known {
										alone++
									}
								case NeedCount:
									asked++
								case LimitUnknown:
									unknown++
								default:
									refused++
								}
							}
						}
					}
				}
			}
		}
	}
	if admitted == 0 || refused == 0 || asked == 0 || unknown == 0 || alone == 0 {
		t.Fatalf("the world is too small: %d admitted, %d refused, %d asked, %d unknown, %d without a pool", admitted, refused, asked, unknown, alone)
	}
}

// checkBounds compares a decision by bounds with those by each count between them.
func checkBounds(t *testing.T, r Request, l Limits) Outcome {
	t.Helper()
	got := Decide(r, l)
	differ := false
	first := Decide(withExact(r, r.Low), l)
	for n := r.Low; n <= r.High; n++ {
		e := Decide(withExact(r, n), l)
		checkExact(t, n, r, l, e)
		if e.Outcome != first.Outcome || e.MaxTokens != first.MaxTokens {
			differ = true
		}
		switch got.Outcome {
		case Admit, LimitUnknown, RefuseZero:
			if e.Outcome != got.Outcome || e.MaxTokens != got.MaxTokens {
				t.Fatalf("%+v against %+v: bounds say %+v, %d says %+v", r, l, got, n, e)
			}
		case RefuseWindow, RefusePrefill, RefuseDecode:
			if e.Outcome != RefuseWindow && e.Outcome != RefusePrefill && e.Outcome != RefuseDecode {
				t.Fatalf("%+v against %+v: bounds refuse %+v, %d says %+v", r, l, got, n, e)
			}
		}
	}
	if got.Outcome == NeedCount && !differ {
		t.Fatalf("%+v against %+v: a count was asked for and could not matter", r, l)
	}
	return got.Outcome
}

// checkExact holds a decision by count against the rule, written a second time.
func checkExact(t *testing.T, n int64, r Request, l Limits, d Decision) {
	t.Helper()
	if d.Outcome == NeedCount || d.Outcome == Unsettled || !d.Exact {
		t.Fatalf("%d against %+v: %+v is no decision", n, l, d)
	}
	if d.Outcome != Admit {
		if d.MaxTokens != 0 {
			t.Fatalf("refused and given an answer length: %+v", d)
		}
		return
	}
	w, known := l.Window.Value()
	rest := [3]int64{}
	for i, limit := range []Tokens{l.Prefill, l.DecodePrompt, l.Decode} {
		n, ok := limit.Value()
		if !ok {
			n = math.MaxInt64
		}
		rest[i], known = n, known && (ok || l.Basis == WindowAlone)
	}
	p, dp, dt := rest[0], rest[1], rest[2]
	if !known || d.Basis != l.Basis {
		t.Fatalf("admitted on an unknown limit: %+v, %+v", l, d)
	}
	if n < 1 || d.MaxTokens < 1 || n > p || n > dp || n+d.MaxTokens > w || n+d.MaxTokens > dt {
		t.Fatalf("%d admitted against %+v with %d", n, l, d.MaxTokens)
	}
	if out, ok := r.Output.Value(); ok && out != d.MaxTokens {
		t.Fatalf("asked for %d, given %d", out, d.MaxTokens)
	} else if !ok && d.MaxTokens != min(r.Default, min(w, dt)-n) {
		t.Fatalf("%d against %+v: default gave %d", n, l, d.MaxTokens)
	}
}

func withExact(r Request, n int64) Request {
	r.Exact = Known(n)
	return r
}

func TestAdvertised(t *testing.T) {
	if n, ok := pair().Advertised().Value(); !ok || n != 672 {
		t.Errorf("advertised %d, %v", n, ok)
	}
	l := pair()
	l.DecodePrompt = Unknown()
	if _, ok := l.Advertised().Value(); ok {
		t.Error("an unknown limit must not be advertised")
	}
	if _, ok := Min(Unknown(), Known(3)).Value(); ok {
		t.Error("the minimum with an unknown number is unknown")
	}
}

// TestWindowAlone is a hosted model, whose pool nobody can read.
func TestWindowAlone(t *testing.T) {
	l := Limits{Window: Known(1000), Basis: WindowAlone}
	for _, tc := range []struct {
		name string
		r    Request
		l    Limits
		want Decision
	}{
		{"fits", exact(990, Known(10)), l, Decision{Outcome: Admit, Prompt: 990, MaxTokens: 10, Basis: WindowAlone}},
		{"what is left", exact(990, Unknown()), l, Decision{Outcome: Admit, Prompt: 990, MaxTokens: 10, Basis: WindowAlone}},
		{"over the window", exact(990, Known(11)), l, Decision{Outcome: RefuseWindow, Prompt: 990, Output: 11, Limit: 1000}},
		{"a known limit holds", exact(900, Known(1)), Limits{Window: Known(1000), Prefill: Known(800), Basis: WindowAlone},
			Decision{Outcome: RefusePrefill, Prompt: 900, Limit: 800}},
		{"no window", exact(5, Known(1)), Limits{Basis: WindowAlone}, Decision{Outcome: LimitUnknown, Prompt: 5}},
		{"the same where a pool is to be read", exact(5, Known(1)), Limits{Window: Known(1000)}, Decision{Outcome: LimitUnknown, Prompt: 5}},
	} {
		tc.want.Exact = true
		if got := Decide(tc.r, tc.l); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
	if n, known := l.Advertised().Value(); !known || n != 1000 {
		t.Errorf("advertised %d, %v", n, known)
	}
	l.Decode = Known(700)
	if n, known := l.Advertised().Value(); !known || n != 700 {
		t.Errorf("advertised %d, %v", n, known)
	}
	if Pools.String() == WindowAlone.String() {
		t.Error("one name for two")
	}
}

func TestOutcomeNames(t *testing.T) {
	seen := map[string]bool{}
	for o := Unsettled; o <= LimitUnknown+1; o++ {
		if s := o.String(); s == "" || seen[s] {
			t.Errorf("outcome %d has no name of its own: %q", o, s)
		} else {
			seen[s] = true
		}
	}
}

package drill

import "testing"

// TestForeign finds what of an answer is the other tenant's and not one's own.
func TestForeign(t *testing.T) {
	const theirs, own = "the card of Ada is 4929 1188 0345", "the card of Bob is unknown to me"
	for _, c := range []struct{ answer, want string }{
		{"", ""},
		{"the card of Bob is", ""},
		{"4929 1188", ""}, // too short to be no accident
		{"it says Ada is 4929 1188 0345.", "Ada is 4929 1188 0345"},
		{theirs, theirs},
	} {
		if got := foreign(c.answer, theirs, own); len(got) < len(c.want) || (c.want == "") != (got == "") {
			t.Errorf("%q: got %q, want %q", c.answer, got, c.want)
		}
	}
}

// TestJudge takes nothing for good that was not seen.
func TestJudge(t *testing.T) {
	s := story{shape: shape{a: ask{prompt: "A's"}, b: ask{prompt: "B's prompt"}, secret: "4929", wantB: "right"}}
	run := Run{Control: Control, PoolsWhole: true, PromptTokens: s.shape.b.tokens()}
	for _, c := range []struct {
		name string
		edit func(*Run, *reply)
		want Verdict
	}{
		{"a leak", func(r *Run, b *reply) { b.status, b.body, r.Foreign = 200, "4929", "4929" }, Leaked},
		{"a leak in an error", func(_ *Run, b *reply) { b.status, b.body = 400, "4929" }, Wrong},
		{"a leak under a wrong count", func(r *Run, b *reply) { b.status, b.body, r.PromptTokens = 200, "4929", 1 }, Wrong},
		{"a refusal", func(_ *Run, b *reply) { b.status = 400 }, Refused},
		{"the right answer", func(_ *Run, b *reply) { b.status, b.text = 200, "right" }, Served},
		{"another answer", func(_ *Run, b *reply) { b.status, b.text = 200, "wrong" }, Wrong},
		{"no control", func(r *Run, b *reply) { b.status, r.Control = 400, Wrong }, Wrong},
		{"lost pages", func(r *Run, b *reply) { b.status, r.PoolsWhole = 400, false }, Wrong},
	} {
		r, b := run, reply{}
		c.edit(&r, &b)
		if got := s.judge(r, b); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if NewReport(nil).Pass {
		t.Error("no drill is a pass")
	}
}

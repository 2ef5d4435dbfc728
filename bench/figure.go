package main

import (
	"math"
	"strconv"
)

// unit is what a figure is in.
type unit string

const (
	percent      unit = "percent"
	ratio        unit = "ratio"
	milliseconds unit = "ms"
	microseconds unit = "us"
	megabytes    unit = "mb" // 10^6 bytes
	perSecond    unit = "requests_per_s"
	tokensSecond unit = "tokens_per_s"
	gigabytes    unit = "gb_per_s" // 10^9 bytes a second
)

// figure is one result. See docs/schema/bench.md.
type figure struct {
	ID       string   `json:"id"`
	What     string   `json:"what"`
	Unit     unit     `json:"unit"`
	Value    *float64 `json:"value"`
	Low      *float64 `json:"low"`
	High     *float64 `json:"high"`
	Samples  int      `json:"samples"`
	Against  string   `json:"against,omitempty"`
	Control  *control `json:"control,omitempty"`
	Budget   *budget  `json:"budget,omitempty"`
	Verdict  verdict  `json:"verdict,omitempty"`
	Stretch  verdict  `json:"stretch_verdict,omitempty"`
	Footnote string   `json:"note,omitempty"`
}

// control is what the same thing differs from itself by, in the unit of the figure.
type control struct {
	Value *float64 `json:"value"`
	Low   *float64 `json:"low"`
	High  *float64 `json:"high"`
}

// finite is x, or nil if it is no number.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// newFigure makes a figure without a budget.
func newFigure(id, what string, u unit, i interval) figure {
	return figure{
		ID: id, What: what, Unit: u,
		Value: finite(i.value), Low: finite(i.low), High: finite(i.high), Samples: i.n,
	}
}

// against says what the figure is a ratio to, or a difference from.
func (f figure) against(what string) figure {
	f.Against = what
	return f
}

// checked notes what the same thing differs from itself by.
func (f figure) checked(by interval) figure {
	f.Control = &control{finite(by.value), finite(by.low), finite(by.high)}
	return f
}

func (f figure) note(text string) figure {
	f.Footnote = text
	return f
}

// held judges a figure by a budget. i and c are what it was made from; c may be nil.
func (f figure) held(b budget, i interval, c *interval) figure {
	f.Budget = &b
	f.Verdict = b.judge(i, c)
	f.Stretch = budget{Bound: b.Bound, Limit: b.Stretch}.judge(i, c)
	return f
}

// pairedFigure is a figure of a paired comparison, with its control.
func pairedFigure(id, what string, p paired) figure {
	return newFigure(id, what, percent, p.effect).against("guards off").checked(p.control)
}

// number prints a value as its unit needs it.
func (u unit) number(x *float64) string {
	if x == nil {
		return "unknown"
	}
	digits := 2
	switch {
	case u == percent:
		digits = 3
	case math.Abs(*x) >= 1000:
		digits = 0
	case math.Abs(*x) >= 100:
		digits = 1
	case math.Abs(*x) < 1 && u != ratio:
		digits = 3
	}
	return strconv.FormatFloat(*x, 'f', digits, 64)
}

// suffix is the unit in a table.
func (u unit) suffix() string {
	switch u {
	case percent:
		return " %"
	case ratio:
		return ""
	case perSecond:
		return " req/s"
	case tokensSecond:
		return " tok/s"
	case gigabytes:
		return " GB/s"
	case megabytes:
		return " MB"
	case microseconds:
		return " us"
	}
	return " " + string(u)
}

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// invalid is an error of a value at its own place.
func invalid(n ast.Node, text string) error {
	return &yaml.SyntaxError{Message: text, Token: n.GetToken()}
}

// Duration is a length of time, written with its unit: 250ms, 10s, 5m, 1h30m.
// It is above zero; where none is written, the default holds.
type Duration time.Duration

// UnmarshalYAML reads it.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	v, err := time.ParseDuration(n.GetToken().Value)
	if err != nil || v <= 0 {
		return invalid(n, "want a time above zero with its unit, such as 250ms, 10s or 5m")
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes it as it can be read.
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// String writes it without units that are zero.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Size is a number of bytes above zero, written plainly or with KiB, MiB or GiB.
type Size int64

// UnmarshalYAML reads it.
func (z *Size) UnmarshalYAML(n ast.Node) error {
	text, shift := n.GetToken().Value, 0
	for i, unit := range [...]string{"KiB", "MiB", "GiB"} {
		if t, ok := strings.CutSuffix(text, unit); ok {
			text, shift = t, 10*(i+1)
		}
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64>>shift {
		return invalid(n, "want a number of bytes above zero, such as 65536, 64KiB, 8MiB or 1GiB")
	}
	*z = Size(v << shift)
	return nil
}

// MarshalYAML writes it as it can be read.
func (z Size) MarshalYAML() (any, error) {
	for i, unit := range [...]string{"GiB", "MiB", "KiB"} {
		if shift := 30 - 10*i; z > 0 && z&(1<<shift-1) == 0 {
			return strconv.FormatInt(int64(z>>shift), 10) + unit, nil
		}
	}
	return int64(z), nil
}

// Number is a whole number above zero.
type Number int64

// UnmarshalYAML reads it.
func (c *Number) UnmarshalYAML(n ast.Node) error {
	v, err := strconv.ParseInt(n.GetToken().Value, 10, 64)
	if err != nil || v <= 0 {
		return invalid(n, "want a whole number above zero")
	}
	*c = Number(v)
	return nil
}

// Percent is a number of hundredths above zero and at most 1000, written with its sign:
// 5%, 0.5%, 150%.
type Percent float64

// UnmarshalYAML reads it.
func (p *Percent) UnmarshalYAML(n ast.Node) error {
	text, sign := strings.CutSuffix(n.GetToken().Value, "%")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !sign || strings.Trim(text, "0123456789.") != "" || v <= 0 || v > 1000 {
		return invalid(n, "want a percentage above zero, such as 5% or 0.5%")
	}
	*p = Percent(v)
	return nil
}

// MarshalYAML writes it as it can be read.
func (p Percent) MarshalYAML() (any, error) {
	return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%", nil
}

// Moment is a point in time: a date, which stands for the end of that day in UTC, or
// a time of RFC 3339. Empty is no moment.
type Moment string

// UnmarshalYAML reads it.
func (m *Moment) UnmarshalYAML(n ast.Node) error {
	text := n.GetToken().Value
	if _, err := Moment(text).Time(); err != nil || text == "" {
		return invalid(n, "want a date such as 2027-01-31, which lasts to its end in UTC, or a time such as 2027-01-31T12:00:00Z")
	}
	*m = Moment(text)
	return nil
}

// Time is the moment; zero if there is none.
func (m Moment) Time() (time.Time, error) {
	if m == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.DateOnly, string(m)); err == nil {
		return t.AddDate(0, 0, 1), nil
	}
	t, err := time.Parse(time.RFC3339, string(m))
	if err != nil {
		return time.Time{}, fmt.Errorf("config: moment: %w", err)
	}
	return t.UTC(), nil
}

// Secret is a value that a configuration names and does not hold: env:NAME or
// file:PATH. Only a configuration that came over a pipe from the parent may hold the
// value itself, as value:TEXT.
type Secret string

// Named says whether s names a value instead of holding it.
func (s Secret) Named() bool {
	kind, rest, _ := strings.Cut(string(s), ":")
	return rest != "" && (kind == "env" || kind == "file")
}

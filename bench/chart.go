package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Sizes of a chart, in pixels: two columns of panels, in each a bar for everybody.
const (
	chartWidth  = 960
	panelWidth  = 470
	panelGap    = 20
	nameWidth   = 140
	numberWidth = 80
	barHeight   = 14
	barStep     = 20
	titleHeight = 58
	footHeight  = 22
)

// Colours of a chart, which is readable on white and on black.
const (
	colorPaper  = "#ffffff"
	colorText   = "#1f2328"
	colorFaint  = "#59636e"
	colorBar    = "#b6c2cf"
	colorOurs   = "#0969da"
	colorBudget = "#cf222e"
	colorHoped  = "#1a7f37"
)

// drawing is the comparison as an SVG: a panel for each row, ratios as bars, lines for
// the budget and for what is hoped for.
func drawing(s *section) string {
	all := byRow(s.Cells)
	var b strings.Builder
	y := 10
	for i := 0; i < len(all); i += 2 {
		pair := all[i:min(i+2, len(all))]
		tallest := 0
		for j, r := range pair {
			budget := budgetOf(s, r)
			r.draw(&b, j*(panelWidth+panelGap), y, budget)
			tallest = max(tallest, titleHeight+barStep*len(r.targets)+footHeight)
		}
		y += tallest
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="system-ui, sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="%[3]s"/>
%[4]s</svg>
`, chartWidth, y, colorPaper, b.String())
}

// budgetOf is the budget of a row's ratio, or nil.
func budgetOf(s *section, r *cellRow) *budget {
	for i := range s.Figures {
		if s.Figures[i].ID == "gateway."+r.id+"_"+r.judged() {
			return s.Figures[i].Budget
		}
	}
	return nil
}

// draw draws one panel with its corner at x, y.
func (r *cellRow) draw(b *strings.Builder, x, y int, limit *budget) {
	better := "less is better"
	if r.judged() == string(byRate) {
		better = "more is better"
	}
	text(b, x+8, y+16, colorText, "bold", fmt.Sprintf("%s, %s", upper(r.title), routeWords(r.route)))
	text(b, x+8, y+33, colorFaint, "normal", fmt.Sprintf("%s, against %s; %s", measureWords(r.judged()), r.against(), better))
	// What is far beyond the others would make them all small: its bar is cut.
	most := 0.0
	for _, t := range r.targets {
		if v := r.ratio(t); v <= chartMost {
			most = max(most, v)
		}
	}
	if limit != nil {
		most = max(most, limit.Limit, limit.Stretch)
	}
	width := panelWidth - nameWidth - numberWidth - 16
	scale := float64(width) / max(most*1.05, 1e-9)
	top := y + titleHeight - 14
	for i, t := range r.targets {
		at, v, color := top+i*barStep, r.ratio(t), colorBar
		weight := "normal"
		if t == nameOurs {
			color, weight = colorOurs, "bold"
		}
		text(b, x+8, at+11, colorText, weight, t)
		if math.IsNaN(v) {
			text(b, x+nameWidth+4, at+11, colorFaint, "normal", "unknown")
			continue
		}
		long := min(v*scale, float64(width))
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", x+nameWidth, at, long, barHeight, color)
		number := ratio.number(&v)
		if v > chartMost {
			number += " (cut)"
		}
		text(b, x+nameWidth+int(long)+4, at+11, colorText, weight, number)
	}
	if limit == nil {
		return
	}
	bottom := top + barStep*len(r.targets)
	for _, l := range [...]struct {
		at          float64
		color, dash string
	}{{limit.Limit, colorBudget, "4 3"}, {limit.Stretch, colorHoped, "1 3"}} {
		at := float64(x+nameWidth) + l.at*scale
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" stroke-dasharray="%s"/>`+"\n", at, top-4, at, bottom, l.color, l.dash)
	}
	text(b, x+nameWidth, bottom+10, colorFaint, "normal", fmt.Sprintf("budget %s (dashed), hoped for %s (dotted)", trim(limit.Limit), trim(limit.Stretch)))
}

// chartMost is the largest ratio whose bar is drawn in full.
const chartMost = 12

// ratio is what a contender has of the reference, or NaN.
func (r *cellRow) ratio(target string) float64 {
	if c := r.cells[target][r.judged()]; c != nil && c.Ratio != nil {
		return *c.Ratio
	}
	return math.NaN()
}

func text(b *strings.Builder, x, y int, color, weight, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" fill="%s" font-weight="%s">%s</text>`+"\n", x, y, color, weight, html.EscapeString(s))
}

package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"text/template"

	"github.com/kvtier/kvtier/internal/bench/show"
)

// plot draws the README's picture: time to first token against the length of the prompt, by stock
// Ollama and restored after kill -9.
func (r *Report) plot(path string) error {
	drawn, err := r.draw()
	if err != nil {
		return fmt.Errorf("draw the report: %w", err)
	}
	return os.WriteFile(path, drawn, 0o644)
}

// checkPlot refuses a report that makes no curve.
func (r *Report) checkPlot() error {
	if r.Settings.Quick {
		return errors.New("it was measured with -quick, its figures mean nothing")
	}
	if r.TTFT == nil || len(r.TTFT.Points) < 2 {
		return errors.New("it has no two prompt lengths for a curve; measure ttft")
	}
	for _, p := range r.TTFT.Points {
		if p.Tokens <= 0 || p.Stock.Median <= 0 || p.Restored.Median <= 0 {
			return fmt.Errorf("the times for %d tokens are not positive", p.Tokens)
		}
	}
	return nil
}

// Places of the first and the last prompt length, and of the shortest and the longest time, in the
// template's units.
const (
	left, right = 111, 480
	bottom, top = 238, 106
)

// mark is a place in the picture, with a value.
type mark struct {
	X, Y float64
	Text string
}

// curve is the points of one line.
type curve []mark

// Line is the curve as the points of a polyline.
func (c curve) Line() string {
	var b strings.Builder
	for _, m := range c {
		fmt.Fprintf(&b, "%.1f,%.1f ", m.X, m.Y)
	}
	return b.String()
}

// End is the last point, beside which the name stands.
func (c curve) End() mark { return c[len(c)-1] }

// picture is what the template draws.
type picture struct {
	*Report
	Version                   string
	Stock, Restored, Uncached curve
	Lengths, Decades, Faster  []mark
}

//go:embed ttft.svg.tmpl
var svgText string

var svg = template.Must(template.New("").Parse(svgText))

// draw draws a report.
func (r *Report) draw() ([]byte, error) {
	if err := r.checkPlot(); err != nil {
		return nil, err
	}
	p := picture{Report: r}
	p.Version, _, _ = strings.Cut(r.Versions.Kvtier, "+")
	p.place()
	var out bytes.Buffer
	err := svg.Execute(&out, p)
	return out.Bytes(), err
}

// place computes the places of all curves.
func (p *picture) place() {
	points := p.TTFT.Points
	first, last := float64(points[0].Tokens), float64(points[len(points)-1].Tokens)
	shortest, longest := math.Inf(1), 0.0
	for _, pt := range points {
		shortest, longest = min(shortest, pt.Restored.Median), max(longest, pt.Stock.Median)
	}
	y := func(seconds float64) float64 { return logScale(seconds, shortest, longest, bottom, top) }
	for _, pt := range points {
		x := logScale(float64(pt.Tokens), first, last, left, right)
		at := func(seconds float64) mark {
			return mark{x, y(seconds), show.Number(seconds, "s")}
		}
		p.Stock, p.Restored = append(p.Stock, at(pt.Stock.Median)), append(p.Restored, at(pt.Restored.Median))
		if pt.RestoredUncached != nil {
			p.Uncached = append(p.Uncached, at(pt.RestoredUncached.Median))
		}
		p.Lengths = append(p.Lengths, mark{X: x, Text: show.Count(pt.Tokens)})
		p.Faster = append(p.Faster, mark{x, y(math.Sqrt(pt.Restored.Median * pt.Stock.Median)), show.Times(pt.Speedup) + " faster"})
	}
	for power := math.Floor(math.Log10(shortest)); power <= math.Ceil(math.Log10(longest)); power++ {
		seconds := math.Pow(10, power)
		if shortest/2 < seconds && seconds < 2*longest {
			text := fmt.Sprintf("%.0f s", seconds)
			if seconds < 1 {
				text = fmt.Sprintf("%.0f ms", 1e3*seconds)
			}
			p.Decades = append(p.Decades, mark{Y: y(seconds), Text: text})
		}
	}
}

// logScale is the place of a value on a logarithmic axis from low, at a place, to high.
func logScale(value, low, high, from, to float64) float64 {
	return from + (to-from)*math.Log(value/low)/math.Log(high/low)
}

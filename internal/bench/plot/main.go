// Command plot draws the README's picture from the report of internal/bench: time to first token
// against the length of the prompt, by stock Ollama and restored after kill -9.
//
//	go run ./internal/bench/plot docs/bench/cpu.json docs/ttft.svg
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/template"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

func main() { show.Main(run) }

func run(_ context.Context, args []string, _, _ io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: plot REPORT.json PICTURE.svg")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read the report: %w", err)
	}
	picture, err := draw(text)
	if err != nil {
		return fmt.Errorf("draw %s: %w", args[0], err)
	}
	return os.WriteFile(args[1], picture, 0o644)
}

// report is the drawn part of a report of internal/bench; times are in seconds.
type report struct {
	Machine  measure.Machine
	Versions struct {
		Kvtier         string
		StockIsPatched bool `json:"stock_is_patched"`
	}
	Settings struct {
		Model       string
		Repetitions int
		Quick       bool
	}
	TTFT struct {
		Points []struct {
			Tokens          int
			Stock, Restored measure.Series
			Uncached        measure.Series `json:"restored_uncached"` // 0 where it was not measured
			Speedup         float64
		}
	}
}

// check refuses a report that makes no curve.
func (r *report) check() error {
	if r.Settings.Quick {
		return errors.New("it was measured with -quick, its figures mean nothing")
	}
	if n := len(r.TTFT.Points); n < 2 {
		return fmt.Errorf("it has %d prompt lengths, a curve needs 2; measure ttft", n)
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
	*report
	Version                   string
	Stock, Restored, Uncached curve
	Lengths, Decades, Faster  []mark
}

//go:embed ttft.svg.tmpl
var text string

var svg = template.Must(template.New("").Parse(text))

// draw draws a report.
func draw(text []byte) ([]byte, error) {
	p := picture{report: &report{}}
	if err := json.Unmarshal(text, p.report); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	p.Version, _, _ = strings.Cut(p.Versions.Kvtier, "+")
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
			return mark{x, y(seconds), show.Seconds(time.Duration(seconds * float64(time.Second)))}
		}
		p.Stock, p.Restored = append(p.Stock, at(pt.Stock.Median)), append(p.Restored, at(pt.Restored.Median))
		if pt.Uncached.Median > 0 {
			p.Uncached = append(p.Uncached, at(pt.Uncached.Median))
		}
		p.Lengths = append(p.Lengths, mark{X: x, Text: show.Count(pt.Tokens)})
		p.Faster = append(p.Faster, mark{x, y(math.Sqrt(pt.Restored.Median * pt.Stock.Median)), show.Times(pt.Speedup) + " faster"})
	}
	for power := math.Floor(math.Log10(shortest)); power <= math.Ceil(math.Log10(longest)); power++ {
		seconds := math.Pow(10, power)
		if shortest/2 < seconds && seconds < 2*longest {
			p.Decades = append(p.Decades, mark{Y: y(seconds), Text: decade(seconds)})
		}
	}
}

// decade is a power of ten, in seconds, as text.
func decade(seconds float64) string {
	if seconds < 1 {
		return fmt.Sprintf("%.0f ms", 1e3*seconds)
	}
	return fmt.Sprintf("%.0f s", seconds)
}

// logScale is the place of a value on a logarithmic axis from low, at a place, to high.
func logScale(value, low, high, from, to float64) float64 {
	return from + (to-from)*math.Log(value/low)/math.Log(high/low)
}

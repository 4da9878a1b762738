package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"
)

// Size of the chart and of the space around its axes, in pixels.
const (
	chartWidth, chartHeight  = 840, 490
	chartLeft, chartRight    = 70, 180
	chartTop, chartBottom    = 84, 74
	labelGap                 = 11
	labelHeight              = 34 // two lines of a label
	labelWidth               = 170
	plotWidth, plotHeight    = chartWidth - chartLeft - chartRight, chartHeight - chartTop - chartBottom
	xEnd, yEnd               = chartLeft + plotWidth, chartTop + plotHeight
	colorExact, colorLossy   = "#0969da", "#bc4c00"
	ratioStep                = 0.5
	ratioStepOfFew, fewRatio = 0.1, 1.0 // where all ratios are within fewRatio
)

// chart is the data of the template.
type chart struct {
	Width, Height, Left, Top, XEnd, YEnd int
	Middle, InnerWidth, InnerHeight      int
	Conditions                           string
	X, Y                                 []tick
	Points                               []point
	BoundY                               float64 // of the order-0 bound; 0 if it is outside
	Bound                                string
}

// tick is a labelled place of an axis.
type tick struct {
	At   float64
	Text string
}

// point is an encoding. The label is beside it, moved where labels would overlap.
type point struct {
	X, Y, LabelX, LabelY float64
	Color, Name, Quality string
}

var chartText = template.Must(template.New("chart").Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" font-family="Liberation Sans,Arial,Helvetica,sans-serif" font-size="12" fill="#59636e">
<rect x="0.5" y="0.5" width="{{.InnerWidth}}" height="{{.InnerHeight}}" fill="#ffffff" stroke="#d0d7de"/>
<text x="16" y="32" font-size="19" font-weight="bold" fill="#1f2328">Encodings of K/V pages: ratio, speed, quality after a restore</text>
<text x="16" y="54">{{html .Conditions}}</text>
{{range .Y}}<path d="M{{$.Left}} {{printf "%.1f" .At}}H{{$.XEnd}}" stroke="#eaeef2"/><text x="{{$.Left}}" dx="-8" y="{{printf "%.1f" .At}}" dy="4" text-anchor="end">{{.Text}}</text>
{{end}}{{range .X}}<path d="M{{printf "%.1f" .At}} {{$.YEnd}}v5" stroke="#d0d7de"/><text x="{{printf "%.1f" .At}}" y="{{$.YEnd}}" dy="20" text-anchor="middle">{{.Text}}</text>
{{end}}<path d="M{{.Left}} {{.YEnd}}H{{.XEnd}}" stroke="#d0d7de"/>
{{if .BoundY}}<path d="M{{.Left}} {{printf "%.1f" .BoundY}}H{{.XEnd}}" stroke="#59636e" stroke-dasharray="4 4"/><text x="{{.XEnd}}" dx="6" y="{{printf "%.1f" .BoundY}}" dy="4">{{.Bound}}</text>
{{end}}{{range .Points}}<circle cx="{{printf "%.1f" .X}}" cy="{{printf "%.1f" .Y}}" r="5" fill="{{.Color}}"/><text x="{{printf "%.1f" .LabelX}}" y="{{printf "%.1f" .LabelY}}" stroke="#ffffff" stroke-width="4" paint-order="stroke"><tspan font-weight="bold" fill="{{.Color}}">{{.Name}}</tspan><tspan x="{{printf "%.1f" .LabelX}}" dy="15">{{.Quality}}</tspan></text>
{{end}}<text x="{{.Middle}}" y="{{.Height}}" dy="-24" text-anchor="middle">decoding on one core, GB of K/V per second, logarithmic</text>
<text transform="translate(22 {{.YEnd}}) rotate(-90)">ratio: K/V over stored bytes</text>
</svg>
`))

// WriteChart draws the ratio of each encoding against the speed of decoding, with the quality
// beside it, as SVG. model names the model.
func (r *Report) WriteChart(w io.Writer, model string) error {
	c := chart{
		Width: chartWidth, Height: chartHeight, Left: chartLeft, Top: chartTop, XEnd: xEnd, YEnd: yEnd,
		InnerWidth: chartWidth - 1, InnerHeight: chartHeight - 1,
		Middle:     chartLeft + plotWidth/2,
		Conditions: fmt.Sprintf("%s, %s numbers of 16 bits. Ollama %s, flash attention off.", model, millions(r.Numbers), r.Engine),
	}
	speeds, ratios := make([]float64, 0, len(r.Results)), []float64{1}
	for _, res := range r.Results {
		speeds, ratios = append(speeds, res.Decode), append(ratios, res.Ratio)
	}
	x := logAxis(slices.Min(speeds), slices.Max(speeds))
	y := linearAxis(slices.Min(ratios), slices.Max(ratios))
	for _, t := range x.ticks {
		c.X = append(c.X, tick{chartLeft + plotWidth*x.place(t), fmt.Sprintf("%g", t)})
	}
	for _, t := range y.ticks {
		c.Y = append(c.Y, tick{yEnd - plotHeight*y.place(t), fmt.Sprintf("%.1f×", t)})
	}
	for _, res := range r.Results {
		c.Points = append(c.Points, pointOf(res, x, y))
	}
	spread(c.Points)
	if bound := r.Results[0].Bound; bound >= 1 && bound <= y.high {
		c.BoundY, c.Bound = yEnd-plotHeight*y.place(bound), fmt.Sprintf("order-0 bound, %.2f×", bound)
	}
	if err := chartText.Execute(w, c); err != nil {
		return fmt.Errorf("draw the chart: %w", err)
	}
	return nil
}

func pointOf(res Result, x, y axis) point {
	p := point{
		X: chartLeft + plotWidth*x.place(res.Decode), Y: yEnd - plotHeight*y.place(res.Ratio),
		Color: colorExact, Name: fmt.Sprintf("%s  %.2f×", res.Encoding, res.Ratio), Quality: "no loss",
	}
	if !res.Lossless {
		p.Color, p.Quality = colorLossy, fmt.Sprintf("KL %.2g, top-1 %.1f %%", res.KL, 100*res.Top1)
	}
	p.LabelX, p.LabelY = p.X+labelGap, p.Y
	return p
}

// spread moves labels that would overlap: down, and up again where they would leave the axes.
func spread(points []point) {
	order := make([]*point, len(points))
	for i := range points {
		order[i] = &points[i]
	}
	slices.SortFunc(order, func(a, b *point) int { return cmp.Compare(a.LabelY, b.LabelY) })
	beside := func(a, b *point) bool { return math.Abs(a.LabelX-b.LabelX) < labelWidth }
	for i, p := range order {
		for _, above := range order[:i] {
			if beside(p, above) {
				p.LabelY = max(p.LabelY, above.LabelY+labelHeight)
			}
		}
	}
	for i := len(order) - 1; i >= 0; i-- {
		order[i].LabelY = min(order[i].LabelY, float64(yEnd-labelHeight/2))
		for _, below := range order[i+1:] {
			if beside(order[i], below) {
				order[i].LabelY = min(order[i].LabelY, below.LabelY-labelHeight)
			}
		}
	}
}

// axis maps a range of values to 0 … 1.
type axis struct {
	low, high float64
	log       bool
	ticks     []float64
}

func (a axis) place(v float64) float64 {
	if a.log {
		return math.Log(v/a.low) / math.Log(a.high/a.low)
	}
	return (v - a.low) / (a.high - a.low)
}

// logAxis has ticks at 1, 2 and 5 times powers of ten.
func logAxis(low, high float64) axis {
	a := axis{low: low / 1.3, high: high * 1.3, log: true}
	for exponent := math.Floor(math.Log10(a.low)); math.Pow(10, exponent) <= a.high; exponent++ {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * math.Pow(10, exponent); v >= a.low && v <= a.high {
				a.ticks = append(a.ticks, v)
			}
		}
	}
	return a
}

func linearAxis(low, high float64) axis {
	step := ratioStep
	if high-low < fewRatio {
		step = ratioStepOfFew
	}
	a := axis{low: math.Floor(low/step-0.5) * step, high: math.Ceil(high/step+0.5) * step}
	for i := 0; a.low+float64(i)*step <= a.high+step/2; i++ {
		a.ticks = append(a.ticks, a.low+float64(i)*step)
	}
	return a
}

// millions is a count: 6.3 million.
func millions(n int64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/1e6), ".0") + " million"
}

package main

import (
	"fmt"
	"image/color"
	"math"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Size of the picture.
const (
	width  = 8.4 * vg.Inch
	height = 4.9 * vg.Inch
)

var (
	background = color.RGBA{R: 0xff, G: 0xff, B: 0xff, A: 0xff}
	frame      = color.RGBA{R: 0xd0, G: 0xd7, B: 0xde, A: 0xff}
	ink        = color.RGBA{R: 0x1f, G: 0x23, B: 0x28, A: 0xff}
	faint      = color.RGBA{R: 0x59, G: 0x63, B: 0x6e, A: 0xff}
	grid       = color.RGBA{R: 0xea, G: 0xee, B: 0xf2, A: 0xff}
	slow       = color.RGBA{R: 0xbc, G: 0x4c, B: 0x00, A: 0xff}
	fast       = color.RGBA{R: 0x09, G: 0x69, B: 0xda, A: 0xff}
	paleFast   = color.RGBA{R: 0x6c, G: 0xa9, B: 0xee, A: 0xff}
)

const (
	titleSize = 17
	textSize  = 11
	smallSize = 9.5
	boldSize  = 13
)

// Space around the parts of the picture.
const (
	margin      = vg.Length(16)
	titleSpace  = vg.Length(62)
	footerSpace = vg.Length(48)
	labelGap    = vg.Length(9)
)

// paint draws the whole picture.
func paint(c draw.Canvas, r *report) error {
	c.SetColor(background)
	c.Fill(c.Rectangle.Path())
	border := draw.Crop(c, 0.5, -0.5, 0.5, -0.5)
	border.StrokeLines(draw.LineStyle{Color: frame, Width: 1}, []vg.Point{
		border.Min, {X: border.Max.X, Y: border.Min.Y}, border.Max, {X: border.Min.X, Y: border.Max.Y}, border.Min,
	})

	left, top := c.Min.X+margin, c.Max.Y-margin
	c.FillText(style(titleSize, ink, true), vg.Point{X: left, Y: top - titleSize}, "Time to first token of a prompt that was seen before")
	c.FillText(style(textSize, faint, false), vg.Point{X: left, Y: top - titleSize - 20},
		"kvtier reads its K/V back after kill -9 of server and runner. Both axes are logarithmic.")
	c.FillText(style(smallSize, faint, false), vg.Point{X: left, Y: c.Min.Y + margin + 12}, r.conditions())
	c.FillText(style(smallSize, faint, false), vg.Point{X: left, Y: c.Min.Y + margin - 1}, r.model())

	p, err := chart(r)
	if err != nil {
		return err
	}
	p.Draw(draw.Crop(c, margin, -margin, footerSpace, -titleSpace))
	return nil
}

// chart is the axes and everything between them.
func chart(r *report) (*plot.Plot, error) {
	p := plot.New()
	p.BackgroundColor = background
	prepareAxes(p, r)
	if err := addGrid(p, float64(r.TTFT.Points[len(r.TTFT.Points)-1].Tokens)); err != nil {
		return nil, err
	}
	var stock, restored, uncached plotter.XYs
	for _, pt := range r.TTFT.Points {
		x := float64(pt.Tokens)
		stock = append(stock, plotter.XY{X: x, Y: pt.Stock.Median})
		restored = append(restored, plotter.XY{X: x, Y: pt.Restored.Median})
		if pt.Uncached.Median > 0 {
			uncached = append(uncached, plotter.XY{X: x, Y: pt.Uncached.Median})
		}
		if err := addSpeedup(p, pt); err != nil {
			return nil, err
		}
	}
	if len(uncached) == len(restored) {
		c := curve{name: "page cache empty", color: paleFast, width: 1.5, radius: 2.5, titleSize: textSize}
		if err := c.add(p, uncached); err != nil {
			return nil, err
		}
	}
	upper := curve{name: r.stockName(), color: slow, width: 2.5, radius: 4, titleSize: boldSize, values: above}
	if err := upper.add(p, stock); err != nil {
		return nil, err
	}
	lower := curve{name: "kvtier, restored", color: fast, width: 2.5, radius: 4, titleSize: boldSize, values: below}
	return p, lower.add(p, restored)
}

// prepareAxes scales, names and divides them.
func prepareAxes(p *plot.Plot, r *report) {
	points := r.TTFT.Points
	first, last := float64(points[0].Tokens), float64(points[len(points)-1].Tokens)
	lowest, highest := math.Inf(1), 0.0
	var sizes []plot.Tick
	for _, pt := range points {
		lowest, highest = min(lowest, pt.Restored.Median), max(highest, pt.Stock.Median)
		sizes = append(sizes, plot.Tick{Value: float64(pt.Tokens), Label: count(pt.Tokens)})
	}
	p.X.Label.Text, p.Y.Label.Text = "prompt, tokens", "time to first token"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Min, p.X.Max = first/1.25, last*2.1 // room for the names of the curves
	p.Y.Min, p.Y.Max = lowest/2.6, highest*2.4
	p.X.Tick.Marker = plot.ConstantTicks(sizes)
	p.Y.Tick.Marker = plot.ConstantTicks(decades(p.Y.Min, p.Y.Max))
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle = with(axis.Label.TextStyle, textSize, faint)
		axis.Tick.Label = with(axis.Tick.Label, textSize, faint)
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = frame, frame
		axis.Label.Padding = 6
	}
	p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0, 0
}

// addGrid draws a line at each tick of the time axis, up to the last point; names are
// right of that point.
func addGrid(p *plot.Plot, last float64) error {
	for _, tick := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		line, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: tick.Value}, {X: last, Y: tick.Value}})
		if err != nil {
			return fmt.Errorf("drawing the grid: %w", err)
		}
		line.LineStyle = draw.LineStyle{Color: grid, Width: 1}
		p.Add(line)
	}
	return nil
}

// decades are the powers of ten within a range of seconds.
func decades(lowest, highest float64) []plot.Tick {
	var ticks []plot.Tick
	for exponent := math.Ceil(math.Log10(lowest)); exponent <= math.Floor(math.Log10(highest)); exponent++ {
		value := math.Pow(10, exponent)
		ticks = append(ticks, plot.Tick{Value: value, Label: seconds(value)})
	}
	return ticks
}

// side is where the values of a curve's points are written.
type side int

const (
	nowhere side = iota
	above
	below
)

// curve is how one is drawn.
type curve struct {
	name          string
	color         color.Color
	width, radius vg.Length
	titleSize     float64
	values        side
}

// add draws the curve with its points, their values and, at the end, its name.
func (c curve) add(p *plot.Plot, points plotter.XYs) error {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", c.name, err)
	}
	line.LineStyle = draw.LineStyle{Color: c.color, Width: c.width}
	dots.GlyphStyle = draw.GlyphStyle{Color: c.color, Radius: c.radius, Shape: draw.CircleGlyph{}}
	p.Add(line, dots)
	for _, point := range points {
		if err := c.addValue(p, point); err != nil {
			return err
		}
	}
	title := style(c.titleSize, c.color, true)
	title.YAlign = text.YCenter
	return addLabel(p, points[len(points)-1], c.name, title, vg.Point{X: 1.4 * labelGap})
}

func (c curve) addValue(p *plot.Plot, at plotter.XY) error {
	value := style(textSize, c.color, true)
	value.XAlign = text.XCenter
	switch c.values {
	case above:
		value.YAlign = text.YBottom
		return addLabel(p, at, seconds(at.Y), value, vg.Point{Y: labelGap})
	case below:
		value.YAlign = text.YTop
		return addLabel(p, at, seconds(at.Y), value, vg.Point{Y: -labelGap})
	}
	return nil
}

// addSpeedup draws the speedup between the two times of one prompt length.
func addSpeedup(p *plot.Plot, pt point) error {
	x := float64(pt.Tokens)
	line, err := plotter.NewLine(plotter.XYs{{X: x, Y: pt.Restored.Median}, {X: x, Y: pt.Stock.Median}})
	if err != nil {
		return fmt.Errorf("drawing the speedup at %d tokens: %w", pt.Tokens, err)
	}
	line.LineStyle = draw.LineStyle{Color: frame, Width: 1, Dashes: []vg.Length{3, 3}}
	p.Add(line)
	middle := plotter.XY{X: x, Y: math.Sqrt(pt.Restored.Median * pt.Stock.Median)}
	label := style(boldSize, ink, true)
	label.YAlign = text.YCenter
	return addLabel(p, middle, factor(pt.Speedup), label, vg.Point{X: 0.6 * labelGap})
}

func addLabel(p *plot.Plot, at plotter.XY, content string, s text.Style, offset vg.Point) error {
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{at}, Labels: []string{content}})
	if err != nil {
		return fmt.Errorf("writing %q: %w", content, err)
	}
	labels.TextStyle = []text.Style{s}
	labels.Offset = offset
	p.Add(labels)
	return nil
}

// style is a text style, aligned to the left end of its baseline.
func style(size float64, c color.Color, bold bool) text.Style {
	s := with(plot.New().Title.TextStyle, size, c)
	s.XAlign, s.YAlign = text.XLeft, text.YBottom
	if bold {
		s.Font.Weight = xfont.WeightBold
	}
	return s
}

func with(s text.Style, size float64, c color.Color) text.Style {
	s.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)}
	s.Color = c
	return s
}

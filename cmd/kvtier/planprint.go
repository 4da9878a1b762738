package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/sizing"
)

// printPlanned prints tables as ollama ps does: the model, the places, the engine, the times, the notes and the settings.
func printPlanned(w io.Writer, p *sizing.Plan) {
	printTable(w, []string{"name", "figure", "from"}, modelRows(p))
	fmt.Fprintln(w)
	printTable(w, []string{"place", "room", "tokens", "conversations", "read", "per token", "from"}, rowsOf(slices.Concat(p.Places, p.Defaults), placeRow))
	if len(p.Engines) > 0 {
		fmt.Fprintln(w)
		printTable(w, []string{"engine", "page", "bytes", "cold type", "before pages", "video memory", "memory", "otherwise", "from"}, rowsOf(p.Engines, engineRow))
	}
	unknown := func(l sizing.Length) bool { return l.Restore == nil && l.Compute == nil }
	if known := slices.DeleteFunc(slices.Clone(p.Lengths), unknown); len(known) > 0 {
		fmt.Fprintln(w)
		printTable(w, []string{"prompt", "restore", "compute", "from"}, rowsOf(known, func(l sizing.Length) []string {
			return []string{figure(l.Tokens), optional(l.Restore), optional(l.Compute), origins(l.Restore, l.Compute)}
		}))
	}
	for _, line := range append(verdicts(p), p.Notes...) {
		fmt.Fprintf(w, "\n%s\n", line)
	}
	fmt.Fprintf(w, "\nFor a service (sudo systemctl edit ollama.service):\n\n%s\n", p.Systemd())
	printTable(w, []string{"variable", "value", "why"}, rowsOf(p.Settings, func(s sizing.Setting) []string { return []string{s.Name, s.Value, s.Why} }))
}

func modelRows(p *sizing.Plan) [][]string {
	row := func(name string, f sizing.Figure) []string { return []string{name, figure(f), from(f)} }
	layers := fmt.Sprintf("%.0f", p.FullLayers.Value)
	if p.WindowLayers.Value > 0 {
		layers += fmt.Sprintf(", %.0f with a window", p.WindowLayers.Value)
	}
	if p.StateLayers.Value > 0 {
		layers += fmt.Sprintf(", %.0f recurrent", p.StateLayers.Value)
	}
	rows := [][]string{
		{"model", p.Model, string(sizing.Given)},
		{"architecture", p.Architecture, from(p.FullLayers)},
		{"layers", layers, from(p.FullLayers)},
		row("weights", p.Weights),
		{"K/V of a token, " + p.CacheType, count(int64(p.Token.Value)) + " B", from(p.Token)},
	}
	if p.WindowLayers.Value > 0 {
		rows = append(rows, []string{"beyond windows", count(int64(p.TokenFull.Value)) + " B", from(p.TokenFull)})
	}
	if p.State.Value > 0 {
		rows = append(rows, row("state", p.State))
	}
	rows = append(rows, row("context", p.Context), row("slots", p.Slots), row("engine's cells", p.Cells), row("pages, a context", p.Stored))
	if p.StoredLlama.Value != p.Stored.Value {
		rows = append(rows, row("by llama-server", p.StoredLlama))
	}
	if p.Restored.Value != p.Stored.Value {
		rows = append(rows, row("restore reads", p.Restored))
	}
	if p.Team != nil {
		rows = append(rows, row("a team's pages", *p.Team))
	}
	if p.WrittenADay != nil {
		rows = append(rows, row("written", *p.WrittenADay), row("disk lasts", *p.Life))
	}
	return rows
}

func placeRow(p sizing.Place) []string {
	var sources []string
	if p.Room.Origin != "" {
		sources = append(sources, from(p.Room))
	}
	if p.Read != nil {
		sources = append(sources, "rate "+from(*p.Read))
	}
	return []string{
		p.Name, optional(&p.Room), optional(&p.Tokens), optional(&p.Conversations),
		optional(p.Read), optional(p.TokenTime), strings.Join(sources, "; "),
	}
}

func engineRow(e sizing.Engine) []string {
	var sources []string
	for _, f := range []struct {
		name string
		*sizing.Figure
	}{{"page", e.Page}, {"bytes", e.PageBytes}, {"before pages", e.Tensors}, {"video memory", e.Video}, {"memory", e.Memory}} {
		if f.Figure != nil {
			sources = append(sources, f.name+" "+from(*f.Figure))
		}
	}
	return []string{
		e.Name, optional(e.Page), optional(e.PageBytes), e.ColdType, optional(e.Tensors),
		optional(e.Video), optional(e.Memory), e.Otherwise, strings.Join(sources, "; "),
	}
}

func verdicts(p *sizing.Plan) (lines []string) {
	say := func(f *sizing.Figure, before, after string) {
		if f != nil {
			lines = append(lines, before+figure(*f)+after+" ("+string(f.Origin)+")")
		}
	}
	say(p.BreakEven, "Restoring is quicker than computing from ", " on.")
	if p.NeverQuicker {
		lines = append(lines, "Computing a context of this length is quicker than restoring it from this disk: pages are read only where that changes.")
	}
	say(p.BreakEvenRead, "At "+figure(p.Context)+", any disk that reads ", " or more is quicker than computing.")
	return lines
}

func optional(f *sizing.Figure) string {
	if f == nil || f.Origin == "" {
		return "-"
	}
	return figure(*f)
}

func figure(f sizing.Figure) string {
	switch f.Unit {
	case sizing.Bytes:
		return humanBytes(int64(f.Value))
	case sizing.BytesPerS:
		return humanBytes(int64(f.Value)) + "/s"
	case sizing.BytesPerDay:
		return humanBytes(int64(min(f.Value, sizing.AmountMax))) + " a day"
	case sizing.Seconds:
		return seconds(f.Value)
	case sizing.Years:
		return strconv.FormatFloat(significant(f.Value), 'f', -1, 64) + " years"
	case sizing.Tokens:
		return plural(int64(f.Value), "token")
	case sizing.Conversations:
		return strconv.FormatFloat(significant(f.Value), 'f', -1, 64)
	}
	return count(int64(f.Value))
}

// significant rounds to three digits.
func significant(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) {
		return v
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// longSeconds is more than any sensible time, and fits into a duration.
const longSeconds = 1e9

func seconds(s float64) string {
	if s >= longSeconds {
		return "years"
	}
	return time.Duration(math.Round(significant(s) * float64(time.Second))).String()
}

func from(f sizing.Figure) string {
	if f.From == "" {
		return string(f.Origin)
	}
	return string(f.Origin) + ": " + f.From
}

func origins(restore, compute *sizing.Figure) string {
	var list []string
	if restore != nil {
		list = append(list, "restore "+string(restore.Origin))
	}
	if compute != nil {
		list = append(list, "compute "+from(*compute))
	}
	return strings.Join(list, ", ")
}

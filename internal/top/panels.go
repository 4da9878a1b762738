package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// Widths of the parts of a tier's line, in cells.
const (
	barMin, barMax = 8, 48
	sizeCells      = 17 // "41 GB of 100 GB"
	pagesCells     = 13
	todayCells     = 24
)

// tiers has a bar for each tier: bytes that count against the budget.
func (m *model) tiers(state telemetry.State, width int) []string {
	if len(state.Tiers) == 0 {
		return []string{m.style.quiet.Render("No process that runs has told of its tiers.")}
	}
	const fixed = 7 + 1 + 5 + sizeCells + 2 // name, share, sizes
	pages, today := width >= fixed+barMin+pagesCells, width >= fixed+barMin+pagesCells+todayCells
	bar := width - fixed
	if pages {
		bar -= pagesCells
	}
	if today {
		bar -= todayCells
	}
	bar = min(barMax, bar)
	var lines []string
	for _, t := range state.Tiers {
		lines = append(lines, m.tier(t, bar, pages, today))
	}
	return lines
}

func (m *model) tier(t telemetry.Tier, bar int, pages, today bool) string {
	used := cmp.Or(t.Booked, t.Bytes)
	size, share := format.HumanBytes(used), 0.0
	percent := "-"
	if t.Budget > 0 {
		size += " of " + format.HumanBytes(t.Budget)
		share = float64(used) / float64(t.Budget)
		percent = show.Percent(share)
	}
	line := pad(clean(t.Name), 7, false) + " "
	if bar >= barMin {
		line += m.style.bar(t.Name, share, bar)
	}
	percent = pad(percent, 5, true)
	if t.Down {
		percent = m.style.bad.Render(" DOWN")
	}
	line += percent + "  " + pad(size, sizeCells, false)
	if pages {
		line += pad(show.Count(int64(t.Pages))+" pages", pagesCells, false)
	}
	if today && t.Name != "ram" {
		written := "today " + format.HumanBytes(t.WrittenToday)
		if t.WriteCap > 0 {
			written += " of " + format.HumanBytes(t.WriteCap)
		}
		line += pad(written, todayCells, false)
	}
	line = strings.TrimRight(line, " ")
	if t.Quarantined > 0 {
		line += m.style.warn.Render(" " + show.Count(int64(t.Quarantined)) + " damaged")
	}
	return line
}

var slotColumns = []column{
	{title: "SLOT", width: 4, right: true},
	{title: "MODEL", width: 12, grow: true, most: 40, drop: 3},
	{title: "STATE", width: 13, drop: 2},
	{title: "TOKENS", width: 8, right: true},
	{title: "HOT", width: 5, right: true, drop: 4},
	{title: "WARM", width: 5, right: true, drop: 4},
	{title: "COLD", width: 5, right: true, drop: 4},
	{title: "REMOTE", width: 6, right: true, drop: 4},
	{title: "RESTORED", width: 8, right: true, drop: 5},
	{title: "LAST", width: 10, right: true, drop: 5},
	{title: "SAVED", width: 12, right: true},
}

// slots lists busy slots first, then those restored last.
func (m *model) slots(state telemetry.State, width int, now time.Time) []string {
	type row struct {
		show.Slot
		model string
	}
	var all []row
	for _, p := range show.Processes(state, m.name) {
		for _, s := range p.Slots {
			all = append(all, row{s, p.Model})
		}
	}
	switch {
	case len(all) > 0:
	case state.Live:
		return []string{m.style.quiet.Render("No model is loaded.")}
	default:
		return []string{m.style.quiet.Render("No collector runs, so the loaded models are not known.")}
	}
	restored := func(r row) time.Time {
		if r.LastRestore == nil {
			return time.Time{}
		}
		return *r.LastRestore
	}
	slices.SortStableFunc(all, func(a, b row) int {
		if a.Busy != b.Busy {
			return map[bool]int{true: -1, false: 1}[a.Busy]
		}
		return restored(b).Compare(restored(a))
	})
	var rows [][]string
	for _, r := range all {
		status := r.Now()
		if rows := r.Rows(); rows != show.Exact {
			status += ", " + rows
		}
		got := "-"
		if r.LastRestore != nil {
			got = show.Count(int64(r.Restored))
		}
		rows = append(rows, []string{
			strconv.Itoa(r.Slot.Slot), clean(r.model), status, show.Count(int64(r.Tokens)), strconv.Itoa(r.Hot), show.Pages(r.Warm),
			show.Pages(r.Cold), show.Pages(r.Remote), got, show.Ago(restored(r), now), show.Seconds(r.SavedSeconds),
		})
	}
	lines := m.list(slotColumns, rows, width)
	for _, p := range show.Processes(state, m.name) {
		if text := p.Paging(); text != "" {
			for _, line := range show.Wrap(clean(p.Model+", "+text), width) {
				lines = append(lines, m.style.quiet.Render(line))
			}
		}
	}
	return lines
}

var promptColumns = []column{
	{title: "AGO", width: 6, right: true},
	{title: "MODEL", width: 18, drop: 9},
	{title: "SLOT", width: 4, right: true, drop: 8},
	{title: "TOKENS", width: 7, right: true},
	{title: "KEPT", width: 7, right: true, drop: 6},
	{title: "RESTORED", width: 8, right: true},
	{title: "FROM", width: 6, drop: 5},
	{title: "IN", width: 6, right: true, drop: 4},
	{title: "SAVED", width: 10, right: true, drop: 1},
	{title: "COMPUTED", width: 8, right: true, drop: 2},
	{title: "MISS", width: 22, grow: true, drop: 3},
}

// prompts lists the latest prompts, the newest first.
func (m *model) prompts(state telemetry.State, width int, now time.Time) []string {
	if len(state.Prompts) == 0 {
		return []string{m.style.quiet.Render("No prompt yet. Ask a model something.")}
	}
	own := make(map[string]string)
	for _, of := range state.Models {
		own[of.Model.Weights] = of.Model.Name
	}
	var rows [][]string
	for _, p := range slices.Backward(state.Prompts) {
		restored := p.RAM + p.Local + p.Remote + p.Shifted
		row := []string{
			shortAgo(p.At, now), clean(m.name(p.Weights, own[p.Weights])), strconv.Itoa(p.ID), show.Count(int64(p.Tokens)),
			show.Count(int64(p.Prompt.Slot)), "-", "-", "-", "-", show.Count(int64(p.Computed)), clean(missText(p.Miss)),
		}
		if restored > 0 {
			row[5], row[6] = show.Count(int64(restored)), mainPlace(p.Prompt)
			row[7], row[8] = show.Seconds(p.Restore.Seconds()), show.Seconds(p.Saved.Seconds())
		}
		rows = append(rows, row)
	}
	return m.list(promptColumns, rows, width)
}

// mainPlace is the place that most of a prompt's restored tokens came from.
func mainPlace(p telemetry.Prompt) string {
	name, most := telemetry.PlaceRAM, p.RAM
	for _, other := range []struct {
		name   string
		tokens int
	}{{telemetry.PlaceLocal, p.Local}, {telemetry.PlaceRemote, p.Remote}, {"moved", p.Shifted}} {
		if other.tokens > most {
			name, most = other.name, other.tokens
		}
	}
	return name
}

func causeName(c telemetry.Cause) string { return strings.ReplaceAll(string(c), "_", " ") }

func missText(miss *telemetry.Miss) string {
	if miss == nil {
		return ""
	}
	text := causeName(miss.Cause) + " at " + show.Count(int64(miss.At))
	if miss.From != "" {
		text += " from " + miss.From
	}
	if miss.Detail != "" {
		text += ": " + miss.Detail
	}
	return text
}

var missColumns = []column{
	{title: "MISSES", width: 21},
	{title: "PROMPTS", width: 7, right: true},
	{title: "TOKENS", width: 10, right: true},
	{title: "REMEDY", width: 20, grow: true, drop: 1},
}

// misses lists the causes of misses since the totals began, the most tokens first.
func (m *model) misses(state telemetry.State, width int) []string {
	var rows [][]string
	for _, c := range show.CauseTotals(state.Models) {
		rows = append(rows, []string{causeName(c.Cause), show.Count(c.Prompts), show.Count(c.Tokens), c.Remedy})
	}
	if len(rows) == 0 {
		return nil
	}
	return m.list(missColumns, rows, width)
}

// unstoredMax bounds the models that the view names because they are not stored.
const unstoredMax = 3

// unstored names the models whose conversations are not stored, and why.
func (m *model) unstored(state telemetry.State) []string {
	var lines []string
	for _, p := range show.Processes(state, m.name) {
		if p.Unstored != nil && len(lines) < unstoredMax {
			lines = append(lines, m.style.bad.Render(clean(p.Model)+" is not stored")+": "+clean(p.Unstored.Means)+". kvtier ps has the remedy.")
		}
	}
	return lines
}

// busters names the places that change in every prompt, by their positions.
func (m *model) busters(state telemetry.State) []string {
	var lines []string
	for _, b := range show.Busters(state, m.name, func(string) bool { return true }) {
		lines = append(lines, m.style.warn.Render(fmt.Sprintf("%s in every prompt; %s tokens lost. kvtier why shows the text.",
			show.Changing(b.Begin, b.End), show.Count(int64(b.Lost)))))
	}
	return lines
}

// shortAgo is a time before now for a column that says so.
func shortAgo(t, now time.Time) string {
	text := strings.TrimSuffix(show.Ago(t, now), " ago")
	if text == "just now" {
		return "now"
	}
	return text
}

package top

import (
	"cmp"
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
	line += pad(percent, 5, true) + "  " + pad(size, sizeCells, false)
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
	if t.Down {
		line = m.style.bad.Render("DOWN ") + line
	}
	if t.Quarantined > 0 {
		line += m.style.warn.Render(" " + show.Count(int64(t.Quarantined)) + " damaged")
	}
	return line
}

var slotColumns = []column{
	{title: "SLOT", width: 4, right: true},
	{title: "MODEL", width: 12, grow: true, drop: 3},
	{title: "STATE", width: 12, drop: 2},
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
	if len(all) == 0 {
		return []string{m.style.quiet.Render("No model is loaded.")}
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
		if r.Shifted {
			status += ", shifted"
		}
		got := "-"
		if r.LastRestore != nil {
			got = show.Count(int64(r.Restored))
		}
		rows = append(rows, []string{
			strconv.Itoa(r.Slot.Slot), clean(r.model), status, show.Count(int64(r.Tokens)), strconv.Itoa(r.Hot), strconv.Itoa(r.Warm),
			strconv.Itoa(r.Cold), strconv.Itoa(r.Remote), got, show.Ago(restored(r), now), show.Seconds(r.SavedSeconds),
		})
	}
	return m.list(slotColumns, rows, width)
}

var promptColumns = []column{
	{title: "PROMPT", width: 10},
	{title: "MODEL", width: 18, drop: 9},
	{title: "SLOT", width: 4, right: true, drop: 8},
	{title: "TOKENS", width: 7, right: true},
	{title: "KEPT", width: 7, right: true, drop: 6},
	{title: "RESTORED", width: 8, right: true},
	{title: "FROM", width: 6, drop: 5},
	{title: "IN", width: 7, right: true, drop: 4},
	{title: "SAVED", width: 9, right: true, drop: 1},
	{title: "COMPUTED", width: 8, right: true, drop: 2},
	{title: "MISS", width: 14, grow: true, drop: 3},
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
			show.Ago(p.At, now), clean(m.name(p.Weights, own[p.Weights])), strconv.Itoa(p.ID), show.Count(int64(p.Tokens)),
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
	text := causeName(miss.Cause)
	if miss.From != "" {
		text += " from " + miss.From
	}
	text += " at " + show.Count(int64(miss.At))
	if miss.Detail != "" {
		text += ": " + miss.Detail
	}
	return text
}

// misses lists the causes of misses since the totals began, the most tokens first.
func (m *model) misses(state telemetry.State) []string {
	causes := show.CauseTotals(state.Models)
	if len(causes) == 0 {
		return nil
	}
	lines := []string{m.style.head.Render("MISSES                 PROMPTS      TOKENS")}
	for _, c := range causes {
		lines = append(lines, pad(causeName(c.Cause), 22, false)+pad(show.Count(c.Prompts), 8, true)+pad(show.Count(c.Tokens), 12, true)+
			"  "+m.style.quiet.Render(clean(c.Remedy)))
	}
	return lines
}

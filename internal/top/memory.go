package top

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/telemetry/show"
)

// memoryCells is the width of "1.2 GiB of 18.0 GiB".
const memoryCells = 20

// memoryNameCells is the space that names have before bars do.
const memoryNameCells = 28

// memories has a bar for each process and device that holds K/V memory under a limit, the fullest first.
func (m *model) memories(width int) []string {
	const fixed = 7 + 1 + 5 + 2 + memoryCells + 2 // name, share, sizes
	bar := min(barMax, width-fixed-memoryNameCells)
	all := slices.SortedStableFunc(slices.Values(m.held), func(a, b Held) int { return cmp.Compare(b.share(), a.share()) })
	var lines []string
	for _, h := range all {
		line := pad("memory", 7, false) + " "
		if bar >= barMin {
			line += m.style.bar("memory", h.share(), bar)
		}
		size := format.HumanBytes2(h.held()) + " of " + format.HumanBytes2(uint64(max(0, h.Limit)))
		line += pad(show.Percent(h.share()), 5, true) + "  " + pad(size, memoryCells, false) + "  " + clean(h.Name)
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return lines
}

// held is all memory of a process. A segment may say anything.
func (h Held) held() uint64 { return uint64(max(0, h.Used)) + uint64(max(0, h.Kept)) }

// share is the part of the limit that is held.
func (h Held) share() float64 {
	if h.Limit <= 0 {
		return 0
	}
	return float64(h.held()) / float64(h.Limit)
}

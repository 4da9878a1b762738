package top

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"
)

// cleanMax bounds the characters of a text that are looked at: no terminal shows more.
const cleanMax = 1024

// clean replaces characters of a text of other people that could control a terminal or change
// the direction of text.
func clean(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > cleanMax {
			break
		}
		switch {
		case r == utf8.RuneError || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, "\\U%08x", r)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
	}
	return b.String()
}

// cut shortens a text to a width in cells.
func cut(s string, width int) string {
	if width <= 0 {
		return ""
	}
	return ansi.Truncate(s, width, "…")
}

// cutLeft keeps the end of a text, such as of a path.
func cutLeft(s string, width int) string {
	over := ansi.StringWidth(s) - width
	if over <= 0 {
		return s
	}
	if width <= 1 {
		return cut(s, width)
	}
	s = ansi.TruncateLeft(s, over+1, "…")
	return cut(s, width) // a wide character may have been cut in two
}

// pad fills a text up to a width, and cuts a longer one.
func pad(s string, width int, right bool) string {
	s = cut(s, width)
	space := strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))
	if right {
		return space + s
	}
	return s + space
}

// styles are the colors. They count on the terminal's own sixteen, which its user has chosen.
type styles struct {
	plain, head, quiet, good, bad, warn lipgloss.Style
	tiers                               map[string]lipgloss.Style
	full, empty                         string // of a bar
	ascii                               bool
}

func newStyles(color, ascii bool) styles {
	profile := termenv.Ascii
	if color {
		profile = termenv.ANSI
	}
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(profile) // else it is that of io.Discard
	of := func(color string) lipgloss.Style { return r.NewStyle().Foreground(lipgloss.Color(color)) }
	s := styles{
		plain: r.NewStyle(), head: r.NewStyle().Bold(true), quiet: r.NewStyle().Faint(true),
		good: of("2"), bad: of("1").Bold(true), warn: of("3"),
		tiers: map[string]lipgloss.Style{"ram": of("6"), "local": of("4"), "remote": of("5")},
		full:  "█", empty: "░", ascii: ascii,
	}
	if ascii {
		s.full, s.empty = "#", "."
	}
	return s
}

// finish cuts a line to the terminal, and makes it ASCII where the terminal wants that.
func (s styles) finish(line string, width int) string {
	line = cut(line, width)
	if !s.ascii {
		return line
	}
	var b strings.Builder
	for _, r := range line {
		switch {
		case r == '…':
			b.WriteByte('~')
		case r == '·':
			b.WriteByte('-')
		case r > 0x7e:
			b.WriteString(strings.Repeat("?", ansi.StringWidth(string(r))))
		default:
			b.WriteRune(r)
		}
	}
	return cut(b.String(), width)
}

// bar draws a share of a width; less than a cell is shown as one.
func (s styles) bar(name string, share float64, width int) string {
	n := 0
	if share > 0 {
		n = min(width, max(1, int(share*float64(width)+0.5)))
	}
	style, ok := s.tiers[name]
	switch {
	case share >= 0.97:
		style = s.warn
	case !ok:
		style = s.plain
	}
	return style.Render(strings.Repeat(s.full, n)) + s.quiet.Render(strings.Repeat(s.empty, width-n))
}

// column is a column of a list.
type column struct {
	title string
	width int // the least; a column with grow gets the space that is left
	right bool
	grow  bool
	most  int // up to which the column grows; 0 for no bound
	drop  int // columns with the greatest number go first where a terminal is narrow; 0 stays
}

// fit returns the indices of the columns that fit into a width, and their widths.
func fit(columns []column, width int) (keep, widths []int) {
	for i := range columns {
		keep = append(keep, i)
	}
	total := func() int {
		n := -1
		for _, i := range keep {
			n += columns[i].width + 1
		}
		return n
	}
	for total() > width {
		worst := -1
		for at, i := range keep {
			if columns[i].drop > 0 && (worst < 0 || columns[i].drop > columns[keep[worst]].drop) {
				worst = at
			}
		}
		if worst < 0 {
			break
		}
		keep = append(keep[:worst], keep[worst+1:]...)
	}
	left := max(0, width-total())
	for _, i := range keep {
		w := columns[i].width
		if columns[i].grow {
			w, left = w+left, 0
			if most := columns[i].most; most > 0 {
				w = min(w, most)
			}
		}
		widths = append(widths, w)
	}
	return keep, widths
}

// list prints rows under their titles.
func (m *model) list(columns []column, rows [][]string, width int) []string {
	keep, widths := fit(columns, width)
	line := func(cell func(i int) string) string {
		parts := make([]string, len(keep))
		for at, i := range keep {
			parts[at] = pad(cell(i), widths[at], columns[i].right)
		}
		return strings.TrimRight(strings.Join(parts, " "), " ")
	}
	lines := []string{m.style.head.Render(line(func(i int) string { return columns[i].title }))}
	for _, row := range rows {
		lines = append(lines, line(func(i int) string { return row[i] }))
	}
	return lines
}

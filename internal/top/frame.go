package top

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// roomy is the height from which empty lines part the sections.
const roomy = 22

// frame is the whole view: at most height lines of at most width cells.
func (m *model) frame(width, height int) string {
	var lines []string
	if len(m.servers) == 0 {
		lines = []string{m.style.head.Render("kvtier top"), "looking for servers"}
	} else {
		lines = m.serverLines(m.servers[min(m.shown, len(m.servers)-1)], width, height)
	}
	lines = lines[:min(len(lines), height)]
	for i, line := range lines {
		lines[i] = m.style.finish(line, width)
	}
	return strings.Join(lines, "\n")
}

// section is a part of the view: lines of which the first few are enough.
type section struct {
	lines []string
	least int // lines without which the section is left out
	most  int // lines that it takes before later sections have theirs
}

func (m *model) serverLines(s *server, width, height int) []string {
	now := m.opt.now()
	head := m.title(s, width, now)
	if !s.known {
		return append(head, m.waiting(s, width)...)
	}
	head = append(head, m.totals(s, width, now))
	state := shownState(s)
	head = append(head, m.unstored(state)...)
	body := fill(height-len(head)-1, height >= roomy, []section{
		capped(append(m.tiers(state, width), m.memories(width)...), 1, 8),
		capped(m.rateLine(s, width), 1, 1),
		capped(m.slots(state, width, now), 2, 6),
		capped(m.prompts(state, width, now), 2, math.MaxInt),
		capped(m.misses(state, width), 2, 4),
		capped(m.busters(state), 1, 2),
	})
	lines := append(head, body...)
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	return append(lines, m.footer())
}

// shownState is the state, without processes where nobody knows which of them still run.
func shownState(s *server) telemetry.State {
	state := s.state
	if !s.fresh() {
		state.Live, state.Processes = false, nil
	}
	return state
}

func capped(lines []string, least, most int) section { return section{lines, least, most} }

// fill puts sections below each other. Each gets its least in turn, then each up to its most,
// and the last ones the lines that are left.
func fill(height int, apart bool, sections []section) []string {
	got := make([]int, len(sections))
	left := height
	for i, s := range sections {
		need := min(s.least, len(s.lines))
		if apart && i > 0 && need > 0 {
			left--
		}
		if need > left {
			continue
		}
		got[i], left = need, left-need
	}
	for _, bounded := range []bool{true, false} { // a section without a bound comes last
		for i, s := range sections {
			if got[i] == 0 || bounded == (s.most == math.MaxInt) {
				continue
			}
			more := max(0, min(left, min(s.most, len(s.lines))-got[i]))
			got[i], left = got[i]+more, left-more
		}
	}
	var lines []string
	for i, s := range sections {
		if got[i] == 0 {
			continue
		}
		if apart && i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, s.lines[:got[i]]...)
	}
	return lines[:min(len(lines), max(0, height))]
}

// title has the root at the left, and how new the numbers are at the right.
func (m *model) title(s *server, width int, now time.Time) []string {
	status, good := s.status(now)
	style := m.style.good
	if !good {
		style = m.style.warn
	}
	left := "kvtier top "
	if n := len(m.servers); n > 1 {
		left += fmt.Sprintf("%d/%d ", m.shown+1, n)
	}
	status = cut(status, max(0, width-len(left)-1))
	root := cutLeft(clean(s.root), width-len(left)-ansi.StringWidth(status)-1)
	space := strings.Repeat(" ", max(1, width-len(left)-ansi.StringWidth(root)-ansi.StringWidth(status)))
	return []string{m.style.head.Render(left) + root + space + style.Render(status)}
}

// waiting names the next step of a user while there are no numbers.
func (m *model) waiting(s *server, width int) []string {
	if s.err == nil {
		return nil
	}
	text := []string{
		"No server has told its numbers here yet.",
		"Set OLLAMA_KV_TIERING=1 for the server, not for the client; start it again, and ask a model something. If the numbers stay away, kvtier doctor names the cause.",
		"Last try: " + clean(s.err.Error()),
	}
	if errors.Is(s.err, fs.ErrPermission) {
		text[0], text[1] = "This user may not read the numbers here.", "Run kvtier top as the server's user: sudo -u USER kvtier top"
	}
	var lines []string
	for _, sentence := range text {
		lines = append(lines, "")
		lines = append(lines, show.Wrap(sentence, width)...)
	}
	return lines
}

// totals is the line about all models since the totals began.
func (m *model) totals(s *server, width int, now time.Time) string {
	var reused, asked, restored, restores, prompts int64
	saved := 0.0
	for _, use := range show.Models(s.state, m.name) {
		reused, asked = reused+use.Reused, asked+use.Tokens
		restored, restores, prompts = restored+use.Restored, restores+use.Restores, prompts+use.Prompts
		saved += use.SavedSeconds
	}
	what := show.ReusedOf(reused, asked)
	if width >= 50 && asked > 0 {
		what += " tokens"
	}
	parts := []string{
		"reused " + m.style.head.Render(what), "saved " + m.style.head.Render(show.Seconds(saved)) + " (estimate)",
		show.Count(restores) + " of " + show.Count(prompts) + " prompts restored",
	}
	if !s.state.Since.IsZero() {
		parts = append(parts, "since "+show.Ago(s.state.Since, now))
	}
	return join(append(parts, show.Count(restored)+" tokens restored"), width)
}

// join joins as many parts as fit into a width; the first is always there.
func join(parts []string, width int) string {
	line := parts[0]
	for _, part := range parts[1:] {
		if ansi.StringWidth(line)+3+ansi.StringWidth(part) > width {
			break
		}
		line += " · " + part
	}
	return line
}

// rateLine has the rates of the latest seconds. One frame alone has none.
func (m *model) rateLine(s *server, width int) []string {
	if m.still {
		return nil
	}
	r, ok := s.rates.perSecond()
	tokens, size := func(float64) string { return "-" }, func(float64) string { return "-" }
	if ok {
		tokens = func(n float64) string { return show.Count(int64(math.Round(n))) }
		size = func(n float64) string { return format.HumanBytes(int64(n)) }
	}
	return []string{join([]string{
		m.style.head.Render("RATES") + " restored " + tokens(r.restored) + " tok/s", "computed " + tokens(r.computed) + " tok/s",
		"read " + size(r.read) + "/s", "stored " + size(r.written) + "/s",
	}, width)}
}

func (m *model) footer() string {
	const about = "saved times are estimates"
	switch {
	case m.still:
		return m.style.quiet.Render(about)
	case len(m.servers) > 1:
		return m.style.quiet.Render("q quit · tab next server · " + about)
	}
	return m.style.quiet.Render("q quit · " + about)
}

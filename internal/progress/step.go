package progress

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ollama/ollama/format"
)

// Step is a piece of work with a line of its own. A nil Step shows nothing.
type Step struct {
	display *Display
	name    string
	bytes   bool // counts bytes
	started time.Time

	mu          sync.Mutex
	done, total int64
	said        string // text while the step runs
	ended       bool
	note        string // text at the end
}

// Progress says that done of total are finished.
func (s *Step) Progress(done, total int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done, s.total = done, total
}

// Say shows a text as the progress of a step without a known total.
func (s *Step) Say(text string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = text
}

// End closes the step. A note, such as "up to date", takes the place of its duration.
func (s *Step) End(note string, err error) {
	if s == nil {
		return
	}
	elapsed := Elapsed(time.Since(s.started))
	switch {
	case err != nil:
		note = "failed after " + elapsed
	case note == "":
		note = elapsed
	}
	s.mu.Lock()
	s.ended, s.note = true, note
	s.mu.Unlock()
	if !s.display.live {
		line, _ := s.line(s.display.names, 0)
		fmt.Fprintln(s.display.w, line)
	}
}

// Do runs a step to its end, with the note that do returns.
func (d *Display) Do(name string, do func(*Step) (note string, err error)) error {
	s := d.Step(name)
	note, err := do(s)
	s.End(note, err)
	return err
}

// Elapsed formats a duration, with tenths of a second for short durations only.
func Elapsed(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// Length of a bar in columns; the terminal's width decides.
const (
	minBarCells = 10
	maxBarCells = 40
)

// spinnerFrames turn once a second.
var spinnerFrames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// line is the step's line on a terminal of the given width (0: unknown); ended reports
// whether the line is final. A line never wraps: that would break the redraw of the lines
// above.
func (s *Step) line(names, width int) (text string, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	elapsed := time.Since(s.started)
	text = fmt.Sprintf("%-*s  ", names, s.name)
	switch {
	case s.ended:
		text += s.note
	case s.total > 0:
		numbers := " " + s.numbers(elapsed)
		cells := maxBarCells
		if width > 0 {
			cells = min(max(width-len([]rune(text+numbers))-2, minBarCells), maxBarCells)
		}
		filled := int(int64(cells) * min(s.done, s.total) / s.total)
		text += "▕" + strings.Repeat("█", filled) + strings.Repeat(" ", cells-filled) + "▏" + numbers
	default:
		frame := int(elapsed/(time.Second/time.Duration(len(spinnerFrames)))) % len(spinnerFrames)
		text += spinnerFrames[frame]
		if s.said != "" {
			text += " " + s.said
		}
		text += " " + seconds(elapsed)
	}
	if runes := []rune(text); width > 0 && len(runes) > width {
		text = string(runes[:width])
	}
	return text, s.ended
}

// numbers is the text after a bar: the count, the elapsed time and, for bytes, the rate and
// the remaining time at this rate.
func (s *Step) numbers(elapsed time.Duration) string {
	if !s.bytes {
		return fmt.Sprintf("%d/%d %s", s.done, s.total, seconds(elapsed))
	}
	text := fmt.Sprintf("%s/%s", format.HumanBytes(s.done), format.HumanBytes(s.total))
	if elapsed < time.Second || s.done == 0 {
		return text
	}
	rate := float64(s.done) / elapsed.Seconds()
	left := time.Duration(float64(s.total-s.done) / rate * float64(time.Second))
	return fmt.Sprintf("%s, %s/s, %s left", text, format.HumanBytes(int64(rate)), seconds(max(left, 0)))
}

func seconds(d time.Duration) string { return d.Truncate(time.Second).String() }

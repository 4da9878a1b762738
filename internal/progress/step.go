package progress

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ollama/ollama/format"
)

// Step is one thing that takes a while. A nil Step shows nothing.
type Step struct {
	display *Display
	name    string
	bytes   bool // it counts bytes
	started time.Time

	mu          sync.Mutex
	done, total int64
	said        string // while it runs
	ended       bool
	note        string // after it
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

// Say says how far a step is whose end is not known.
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

// Elapsed keeps tenths of seconds only where they are worth reading.
func Elapsed(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// Cells of a bar, which is as long as the terminal has room for.
const (
	minBarCells = 10
	maxBarCells = 40
)

// spinnerFrames turn once a second.
var spinnerFrames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// line is the step's line, on a terminal of the given width (0: unknown), and whether it is
// the last word. A line never wraps, which would break the redraw of those above.
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

// numbers stand behind a bar: the count, the time so far and, of bytes, the rate and the time
// that the rest takes at this rate.
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

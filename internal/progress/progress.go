// Package progress shows the progress of a program, one line for each step. On a terminal
// the lines of running steps are redrawn; elsewhere a step prints one line when it ends,
// without control characters.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ollama/ollama/format"
	"golang.org/x/term"
)

// redrawEvery is the time between two redraws on a terminal.
const redrawEvery = 100 * time.Millisecond

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Display shows steps. A nil Display shows nothing, and so do its steps. Methods of a
// Display and of its steps may be called from several goroutines.
type Display struct {
	w         io.Writer
	names     int  // width of the steps' names, in columns
	live      bool // w is a terminal
	transient bool // Close removes the lines

	mu    sync.Mutex
	steps []*Step     // redrawn steps, in the order of their beginnings
	drawn int         // number of lines above the cursor that the next redraw replaces
	timer *time.Timer // of the next redraw; nil without redrawing
}

// New returns a display whose lines stay. The names of steps are in a column of the given
// width.
func New(w io.Writer, names int) *Display {
	return &Display{w: w, names: names, live: IsTerminal(w)}
}

// NewTransient returns a display for a terminal; Close removes its lines.
func NewTransient(w io.Writer, names int) *Display {
	return &Display{w: w, names: names, live: true, transient: true}
}

// Step begins a step, which counts things such as packages.
func (d *Display) Step(name string) *Step { return d.begin(&Step{name: name}) }

// Bytes begins a step, which counts bytes.
func (d *Display) Bytes(name string) *Step { return d.begin(&Step{name: name, bytes: true}) }

func (d *Display) begin(s *Step) *Step {
	if d == nil {
		return nil
	}
	s.display, s.started = d, time.Now()
	if !d.live {
		return s
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = append(d.steps, s)
	d.drawLocked()
	if d.timer == nil {
		d.timer = time.AfterFunc(redrawEvery, d.redraw)
	}
	return s
}

func (d *Display) redraw() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.drawLocked()
		d.timer.Reset(redrawEvery)
	}
}

// drawLocked replaces the lines of running steps. Lines of ended steps, and all lines before
// them, stay above.
func (d *Display) drawLocked() {
	width := d.width()
	var text strings.Builder
	text.WriteString(d.backLocked())
	ended := 0
	for i, s := range d.steps {
		line, over := s.line(d.names, width)
		fmt.Fprintf(&text, "%s\x1b[K\n", line)
		if over && i == ended {
			ended++
		}
	}
	if d.transient {
		ended = 0
	}
	d.steps = d.steps[ended:]
	d.drawn = len(d.steps)
	// An error of the output is ignored.
	_, _ = io.WriteString(d.w, text.String())
}

// backLocked moves the cursor to the first line that was drawn.
func (d *Display) backLocked() string {
	if d.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dF", d.drawn)
}

// width is the terminal's width in columns, 0 if unknown.
func (d *Display) width() int {
	file, ok := d.w.(*os.File)
	if !ok {
		return 0
	}
	width, _, _ := term.GetSize(int(file.Fd())) // 0 with an error
	return width
}

// Close ends the redrawing. Call Close before any other output; further steps may begin
// afterwards.
func (d *Display) Close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer == nil {
		return
	}
	d.timer.Stop()
	d.timer = nil
	if d.transient {
		_, _ = io.WriteString(d.w, d.backLocked()+"\x1b[J")
	} else {
		d.drawLocked()
	}
	d.steps, d.drawn = nil, 0
}

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
func (s *Step) Progress(done, total int64) { s.set(func() { s.done, s.total = done, total }) }

// Say shows a text as the progress of a step without a known total.
func (s *Step) Say(text string) { s.set(func() { s.said = text }) }

func (s *Step) set(change func()) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		change()
	}
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
	s.set(func() { s.ended, s.note = true, note })
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

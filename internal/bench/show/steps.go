package show

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ollama/ollama/progress"
	"golang.org/x/term"
)

// Steps shows what a command is doing, one line per step.
type Steps interface {
	// Step begins a step; the one before must have ended.
	Step(name string) Step
	// Close comes before any other output.
	Close()
}

// Step is one thing that takes a while.
type Step interface {
	// End says how it went.
	End(note string)
}

// NewSteps animates on a terminal and prints one line per finished step
// elsewhere, with no control characters.
func NewSteps(w io.Writer) Steps {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &liveSteps{terminal: f}
	}
	return plainSteps{w}
}

// nameWidth aligns what follows the names of the steps.
const nameWidth = 42

func line(name, note string) string {
	return strings.TrimRight(fmt.Sprintf("%-*s  %s", nameWidth, name, note), " ")
}

type plainSteps struct{ w io.Writer }

func (p plainSteps) Step(name string) Step { return plainStep{p.w, name} }
func (p plainSteps) Close()                {}

type plainStep struct {
	w    io.Writer
	name string
}

func (s plainStep) End(note string) { fmt.Fprintln(s.w, line(s.name, note)) }

// liveSteps lets Ollama's own progress package do the drawing.
type liveSteps struct {
	terminal *os.File
	progress *progress.Progress // from the first step on
}

func (l *liveSteps) Step(name string) Step {
	s := &liveStep{name: name, started: time.Now(), width: l.width}
	if l.progress == nil {
		l.progress = progress.NewProgress(l.terminal)
	}
	l.progress.Add(name, s)
	return s
}

func (l *liveSteps) Close() {
	if l.progress != nil {
		l.progress.Stop()
		l.progress = nil
	}
}

// width is the terminal's, 0 if unknown.
func (l *liveSteps) width() int {
	width, _, err := term.GetSize(int(l.terminal.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// liveStep is a progress.State: drawn by one goroutine, ended by another.
type liveStep struct {
	name    string
	started time.Time
	width   func() int

	mu    sync.Mutex
	ended bool
	note  string
}

func (s *liveStep) End(note string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.note = true, note
}

// spinnerFrames turn once a second.
var spinnerFrames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

func (s *liveStep) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	note := s.note
	if !s.ended {
		elapsed := time.Since(s.started)
		frame := int(elapsed/(time.Second/time.Duration(len(spinnerFrames)))) % len(spinnerFrames)
		note = spinnerFrames[frame] + " " + elapsed.Truncate(time.Second).String()
	}
	// A line that wraps would break the redraw of those above.
	text := []rune(line(s.name, note))
	if width := s.width(); width > 0 && len(text) > width {
		text = text[:width]
	}
	return string(text)
}

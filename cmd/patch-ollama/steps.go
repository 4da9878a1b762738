package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/ollama/ollama/progress"
	"golang.org/x/term"
)

// nameWidth aligns what follows the names of the steps.
const nameWidth = 18

// stepReporter shows steps as they run; Close comes before any other output.
type stepReporter interface {
	ollamasrc.Reporter
	Close()
}

// newSteps animates on a terminal and prints one line per finished step
// elsewhere, with no control characters.
func newSteps(w io.Writer) stepReporter {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &liveSteps{terminal: f}
	}
	return plainSteps{w}
}

type plainSteps struct{ w io.Writer }

func (p plainSteps) Step(name string) ollamasrc.Step {
	return &plainStep{w: p.w, name: name, started: time.Now()}
}

func (p plainSteps) Close() {}

type plainStep struct {
	w       io.Writer
	name    string
	started time.Time
}

func (s *plainStep) Progress(int, int) {}

func (s *plainStep) End(note string, err error) {
	fmt.Fprintln(s.w, endLine(s.name, note, time.Since(s.started), err))
}

func endLine(name, note string, elapsed time.Duration, err error) string {
	if note == "" {
		note = elapsedText(elapsed)
	}
	if err != nil {
		note = "failed after " + elapsedText(elapsed)
	}
	return fmt.Sprintf("%-*s%s", nameWidth, name, note)
}

// elapsedText keeps tenths only where they are worth reading.
func elapsedText(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// liveSteps lets Ollama's own progress package do the drawing.
type liveSteps struct {
	terminal *os.File
	progress *progress.Progress // from the first step on
}

func (l *liveSteps) Step(name string) ollamasrc.Step {
	s := &liveStep{name: name, started: time.Now(), width: func() int {
		width, _, err := term.GetSize(int(l.terminal.Fd()))
		if err != nil {
			return 0
		}
		return width
	}}
	if l.progress == nil {
		l.progress = progress.NewProgress(l.terminal)
	}
	l.progress.Add(name, s)
	return s
}

func (l *liveSteps) Close() {
	if l.progress != nil {
		l.progress.Stop()
	}
}

// liveStep is a progress.State. The reporter's goroutine draws it while the
// step's own updates it.
type liveStep struct {
	name    string
	started time.Time
	width   func() int // of the terminal, 0 if unknown

	mu          sync.Mutex
	done, total int
	ended       string
}

func (s *liveStep) Progress(done, total int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done, s.total = done, total
}

func (s *liveStep) End(note string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = endLine(s.name, note, time.Since(s.started), err)
}

// barCells is the width of a bar on a terminal that has room for it.
const barCells = 40

// spinnerFrames turn once a second.
var spinnerFrames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

func (s *liveStep) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != "" {
		return s.clip(s.ended)
	}
	elapsed := time.Since(s.started)
	text := fmt.Sprintf("%-*s", nameWidth, s.name)
	if s.total > 0 {
		filled := barCells * min(s.done, s.total) / s.total
		text += "▕" + strings.Repeat("█", filled) + strings.Repeat(" ", barCells-filled) + "▏"
		text += fmt.Sprintf(" %d/%d", s.done, s.total)
	} else {
		frame := int(elapsed/(time.Second/time.Duration(len(spinnerFrames)))) % len(spinnerFrames)
		text += spinnerFrames[frame]
		if s.done > 0 {
			text += " " + ollamasrc.Plural(s.done, "package")
		}
	}
	return s.clip(text + " " + elapsed.Truncate(time.Second).String())
}

// clip keeps a line from wrapping, which would break the redraw of those above.
func (s *liveStep) clip(text string) string {
	runes := []rune(text)
	if width := s.width(); width > 0 && len(runes) > width {
		runes = runes[:width]
	}
	return string(runes)
}

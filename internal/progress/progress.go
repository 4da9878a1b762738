package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

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
	steps []*Step       // redrawn steps, in the order of their beginnings
	drawn int           // number of lines above the cursor that the next redraw replaces
	stop  chan struct{} // ends the redrawing; nil without redrawing
	done  chan struct{} // closed when the redrawing has ended
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
	if d.stop == nil {
		d.stop, d.done = make(chan struct{}), make(chan struct{})
		go d.redraw(d.stop, d.done)
	}
	return s
}

func (d *Display) redraw(stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	ticker := time.NewTicker(redrawEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			d.mu.Lock()
			d.drawLocked()
			d.mu.Unlock()
		case <-stop:
			return
		}
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
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Close ends the redrawing. Call Close before any other output; further steps may begin
// afterwards.
func (d *Display) Close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	stop, done := d.stop, d.done
	d.stop = nil
	d.mu.Unlock()
	if stop == nil {
		return
	}
	close(stop)
	<-done
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.transient {
		_, _ = io.WriteString(d.w, d.backLocked()+"\x1b[J")
	} else {
		d.drawLocked()
	}
	d.steps, d.drawn = nil, 0
}

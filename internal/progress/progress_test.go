package progress

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const testNames = 16

// begun is a step that began the given time ago.
func begun(name string, ago time.Duration, bytes bool) *Step {
	return &Step{display: NewTransient(&strings.Builder{}, testNames), name: name, bytes: bytes, started: time.Now().Add(-ago)}
}

func lineOf(s *Step, width int) string {
	line, _ := s.line(testNames, width)
	return line
}

func TestLiveStep(t *testing.T) {
	s := begun("cmake build", 32*time.Second, false)
	require.Regexp(t, `^cmake build       [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] 32s$`, lineOf(s, 0))
	s.Say("7 packages")
	require.Regexp(t, `^cmake build       [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] 7 packages 32s$`, lineOf(s, 0))
	s.Progress(30, 120)
	require.Equal(t, "cmake build       ▕"+strings.Repeat("█", 10)+strings.Repeat(" ", 30)+"▏ 30/120 32s", lineOf(s, 0))
	s.End("", nil)
	require.Equal(t, "cmake build       32s", lineOf(s, 0))
	s.End("", errors.New("no"))
	require.Equal(t, "cmake build       failed after 32s", lineOf(s, 0))
	s.End("up to date", nil)
	line, ended := s.line(testNames, 0)
	require.Equal(t, "cmake build       up to date", line)
	require.True(t, ended)
}

func TestBytes(t *testing.T) {
	s := begun("checking local", 10*time.Second, true)
	s.Progress(0, 40e9)
	require.Equal(t, "checking local    ▕"+strings.Repeat(" ", 40)+"▏ 0 B/40 GB", lineOf(s, 0))
	s.Progress(10e9, 40e9)
	require.Regexp(t, `▏ 10 GB/40 GB, (1.0 GB|999 MB)/s, 30s left$`, lineOf(s, 0))
	s.Progress(41e9, 40e9) // files may grow
	require.Regexp(t, "▕"+strings.Repeat("█", 40)+`▏ 41 GB/40 GB, 4.\d GB/s, 0s left$`, lineOf(s, 0))
}

// A bar fills the room on the line, and a line never wraps.
func TestStepFitsTheTerminal(t *testing.T) {
	s := begun("cmake build", 0, false)
	s.Progress(60, 120)
	require.Equal(t, "cmake build       ▕"+strings.Repeat("█", 15)+strings.Repeat(" ", 15)+"▏ 60/120 0s", lineOf(s, 60))
	require.Len(t, []rune(lineOf(s, 30)), 30)
	s.End("a note that is long", nil)
	require.Equal(t, "cm", lineOf(s, 2))
}

// Without a terminal, a step is one line without control characters.
func TestPlainSteps(t *testing.T) {
	var out bytes.Buffer
	d := New(&out, 20)
	cold := d.Step("cold")
	cold.Progress(1, 2)
	require.Empty(t, out.String())
	cold.End("29.4 s", nil)
	d.Step("nothing to say").End("", nil)
	d.Step("a name that is longer than the column").End("done", nil)
	d.Close()
	require.Equal(t, "cold                  29.4 s\nnothing to say        0.0s\na name that is longer than the column  done\n", out.String())
}

// screen simulates a terminal that knows the sequences of a Display.
type screen struct {
	mu    sync.Mutex
	lines []string // the last one has the cursor
	row   int
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := string(p); rest != ""; {
		for len(s.lines) <= s.row {
			s.lines = append(s.lines, "")
		}
		var up int
		switch {
		case strings.HasPrefix(rest, "\n"):
			s.row, rest = s.row+1, rest[1:]
		case strings.HasPrefix(rest, "\x1b[K"):
			rest = rest[3:]
		case strings.HasPrefix(rest, "\x1b[J"):
			s.lines, rest = s.lines[:s.row], rest[3:]
		case strings.HasPrefix(rest, "\x1b["):
			for rest = rest[2:]; rest[0] != 'F'; rest = rest[1:] {
				up = 10*up + int(rest[0]-'0')
			}
			s.row, rest = s.row-up, rest[1:]
		default:
			text := rest
			if i := strings.IndexAny(rest, "\n\x1b"); i >= 0 {
				text = rest[:i]
			}
			s.lines[s.row], rest = text, rest[len(text):]
		}
	}
	return len(p), nil
}

func (s *screen) shows() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimSpace(strings.Join(s.lines, "\n"))
}

// TestRedraw: lines of running steps are redrawn together, and lines of ended steps stay
// above, in the order in which the steps began.
func TestRedraw(t *testing.T) {
	var out screen
	d := New(&out, 6)
	d.live = true
	first, second := d.Step("first"), d.Step("second")
	require.Regexp(t, `^first   . 0s\nsecond  . 0s$`, out.shows())
	second.Say("2 of many")
	d.mu.Lock()
	d.drawLocked()
	d.mu.Unlock()
	require.Regexp(t, `^first   . 0s\nsecond  . 2 of many 0s$`, out.shows())
	second.End("two", nil)
	third := d.Step("third")
	require.Regexp(t, `^first   . 0s\nsecond  two\nthird   . 0s$`, out.shows())
	first.End("one", nil)
	d.Step("fourth").End("four", nil)
	third.End("", errors.New("no"))
	d.Close()
	require.Equal(t, "first   one\nsecond  two\nthird   failed after 0.0s\nfourth  four", out.shows())
	d.Close()
	d.Step("later").End("five", nil)
	d.Close()
	require.Equal(t, "first   one\nsecond  two\nthird   failed after 0.0s\nfourth  four\nlater   five", out.shows())
}

func TestTransient(t *testing.T) {
	var out screen
	d := NewTransient(&out, 6)
	d.Bytes("one").Progress(1e6, 2e6)
	d.Step("two").End("gone", nil)
	require.Contains(t, out.shows(), "1 MB/2 MB")
	d.Close()
	require.Empty(t, out.shows())
}

// TestNothing: a nil Display and its steps do nothing.
func TestNothing(t *testing.T) {
	var d *Display
	s := d.Step("quiet")
	s.Progress(1, 2)
	s.Say("nothing")
	s.End("", nil)
	d.Bytes("quiet").End("", nil)
	d.Close()
}

// TestTogether: several goroutines may have steps while lines are redrawn.
func TestTogether(t *testing.T) {
	var out screen
	d := New(&out, 6)
	d.live = true
	var g sync.WaitGroup
	for range 4 {
		g.Add(1)
		go func() {
			defer g.Done()
			for i := range int64(100) {
				s := d.Bytes("part")
				s.Progress(i, 100)
				s.End("", nil)
			}
		}()
	}
	g.Wait()
	d.Close()
	require.Equal(t, 400, strings.Count(out.shows(), "part"))
}

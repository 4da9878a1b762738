// Package screen shows text on a terminal and draws it again in place until the user quits.
package screen

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Escape sequences of every terminal since the VT100, and the alternate screen of xterm.
const (
	// enter takes the alternate screen, hides the cursor, and lets the terminal cut long lines.
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"

	home       = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

const (
	ctrlC         = 3  // as a raw terminal gives it
	unknownHeight = 24 // lines of a terminal that does not tell its size
)

// Run calls frame again and again, every so often, and draws the text that it returns, from its
// first line on, as far as the terminal reaches. frame runs in a goroutine of its own, so that
// one that hangs delays no key; the text must not hold control characters except line feeds.
//
// Run returns nil when the user presses q or Ctrl-C, and the error of ctx when that ends. The
// terminal is then as before, but a read of in is left behind: the program should end.
func Run(ctx context.Context, in, out *os.File, every time.Duration, frame func(context.Context) string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quit := make(chan struct{})
	if fd := int(in.Fd()); term.IsTerminal(fd) {
		before, err := term.MakeRaw(fd)
		if err != nil {
			return fmt.Errorf("read single keys from the terminal: %w", err)
		}
		defer func() { _ = term.Restore(fd, before) }()
		go waitForQuit(in, quit)
	}
	defer func() { _, _ = io.WriteString(out, leave) }()
	if _, err := io.WriteString(out, enter); err != nil {
		return fmt.Errorf("draw on the terminal: %w", err)
	}
	frames := make(chan string)
	go repeat(ctx, every, frame, frames)
	for {
		select {
		case text := <-frames:
			if _, err := io.WriteString(out, drawn(text, height(out))); err != nil {
				return fmt.Errorf("draw on the terminal: %w", err)
			}
		case <-quit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitForQuit closes quit at a key that quits. Without further keys, as after an error, it
// returns.
func waitForQuit(in io.Reader, quit chan<- struct{}) {
	buf := make([]byte, 64)
	for {
		n, err := in.Read(buf)
		for _, key := range buf[:n] {
			if key == 'q' || key == 'Q' || key == ctrlC {
				close(quit)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// repeat sends frames until ctx ends.
func repeat(ctx context.Context, every time.Duration, frame func(context.Context) string, frames chan<- string) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case frames <- frame(ctx):
		case <-ctx.Done():
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func height(out *os.File) int {
	_, height, err := term.GetSize(int(out.Fd()))
	if err != nil || height <= 0 {
		return unknownHeight
	}
	return height
}

// drawn is the output that replaces the text on a terminal of so many lines.
func drawn(text string, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	below := len(lines) < height
	lines = lines[:min(len(lines), height)]
	// A line is cleared before its text: behind it, the cursor may stand on its last character.
	out := home + clearLine + strings.Join(lines, "\r\n"+clearLine)
	if below {
		out += "\r\n" + clearBelow
	}
	return out
}

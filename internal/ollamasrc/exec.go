package ollamasrc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// stopGrace is the time that an interrupted child has to clean up (git removes its lock
// files, ninja its half-written objects).
const stopGrace = 5 * time.Second

// command is exec.CommandContext for children that have children: cancelling
// stops the whole group.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	ownGroup(cmd)
	cmd.Cancel = func() error { return interrupt(cmd) }
	cmd.WaitDelay = stopGrace
	return cmd
}

// logTailLines is the number of lines of a failed program's log in its error.
const logTailLines = 30

// runLogged runs a program. The program's output goes to a log with the given name, and line
// by line to watch, which may be nil.
func runLogged(ctx context.Context, lay Layout, name string, cmd *exec.Cmd, watch func(line string)) error {
	if err := os.MkdirAll(lay.Log(), 0o755); err != nil {
		return err
	}
	path := filepath.Join(lay.Log(), strings.ReplaceAll(name, " ", "-")+".log")
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", name, err)
	}
	fmt.Fprintf(file, "%s\n\n", strings.Join(cmd.Args, " "))
	out := &lineWriter{log: file, watch: watch}
	cmd.Stdout, cmd.Stderr = out, out
	runErr := cmd.Run()
	logErr := errors.Join(out.err, file.Close())
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case runErr != nil:
		end := tail(path, logTailLines)
		return fmt.Errorf("%s failed (%w); the last %s of %s:\n\n%s", name, runErr, Plural(len(end), "line"), Rel(path), strings.Join(end, "\n"))
	case logErr != nil:
		return fmt.Errorf("writing the log of %s: %w", name, logErr)
	}
	return nil
}

// lineWriter copies to a log and passes whole lines to watch. An error of the log is
// remembered and not returned: an error would kill a compiler.
type lineWriter struct {
	mu    sync.Mutex
	log   io.Writer
	watch func(string) // may be nil
	rest  []byte
	err   error
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.log.Write(p); err != nil && w.err == nil {
		w.err = err
	}
	if w.watch == nil {
		return len(p), nil
	}
	w.rest = append(w.rest, p...)
	for {
		// Ninja ends a status line with \r on a terminal, \n otherwise.
		i := bytes.IndexAny(w.rest, "\r\n")
		if i < 0 {
			return len(p), nil
		}
		w.watch(string(w.rest[:i]))
		w.rest = w.rest[i+1:]
	}
}

// tail returns the last n lines of a file, or as many as can be read.
func tail(path string, n int) []string {
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}

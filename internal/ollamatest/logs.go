package ollamatest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Log keeps all output and wakes waiters for output.
type Log struct {
	tee io.Writer // may be nil

	mu      sync.Mutex
	text    []byte
	changed chan struct{} // closed, and replaced, by every write
}

// NewLog returns a log that also goes to tee, unless that is nil.
func NewLog(tee io.Writer) *Log {
	return &Log{tee: tee, changed: make(chan struct{})}
}

// Write never fails: a broken tee must not block the server on a full pipe.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	close(l.changed)
	l.changed = make(chan struct{})
	if l.tee != nil {
		l.tee.Write(p) //nolint:errcheck // see above
	}
	return len(p), nil
}

// from returns the log from byte mark on.
func (l *Log) from(mark int) string {
	text, _ := l.watch(mark)
	return text
}

// watch returns the log from byte mark on, with a channel that is closed by the next output.
func (l *Log) watch(mark int) (string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text[min(mark, len(l.text)):]), l.changed
}

// Tail returns the last lines of the log.
func (l *Log) Tail(lines int) string {
	all := strings.Split(strings.TrimSuffix(l.from(0), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Logs is all output of the server and its runners since Start, restarts included.
func (s *Server) Logs() string { return s.logs.from(0) }

// LogMark is the present length of Logs in bytes, for WaitLogFrom.
func (s *Server) LogMark() int { return len(s.Logs()) }

// WaitLog waits until the log contains text. WaitLog fails when the context ends, or when
// the server ends without printing text.
func (s *Server) WaitLog(ctx context.Context, text string) error {
	return s.WaitLogFrom(ctx, 0, text)
}

// WaitLogFrom does as WaitLog, for output after mark.
func (s *Server) WaitLogFrom(ctx context.Context, mark int, text string) error {
	p := s.started()
	for {
		// The last look comes after the end of output, so that no output is missed.
		ended := false
		select {
		case <-p.Drained:
			<-p.Exited // no other process held the output, so the server has ended
			ended = true
		default:
		}
		log, changed := s.logs.watch(mark)
		if strings.Contains(log, text) {
			return nil
		}
		if ended {
			return fmt.Errorf("waiting for %q in the log: the server ended (%s) without printing it", text, p.status())
		}
		select {
		case <-changed:
			// Overlap by the length of text less one byte: text may come in two writes.
			mark += max(0, len(log)-len(text)+1)
		case <-p.Drained:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %q in the log: %w", text, context.Cause(ctx))
		}
	}
}

//go:build unix

package front

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/internal/steady"
)

const (
	// logMax is the size in bytes at which a log is set aside.
	logMax = 10 << 20
	// logLinesMax and logLineMax bound the lines that wait for the disk.
	logLinesMax = 1024
	logLineMax  = 4 << 10 // bytes
	// logTimeout bounds the time for which the log holds up the daemon's end.
	logTimeout = 500 * time.Millisecond
)

// logFile is the daemon's log. The disk may hang: lines wait in a queue, and are dropped and counted when the
// queue is full. Nothing of the daemon's may be in the engine's output, which others read.
type logFile struct {
	path    string // "" drops all lines
	lines   chan []byte
	dropped atomic.Int64
	ending  chan struct{} // closed when the lines that wait are the last ones
	written chan struct{} // closed after the last line
	file    *os.File
	size    int64 // of file, in bytes, and of the lines of other daemons at its opening
}

// newLog returns the log of a path, which is opened by the first line.
func newLog(path string) *logFile {
	l := &logFile{path: path, lines: make(chan []byte, logLinesMax), ending: make(chan struct{}), written: make(chan struct{})}
	go l.run()
	return l
}

// Write implements io.Writer. It never waits.
func (l *logFile) Write(line []byte) (int, error) {
	kept := append([]byte(nil), line[:min(len(line), logLineMax)]...)
	if len(line) > logLineMax {
		kept[logLineMax-1] = '\n'
	}
	select {
	case l.lines <- kept:
	default:
		l.dropped.Add(1)
	}
	return len(line), nil
}

// end writes the lines that wait, for a bounded time. Later lines are not written.
func (l *logFile) end(most time.Duration) {
	close(l.ending)
	steady.Ended(l.written, most)
}

// run writes lines until the end.
func (l *logFile) run() {
	defer close(l.written)
	for {
		select {
		case line := <-l.lines:
			l.put(line)
		case <-l.ending:
			for range len(l.lines) {
				l.put(<-l.lines)
			}
			return
		}
	}
}

// put writes a line. A line that cannot be written is dropped.
func (l *logFile) put(line []byte) {
	if l.open() != nil {
		l.dropped.Add(1)
		return
	}
	if n := l.dropped.Swap(0); n > 0 {
		line = fmt.Appendf(line, "time=%s level=WARN msg=\"lines of this log were dropped\" lines=%d\n", time.Now().Format(time.RFC3339), n)
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	if err != nil {
		l.dropped.Add(1)
	}
}

// open opens the file, and sets a long one aside, in the place of the one before. Several
// daemons write to one file.
func (l *logFile) open() error {
	if l.path == "" {
		return os.ErrNotExist
	}
	if l.file != nil && l.size <= logMax {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return err
	}
	if info, err := os.Stat(l.path); err == nil && info.Mode().IsRegular() && info.Size() > logMax {
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if l.file != nil {
		_ = l.file.Close() // its lines are written
	}
	l.file, l.size = f, 0
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		l.size = info.Size()
	}
	_ = debug.SetCrashOutput(f, debug.CrashOptions{}) // a panic without a trace is a panic still
	return nil
}

//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ending is the lock that daemons share while they flush. A new daemon waits until nobody holds
// it, so that a model is not loaded beside its own last instance: Ollama waits for the flush
// only where Ollama itself ended the front.
type ending struct{ file *os.File }

// openEnding opens the lock in a directory.
func openEnding(dir string) (*ending, error) {
	f, err := os.OpenFile(filepath.Join(dir, "llama-server.lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of ending daemons: %w", err)
	}
	return &ending{f}, nil
}

// hold holds the lock until the process ends. Where locks fail, nobody waits.
func (e *ending) hold() { _ = unix.Flock(int(e.file.Fd()), unix.LOCK_SH|unix.LOCK_NB) }

// wait waits until no daemon holds the lock, at most for some time.
func (e *ending) wait(most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(endingEvery) {
		if err := unix.Flock(int(e.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
			_ = unix.Flock(int(e.file.Fd()), unix.LOCK_UN) // fails as the lock did
			return
		}
	}
}

// endingEvery is the time between two attempts to get the lock.
const endingEvery = 10 * time.Millisecond

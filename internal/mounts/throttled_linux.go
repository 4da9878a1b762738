package mounts

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Throttled is a FUSE filesystem at Dir that shows the files of another directory through a
// link with a limit of bytes per second, for reads and writes together. Throttled is for
// benchmarks; tests have [Passthrough].
type Throttled struct {
	Dir    string
	server *process
}

// NewThrottled mounts source on dir, an existing empty directory, with no limit yet. The
// error is ErrUnavailable where FUSE cannot be used.
func NewThrottled(source, dir string) (*Throttled, error) {
	if err := available(); err != nil {
		return nil, err
	}
	server, err := startProcess(source, dir)
	if err != nil {
		return nil, errors.Join(err, unmountIfMounted(dir))
	}
	return &Throttled{Dir: dir, server: server}, nil
}

// Limit sets the link's bytes per second; 0 means no limit.
func (m *Throttled) Limit(bytesPerSecond int64) error {
	return m.server.command(command{Limit: &bytesPerSecond})
}

// Close ends the server and unmounts.
func (m *Throttled) Close() error {
	m.server.kill()
	return unmountIfMounted(m.Dir)
}

func unmountIfMounted(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// link carries the data of one request after the other.
type link struct {
	mu        sync.Mutex
	perSecond int64     // bytes; 0: no limit
	free      time.Time // time at which all data so far is through
}

func (l *link) limit(perSecond int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.perSecond, l.free = perSecond, time.Time{}
}

// carry waits until n bytes are through.
func (l *link) carry(n int) { time.Sleep(time.Until(l.through(n, time.Now()))) }

// through is the time at which n further bytes are through.
func (l *link) through(n int, now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.perSecond == 0 {
		return now
	}
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.perSecond) * float64(time.Second)))
	return l.free
}

package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/proc"
)

// endTime bounds the time for which requests hold up the end of a collector.
const endTime = 250 * time.Millisecond

// errLost reports that the collector's files are gone: another process may collect.
var errLost = errors.New("the lock or the socket was removed")

// Serve collects for a root whenever this process holds the root's lock, until ctx ends. A root
// that is not there yet is waited for. Serve returns an error at once when a person has to do
// something: the root or its directory "telemetry" is unsafe, or the filesystem has no locks or
// sockets. Other errors are logged, and Serve tries again.
//
// End ctx after the processes that push have ended: their last reports come then.
func Serve(ctx context.Context, root string, opt Options) error {
	opt = opt.withDefaults()
	p, err := newPlace(root, opt)
	if err != nil {
		return err
	}
	log, said, lost := opt.Logger, "", losses{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		err := collect(ctx, p, opt)
		switch {
		case ctx.Err() != nil:
			return nil
		case forever(err):
			return fmt.Errorf("collect telemetry in %s: %w", p.root, err)
		case errors.Is(err, vfs.ErrLocked), errors.Is(err, fs.ErrNotExist):
		case err != nil && err.Error() != said:
			said = err.Error()
			log.Warn("kv tier: cannot collect reports, and tries again", "path", p.dir, "error", err)
		}
		pause := opt.Intervals.Poll
		if errors.Is(err, errLost) {
			pause = lost.pause(pause, time.Now())
		}
		timer.Reset(pause)
	}
}

// losses are the times at which the files of this collector went away. Where locks do not reach
// another machine with the same root, both collectors would take the socket from each other for ever.
type losses struct {
	last time.Time
	many int
}

// pauseMax is the longest pause after a loss.
const pauseMax = time.Minute

// pause notes a loss, and returns the time until the next attempt to collect: twice as long each
// time, and as at first after a while without a loss.
func (l *losses) pause(first time.Duration, now time.Time) time.Duration {
	if now.Sub(l.last) > 2*pauseMax {
		l.many = 0
	}
	pause := min(first<<l.many, pauseMax)
	l.last, l.many = now, min(l.many+1, 10)
	return pause
}

// forever reports errors that stay until a person does something.
func forever(err error) bool {
	return tier.UnsafeRoot(err) || errors.Is(err, vfs.ErrUnsafe) || vfs.IsNoLocks(err) || errors.Is(err, errors.ErrUnsupported)
}

// collect takes the lock and collects until ctx ends. The error is vfs.ErrLocked while another
// process collects.
func collect(ctx context.Context, p *place, opt Options) error {
	lock, err := do(ctx, p, p.lock, func(lock *held, _ error) {
		if lock != nil {
			lock.Close()
		}
	})
	if err != nil {
		return err
	}
	defer lock.Close()
	b, err := do(ctx, p, func() (b *books, err error) {
		err = lock.change(func() error { b, err = p.load(opt); return err })
		return b, err
	}, func(*books, error) {})
	if err != nil {
		return err
	}
	s, err := do(ctx, p, func() (s *socket, err error) {
		err = lock.change(func() error { s, err = p.listen(); return err })
		return s, err
	}, func(s *socket, _ error) {
		if s != nil {
			s.Close()
		}
	})
	if err != nil {
		return err
	}
	log := opt.Logger
	log.Debug("kv tier: collecting reports", "path", p.dir)
	return serve(ctx, p, b, lock, s, opt)
}

// serve answers requests until ctx ends or the collector's files are gone.
func serve(ctx context.Context, p *place, b *books, lock *held, s *socket, opt Options) error {
	w := newWriter(p, lock, b, opt)
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.run(writing)
	}()
	server := newServer(p.root, b, w, opt.ModelName)
	served := make(chan error, 1)
	go func() { served <- server.Serve(s.accepts) }()
	if opt.OnServe != nil {
		opt.OnServe()
	}
	err := watch(ctx, p, b, lock, s, served, opt)

	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if server.Shutdown(ending) != nil {
		server.Close()
	}
	stopWriting()
	<-written
	if errors.Is(err, errLost) {
		return err // the file is another's
	}
	w.retry = time.Time{}
	w.save(ending)
	_ = p.do(ending, func() error {
		return lock.change(func() error { return p.fs.Remove(p.path(socketName)) })
	})
	return err
}

// watch looks at the processes and at the collector's own files.
func watch(ctx context.Context, p *place, b *books, lock *held, s *socket, served chan error, opt Options) error {
	ticker := time.NewTicker(opt.Intervals.Poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return fmt.Errorf("accept connections in %s: %w", p.dir, err)
		case <-ticker.C:
		}
		b.look(ended)
		there, err := do(ctx, p, func() (bool, error) {
			return p.has(lockName, lock.info) && p.has(socketName, s.info), nil
		}, func(bool, error) {})
		if err == nil && !there {
			return errLost
		}
	}
}

// load returns books with the content of the file. A file that cannot be used is set aside.
func (p *place) load(opt Options) (*books, error) {
	b := newBooks(opt)
	data, err := readAll(p.fs, p.path(fileName), fileBytesMax)
	if err == nil {
		boot, _ := proc.Boot() // empty where it is not known
		err = b.fill(data, boot)
	}
	switch {
	case err == nil:
		return b, nil
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, errContent), errors.Is(err, vfs.ErrNotRegular):
		if err := p.setAside(); err != nil {
			return nil, fmt.Errorf("set %s aside: %w", p.path(fileName), err)
		}
		log := opt.Logger
		log.Warn("kv tier: totals of reports begin anew, the former file is set aside", "path", p.path(asideName), "error", err)
	default:
		return nil, err
	}
	b.changes++ // the new beginning
	return b, nil
}

// setAside keeps one file for a person to look at.
func (p *place) setAside() error {
	if err := p.fs.Remove(p.path(asideName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return p.fs.Rename(p.path(fileName), p.path(asideName))
}

// socket is the collector's socket.
type socket struct {
	*net.UnixListener
	accepts *listener
	info    fs.FileInfo
}

// listen replaces the socket of a collector that was killed. The lock is held.
func (p *place) listen() (*socket, error) {
	if err := p.fs.Remove(p.path(socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := listen(p.dir)
	if err != nil {
		return nil, err
	}
	info, err := p.fs.Lstat(p.path(socketName))
	if err != nil {
		l.Close()
		return nil, err
	}
	return &socket{UnixListener: l, accepts: &listener{UnixListener: l, owner: os.Geteuid()}, info: info}, nil
}

package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// errLost reports that the file of a lock is gone: another process may have the lock.
var errLost = errors.New("the file of the lock was removed")

// Serve is the collector of a root whenever this process holds the root's lock, until ctx ends: it
// adds processes that end to the totals, names models, and keeps the prompts of processes that have
// ended. A root that is not there yet is waited for. Serve returns an error at once when a person has
// to do something: the root or its directory "telemetry" is unsafe, or the filesystem has no locks.
// Other errors are logged, and Serve tries again.
//
// End ctx after the processes that push have ended, so that their last reports are added.
func Serve(ctx context.Context, root string, opt Options) error {
	opt = opt.withDefaults()
	p, err := newPlace(root, opt)
	if err != nil {
		return err
	}
	log, said := opt.Logger, ""
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
		timer.Reset(opt.Intervals.Poll)
	}
}

// forever reports errors that stay until a person does something.
func forever(err error) bool {
	return tier.UnsafeRoot(err) || errors.Is(err, vfs.ErrUnsafe) || vfs.IsNoLocks(err) || errors.Is(err, errors.ErrUnsupported)
}

// collect takes the lock and collects until ctx ends. The error is vfs.ErrLocked while another
// process collects.
func collect(ctx context.Context, p *place, opt Options) error {
	lock, err := do(ctx, p, func() (*held, error) { return p.lock(lockName) }, func(lock *held, _ error) {
		if lock != nil {
			lock.Close()
		}
	})
	if err != nil {
		return err
	}
	defer lock.Close()
	log := opt.Logger
	log.Debug("kv tier: collecting reports", "path", p.dir)
	c := collecting{folder: folder{place: p, log: log, now: opt.now, name: opt.ModelName}}
	c.add(ctx) // prompts of processes that ended before go
	c.past = true
	if opt.OnServe != nil {
		opt.OnServe()
	}
	if err = c.watch(ctx, lock, opt.Intervals.Poll); err == nil {
		c.past = false
		c.add(context.WithoutCancel(ctx))
	}
	return err
}

// collecting adds processes to the totals again and again.
type collecting struct {
	folder
	failing bool
}

// add adds the processes that have ended, and tells when that begins to fail, and when that ends.
func (c *collecting) add(ctx context.Context) {
	f := c.folder
	err := c.do(ctx, f.fold)
	switch {
	case err != nil && !c.failing:
		c.log.Warn("kv tier: totals of reports cannot be written, files of processes that have ended stay", "error", err)
	case err == nil && c.failing:
		c.log.Info("kv tier: totals of reports are written again", "path", c.path(fileName))
	}
	c.failing = err != nil
}

// watch adds processes until ctx ends, or until the file of the collector's lock is gone.
func (c *collecting) watch(ctx context.Context, lock *held, poll time.Duration) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		there, err := do(ctx, c.place, func() (bool, error) { return c.holds(lock), nil }, func(bool, error) {})
		if err == nil && !there {
			return errLost
		}
		c.add(ctx)
	}
}

package collect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
)

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
	lock, err := steady.Do(ctx, &p.guard, p.wait, func() (*held, error) { return p.lock(lockName) }, func(lock *held, _ error) {
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
	c := collecting{folder: folder{place: p, log: log, name: opt.ModelName}, lock: lock}
	_ = c.fold(ctx, false) // prompts of processes that ended before go
	if opt.OnServe != nil {
		opt.OnServe()
	}
	ticker := time.NewTicker(opt.Intervals.Poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = c.fold(context.WithoutCancel(ctx), false)
			return nil
		case <-ticker.C:
		}
		if errors.Is(c.fold(ctx, true), errLost) {
			return errLost
		}
	}
}

// collecting adds processes to the totals again and again.
type collecting struct {
	folder
	lock    *held
	failing bool
}

// fold adds the processes that have ended, and tells when that begins to fail, and when that ends.
// The error is errLost when the file of the collector's lock is gone.
func (c *collecting) fold(ctx context.Context, keep bool) error {
	err := c.do(ctx, func() error {
		if !c.holds(c.lock) {
			return errLost
		}
		return c.folder.fold(keep)
	})
	switch {
	case errors.Is(err, errLost):
		return err
	case err != nil && !c.failing:
		c.log.Warn("kv tier: totals of reports cannot be written, files of processes that have ended stay", "error", err)
	case err == nil && c.failing:
		c.log.Info("kv tier: totals of reports are written again", "path", c.path(fileName))
	}
	c.failing = err != nil
	return err
}

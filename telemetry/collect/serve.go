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

// Serve is the collector of a root whenever this process holds the root's lock, until ctx ends: it
// adds processes that end to the totals, names models, and keeps the prompts of processes that have
// ended. A root that is not there yet is waited for. Without Options.Stay, Serve returns an error at once
// when a person has to do something: the root or its directory "telemetry" is unsafe, or the filesystem
// has no locks. Other errors are logged, and Serve tries again.
//
// End ctx after the processes that push have ended, so that their last reports are added.
func Serve(ctx context.Context, root string, opt Options) error {
	opt = opt.withDefaults()
	p, err := newPlace(root, opt)
	if err != nil {
		return err
	}
	err = until(ctx, opt.Intervals.Disk, func() error { return serve(ctx, p, opt) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func serve(ctx context.Context, p *place, opt Options) error {
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
		case err == nil:
			return nil
		case forever(err) && !opt.Stay:
			return fmt.Errorf("collect telemetry in %s: %w", p.root, err)
		case errors.Is(err, vfs.ErrLocked), errors.Is(err, fs.ErrNotExist), err.Error() == said:
		case forever(err): // processes that store pages tell more
			said = err.Error()
			log.Debug("kv tier: reports of runners are not collected", "reason", err)
		default:
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
	lock, err := p.lock(lockName)
	if err != nil {
		return err
	}
	defer lock.Close()
	log := opt.Logger
	log.Debug("kv tier: collecting reports", "path", p.dir)
	f := folder{place: p, log: log, name: opt.ModelName}
	ticker := time.NewTicker(opt.Intervals.Poll)
	defer ticker.Stop()
	failing := f.tell(f.fold(false), false) // prompts of processes that ended before go
	if opt.OnServe != nil {
		opt.OnServe()
	}
	for {
		select {
		case <-ctx.Done():
			f.tell(f.fold(false), failing)
			return nil
		case <-ticker.C:
		}
		if !p.holds(lock) {
			return errLost
		}
		failing = f.tell(f.fold(true), failing)
	}
}

// tell tells when writing totals begins to fail, and when that ends.
func (f folder) tell(err error, failing bool) (fails bool) {
	switch {
	case err != nil && !failing:
		f.log.Warn("kv tier: totals of reports cannot be written, files of processes that have ended stay", "error", err)
	case err == nil && failing:
		f.log.Info("kv tier: totals of reports are written again", "path", f.path(fileName))
	}
	return err != nil
}

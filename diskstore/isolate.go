package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/internal/vfs"
)

// Limits of one isolated tier. Their sum bounds the goroutines a mount that
// hangs for good can hold.
const (
	lookupWorkers   = 4 // small operations a lookup waits for
	transferWorkers = 4 // reads, writes, lists

	// commitSteps and listSteps say how many times the time of one transfer
	// step a sync of a whole page and a listing of many files may take.
	commitSteps = 6
	listSteps   = 24
)

// isolated is a Tier that answers in time whatever the tier below does. Every
// operation runs in one of a few goroutines and is given up when its time is
// over; the goroutine keeps its place until the operating system lets go of it.
// Data crosses in private buffers, so that an operation that was given up can
// never touch its caller's memory. A breaker stops asking a tier that fails.
type isolated struct {
	inner    Tier
	breaker  *breaker
	lookup   chan struct{}
	transfer chan struct{}
	lookupIn time.Duration // time for a lookup
	stepIn   time.Duration // time for a transfer step
	failed   func()        // called for each failure

	leaving  atomic.Int64    // bytes of uploads that are being given up
	appeared func(Committed) // called for each upload that appeared after it was given up

	// Reads, writes and commits that failed in a row.
	reads, writes, commits atomic.Int32
}

func isolate(inner Tier, lookupIn, stepIn time.Duration, log *slog.Logger, now func() time.Time, failed func()) *isolated {
	return &isolated{
		inner:    inner,
		breaker:  newBreaker(log, now),
		lookup:   make(chan struct{}, lookupWorkers),
		transfer: make(chan struct{}, transferWorkers),
		lookupIn: lookupIn,
		stepIn:   stepIn,
		failed:   failed,
		appeared: func(Committed) {},
	}
}

// outcome is what an operation returned.
type outcome[T any] struct {
	v   T
	err error
}

// do runs op in a worker for at most limit. When it gives op up it returns
// ErrTierTimeout, or the error of ctx when the caller has gone; a result that
// comes later goes to late, which may be nil.
func do[T any](ctx context.Context, t *isolated, workers chan struct{}, limit time.Duration, late func(T), op func(context.Context) (T, error)) (T, error) {
	var zero T
	if !t.breaker.allow() {
		return zero, t.breaker.downError()
	}
	start := time.Now()
	opCtx, cancel := context.WithTimeout(ctx, limit)
	select {
	case workers <- struct{}{}:
	case <-opCtx.Done():
		cancel()
		return zero, t.gaveUp(ctx, start, limit)
	}
	done := make(chan outcome[T], 1)
	var taken atomic.Bool // by whoever decides what becomes of the result
	go func() {
		defer cancel()
		v, err := op(opCtx)
		if taken.CompareAndSwap(false, true) {
			done <- outcome[T]{v, err}
		} else if err == nil && late != nil {
			late(v)
		}
		<-workers
	}()
	select {
	case out := <-done:
		return out.v, t.report(ctx, start, limit, out.err)
	case <-opCtx.Done():
		if !taken.CompareAndSwap(false, true) {
			out := <-done
			return out.v, t.report(ctx, start, limit, out.err)
		}
		return zero, t.gaveUp(ctx, start, limit)
	}
}

// gaveUp accounts for an operation that was not finished in time. A caller that
// left early, or came with little of its time left, learned nothing about the
// tier.
func (t *isolated) gaveUp(ctx context.Context, start time.Time, limit time.Duration) error {
	err := error(fmt.Errorf("%w (%v)", ErrTierTimeout, limit))
	if cause := ctx.Err(); cause != nil {
		err = fmt.Errorf("%w (%w)", cause, ErrTierTimeout)
		if time.Since(start) < min(limit, t.lookupIn)/2 || errors.Is(cause, context.Canceled) {
			t.breaker.neutral()
			return err
		}
	}
	t.failed()
	t.breaker.failure(err, false)
	return err
}

// report tells the breaker how an operation ended.
func (t *isolated) report(ctx context.Context, start time.Time, limit time.Duration, err error) error {
	switch {
	case err == nil, errors.Is(err, ErrNotFound), errors.Is(err, ErrNoSpace), errors.Is(err, ErrLocked), errors.Is(err, errQuarantineFull), errors.Is(err, errStale), errors.Is(err, errReplaced),
		errors.Is(err, ErrNotShared), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		t.breaker.success()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return t.gaveUp(ctx, start, limit)
	case errors.Is(err, ErrClosed):
		t.breaker.neutral()
	case vfs.IsReadOnly(err):
		// It cannot be written and can be read very well.
		t.failed()
		t.breaker.success()
	default:
		t.failed()
		t.breaker.failure(err, fatalRoot(err))
	}
	return err
}

// moved opens the breaker when transfers of one kind keep failing. Lookups may go
// on working while they do, as on a share whose server has a bad disk, and so
// the breaker never sees failures in a row: each of them would cost its time.
func (t *isolated) moved(streak *atomic.Int32, err error) error {
	switch {
	case err == nil:
		streak.Store(0)
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrNoSpace), errors.Is(err, ErrTierDown), errors.Is(err, ErrClosed), errors.Is(err, errStale),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled), vfs.IsReadOnly(err):
	case streak.Add(1) >= breakerThreshold:
		t.breaker.failure(err, true)
	}
	return err
}

// fatalRoot reports errors that asking twice more does not make better.
func fatalRoot(err error) bool {
	return errors.Is(err, ErrRootMissing) || errors.Is(err, ErrRootChanged) || unsafeRoot(err)
}

func (t *isolated) Stat(ctx context.Context, name Name) (Info, error) {
	return do(ctx, t, t.lookup, t.lookupIn, nil, func(ctx context.Context) (Info, error) {
		return t.inner.Stat(ctx, name)
	})
}

// leadingBatch is how many names are looked up in one operation: progress up to
// the last whole batch survives a timeout.
const leadingBatch = 16

func (t *isolated) Leading(ctx context.Context, names []Name) ([]Info, error) {
	var infos []Info
	for len(names) > 0 {
		batch := names[:min(len(names), leadingBatch)]
		some, err := do(ctx, t, t.lookup, t.lookupIn, nil, func(ctx context.Context) ([]Info, error) {
			return t.inner.Leading(ctx, batch)
		})
		infos = append(infos, some...)
		if err != nil || len(some) < len(batch) {
			return infos, err
		}
		names = names[len(batch):]
	}
	return infos, nil
}

func (t *isolated) Persist(ctx context.Context, name Name) error {
	_, err := do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.inner.Persist(ctx, name)
	})
	return err
}

func (t *isolated) Remove(ctx context.Context, judged Info) (bool, error) {
	return do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) (bool, error) {
		return t.inner.Remove(ctx, judged)
	})
}

func (t *isolated) Touch(ctx context.Context, name Name, used time.Time) error {
	_, err := do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.inner.Touch(ctx, name, used)
	})
	return err
}

func (t *isolated) Quarantine(ctx context.Context, judged Info, reason string) (bool, error) {
	return do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) (bool, error) {
		return t.inner.Quarantine(ctx, judged, reason)
	})
}

func (t *isolated) EmptyQuarantine(ctx context.Context) (int64, error) {
	return do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) (int64, error) {
		return t.inner.EmptyQuarantine(ctx)
	})
}

func (t *isolated) Tails(ctx context.Context, fingerprint, parent Key) ([]Info, error) {
	return do(ctx, t, t.lookup, t.lookupIn, nil, func(ctx context.Context) ([]Info, error) {
		return t.inner.Tails(ctx, fingerprint, parent)
	})
}

func (t *isolated) SyncRemoved(ctx context.Context, names []Name) error {
	_, err := do(ctx, t, t.transfer, listSteps*t.stepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.inner.SyncRemoved(ctx, names)
	})
	return err
}

func (t *isolated) Shards(ctx context.Context) ([]Shard, error) {
	return do(ctx, t, t.transfer, listSteps*t.stepIn, nil, func(ctx context.Context) ([]Shard, error) {
		return t.inner.Shards(ctx)
	})
}

func (t *isolated) ListShard(ctx context.Context, shard Shard) ([]Info, error) {
	return do(ctx, t, t.transfer, listSteps*t.stepIn, nil, func(ctx context.Context) ([]Info, error) {
		return t.inner.ListShard(ctx, shard)
	})
}

func (t *isolated) Aside(ctx context.Context) (Aside, error) {
	return do(ctx, t, t.transfer, listSteps*t.stepIn, nil, func(ctx context.Context) (Aside, error) {
		return t.inner.Aside(ctx)
	})
}

// Account does not hold an error of change against the tier.
func (t *isolated) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	type accounted struct {
		content []byte
		refused error // by change
	}
	done, err := do(ctx, t, t.transfer, commitSteps*t.stepIn, nil, func(ctx context.Context) (a accounted, err error) {
		if change == nil {
			a.content, err = t.inner.Account(ctx, nil)
			return a, err
		}
		a.content, err = t.inner.Account(ctx, func(content []byte, id string) ([]byte, error) {
			content, a.refused = change(content, id)
			return content, a.refused
		})
		if a.refused != nil {
			return a, nil
		}
		return a, err
	})
	if err != nil {
		return nil, err
	}
	return done.content, done.refused
}

func (t *isolated) Fingerprints(ctx context.Context) ([]Key, error) {
	return do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) ([]Key, error) {
		return t.inner.Fingerprints(ctx)
	})
}

func (t *isolated) DropFingerprint(ctx context.Context, fingerprint Key) error {
	_, err := do(ctx, t, t.transfer, listSteps*t.stepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.inner.DropFingerprint(ctx, fingerprint)
	})
	return err
}

func (t *isolated) Space(ctx context.Context) (vfs.Space, error) {
	return do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) (vfs.Space, error) {
		return t.inner.Space(ctx)
	})
}

func (t *isolated) Now(ctx context.Context) (time.Time, error) {
	return do(ctx, t, t.transfer, t.stepIn, nil, func(ctx context.Context) (time.Time, error) {
		return t.inner.Now(ctx)
	})
}

func (t *isolated) Left() int64 { return t.leaving.Load() + t.inner.Left() }

func (t *isolated) Lock(ctx context.Context) (func(), error) {
	release, err := do(ctx, t, t.transfer, t.stepIn, func(release func()) { release() }, func(ctx context.Context) (func(), error) {
		return t.inner.Lock(ctx)
	})
	if err != nil {
		return nil, err
	}
	return func() { t.inWorker(release) }, nil
}

// closeIn is how long Close waits: files that stay behind are cleaned later.
const closeIn = 500 * time.Millisecond

// Close closes the tier below, and does not wait for one that hangs.
func (t *isolated) Close() error {
	done := make(chan error, 1)
	t.inWorker(func() { done <- t.inner.Close() })
	timer := time.NewTimer(closeIn)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("close tier: %w (%v)", ErrTierTimeout, closeIn)
	}
}

// inWorker runs fn in a worker when one is free and does not wait for it. It is
// for giving things up: each call ends the life of something that a bounded
// number of callers hold.
func (t *isolated) inWorker(fn func()) {
	go func() {
		t.transfer <- struct{}{}
		fn()
		<-t.transfer
	}()
}

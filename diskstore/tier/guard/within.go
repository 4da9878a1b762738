package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
)

// do runs op in a worker for at most limit. When do gives op up, do returns tier.ErrTierTimeout, or
// the error of ctx when ctx has ended; late, which may be nil, receives a later result.
func do[T any](ctx context.Context, t *Tier, workers chan struct{}, limit time.Duration, late func(T), op func(context.Context) (T, error)) (T, error) {
	var zero T
	if !t.Breaker.allow() {
		return zero, t.Breaker.downError()
	}
	start := time.Now()
	opCtx, cancel := context.WithTimeout(ctx, limit)
	select {
	case workers <- struct{}{}:
	case <-opCtx.Done():
		cancel()
		return zero, t.gaveUp(ctx, workers, start, limit)
	}
	v, inTime, err := steady.Within(opCtx.Done(), func() (T, error) {
		return try(&t.panics, func() (T, error) { return op(opCtx) })
	}, func(v T, err error) {
		if err == nil && late != nil {
			t.ends.run(func() { late(v) })
		}
	}, func() {
		cancel()
		// A worker that has transferred closes one file, so that closing keeps up with
		// reading, however many wait for a worker.
		if workers == t.Transfer {
			if fn := t.ends.take(); fn != nil {
				t.ends.run(fn)
			}
		}
		<-workers
	})
	if !inTime {
		return zero, t.gaveUp(ctx, workers, start, limit)
	}
	return v, t.report(ctx, workers, start, limit, err)
}

// doList runs a list for which a look-up waits. Lists have workers of their own, and while all of these
// run lists that were given up, doList gives up at once.
func doList[T any](ctx context.Context, t *Tier, list func(context.Context) (T, error)) (T, error) {
	if n := t.lateLists.Load(); n >= listWorkers {
		var zero T
		return zero, fmt.Errorf("%d lists that took too long have not ended: %w", n, tier.ErrTierTimeout)
	}
	return do(ctx, t, t.List, t.LookupIn, nil, func(ctx context.Context) (T, error) {
		inTime := context.AfterFunc(ctx, func() { t.lateLists.Add(1) })
		v, err := list(ctx)
		if !inTime() {
			t.lateLists.Add(-1)
		}
		return v, err
	})
}

// gaveUp handles an operation that did not finish in time. If the caller left early, or came
// with little of its time left, the timeout shows nothing about the tier. Nor does a list that takes
// long: its length is that of one answer, and a tier that hangs fails the other operations too.
func (t *Tier) gaveUp(ctx context.Context, workers chan struct{}, start time.Time, limit time.Duration) error {
	err := error(fmt.Errorf("%w (%v)", tier.ErrTierTimeout, limit))
	if cause := ctx.Err(); cause != nil {
		err = fmt.Errorf("%w (%w)", cause, tier.ErrTierTimeout)
		if time.Since(start) < min(limit, t.LookupIn)/2 || errors.Is(cause, context.Canceled) {
			t.Breaker.neutral()
			return err
		}
	}
	t.failed()
	if workers == t.List {
		t.Breaker.neutral()
		return err
	}
	t.Breaker.failure(err, false)
	return err
}

// report reports the result of an operation to the breaker.
func (t *Tier) report(ctx context.Context, workers chan struct{}, start time.Time, limit time.Duration, err error) error {
	switch {
	case err == nil, errors.Is(err, tier.ErrNotFound), errors.Is(err, tier.ErrNoSpace), errors.Is(err, tier.ErrLocked), errors.Is(err, tier.ErrQuarantineFull), errors.Is(err, tier.ErrStale), errors.Is(err, tier.ErrReplaced),
		errors.Is(err, tier.ErrNotShared), errors.Is(err, pagefile.ErrDamaged), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		t.Breaker.Success()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return t.gaveUp(ctx, workers, start, limit)
	case errors.Is(err, tier.ErrClosed):
		t.Breaker.neutral()
	case isRefused(err), vfs.IsReadOnly(err):
		// The tier cannot be written, but it can be read.
		t.failed()
		t.Breaker.refuses(err)
	default:
		t.failed()
		t.Breaker.failure(err, fatalRoot(err))
	}
	return err
}

// moved opens the breaker when transfers of one kind keep failing. Look-ups may succeed
// meanwhile, as on a share whose server has a bad disk, so that the breaker never sees
// consecutive failures: each failure would cost its whole time.
func (t *Tier) moved(streak *atomic.Int32, err error) error {
	switch {
	case err == nil:
		streak.Store(0)
	case errors.Is(err, tier.ErrNotFound), errors.Is(err, tier.ErrNoSpace), errors.Is(err, tier.ErrTierDown), errors.Is(err, tier.ErrClosed), errors.Is(err, tier.ErrStale),
		errors.Is(err, pagefile.ErrDamaged), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled), isRefused(err), vfs.IsReadOnly(err):
	case streak.Add(1) >= breakerThreshold:
		t.Breaker.failure(err, true)
	}
	return err
}

// fatalRoot reports errors that a repetition does not change.
func fatalRoot(err error) bool {
	return errors.Is(err, tier.ErrRootMissing) || errors.Is(err, tier.ErrRootChanged) || tier.UnsafeRoot(err)
}

// refusedError is the error of a write that a filesystem refuses to this process: the tier
// answers, and may be readable.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

func isRefused(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused)
}

// doWrite does as do, for an operation that writes.
func doWrite[T any](ctx context.Context, t *Tier, limit time.Duration, late func(T), op func(context.Context) (T, error)) (T, error) {
	return do(ctx, t, t.Transfer, limit, late, func(ctx context.Context) (T, error) {
		v, err := op(ctx)
		if vfs.IsRefused(err) {
			err = &refusedError{err}
		}
		return v, err
	})
}

// write runs an operation that writes and has no result.
func write(ctx context.Context, t *Tier, limit time.Duration, op func(context.Context) error) error {
	_, err := doWrite(ctx, t, limit, nil, func(ctx context.Context) (struct{}, error) { return struct{}{}, op(ctx) })
	return err
}

// list runs a listing that no look-up waits for.
func list[T any](ctx context.Context, t *Tier, op func(context.Context) (T, error)) (T, error) {
	return do(ctx, t, t.Transfer, listSteps*t.StepIn, nil, op)
}

// A panic of the tier below is a failure of the tier, and never reaches the store.

var errPanic = errors.New("diskstore: the tier panicked")

// panics logs the first panic of a tier, with its stack.
type panics struct {
	log  *slog.Logger
	once sync.Once
}

// try runs op and returns a panic as an error.
func try[T any](p *panics, op func() (T, error)) (v T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: %v", errPanic, cause)
			p.once.Do(func() {
				p.log.Error("kv tier panicked, later panics of it are not logged", "error", cause, "stack", string(debug.Stack()))
			})
		}
	}()
	return op()
}

package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Limits of one isolated tier. Their sum bounds the goroutines that a hanging mount can hold.
const (
	lookupWorkers   = 4 // small operations for which look-ups wait
	listWorkers     = 4 // lists for which look-ups wait
	transferWorkers = 4 // reads, writes, lists

	// maxEnds is the number of files and locks that may wait to be released; with as many, no
	// further ones are opened.
	maxEnds = 64

	// commitSteps and listSteps are the times, in transfer steps, for a sync of a whole page
	// and for a listing of many files.
	commitSteps = 6
	listSteps   = 24
)

// Tier is a tier with time limits, for any tier below. Every operation runs in one of a few
// goroutines and is given up when its time is over; the goroutine keeps its place until the
// operating system returns. Data is copied through private buffers, so that an operation that
// was given up can never write to its caller's memory. A breaker keeps operations from a tier
// that fails.
type Tier struct {
	Inner    tier.Tier
	Breaker  *breaker
	Lookup   chan struct{}
	List     chan struct{}
	Transfer chan struct{}
	LookupIn time.Duration // limit of a look-up
	StepIn   time.Duration // limit of a transfer step
	failed   func()        // called for each failure
	log      *slog.Logger
	panics   sync.Once // the first panic is logged with its stack

	endsMu sync.Mutex
	ends   []func() // functions that wait for a worker and release a file or a lock
	ending bool     // giveUp runs

	Leaving  atomic.Int64         // bytes of uploads that are being given up
	Appeared func(tier.Committed) // called for each upload that appeared after it was given up

	refused atomic.Bool // the last write was refused

	lateLists atomic.Int32 // lists that were given up and still run

	// Consecutive failures of reads, writes, and the three steps that end an upload.
	reads, writes, seals, commits, persists atomic.Int32
}

func New(inner tier.Tier, lookupIn, stepIn time.Duration, log *slog.Logger, now func() time.Time, failed func()) *Tier {
	return &Tier{
		Inner:    inner,
		Breaker:  newBreaker(log, now),
		Lookup:   make(chan struct{}, lookupWorkers),
		List:     make(chan struct{}, listWorkers),
		Transfer: make(chan struct{}, transferWorkers),
		LookupIn: lookupIn,
		StepIn:   stepIn,
		failed:   failed,
		log:      log,
		Appeared: func(tier.Committed) {},
	}
}

// outcome is the result of an operation.
type outcome[T any] struct {
	v   T
	err error
}

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
	done := make(chan outcome[T], 1)
	var taken atomic.Bool // set by the side that handles the result
	go func() {
		defer cancel()
		v, err := try(t, func() (T, error) { return op(opCtx) })
		if taken.CompareAndSwap(false, true) {
			done <- outcome[T]{v, err}
		} else if err == nil && late != nil {
			t.end(func() { late(v) })
		}
		// A worker that has transferred closes one file, so that closing keeps up with
		// reading, however many wait for a worker.
		if workers == t.Transfer {
			if fn := t.takeEnd(); fn != nil {
				t.end(fn)
			}
		}
		<-workers
	}()
	select {
	case out := <-done:
		return out.v, t.report(ctx, workers, start, limit, out.err)
	case <-opCtx.Done():
		if !taken.CompareAndSwap(false, true) {
			out := <-done
			return out.v, t.report(ctx, workers, start, limit, out.err)
		}
		return zero, t.gaveUp(ctx, workers, start, limit)
	}
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
		errors.Is(err, tier.ErrNotShared), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		t.Breaker.Success()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return t.gaveUp(ctx, workers, start, limit)
	case errors.Is(err, tier.ErrClosed):
		t.Breaker.neutral()
	case isRefused(err), vfs.IsReadOnly(err):
		// The tier cannot be written, but it can be read.
		t.failed()
		t.Breaker.Success()
		t.noteRefused(err)
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
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled), isRefused(err), vfs.IsReadOnly(err):
	case streak.Add(1) >= breakerThreshold:
		t.Breaker.failure(err, true)
	}
	return err
}

// fatalRoot reports errors that a repetition does not change.
func fatalRoot(err error) bool {
	return errors.Is(err, tier.ErrRootMissing) || errors.Is(err, tier.ErrRootChanged) || tier.UnsafeRoot(err)
}

func (t *Tier) Stat(ctx context.Context, name pagefile.Name) (tier.Info, error) {
	return do(ctx, t, t.Lookup, t.LookupIn, nil, func(ctx context.Context) (tier.Info, error) {
		info, err := t.Inner.Stat(ctx, name)
		if err != nil {
			return tier.Info{}, err
		}
		return describe(info, name)
	})
}

func (t *Tier) Persist(ctx context.Context, name pagefile.Name) error {
	_, err := doWrite(ctx, t, commitSteps*t.StepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.Inner.Persist(ctx, name)
	})
	return t.moved(&t.persists, err)
}

func (t *Tier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (bool, error) {
		return t.Inner.Remove(ctx, judged)
	})
}

func (t *Tier) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	_, err := doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.Inner.Touch(ctx, name, used)
	})
	return err
}

func (t *Tier) Quarantine(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (bool, error) {
		return t.Inner.Quarantine(ctx, judged, reason)
	})
}

func (t *Tier) EmptyQuarantine(ctx context.Context) (int64, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (int64, error) {
		return t.Inner.EmptyQuarantine(ctx)
	})
}

func (t *Tier) AddBranch(ctx context.Context, branch tier.Branch, durable bool) error {
	_, err := doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.Inner.AddBranch(ctx, branch, durable)
	})
	return err
}

// branchList is the answer of Branches.
type branchList struct {
	branches []tier.Branch
	longer   bool
}

func (t *Tier) Branches(ctx context.Context, fingerprint, prefix pagefile.Key) ([]tier.Branch, bool, error) {
	list, err := doList(ctx, t, func(ctx context.Context) (l branchList, err error) {
		l.branches, l.longer, err = t.Inner.Branches(ctx, fingerprint, prefix)
		l.branches = slices.DeleteFunc(l.branches, func(b tier.Branch) bool {
			return impossible(b) || b.Fingerprint != fingerprint || b.Prefix != prefix
		})
		return l, err
	})
	return list.branches, list.longer, err
}

// impossible reports a branch that leads to no page or tail.
func impossible(b tier.Branch) bool {
	return b.Longer || b.Tokens <= 0 || b.Class != pagefile.ClassPage && b.Class != pagefile.ClassTail
}

func (t *Tier) ListBranches(ctx context.Context, fingerprint pagefile.Key, first byte) ([]tier.Branch, error) {
	return do(ctx, t, t.Transfer, listSteps*t.StepIn, nil, func(ctx context.Context) ([]tier.Branch, error) {
		branches, err := t.Inner.ListBranches(ctx, fingerprint, first)
		return slices.DeleteFunc(branches, func(b tier.Branch) bool {
			return impossible(b) || b.Fingerprint != fingerprint || b.Prefix[0] != first
		}), err
	})
}

func (t *Tier) RemoveBranch(ctx context.Context, branch tier.Branch) error {
	_, err := doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.Inner.RemoveBranch(ctx, branch)
	})
	return err
}

func (t *Tier) SyncRemoved(ctx context.Context, names []pagefile.Name) error {
	_, err := doWrite(ctx, t, listSteps*t.StepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.Inner.SyncRemoved(ctx, names)
	})
	return err
}

func (t *Tier) Shards(ctx context.Context) ([]tier.Shard, error) {
	return do(ctx, t, t.Transfer, listSteps*t.StepIn, nil, func(ctx context.Context) ([]tier.Shard, error) {
		shards, err := t.Inner.Shards(ctx)
		return once(shards), err
	})
}

// once returns the shards without repetitions.
func once(shards []tier.Shard) []tier.Shard {
	seen := make(map[tier.Shard]bool, len(shards))
	var once []tier.Shard
	for _, shard := range shards {
		if !seen[shard] {
			seen[shard], once = true, append(once, shard)
		}
	}
	return once
}

// Survey returns the results of Fingerprints and Shards, in one operation of a tier that has
// Survey as well.
func (t *Tier) Survey(ctx context.Context) ([]pagefile.Key, []tier.Shard, error) {
	inner, ok := t.Inner.(interface {
		Survey(ctx context.Context) ([]pagefile.Key, []tier.Shard, error)
	})
	if !ok {
		fingerprints, err := t.Fingerprints(ctx)
		if err != nil {
			return nil, nil, err
		}
		shards, err := t.Shards(ctx)
		return fingerprints, shards, err
	}
	type survey struct {
		fingerprints []pagefile.Key
		shards       []tier.Shard
	}
	found, err := do(ctx, t, t.Transfer, listSteps*t.StepIn, nil, func(ctx context.Context) (s survey, err error) {
		s.fingerprints, s.shards, err = inner.Survey(ctx)
		return s, err
	})
	return found.fingerprints, once(found.shards), err
}

func (t *Tier) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	return do(ctx, t, t.Transfer, listSteps*t.StepIn, nil, func(ctx context.Context) ([]tier.Info, error) {
		infos, err := t.Inner.ListShard(ctx, shard)
		if err != nil {
			return nil, err
		}
		return listed(infos, func(n pagefile.Name) bool { return tier.ShardOf(n) == shard })
	})
}

func (t *Tier) Aside(ctx context.Context) (tier.Aside, error) {
	return do(ctx, t, t.Transfer, listSteps*t.StepIn, nil, func(ctx context.Context) (tier.Aside, error) {
		aside, err := t.Inner.Aside(ctx)
		for _, n := range []*int64{&aside.TempBytes, &aside.QuarantineBytes, &aside.OrphanBytes} {
			*n = max(0, *n)
		}
		return aside, err
	})
}

// Account does not count an error of change as a failure of the tier.
func (t *Tier) Account(ctx context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	type accounted struct {
		content []byte
		refused error // by change
	}
	var refused atomic.Pointer[error] // the tier may call change after Account has returned
	if change == nil {
		return do(ctx, t, t.Transfer, commitSteps*t.StepIn, nil, func(ctx context.Context) ([]byte, error) {
			return t.Inner.Account(ctx, nil)
		})
	}
	done, err := doWrite(ctx, t, commitSteps*t.StepIn, nil, func(ctx context.Context) (a accounted, err error) {
		a.content, err = t.Inner.Account(ctx, func(content []byte, id string) ([]byte, error) {
			content, err := change(content, id)
			refused.Store(&err)
			return content, err
		})
		if last := refused.Load(); last != nil && *last != nil {
			a.refused = *last
			return a, nil
		}
		return a, err
	})
	if err != nil {
		return nil, err
	}
	return done.content, done.refused
}

func (t *Tier) Fingerprints(ctx context.Context) ([]pagefile.Key, error) {
	return do(ctx, t, t.Transfer, t.StepIn, nil, func(ctx context.Context) ([]pagefile.Key, error) {
		return t.Inner.Fingerprints(ctx)
	})
}

func (t *Tier) DropFingerprint(ctx context.Context, fingerprint pagefile.Key) error {
	_, err := doWrite(ctx, t, listSteps*t.StepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, t.Inner.DropFingerprint(ctx, fingerprint)
	})
	return err
}

func (t *Tier) Space(ctx context.Context) (vfs.Space, error) {
	return do(ctx, t, t.Transfer, t.StepIn, nil, func(ctx context.Context) (vfs.Space, error) {
		return t.Inner.Space(ctx)
	})
}

func (t *Tier) Now(ctx context.Context) (time.Time, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (time.Time, error) {
		return t.Inner.Now(ctx)
	})
}

func (t *Tier) Left() int64 {
	leaving := t.Leaving.Load() // first: bytes go from here to the inner tier
	inner, _ := try(t, func() (int64, error) { return t.Inner.Left(), nil })
	return leaving + max(0, inner)
}

func (t *Tier) Lock(ctx context.Context) (func(), error) {
	if err := t.crowded(); err != nil {
		return nil, err
	}
	release, err := doWrite(ctx, t, t.StepIn, func(release func()) { release() }, func(ctx context.Context) (func(), error) {
		release, err := t.Inner.Lock(ctx)
		if err == nil && release == nil {
			err = fmt.Errorf("lock the tier: %w", errNothing)
		}
		return release, err
	})
	if err != nil {
		return nil, err
	}
	return func() { t.inWorker(release) }, nil
}

// CloseIn bounds the wait of Close; the next process removes files that stay behind.
const CloseIn = 500 * time.Millisecond

// Close closes the tier below, and does not wait for a tier that hangs.
func (t *Tier) Close() error {
	done := make(chan error, 1)
	t.inWorker(func() {
		_, err := try(t, func() (struct{}, error) { return struct{}{}, t.Inner.Close() })
		done <- err
	})
	timer := time.NewTimer(CloseIn)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("close tier: %w (%v)", tier.ErrTierTimeout, CloseIn)
	}
}

// inWorker runs fn in a worker when one is free, and does not wait for fn. fn releases a file
// or a lock. One goroutine waits for a worker, for any number of calls.
func (t *Tier) inWorker(fn func()) {
	t.endsMu.Lock()
	defer t.endsMu.Unlock()
	t.ends = append(t.ends, fn)
	if !t.ending {
		t.ending = true
		go t.giveUp()
	}
}

// giveUp runs each waiting function in a worker, until none is left.
func (t *Tier) giveUp() {
	for fn := t.nextEnd(); fn != nil; fn = t.nextEnd() {
		t.Transfer <- struct{}{}
		go func() {
			t.end(fn)
			<-t.Transfer
		}()
	}
}

// nextEnd returns nil at the end of giveUp.
func (t *Tier) nextEnd() (fn func()) {
	t.endsMu.Lock()
	defer t.endsMu.Unlock()
	fn = t.takeEndLocked()
	t.ending = fn != nil
	return fn
}

// takeEnd returns one of the waiting functions, or nil.
func (t *Tier) takeEnd() (fn func()) {
	t.endsMu.Lock()
	defer t.endsMu.Unlock()
	return t.takeEndLocked()
}

func (t *Tier) takeEndLocked() (fn func()) {
	if len(t.ends) > 0 {
		fn = t.ends[0]
		t.ends = slices.Delete(t.ends, 0, 1)
	}
	return fn
}

// crowded returns an error while maxEnds files wait to be closed.
func (t *Tier) crowded() error {
	t.endsMu.Lock()
	defer t.endsMu.Unlock()
	if n := len(t.ends); n >= maxEnds {
		return fmt.Errorf("%d files wait until they can be closed: %w", n, tier.ErrTierTimeout)
	}
	return nil
}

package guard

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/steady"
)

// Limits of one isolated tier. Their sum bounds the goroutines that a hanging mount can hold.
const (
	lookupWorkers   = 4 // small operations for which look-ups wait
	listWorkers     = 4 // lists for which look-ups wait
	transferWorkers = 4 // reads, writes, lists

	// commitSteps and listSteps are the times, in transfer steps, for a sync of a whole page
	// and for a listing of many files.
	commitSteps = 6
	listSteps   = 24
)

var _ tier.Disk = (*Tier)(nil)

// Tier is a tier with time limits, for any tier below. Every operation runs in one of a few goroutines
// and is given up when its time is over; the goroutine keeps its place until the operating system
// returns. Data is copied through private buffers, so that an operation that was given up can never
// write to its caller's memory. A breaker keeps operations from a tier that fails.
type Tier struct {
	Inner    tier.Tier
	Breaker  *breaker
	Lookup   chan struct{}
	List     chan struct{}
	Transfer chan struct{}
	LookupIn time.Duration // limit of a look-up
	StepIn   time.Duration // limit of a transfer step
	failed   func()        // called for each failure
	panics   panics
	ends     ends // releases files and locks

	Leaving  atomic.Int64         // bytes of uploads that are being given up
	Appeared func(tier.Committed) // called for each upload that appeared after it was given up

	lateLists atomic.Int32 // lists that were given up and still run

	// Consecutive failures of reads, writes, and the three steps that end an upload.
	reads, writes, seals, commits, persists atomic.Int32
}

func New(inner tier.Tier, lookupIn, stepIn time.Duration, log *slog.Logger, now func() time.Time, failed func()) *Tier {
	t := &Tier{
		Inner:    inner,
		Breaker:  newBreaker(log, now),
		Lookup:   make(chan struct{}, lookupWorkers),
		List:     make(chan struct{}, listWorkers),
		Transfer: make(chan struct{}, transferWorkers),
		LookupIn: lookupIn,
		StepIn:   stepIn,
		failed:   failed,
		Appeared: func(tier.Committed) {},
		panics:   panics{log: log},
	}
	if _, directory := inner.(tier.Disk); !directory {
		t.Breaker.remedy = engineRemedy
	}
	t.ends.workers, t.ends.panics = t.Transfer, &t.panics
	return t
}

func (t *Tier) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	return write(ctx, t, t.StepIn, func(ctx context.Context) error { return t.Inner.Touch(ctx, name, used) })
}

// Note does no I/O.
func (t *Tier) Note(name pagefile.Name, used time.Time) bool { return tier.Note(t.Inner, name, used) }

func (t *Tier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (bool, error) { return t.Inner.Remove(ctx, judged) })
}

func (t *Tier) Quarantine(ctx context.Context, judged tier.Info, reason string) (bool, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (bool, error) {
		return t.Inner.Quarantine(ctx, judged, reason)
	})
}

func (t *Tier) Survey(ctx context.Context) ([]pagefile.Key, []tier.Shard, error) {
	type survey struct {
		fingerprints []pagefile.Key
		shards       []tier.Shard
	}
	found, err := list(ctx, t, func(ctx context.Context) (s survey, err error) {
		s.fingerprints, s.shards, err = t.Inner.Survey(ctx)
		return s, err
	})
	return found.fingerprints, once(found.shards, func(s tier.Shard) tier.Shard { return s }), err
}

// once returns a list without repetitions: the parts of a server's listing may overlap.
func once[T any, K comparable](all []T, key func(T) K) []T {
	seen := make(map[K]bool, len(all))
	return slices.DeleteFunc(all, func(one T) bool {
		was := seen[key(one)]
		seen[key(one)] = true
		return was
	})
}

func (t *Tier) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	return list(ctx, t, func(ctx context.Context) ([]tier.Info, error) {
		infos, err := t.Inner.ListShard(ctx, shard)
		return once(infos, func(i tier.Info) pagefile.Name { return i.Name }), err
	})
}

func (t *Tier) AddBranch(ctx context.Context, branch tier.Branch, durable bool) error {
	return write(ctx, t, t.StepIn, func(ctx context.Context) error { return t.Inner.AddBranch(ctx, branch, durable) })
}

func (t *Tier) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]tier.Branch, error) {
	run := list[[]tier.Branch]
	if len(prefix) == len(pagefile.Key{}) {
		run = doList
	}
	return run(ctx, t, func(ctx context.Context) ([]tier.Branch, error) { return t.Inner.Branches(ctx, fingerprint, prefix) })
}

func (t *Tier) RemoveBranch(ctx context.Context, branch tier.Branch) error {
	return write(ctx, t, t.StepIn, func(ctx context.Context) error { return t.Inner.RemoveBranch(ctx, branch) })
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

func (t *Tier) disk() tier.Disk { return tier.OnDisk(t.Inner) }

func (t *Tier) Persist(ctx context.Context, name pagefile.Name) error {
	err := write(ctx, t, commitSteps*t.StepIn, func(ctx context.Context) error { return t.disk().Persist(ctx, name) })
	return t.moved(&t.persists, err)
}

func (t *Tier) SyncRemoved(ctx context.Context, names []pagefile.Name) error {
	return write(ctx, t, listSteps*t.StepIn, func(ctx context.Context) error { return t.disk().SyncRemoved(ctx, names) })
}

func (t *Tier) DropFolders(ctx context.Context, fingerprint pagefile.Key) error {
	return write(ctx, t, listSteps*t.StepIn, func(ctx context.Context) error { return t.disk().DropFolders(ctx, fingerprint) })
}

func (t *Tier) Aside(ctx context.Context) (tier.Aside, error) {
	return list(ctx, t, func(ctx context.Context) (tier.Aside, error) { return t.disk().Aside(ctx) })
}

func (t *Tier) EmptyQuarantine(ctx context.Context) (int64, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (int64, error) { return t.disk().EmptyQuarantine(ctx) })
}

func (t *Tier) Left() int64 {
	leaving := t.Leaving.Load() // first: bytes go from here to the inner tier
	inner, _ := try(&t.panics, func() (int64, error) { return t.disk().Left(), nil })
	return leaving + inner
}

func (t *Tier) Space(ctx context.Context) (tier.Space, error) {
	return do(ctx, t, t.Transfer, t.StepIn, nil, func(ctx context.Context) (tier.Space, error) { return t.disk().Space(ctx) })
}

func (t *Tier) Now(ctx context.Context) (time.Time, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (time.Time, error) { return t.disk().Now(ctx) })
}

func (t *Tier) Lock(ctx context.Context) (func(), error) {
	if err := t.ends.crowded(); err != nil {
		return nil, err
	}
	release, err := doWrite(ctx, t, t.StepIn, func(release func()) { release() }, func(ctx context.Context) (func(), error) {
		return t.disk().Lock(ctx)
	})
	if err != nil {
		return nil, err
	}
	return func() { t.ends.add(release) }, nil
}

func (t *Tier) Tombstones(ctx context.Context, change func([]byte) []byte) ([]byte, error) {
	tombstones := func(ctx context.Context) ([]byte, error) { return t.disk().Tombstones(ctx, change) }
	if change == nil {
		return do(ctx, t, t.Transfer, t.StepIn, nil, tombstones)
	}
	return doWrite(ctx, t, t.StepIn, nil, tombstones)
}

// CloseIn bounds the wait of Close; the next process removes files that stay behind.
const CloseIn = 500 * time.Millisecond

// Close closes the tier below, and does not wait for a tier that hangs.
func (t *Tier) Close() error {
	var err error
	done := make(chan struct{})
	t.ends.add(func() {
		defer close(done)
		_, err = try(&t.panics, func() (struct{}, error) { return struct{}{}, t.Inner.Close() })
	})
	if !steady.Ended(done, CloseIn) {
		return fmt.Errorf("close tier: %w (%v)", tier.ErrTierTimeout, CloseIn)
	}
	return err
}

package recency

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

/*
Clocks can be wrong: a clock was ahead when files were stored and has been corrected since,
or the clock of a host that shares the root differs. A file with a recency from the future
would stay until real time has caught up with that recency, and would leave no room for
other files meanwhile. So such a recency is not believed: a chain with such a time counts as
used long ago, and a collection that needs room first sets the times of all such files to
the present, in their order. Times within ClockSlack are believed.

A host whose clock is behind must not treat every file of other hosts as from the future and
move the file back: files used just now would look as old as the clock is behind. So a time
is from the future only by both this machine's clock and the filesystem's, and files move to
the later of the two times. Where age alone is a reason to delete, the earlier of the two
clocks decides.

All files from the future move at the same time, and no other file ever moves back, so that
the order of times still puts every page before the pages it continues.
*/
const (
	// believeMargin is the difference between the present time and the new times of files from
	// the future: pages that continue them may be used now, and must be earlier.
	believeMargin = 10 * time.Millisecond

	// maxFutures bounds the files of Futures, to about 10 MiB of names.
	maxFutures = 1 << 16
)

// Futures holds the earliest files of a listing that are from the future, at least maxFutures of them.
type Futures struct {
	Newest time.Time // the latest time of all other files

	tier   tier.Tier
	clock  func() time.Time
	failed func(error)
	now    time.Time
	ahead  time.Duration // lead of the filesystem's clock over this machine's; 0 for a lag
	blind  bool          // the filesystem's clock is unknown, and no file is moved
	files  []tier.Info
}

// NewFutures begins a listing of a tier. failed is told errors of the tier.
func NewFutures(ctx context.Context, t tier.Disk, clock func() time.Time, failed func(error)) *Futures {
	f := &Futures{tier: t, clock: clock, failed: failed}
	there, err := t.Now(ctx)
	here := clock()
	if err != nil {
		failed(err)
		f.now, f.blind = here, true
		return f
	}
	f.now, f.ahead = tier.Later(here, there), max(0, there.Sub(here))
	return f
}

// AgeClock returns the time by which files of a tier count as old enough to delete: the earlier of
// this machine's clock and the filesystem's.
func AgeClock(ctx context.Context, t tier.Disk, clock func() time.Time) (time.Time, error) {
	there, err := t.Now(ctx)
	if err != nil && !vfs.IsNoSpace(err) { // after tier.ErrNoSpace `there` is an earlier time, by which fewer files are old
		return there, err
	}
	if here := clock(); here.Before(there) {
		return here, nil
	}
	return there, nil
}

// Add adds a file of the listing.
func (f *Futures) Add(info tier.Info) {
	if !tier.Beyond(info.Used, f.now) {
		f.Newest = tier.Later(f.Newest, info.Used.Truncate(Step))
		return
	}
	if f.blind {
		return
	}
	if f.files = append(f.files, info); len(f.files) >= 2*maxFutures {
		f.sort()
		clear(f.files[maxFutures:])
		f.files = f.files[:maxFutures]
	}
}

func (f *Futures) sort() {
	slices.SortFunc(f.files, func(a, b tier.Info) int { return a.Used.Compare(b.Used) })
}

// Believe sets the times of files from the future to just after now, in their order: files to
// evict first come first. Believe reports whether it set one, after which noted times are too late, and sets
// f.Newest to the latest time of all files. Files that real time has caught up with since the listing, which may
// have taken long, keep theirs: they would look as if they were used just now. A file whose time cannot be set
// stays for the next collection, together with all files that must be later.
func (f *Futures) Believe(ctx context.Context) (moved bool) {
	f.sort()
	at, last := f.Newest, time.Time{}
	for _, info := range f.files {
		if !tier.Beyond(info.Used, f.clock().Add(f.ahead)) {
			at = tier.Later(at, info.Used.Truncate(Step))
			f.Newest = at
			continue
		}
		moved = true
		if !info.Used.Equal(last) { // equal times stay equal: the headers order these files
			at, last = at.Add(Step), info.Used
			at = tier.Later(at, f.clock().Add(f.ahead+believeMargin).Truncate(Step))
		}
		now, err := tier.Stat(ctx, f.tier, info.Name)
		switch {
		case err == nil && now.Used.Equal(info.Used):
			err = f.tier.Touch(ctx, info.Name, WithUses(at, Uses(info.Used)))
		case err == nil && now.Used.After(at) && !tier.Beyond(now.Used, f.clock().Add(f.ahead)):
			at = now.Used.Truncate(Step) // used meanwhile; the pages that it continues are later
		}
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			f.failed(err)
			break
		}
		f.Newest = at
	}
	return moved
}

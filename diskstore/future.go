package diskstore

import (
	"context"
	"errors"
	"fmt"
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
)

// futures holds the earliest files of a listing that are from the future, at least maxVictims
// of them.
type futures struct {
	now    time.Time
	ahead  time.Duration // lead of the filesystem's clock over this machine's; 0 for a lag
	blind  bool          // the filesystem's clock is unknown, and no file is moved
	newest time.Time     // the latest time of all other files
	files  []tier.Info
}

func (lv *level) newFutures(ctx context.Context) *futures {
	there, err := lv.tier.Now(ctx)
	if err != nil {
		lv.noteTierError(err)
		return &futures{now: lv.s.now(), blind: true}
	}
	here := lv.s.now()
	return &futures{now: tier.Later(here, there), ahead: max(0, there.Sub(here))}
}

// ageClock returns the time by which files count as old enough to delete.
func (lv *level) ageClock(ctx context.Context) (time.Time, error) {
	there, err := lv.tier.Now(ctx)
	if err != nil && !vfs.IsNoSpace(err) { // after tier.ErrNoSpace `there` is an earlier time, by which fewer files are old
		return there, fmt.Errorf("tell the time of the filesystem of %s: %w", lv.where(), err)
	}
	if here := lv.s.now(); here.Before(there) {
		return here, nil
	}
	return there, nil
}

func (f *futures) add(info tier.Info) {
	if !tier.Beyond(info.Used, f.now) {
		if info.Used.After(f.newest) {
			f.newest = info.Used
		}
		return
	}
	if f.blind {
		return
	}
	if f.files = append(f.files, info); len(f.files) >= 2*maxVictims {
		f.sort()
		clear(f.files[maxVictims:])
		f.files = f.files[:maxVictims]
	}
}

func (f *futures) sort() {
	slices.SortFunc(f.files, func(a, b tier.Info) int { return a.Used.Compare(b.Used) })
}

// believe sets the times of files from the future to just after now, in their order: files to
// evict first come first. believe reports whether there was such a file, and sets f.newest to
// the latest time of all files. A file whose time cannot be set stays for the next collection,
// together with all files that must be later.
func (lv *level) believe(ctx context.Context, f *futures) bool {
	if len(f.files) == 0 {
		return false
	}
	f.sort()
	at, last := f.newest, time.Time{}
	for _, info := range f.files {
		if !info.Used.Equal(last) { // equal times stay equal: the headers order these files
			at, last = at.Add(recencyStep), info.Used
			at = tier.Later(at, lv.s.now().Add(f.ahead+believeMargin))
		}
		now, err := lv.tier.Stat(ctx, info.Name)
		switch {
		case err == nil && now.Used.Equal(info.Used):
			err = lv.tier.Touch(ctx, info.Name, at)
		case err == nil && now.Used.After(at) && !tier.Beyond(now.Used, lv.s.now().Add(f.ahead)):
			at = now.Used // used meanwhile; the pages that it continues are later
		}
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
			break
		}
		f.newest = at
	}
	lv.s.links.clear() // the cached times are too late now
	return true
}

// moveAllUp does as moveUp for several places, with a time later than after.
func (s *Store) moveAllUp(ctx context.Context, places []position, after time.Time) time.Time {
	var last uint32
	for _, at := range places {
		last = max(last, at.start)
	}
	used := s.now()
	if least := chainUsed(after, last).Add(recencyStep); used.Before(least) {
		used = least
	}
	for _, at := range places {
		if at.start > 0 {
			s.raise(ctx, at.parent, used)
		}
	}
	return recency(used, last)
}

package diskstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/vfs"
)

/*
Clocks are wrong at times: one was ahead when files were stored and has been put
right since, or a host that shares the root has one that differs. A recency from
the future would keep a file until real time has caught up with it, and would leave
no room for anything else meanwhile. So it is not believed: a chain with such a time
counts as used long ago, and a collection that needs room first gives all such files
the time at which it found them, in their order. Times within ClockSlack are
believed.

A host whose clock is behind must not take all that others store for files from the
future, and move it back: what was used just now would look as old as its clock is
behind. So a time is from the future only when it is so for the filesystem's clock as
well, and files move to the later of the two. Where age alone is a reason to delete,
the earlier of the two counts.

All of them move at once, and nothing else ever moves back, so that the order of
times still puts every page before those it continues.
*/
const (
	// believeMargin is how much later than now files from the future are put: those
	// that continue them may just be used, and must be earlier.
	believeMargin = 10 * time.Millisecond
)

// futures keeps the files of a listing that are from the future: the earliest ones,
// maxVictims at least.
type futures struct {
	now    time.Time
	ahead  time.Duration // of this machine's clock
	blind  bool          // the filesystem's clock is not known, and no file is moved
	newest time.Time     // of all others
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

// ageClock is the time to judge by what is so old that it is deleted.
func (lv *level) ageClock(ctx context.Context) (time.Time, error) {
	there, err := lv.tier.Now(ctx)
	if err != nil && !vfs.IsNoSpace(err) { // else what is old by an earlier time is old
		return there, fmt.Errorf("tell the time of the filesystem of %s: %w", lv.config.Root, err)
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

// believe gives files from the future times just after now, in their order: first
// those that are to go first. It reports whether there was one, and makes newest the
// most recent time of all. What cannot be moved stays for the next collection, with
// all that must be later.
func (lv *level) believe(ctx context.Context, f *futures) bool {
	if len(f.files) == 0 {
		return false
	}
	f.sort()
	at, last := f.newest, time.Time{}
	for _, info := range f.files {
		if !info.Used.Equal(last) { // equal ones stay equal: their headers order them
			at, last = at.Add(recencyStep), info.Used
			at = tier.Later(at, lv.s.now().Add(f.ahead+believeMargin))
		}
		now, err := lv.tier.Stat(ctx, info.Name)
		switch {
		case err == nil && now.Used.Equal(info.Used):
			err = lv.tier.Touch(ctx, info.Name, at)
		case err == nil && now.Used.After(at) && !tier.Beyond(now.Used, lv.s.now().Add(f.ahead)):
			at = now.Used // somebody used it meanwhile, and what it continues is later
		}
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			lv.noteTierError(err)
			break
		}
		f.newest = at
	}
	lv.s.links.clear() // its times are too late now
	return true
}

// moveAllUp is moveUp for several places, to a time after a given one.
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

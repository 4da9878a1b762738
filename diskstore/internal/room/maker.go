package room

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// MakerOptions are the place of a Maker in a store.
type MakerOptions struct {
	Queue *work.Queue // of collections

	// Reachable reports whether look-ups can find a page at a place once it is stored: no other page
	// is evicted for an unreachable one.
	Reachable func(context.Context, recency.Place) bool

	// Capped is told the result of each reservation.
	Capped func(error)

	// Collected runs after a collection in Queue.
	Collected func()
}

// Maker reserves room in the local tier for pages.
type Maker struct {
	of  *Collector
	opt MakerOptions

	mu        sync.Mutex
	want      Demand      // of the next collection
	exhausted atomic.Bool // the last collection could not make the wanted room
	backoff   Backoff     // deleting pages for space on the filesystem
}

// NewMaker returns the maker of room in a collector's tier.
func NewMaker(of *Collector, opt MakerOptions) *Maker { return &Maker{of: of, opt: opt} }

// Tidy brings the tier within its limit in the background.
func (m *Maker) Tidy() { m.request(Demand{}) }

// Grown tidies the tier, which got a file, when it is near its limit or its last count is old.
func (m *Maker) Grown(ctx context.Context) {
	over, _, err := m.of.Shortage(ctx, Demand{})
	if err != nil || over > 0 || m.of.Stale() {
		m.Tidy()
	}
}

func (m *Maker) request(want Demand) {
	m.mu.Lock()
	m.want = m.want.join(want)
	m.mu.Unlock()
	type collectJob struct{}
	m.opt.Queue.Submit(collectJob{}, func(ctx context.Context) {
		m.mu.Lock()
		want := m.want
		m.want = Demand{}
		m.mu.Unlock()
		book := m.of.files.Book
		writing := book.State().InFlight > 0
		err := m.of.Collect(ctx, want)
		// Without a count the state is unknown; the next collection may count. A page that is being
		// written can be evicted once it is there.
		writing = writing || book.State().InFlight > 0
		m.exhausted.Store(err != nil && !errors.Is(err, ledger.ErrNotCounted) && !errors.Is(err, ErrOvertaken) && !writing)
		if err != nil && !errors.Is(err, ErrExhausted) && !errors.Is(err, ledger.ErrNotCounted) {
			m.of.opt.Failed(err)
		}
		m.opt.Collected()
	})
}

// Reserve reserves room for a file of n bytes at a place, and returns the recency of the file. Without
// room, Reserve waits for the eviction of files used before this one, at most for Wait. Reserve returns
// tier.ErrNoSpace, ledger.ErrWriteCap, or an error of the tier.
func (m *Maker) Reserve(ctx context.Context, n int64, at recency.Place) (r *ledger.Room, used time.Time, err error) {
	b := m.of.files.Book
	if b.Budget > 0 && pagefile.AlignUp(n) > b.Budget {
		return nil, used, fmt.Errorf("page of %d bytes in a budget of %d, raise it: %w", n, b.Budget, tier.ErrNoSpace)
	}
	wait, cancel := context.WithTimeout(ctx, Wait)
	defer cancel()
	var done <-chan struct{} // of the requested collection
	for last, rounds := false, 0; ; {
		changed := b.State().Changed
		r, err = b.Reserve(ctx, n)
		m.opt.Capped(err)
		full := errors.Is(err, tier.ErrNoSpace) && !vfs.IsNoSpace(err)
		switch {
		case err == nil && used.IsZero():
			return r, recency.Of(m.of.opt.Chains.Time(ctx, at, m.of.opt.Now()), at.Start), nil
		case !full && !errors.Is(err, ledger.ErrNotCounted):
			return r, used, err
		case last:
			return nil, used, fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
		case done == nil && !m.opt.Reachable(ctx, at):
			return nil, used, ErrUnreachable
		case done == nil:
			used = m.of.opt.Chains.MoveUp(ctx, time.Time{}, at)
			want := demandAt(at, used)
			want.Room = pagefile.AlignUp(n)
			m.request(want)
			done = m.opt.Queue.Done()
		}
		select {
		case <-changed:
		case <-done:
			// Another Put may have taken the room.
			last, done = m.exhausted.Load(), nil
			if rounds++; errors.Is(err, ledger.ErrNotCounted) || rounds > 1 {
				select {
				case <-changed:
				case <-time.After(countAgain / 4):
				case <-wait.Done():
				}
			}
		case <-wait.Done():
			last = true
		}
	}
}

// Spare does as Reserve, except that it evicts nothing and leaves enough room that no later eviction
// follows from this file. Without such room Spare returns tier.ErrNoSpace.
func (m *Maker) Spare(ctx context.Context, n int64, at recency.Place) (*ledger.Room, time.Time, error) {
	used := m.of.opt.Now()
	if !m.opt.Reachable(ctx, at) {
		return nil, used, ErrUnreachable
	}
	r, err := m.Free(ctx, n)
	m.opt.Capped(err)
	if errors.Is(err, ledger.ErrNotCounted) {
		err = fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
	}
	if err != nil {
		return nil, used, err
	}
	if l, ok := m.of.opt.Chains.Link(ctx, at.Parent); ok && at.Start > 0 && !l.Used.IsZero() {
		used = l.Used
	}
	return r, recency.Of(used, at.Start), nil
}

// Free reserves room for a file of n bytes, if there is as much without an eviction, now or later.
// Otherwise Free returns tier.ErrNoSpace, or an error of Book.Reserve or of the tier.
func (m *Maker) Free(ctx context.Context, n int64) (*ledger.Room, error) {
	b := m.of.files.Book
	if b.Budget == 0 {
		switch short, _, err := m.of.reserve(ctx); {
		case err != nil:
			return nil, err
		case short+pagefile.AlignUp(n) > 0:
			return nil, fmt.Errorf("no room to spare on the filesystem: %w", tier.ErrNoSpace)
		}
	}
	r, err := b.Reserve(ctx, n)
	if err != nil {
		return nil, err
	}
	if figure, known := b.Figure(); b.Budget > 0 && (!known || nearlyFull(figure, b.Budget)) {
		r.Cancel()
		return nil, fmt.Errorf("no room to spare in a budget of %d: %w", b.Budget, tier.ErrNoSpace)
	}
	return r, nil
}

// Write calls write with room for a file of n bytes, found by Reserve or, with spare, by Spare. Without
// spare, Write evicts pages and calls write a second time if the filesystem had no space for the file.
func (m *Maker) Write(ctx context.Context, n int64, at recency.Place, spare bool, write func(room *ledger.Room, used time.Time) error) error {
	find := m.Reserve
	if spare {
		find = m.Spare
	}
	once := func() error {
		room, used, err := find(ctx, n, at)
		if err != nil {
			return err
		}
		defer room.Cancel()
		return write(room, used)
	}
	err := once()
	if vfs.IsNoSpace(err) && !spare && !m.backoff.Is(time.Now()) {
		if cerr := m.freeDisk(ctx, n, at); cerr != nil {
			return errors.Join(err, cerr)
		}
		if err = once(); vfs.IsNoSpace(err) {
			m.backoff.Note(time.Now())
		}
	}
	if err == nil {
		m.backoff.Clear()
	}
	return err
}

// freeDisk evicts pages for a file of n bytes that the filesystem had no space for.
func (m *Maker) freeDisk(ctx context.Context, n int64, at recency.Place) error {
	wait, cancel := context.WithTimeout(ctx, Wait)
	defer cancel()
	want := demandAt(at, m.of.opt.Chains.MoveUp(ctx, time.Time{}, at))
	// Twice the size, because directories need space as well, and some filesystems free
	// the space of removed files only later.
	want.Disk = 2 * pagefile.AlignUp(n)
	return m.of.Collect(wait, want)
}

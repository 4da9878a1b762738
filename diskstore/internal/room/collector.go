package room

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/internal/tombstones"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Fate is the end of a page for which its tier has no room.
type Fate int

const (
	NoPlace    Fate = iota // there is no room below, or no file any more
	Moved                  // the tier below has the page
	MovedLossy             // the tier below has a lossy page that stands for it
	Refused                // the tier below takes no page now
	SetAside               // the file was damaged; it went to quarantine, or its next check decides
	Useless                // the file is of no use here, and stays in its place
)

// Below is a tier below, to which pages move instead of being deleted.
type Below interface {
	// Down makes the tier below hold a page, and returns the file that this is about, which may have
	// been written or touched since info was read. The error is that of ctx, and the page stays then.
	Down(ctx context.Context, info tier.Info) (Fate, tier.Info, error)

	// Refuses reports whether the tier below is likely to take no pages: it is down, or refused one
	// within some time.
	Refuses(within time.Duration) bool
}

// Options are the place of a Collector in a store.
type Options struct {
	CountEvery time.Duration // age at which the tier is counted again: CountEvery or FarCountEvery
	Below      Below         // nil: pages that leave the tier are deleted
	Chains     *recency.Chains
	Now        func() time.Time

	// Obsolete returns the fingerprints whose files leave before all others.
	Obsolete func(context.Context) map[pagefile.Key]bool

	// Failed is told errors of the tier.
	Failed func(error)

	// Left is told of each file that left the tier for want of room.
	Left func(info tier.Info, moved bool)

	// Gone returns the tombstones of pages that left, by which the next use of pages is judged. Nil means that
	// files leave in the order of their last use alone.
	Gone func(context.Context) map[tombstones.Beginning]tombstones.Tombstone

	// Crowded is told of bytes that are wanted on a filesystem that took no file; nil for nobody.
	Crowded func(wanted, free int64)

	// Swept runs after a collection, when others may collect.
	Swept func(ctx context.Context)
}

// Collector makes room in one tier.
type Collector struct {
	// Left is told of each file that leaves, or would leave; nil for nobody.
	Left func(info tier.Info, moved bool)

	files   *counted.Tier
	opt     Options
	idle    atomic.Pointer[idle] // pages as of the last listing; nil before one
	trimmed Moment               // time of the last trim that evicted all but recent files, and needed more

	// turn holds a token while one goroutine of this process collects; Tier.Lock does the
	// same between processes.
	turn chan struct{}
}

// NewCollector returns the collector of a tier.
func NewCollector(files *counted.Tier, opt Options) *Collector {
	return &Collector{files: files, opt: opt, turn: make(chan struct{}, 1)}
}

// placeOf returns a function that returns the place of a full page of the tier.
func (c *Collector) placeOf(ctx context.Context) func(pagefile.Name) recency.Link {
	return func(name pagefile.Name) recency.Link { return c.opt.Chains.LinkIn(ctx, c.files.Tier, name) }
}

// Tidy brings the tier within its limit in the background, in a queue of collections.
func (c *Collector) Tidy(queue *work.Queue) {
	type tidyJob struct{}
	queue.Submit(tidyJob{}, func(ctx context.Context) {
		_ = c.Collect(ctx, Demand{}) // the tier counts errors
	})
}

const (
	// Wait bounds the time that a Put waits for room.
	Wait = 5 * time.Second

	// lockPolls is how often a process checks whether another has made room, in the time between two counts: each
	// 50 ms, or 500 ms in a far tier.
	lockPolls = 1200
)

// Collect brings a tier within its limit and makes the wanted room, as far as possible.
// Readers never wait for a collection.
func (c *Collector) Collect(ctx context.Context, want Demand) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.turn }()
	if want.Room > 0 { // other processes may have filled the tier since this process looked
		if err := c.files.Book.Look(ctx); err != nil {
			return err
		}
	}
	if want.Disk > 0 && c.opt.Crowded != nil {
		if space, err := c.files.Tier.Space(ctx); err == nil {
			c.opt.Crowded(want.Disk, space.Free)
		}
	}
	over, _, err := c.Shortage(ctx, want)
	if err != nil {
		return err
	}
	if over <= 0 && !c.Stale() {
		return c.uncounted(ctx, want)
	}
	want.obsolete = c.opt.Obsolete(ctx) // which may take a while
	release, err := c.lockTier(ctx, want)
	if errors.Is(err, tier.ErrLocked) {
		if c.Stale() {
			_, err := c.files.Count(ctx, nil)
			return err
		}
		// The process that holds the lock collects.
		return c.stillShort(ctx, want)
	}
	if err != nil {
		return err
	}
	defer c.opt.Swept(ctx) // after the release: others collect meanwhile
	defer release()
	return c.collectLocked(ctx, want)
}

// lockTier locks the tier for collecting. While another process has the lock, lockTier waits,
// but only during a shortage, and at most for Wait.
func (c *Collector) lockTier(ctx context.Context, want Demand) (release func(), err error) {
	wait, cancel := context.WithTimeout(ctx, Wait)
	defer cancel()
	for {
		release, err := c.files.Tier.Lock(ctx)
		if !errors.Is(err, tier.ErrLocked) || errors.Is(err, tier.ErrNotShared) || errors.Is(err, tier.ErrUncollected) { // waiting does not help
			return release, err
		}
		if c.files.Book.Refresh(ctx) != nil {
			return nil, err
		}
		if over, _, serr := c.Shortage(ctx, want); serr != nil || over <= 0 {
			return nil, err
		}
		select {
		case <-time.After(c.opt.CountEvery / lockPolls):
		case <-wait.Done():
			return nil, err
		}
	}
}

// collectLocked counts and evicts, with the tier's lock held. A collection that needs more
// victims than one listing yields lists again.
func (c *Collector) collectLocked(ctx context.Context, want Demand) error {
	want.recent = c.recentSince(ctx)
	guess, before, err := c.Shortage(ctx, want)
	if err != nil {
		return err
	}
	var known bool // else this listing tells the worths, by which another one picks
	want.worths, known = c.worths()
	pick, late := c.victims(want, guess, before), recency.NewFutures(ctx, c.files.Tier, c.opt.Now, c.opt.Failed)
	idle := c.newIdle(ctx)
	found, err := c.files.Count(ctx, func(info tier.Info) {
		if known {
			pick.add(info)
		}
		late.Add(info)
		idle.add(info)
	})
	if err != nil {
		return err
	}
	idle.end()
	over, before, err := c.Shortage(ctx, want)
	if err != nil {
		return err
	}
	if over <= 0 {
		return c.uncounted(ctx, want)
	}
	if found.Aside.QuarantineFiles > 0 && !before.After(want.Before) {
		if over -= c.emptyQuarantine(ctx); over <= 0 {
			return c.files.Book.Record(ctx)
		}
	}
	moved := late.Believe(ctx)
	if moved {
		c.opt.Chains.Forget()
	}
	if len(want.after) > 0 && (moved || late.Newest.After(want.used)) {
		want.Before = c.opt.Chains.MoveUp(ctx, late.Newest, want.after...)
		if over, before, err = c.Shortage(ctx, want); err != nil {
			return err
		}
	}
	if !known {
		want.worths, _ = c.worths()
	}
	if !known || moved || over > guess || !before.Equal(pick.before) { // or the first shortage was unknown
		pick = c.victims(want, over, before)
		if err := c.files.List(ctx, pick.add); err != nil {
			return err
		}
	}
	due, made := c.lacking(want), int64(0)
	for {
		freed, end := c.EvictAll(ctx, pick.order(c.placeOf(ctx)), over, c.mustGo(ctx, over, want))
		if freed < over && !before.After(want.Before) { // perhaps the victims could not be removed
			freed += c.emptyQuarantine(ctx)
		}
		made += freed
		if over -= freed; over <= 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if freed == 0 || end.Stays || !pick.more {
			if before.Equal(want.recent) {
				c.trimmed.Note(c.opt.Now()) // no other file is old before recency.TouchEvery has passed
			}
			err := c.stillShort(ctx, want)
			if errors.Is(err, ErrExhausted) && (end.CameIntoUse || made >= due) {
				return ErrOvertaken
			}
			return err
		}
		pick = c.victims(want, over, before)
		if err := c.files.List(ctx, pick.add); err != nil {
			return err
		}
	}
}

// uncounted returns ledger.ErrNotCounted when the tier's files are not counted, so that nobody knows
// whether there is the wanted room.
func (c *Collector) uncounted(ctx context.Context, want Demand) error {
	if _, known := c.files.Book.Figure(); !known && c.files.Book.Budget > 0 && want.Room > 0 {
		return ledger.ErrNotCounted
	}
	return ctx.Err()
}

// stillShort returns ErrExhausted when a tier lacks the wanted room, and ledger.ErrNotCounted when
// the tier's files are not counted.
func (c *Collector) stillShort(ctx context.Context, want Demand) error {
	err := c.uncounted(ctx, want)
	if err == nil && c.files.Book.Budget > 0 && want.Room > 0 && c.lacking(want) > 0 {
		return ErrExhausted
	}
	return err
}

// lacking is by how many bytes a tier has too little room in its budget, as far as known.
func (c *Collector) lacking(want Demand) int64 {
	figure, _ := c.files.Book.Figure()
	return figure + want.Room - c.files.Book.Budget
}

// emptyQuarantine removes the files in quarantine. These files are kept, for a person to look
// at, only while there is space.
func (c *Collector) emptyQuarantine(ctx context.Context) int64 {
	counts := c.files.Book.State().Counts
	freed, err := c.files.Tier.EmptyQuarantine(ctx)
	if err != nil {
		c.opt.Failed(err)
		return 0
	}
	c.files.Book.Release(freed, counts)
	return freed
}

var (
	// ErrExhausted reports that a collection could not make the wanted room: only pages used later
	// than the page that needs it are left, or pages that it continues.
	ErrExhausted = errors.New("diskstore: nothing older than the page that needs room can be evicted")

	// ErrOvertaken is an ErrExhausted of a collection during which files came into use that it would
	// have evicted, or others took the room that it made. Another collection may make room.
	ErrOvertaken = fmt.Errorf("%w: others used pages or room meanwhile", ErrExhausted)

	// ErrUnreachable reports a page that no look-up could find: the page before it is not stored.
	ErrUnreachable = fmt.Errorf("the page it continues is not stored: %w", tier.ErrNoSpace)

	// errStays reports that a page was not evicted: the tier below does not take the page now,
	// and the need for room is too small to delete the page.
	errStays = errors.New("diskstore: the page cannot move down now")
)

// Demand is the goal of a collection in addition to keeping a tier within its limit.
type Demand struct {
	Room   int64     // bytes that must fit in the budget
	Disk   int64     // bytes to free, independent of the budget
	Before time.Time // only files last used earlier are evicted for Room and Disk

	// after has the places of the pages that need the room. The pages before these places stay
	// and have been moved up to the recency of a chain used at used.
	after []recency.Place
	used  time.Time

	// recent is the start of the last recency.TouchEvery: a tier that is only nearly full keeps files
	// used since.
	recent time.Time

	obsolete map[pagefile.Key]bool // fingerprints whose files leave before all others
	worths   *reuse.Worths         // of pages
}

// demandAt returns the demand of a page at a place, with the page's recency.
func demandAt(at recency.Place, recent time.Time) Demand {
	return Demand{Before: recent, after: []recency.Place{at}, used: recency.Used(recent, at.Start)}
}

func (d Demand) join(o Demand) Demand {
	d.Room, d.Disk = max(d.Room, o.Room), max(d.Disk, o.Disk)
	d.Before, d.used = tier.Later(d.Before, o.Before), tier.Later(d.used, o.used)
	d.after = append(d.after, o.after...)
	return d
}

package room

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// Wait bounds the time that a Put waits for room.
	Wait = 5 * time.Second

	// lockPoll is the interval at which a process checks whether another has made room.
	lockPoll = 50 * time.Millisecond
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
		if !errors.Is(err, tier.ErrLocked) || errors.Is(err, tier.ErrNotShared) { // waiting does not help against another machine
			return release, err
		}
		if c.files.Book.Refresh(ctx) != nil {
			return nil, err
		}
		if over, _, serr := c.Shortage(ctx, want); serr != nil || over <= 0 {
			return nil, err
		}
		timer := time.NewTimer(lockPoll)
		select {
		case <-timer.C:
		case <-wait.Done():
			timer.Stop()
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
	pick, late := newVictims(guess, before), recency.NewFutures(ctx, c.files.Tier, c.opt.Now, c.opt.Failed)
	found, err := c.files.Count(ctx, func(info tier.Info) {
		pick.add(info)
		late.Add(info)
	})
	if err != nil {
		return err
	}
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
	if moved || over > guess || !before.Equal(pick.before) { // or the first shortage was unknown
		pick = newVictims(over, before)
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
		pick = newVictims(over, before)
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
	counts := c.files.Book.Counts()
	freed, err := c.files.Tier.EmptyQuarantine(ctx)
	if err != nil {
		c.opt.Failed(err)
		return 0
	}
	c.files.Book.Release(freed, counts)
	return freed
}

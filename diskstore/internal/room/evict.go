package room

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Evicted files are recorded in batches; the room of a recorded batch can be used.
const (
	batchFiles = 256
	batchBytes = ledger.ChunkBytes
)

// PassedOver has the reasons for which EvictAll left files in their tier.
type PassedOver struct {
	Stays       bool // pages that should move down and cannot; EvictAll ended with the first
	CameIntoUse bool // since they were listed
}

// EvictAll evicts files in order until at least `bytes` bytes are free, and returns the number
// of freed bytes. Pages that should move down and cannot are deleted only for the first `must`
// bytes, and during an outage for one batch in addition; the other pages stay.
func (c *Collector) EvictAll(ctx context.Context, infos []tier.Info, bytes, must int64) (freed int64, left PassedOver) {
	batch := c.files.NewRemoval()
	for _, info := range infos {
		if freed+batch.Bytes >= bytes || ctx.Err() != nil {
			break
		}
		// A page used since the listing may have become another page's parent.
		if now, err := tier.Stat(ctx, c.files.Tier, info.Name); err != nil || !now.Used.Equal(info.Used) {
			left.CameIntoUse = left.CameIntoUse || err == nil
			continue
		}
		due := must
		if due > 0 && c.alone() {
			due += c.outageBatch(ctx)
		}
		removed, err := c.Evict(ctx, info, freed+batch.Bytes < due)
		if left.Stays = errors.Is(err, errStays); left.Stays {
			break
		}
		left.CameIntoUse = left.CameIntoUse || errors.Is(err, tier.ErrReplaced)
		if err != nil {
			continue
		}
		batch.Add(removed)
		c.files.Book.EvictedUpTo(info.Used)
		if len(batch.Names) >= batchFiles || batch.Bytes >= batchBytes {
			freed += batch.Bytes
			batch.Record(ctx)
			batch = c.files.NewRemoval()
		}
	}
	freed += batch.Bytes
	batch.Record(ctx)
	return freed, left
}

// Evict moves a page to the tier below, or deletes the page: without a tier below, with no room there, or
// with must. Evict returns the removed file. The result is empty for a page that went to quarantine, where it
// needs as much room, and for a file that another process removed.
//
// Evict returns tier.ErrReplaced for a page that came into use while a move down failed, or made the
// page lossy: other pages may continue it now, so it stays. Evict returns errStays for a page that
// stays until the tier below takes pages again, and ctx's error for one that it left in its tier.
func (c *Collector) Evict(ctx context.Context, info tier.Info, must bool) (removed tier.Info, err error) {
	fate, drop := NoPlace, c.files.DropUnused
	if c.opt.Below != nil {
		if fate, info, err = c.opt.Below.Down(ctx, info); err != nil {
			return removed, err
		}
	}
	switch {
	case fate == Moved:
		drop = c.files.Drop // a page that came into use is found below
	case fate == SetAside, fate == Useless && !must:
		return removed, nil
	case fate == Refused && !must:
		return removed, errStays
	}
	removed, err = drop(ctx, info)
	if err != nil || removed.Bytes == 0 {
		return removed, err
	}
	moved := fate == Moved || fate == MovedLossy
	c.opt.Left(removed, moved)
	if c.Left != nil {
		c.Left(info, moved)
	}
	return removed, nil
}

// Rehearse tells c.Left of the files that a Collect would evict, and evicts none. Rehearse writes nothing.
func (c *Collector) Rehearse(ctx context.Context) error {
	found, err := c.files.Look(ctx)
	if err != nil {
		return err
	}
	l, err := c.files.Book.Read(ctx)
	if err != nil {
		return err
	}
	c.files.Book.Suppose(found.Total() + l.Claimed())
	// By this machine's clock alone: a rehearsal makes no file to read the filesystem's clock.
	want := Demand{recent: c.opt.Now().Add(-recency.TouchEvery), obsolete: c.opt.Obsolete(ctx)}
	over, before, err := c.Shortage(ctx, want)
	if err != nil || over <= 0 {
		return err
	}
	idle := c.newIdle(ctx)
	if err := c.files.List(ctx, idle.add); err != nil {
		return err
	}
	idle.end()
	want.worths, _ = c.worths()
	pick := c.victims(want, over, before)
	if err := c.files.List(ctx, pick.add); err != nil {
		return err
	}
	for _, info := range pick.order(c.placeOf(ctx)) {
		if over <= 0 {
			break
		}
		over -= info.Physical
		if c.Left != nil {
			c.Left(info, c.opt.Below != nil)
		}
	}
	return nil
}

package diskstore

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// rootUsage counts one root.
func (lv *level) rootUsage(ctx context.Context) (RootTierUsage, error) {
	u := RootTierUsage{TierConfig: lv.config}
	var err error
	if u.Space, err = lv.tier.Space(ctx); err != nil {
		return u, err
	}
	found, err := lv.files.Look(ctx)
	if err != nil {
		return u, err
	}
	u.Fingerprints = lv.identify(ctx, found)
	for _, use := range u.Fingerprints {
		u.Pages += use.Pages
		u.Tails += use.Tails
		u.Bytes += use.Bytes
	}
	u.TempFiles, u.TempBytes = found.Aside.TempFiles, found.Aside.TempBytes
	u.QuarantineFiles, u.QuarantineBytes = found.Aside.QuarantineFiles, found.Aside.QuarantineBytes
	u.Processes = len(found.Aside.Living)
	l, err := lv.book.Read(ctx)
	if err != nil {
		return u, err
	}
	for i := range u.Fingerprints {
		u.Fingerprints[i].Hits = l.Hits[u.Fingerprints[i].Fingerprint.String()]
	}
	u.Hits = l.AllHits()
	u.Written = l.Days()
	if l.Counts > 0 {
		u.Booked, u.Counted = l.Figure(), l.Counted
	}
	return u, nil
}

// gcTier removes files from one tier as opt says, and returns the number of fingerprints of
// which no file is left.
func (lv *level) gcTier(ctx context.Context, opt GCOptions) (fingerprints int, err error) {
	if err := lv.book.Refresh(ctx); err != nil {
		return 0, err
	}
	switch {
	case !opt.budgetOnly():
		return lv.gcPicked(ctx, opt)
	case opt.DryRun:
		return 0, lv.room.Rehearse(ctx)
	}
	return 0, lv.room.Collect(ctx, room.Demand{})
}

// gcPicked deletes the files that opt selects, independent of budgets.
func (lv *level) gcPicked(ctx context.Context, opt GCOptions) (fingerprints int, err error) {
	found, err := lv.files.Look(ctx)
	if err != nil {
		return 0, err
	}
	uses := lv.identify(ctx, found)
	p := purge{dry: opt.DryRun, reason: TombstoneRemoved, removed: func(info tier.Info) { lv.room.Left(info, false) }}
	if opt.OlderThan > 0 {
		now := lv.now()
		if !opt.DryRun { // a dry run makes no file to read the filesystem's clock
			if now, err = lv.ageClock(ctx); err != nil {
				return 0, err
			}
		}
		p.before = now.Add(-opt.OlderThan)
	}
	for _, use := range uses {
		if opt.Fingerprints != nil && !opt.Fingerprints(use) {
			continue
		}
		p.fingerprint = use.Fingerprint
		all, err := lv.purge(ctx, p)
		if err != nil {
			return fingerprints, err
		}
		if all {
			fingerprints++
		}
	}
	return fingerprints, nil
}

package guard

import (
	"context"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

var _ tier.Disk = (*Tier)(nil)

// disk is the tier below as a Disk.
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
	return list(ctx, t, func(ctx context.Context) (tier.Aside, error) {
		aside, err := t.disk().Aside(ctx)
		for _, n := range []*int64{&aside.TempBytes, &aside.QuarantineBytes, &aside.OrphanBytes} {
			*n = max(0, *n)
		}
		return aside, err
	})
}

func (t *Tier) EmptyQuarantine(ctx context.Context) (int64, error) {
	return doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (int64, error) { return t.disk().EmptyQuarantine(ctx) })
}

func (t *Tier) Left() int64 {
	leaving := t.Leaving.Load() // first: bytes go from here to the inner tier
	inner, _ := try(&t.panics, func() (int64, error) { return t.disk().Left(), nil })
	return leaving + max(0, inner)
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
		release, err := t.disk().Lock(ctx)
		if err == nil && release == nil {
			err = fmt.Errorf("lock the tier: %w", errNothing)
		}
		return release, err
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

func (t *Tier) OldTails(ctx context.Context, fingerprint, parent pagefile.Key) ([]tier.Info, error) {
	return doList(ctx, t, func(ctx context.Context) ([]tier.Info, error) {
		infos, err := t.disk().OldTails(ctx, fingerprint, parent)
		if err != nil {
			return nil, err
		}
		return listed(infos, func(n pagefile.Name) bool {
			return n.Class == pagefile.ClassTail && n.Fingerprint == fingerprint && n.Parent == parent
		})
	})
}

func (t *Tier) OldBranches(ctx context.Context, fingerprint pagefile.Key, most int) ([]tier.OldBranch, error) {
	return list(ctx, t, func(ctx context.Context) ([]tier.OldBranch, error) {
		return t.disk().OldBranches(ctx, fingerprint, most)
	})
}

func (t *Tier) RemoveOldBranch(ctx context.Context, branch tier.OldBranch) error {
	return write(ctx, t, t.StepIn, func(ctx context.Context) error { return t.disk().RemoveOldBranch(ctx, branch) })
}

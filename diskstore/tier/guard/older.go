package guard

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

var _ tier.Older = (*Tier)(nil)

// OldTails does as the tier below; one of another kind has none.
func (t *Tier) OldTails(ctx context.Context, fingerprint, parent pagefile.Key) ([]tier.Info, error) {
	older, ok := t.Inner.(tier.Older)
	if !ok {
		return nil, nil
	}
	return doList(ctx, t, func(ctx context.Context) ([]tier.Info, error) {
		infos, err := older.OldTails(ctx, fingerprint, parent)
		if err != nil {
			return nil, err
		}
		return listed(infos, func(n pagefile.Name) bool {
			return n.Class == pagefile.ClassTail && n.Fingerprint == fingerprint && n.Parent == parent
		})
	})
}

// OldBranches does as the tier below; one of another kind has none.
func (t *Tier) OldBranches(ctx context.Context, fingerprint pagefile.Key, most int) ([]tier.OldBranch, error) {
	older, ok := t.Inner.(tier.Older)
	if !ok {
		return nil, nil
	}
	return do(ctx, t, t.Transfer, listSteps*t.StepIn, nil, func(ctx context.Context) ([]tier.OldBranch, error) {
		return older.OldBranches(ctx, fingerprint, most)
	})
}

// RemoveOldBranch does as the tier below; one of another kind has none.
func (t *Tier) RemoveOldBranch(ctx context.Context, branch tier.OldBranch) error {
	older, ok := t.Inner.(tier.Older)
	if !ok {
		return nil
	}
	_, err := doWrite(ctx, t, t.StepIn, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, older.RemoveOldBranch(ctx, branch)
	})
	return err
}

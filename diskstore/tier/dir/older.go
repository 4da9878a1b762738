package dir

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

var _ tier.Older = (*Tier)(nil)

func (t *Tier) OldTails(ctx context.Context, fingerprint, parent pagefile.Key) ([]tier.Info, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	dir := filepath.Join(t.base, oldTailDir(fingerprint, parent))
	return t.appendPages(nil, dir, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassTail, Parent: parent})
}

// OldBranches lists the first directory that has old branches, and removes those that have none.
func (t *Tier) OldBranches(ctx context.Context, fingerprint pagefile.Key, most int) ([]tier.OldBranch, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	var found []tier.OldBranch
	dir := filepath.Join(t.base, fingerprint.String(), oldBranches)
	err := t.eachShard(dir, func(_ byte, shard string) error {
		if len(found) > 0 {
			return nil
		}
		entries, err := t.ReadDir(shard)
		for _, e := range entries {
			if b, ok := parseOldBranch(fingerprint, e.Name()); ok && e.Type().IsRegular() && len(found) < most {
				found = append(found, b)
			}
		}
		if err == nil && len(entries) == 0 {
			t.removeDir(shard)
		}
		return err
	})
	if err == nil && len(found) == 0 {
		t.removeDir(dir)
	}
	return found, err
}

func (t *Tier) RemoveOldBranch(ctx context.Context, b tier.OldBranch) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	err := t.again(func() error { return t.FS.Remove(filepath.Join(t.base, oldBranchPath(b))) })
	if errors.Is(err, tier.ErrNotFound) {
		return nil
	}
	return err
}

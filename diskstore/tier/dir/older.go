package dir

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// OldBranches lists the first directory that has old branches, and removes those that have none.
func (t *branches) OldBranches(ctx context.Context, fingerprint pagefile.Key, most int) ([]tier.OldBranch, error) {
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

func (t *branches) RemoveOldBranch(ctx context.Context, b tier.OldBranch) error {
	err := t.run(ctx, func() error { return t.FS.Remove(filepath.Join(t.base, oldBranchPath(b))) })
	if errors.Is(err, tier.ErrNotFound) {
		return nil
	}
	return err
}

func (t *branches) DropFolders(ctx context.Context, fingerprint pagefile.Key) error {
	for {
		old, err := t.OldBranches(ctx, fingerprint, dropAtOnce)
		if err != nil {
			return err
		}
		if len(old) == 0 {
			return t.removeEmpty(ctx, filepath.Join(t.base, fingerprint.String()))
		}
		for _, b := range old {
			if err := t.RemoveOldBranch(ctx, b); err != nil {
				return err
			}
		}
	}
}

// dropAtOnce is the number of old branches that are listed and removed at once.
const dropAtOnce = 1000

// removeEmpty removes the empty directories among dir and the directories below dir.
func (t *branches) removeEmpty(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := t.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := t.removeEmpty(ctx, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	// Removing a directory with content fails, with errors that differ between systems.
	_ = t.FS.Remove(dir)
	return nil
}

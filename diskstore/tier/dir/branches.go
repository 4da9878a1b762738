package dir

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// AddBranch makes an empty file, without a sync of the file's name or of its directory's.
func (t *Tier) AddBranch(ctx context.Context, b tier.Branch) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	path := filepath.Join(t.base, branchPath(b))
	return t.opFailed(t.inNewDir(filepath.Dir(path), func() error {
		f, err := t.FS.Create(path)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return f.Close()
	}))
}

func (t *Tier) Branches(ctx context.Context, fingerprint pagefile.Key, parent []byte) ([]tier.Branch, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	entries, err := t.ReadDir(filepath.Join(t.base, branchDir(fingerprint, parent[0])))
	if err != nil {
		return nil, err
	}
	var branches []tier.Branch
	for _, e := range entries {
		if b, ok := parseBranch(fingerprint, e.Name()); ok && e.Type().IsRegular() && bytes.HasPrefix(b.Parent[:], parent) {
			branches = append(branches, b)
		}
	}
	return branches, nil
}

func (t *Tier) RemoveBranch(ctx context.Context, b tier.Branch) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	err := t.again(func() error { return t.FS.Remove(filepath.Join(t.base, branchPath(b))) })
	if errors.Is(err, tier.ErrNotFound) {
		return nil
	}
	return err
}

// dropBranches removes all branches of a fingerprint. Anything else in their place stays.
func (t *Tier) dropBranches(ctx context.Context, fingerprint pagefile.Key) error {
	dir := filepath.Join(t.base, fingerprint.String(), branchesDir)
	if fi, err := t.FS.Lstat(dir); err == nil && !fi.IsDir() {
		return nil
	}
	shards, err := t.appendShards(nil, dir, tier.Shard{})
	if err != nil {
		return err
	}
	for _, shard := range shards {
		branches, err := t.Branches(ctx, fingerprint, []byte{shard.First})
		if err != nil {
			return err
		}
		for _, b := range branches {
			if err := t.RemoveBranch(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

package dir

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// AddBranch makes an empty file. Without durable nothing is synced.
func (t *Tier) AddBranch(ctx context.Context, b tier.Branch, durable bool) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	path := filepath.Join(t.base, branchPath(b))
	dir := filepath.Dir(path)
	return t.opFailed(t.inNewDir(dir, func() error {
		if err := t.createEmpty(path); err != nil || !durable {
			return err
		}
		return t.syncPrefix(dir)
	}))
}

// createEmpty makes an empty file unless there is a file of that name. A link, a FIFO or an empty
// directory in its place is removed.
func (t *Tier) createEmpty(path string) error {
	f, err := t.FS.Create(path)
	if errors.Is(err, fs.ErrExist) {
		if fi, err := t.FS.Lstat(path); err != nil || fi.Mode().IsRegular() {
			return err
		}
		if err := t.FS.Remove(path); err != nil {
			return err
		}
		f, err = t.FS.Create(path)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// syncPrefix makes the files and the name of a prefix's directory durable. The name is synced
// each time: another process may have made the directory again, after its last branch was removed.
func (t *Tier) syncPrefix(dir string) error {
	shard := filepath.Dir(dir)
	if err := t.persistDir(shard); err != nil {
		return err
	}
	if err := t.FS.SyncDir(dir); err != nil {
		return err
	}
	return t.FS.SyncDir(shard)
}

func (t *Tier) Branches(ctx context.Context, fingerprint, prefix pagefile.Key) ([]tier.Branch, bool, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, false, classify(err)
	}
	return t.branchesIn(fingerprint, prefix)
}

// branchesIn lists the branches at a prefix.
func (t *Tier) branchesIn(fingerprint, prefix pagefile.Key) (branches []tier.Branch, longer bool, err error) {
	entries, err := t.ReadDir(filepath.Join(t.base, prefixDir(fingerprint, prefix)))
	if err != nil {
		return nil, false, err
	}
	for _, e := range entries {
		switch b, ok := parseBranch(fingerprint, prefix, e.Name()); {
		case !ok || !e.Type().IsRegular():
		case b.Longer:
			longer = true
		default:
			branches = append(branches, b)
		}
	}
	return branches, longer, nil
}

func (t *Tier) ListBranches(ctx context.Context, fingerprint pagefile.Key, first byte) ([]tier.Branch, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	shard := filepath.Dir(filepath.Join(t.base, prefixDir(fingerprint, pagefile.Key{first})))
	dirs, err := t.ReadDir(shard)
	if err != nil {
		return nil, err
	}
	var all []tier.Branch
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		prefix, err := pagefile.ParseKey(dir.Name())
		if err != nil || !dir.IsDir() || prefix[0] != first {
			continue
		}
		branches, longer, err := t.branchesIn(fingerprint, prefix)
		if err != nil {
			return nil, err
		}
		if len(branches) == 0 && !longer { // a process died before it removed the directory
			t.removeDir(filepath.Join(shard, dir.Name()))
		}
		all = append(all, branches...)
	}
	return all, nil
}

func (t *Tier) RemoveBranch(ctx context.Context, b tier.Branch) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	path := filepath.Join(t.base, branchPath(b))
	err := t.again(func() error { return t.FS.Remove(path) })
	if err != nil && !errors.Is(err, tier.ErrNotFound) {
		return err
	}
	t.removeDir(filepath.Dir(path))
	return nil
}

// removeDir removes a directory without files. A process that has just found the directory makes
// it again.
func (t *Tier) removeDir(dir string) {
	if t.FS.Remove(dir) == nil {
		t.forgetDir(dir)
	}
}

// dropBranches removes all branches of a fingerprint. Anything else in their place stays, and so do
// branches of pages that another process has stored meanwhile, and the marks before them.
func (t *Tier) dropBranches(ctx context.Context, fingerprint pagefile.Key) error {
	err := t.eachShard(filepath.Join(t.base, fingerprint.String(), prefixesDir), func(first byte, shard string) error {
		branches, err := t.ListBranches(ctx, fingerprint, first)
		if err != nil {
			return err
		}
		for _, b := range branches {
			if _, err := t.Stat(ctx, b.Name()); err == nil {
				continue
			}
			if err := t.RemoveBranch(ctx, b); err != nil {
				return err
			}
		}
		return t.dropLonger(ctx, fingerprint, shard)
	})
	if err != nil {
		return err
	}
	for {
		old, err := t.OldBranches(ctx, fingerprint, dropAtOnce)
		if err != nil || len(old) == 0 {
			return err
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

// dropLonger removes the marks of prefixes that have no branches any more.
func (t *Tier) dropLonger(ctx context.Context, fingerprint pagefile.Key, shard string) error {
	dirs, err := t.ReadDir(shard)
	for _, dir := range dirs {
		prefix, perr := pagefile.ParseKey(dir.Name())
		if perr != nil {
			continue
		}
		if branches, _, err := t.branchesIn(fingerprint, prefix); err != nil || len(branches) > 0 {
			continue
		}
		if err := t.RemoveBranch(ctx, tier.Branch{Fingerprint: fingerprint, Prefix: prefix, Longer: true}); err != nil {
			return err
		}
	}
	return err
}

// eachShard calls fn for the shard directories in dir, and for none when dir is no directory.
func (t *Tier) eachShard(dir string, fn func(first byte, path string) error) error {
	if fi, err := t.FS.Lstat(dir); err == nil && !fi.IsDir() {
		return nil
	}
	shards, err := t.appendShards(nil, dir, tier.Shard{})
	if err != nil {
		return err
	}
	for _, shard := range shards {
		if err := fn(shard.First, filepath.Join(dir, shardName(shard.First))); err != nil {
			return err
		}
	}
	return nil
}

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

type branches struct{ *root }

// AddBranch makes an empty file. Without durable nothing is synced.
func (t *branches) AddBranch(ctx context.Context, b tier.Branch, durable bool) error {
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
func (t *branches) createEmpty(path string) error {
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
func (t *branches) syncPrefix(dir string) error {
	shard := filepath.Dir(dir)
	if err := t.persistDir(shard); err != nil {
		return err
	}
	if err := t.FS.SyncDir(dir); err != nil {
		return err
	}
	return t.FS.SyncDir(shard)
}

func (t *branches) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]tier.Branch, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	if len(prefix) == len(pagefile.Key{}) {
		return t.branchesIn(fingerprint, pagefile.Key(prefix))
	}
	shard := filepath.Dir(filepath.Join(t.base, prefixDir(fingerprint, pagefile.Key{prefix[0]})))
	for _, dir := range []string{filepath.Dir(shard), shard} {
		if fi, err := t.FS.Lstat(dir); err == nil && !fi.IsDir() {
			return nil, nil // what no store made stays in its place
		}
	}
	dirs, err := t.ReadDir(shard)
	if err != nil {
		return nil, err
	}
	var all []tier.Branch
	for _, dir := range dirs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		at, err := pagefile.ParseKey(dir.Name())
		if err != nil || !dir.IsDir() || !bytes.HasPrefix(at[:], prefix) {
			continue
		}
		branches, err := t.branchesIn(fingerprint, at)
		if err != nil {
			return nil, err
		}
		if len(branches) == 0 { // a process died before it removed the directory
			t.removeDir(filepath.Join(shard, dir.Name()))
		}
		all = append(all, branches...)
	}
	return all, nil
}

func (t *branches) branchesIn(fingerprint, prefix pagefile.Key) (branches []tier.Branch, err error) {
	entries, err := t.ReadDir(filepath.Join(t.base, prefixDir(fingerprint, prefix)))
	for _, e := range entries {
		if b, ok := parseBranch(fingerprint, prefix, e.Name()); ok && e.Type().IsRegular() {
			branches = append(branches, b)
		}
	}
	return branches, err
}

func (t *branches) RemoveBranch(ctx context.Context, b tier.Branch) error {
	path := filepath.Join(t.base, branchPath(b))
	err := t.run(ctx, func() error { return t.FS.Remove(path) })
	if err != nil && !errors.Is(err, tier.ErrNotFound) {
		return err
	}
	t.removeDir(filepath.Dir(path))
	return nil
}

func (t *branches) DropFolders(ctx context.Context, fingerprint pagefile.Key) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	return t.removeEmpty(ctx, filepath.Join(t.base, fingerprint.String()))
}

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

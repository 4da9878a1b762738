package diskstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"
)

// maxQuarantined is how many files quarantine keeps; the oldest go first. They
// are not counted in the budget.
const maxQuarantined = 16

func (t *dirTier) Fingerprints(ctx context.Context) ([]Key, error) {
	if err := t.ready(ctx); err != nil {
		return nil, classify(err)
	}
	entries, err := t.readDir(t.base)
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, e := range entries {
		if key, err := ParseKey(e.Name()); err == nil && e.IsDir() {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

func (t *dirTier) List(ctx context.Context) ([]Info, error) {
	fingerprints, err := t.Fingerprints(ctx)
	if err != nil {
		return nil, err
	}
	var infos []Info
	for _, fp := range fingerprints {
		dir := filepath.Join(t.base, fp.String())
		infos, err = t.appendShards(ctx, infos, dir, func(infos []Info, shard string) ([]Info, error) {
			return t.appendPages(infos, filepath.Join(dir, shard), Name{Fingerprint: fp, Class: ClassPage})
		})
		if err != nil {
			return nil, err
		}
		tails := filepath.Join(dir, tailsDir)
		infos, err = t.appendShards(ctx, infos, tails, func(infos []Info, shard string) ([]Info, error) {
			return t.appendParents(infos, filepath.Join(tails, shard), fp)
		})
		if err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// appendShards calls fn for every shard directory in dir.
func (t *dirTier) appendShards(ctx context.Context, infos []Info, dir string, fn func([]Info, string) ([]Info, error)) ([]Info, error) {
	entries, err := t.readDir(dir)
	for _, e := range entries {
		if err = ctx.Err(); err != nil {
			break
		}
		if e.IsDir() && isShard(e.Name()) {
			if infos, err = fn(infos, e.Name()); err != nil {
				break
			}
		}
	}
	return infos, err
}

// appendParents appends the tails of every parent in one shard.
func (t *dirTier) appendParents(infos []Info, dir string, fp Key) ([]Info, error) {
	entries, err := t.readDir(dir)
	for _, e := range entries {
		parent, perr := ParseKey(e.Name())
		if perr != nil || !e.IsDir() {
			continue
		}
		infos, err = t.appendPages(infos, filepath.Join(dir, e.Name()), Name{Fingerprint: fp, Class: ClassTail, Parent: parent})
		if err != nil {
			break
		}
	}
	return infos, err
}

// appendPages appends the page files in dir; all but their Key is in like.
// Files that are not where they belong are left out: nothing would find them.
func (t *dirTier) appendPages(infos []Info, dir string, like Name) ([]Info, error) {
	entries, err := t.readDir(dir)
	if err != nil {
		return infos, err
	}
	for _, e := range entries {
		key, ok := parsePageFile(e.Name())
		like.Key = key
		path := filepath.Join(dir, e.Name())
		if !ok || path != t.path(like) {
			continue
		}
		fi, err := t.fs.Lstat(path)
		if err == nil {
			var info Info
			if info, err = t.info(like, path, fi); err == nil {
				infos = append(infos, info)
			}
		}
		if err = classify(err); err != nil && !errors.Is(err, ErrNotFound) {
			return infos, err
		}
	}
	return infos, nil
}

// readDir lists a directory; one that is not there is empty.
func (t *dirTier) readDir(dir string) ([]fs.DirEntry, error) {
	entries, err := t.fs.ReadDir(dir)
	if err = classify(err); errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return entries, err
}

func (t *dirTier) Tails(ctx context.Context, fingerprint, parent Key) ([]Info, error) {
	if err := t.ready(ctx); err != nil {
		return nil, classify(err)
	}
	dir := filepath.Join(t.base, tailDir(fingerprint, parent))
	return t.appendPages(nil, dir, Name{Fingerprint: fingerprint, Class: ClassTail, Parent: parent})
}

func (t *dirTier) DropFingerprint(ctx context.Context, fingerprint Key) error {
	if _, err := t.Remove(ctx, Name{Fingerprint: fingerprint, Class: ClassManifest}); err != nil {
		return err
	}
	return t.removeEmpty(ctx, filepath.Join(t.base, fingerprint.String()))
}

// removeEmpty removes dir and the directories below it as far as they are
// empty.
func (t *dirTier) removeEmpty(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := t.readDir(dir)
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
	// A directory that still holds something refuses, in words that differ
	// between systems.
	_ = t.fs.Remove(dir)
	return nil
}

func (t *dirTier) Quarantine(ctx context.Context, name Name, reason string) (bool, error) {
	if err := t.ready(ctx); err != nil {
		return false, classify(err)
	}
	dir := filepath.Join(t.base, quarantineDir)
	base := fmt.Sprintf("%s.%s.%d-%d%s", name.Key, reason, time.Now().UnixNano(), t.moved.Add(1), pageExt)
	path := t.path(name)
	if _, err := t.fs.Lstat(path); err != nil {
		if err = classify(err); errors.Is(err, ErrNotFound) {
			err = nil
		}
		return false, err
	}
	err := t.inDir(dir, func() error { return t.fs.Rename(path, filepath.Join(dir, base)) })
	if err != nil {
		if err = classify(err); errors.Is(err, ErrNotFound) {
			err = nil
		}
		return false, err
	}
	t.trimQuarantine(dir)
	return true, nil
}

// trimQuarantine removes the oldest files over the limit. Failures are left for
// the next time.
func (t *dirTier) trimQuarantine(dir string) {
	type file struct {
		path string
		when time.Time
	}
	entries, err := t.readDir(dir)
	if err != nil || len(entries) <= maxQuarantined {
		return
	}
	var files []file
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := t.fs.Lstat(path); err == nil {
			files = append(files, file{path, fi.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.when.Compare(b.when), cmp.Compare(a.path, b.path)) })
	for _, f := range files[:max(0, len(files)-maxQuarantined)] {
		_ = t.fs.Remove(f.path)
	}
}

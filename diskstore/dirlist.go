package diskstore

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
)

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

func (t *dirTier) Shards(ctx context.Context) ([]Shard, error) {
	fingerprints, err := t.Fingerprints(ctx)
	if err != nil {
		return nil, err
	}
	var shards []Shard
	for _, fp := range fingerprints {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		dir := filepath.Join(t.base, fp.String())
		if shards, err = t.appendShards(shards, dir, Shard{Fingerprint: fp, Class: ClassPage}); err != nil {
			return nil, err
		}
		tails := filepath.Join(dir, tailsDir)
		if shards, err = t.appendShards(shards, tails, Shard{Fingerprint: fp, Class: ClassTail}); err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// appendShards appends the shard directories in dir; all but First is in like.
func (t *dirTier) appendShards(shards []Shard, dir string, like Shard) ([]Shard, error) {
	entries, err := t.readDir(dir)
	for _, e := range entries {
		if e.IsDir() && isShard(e.Name()) {
			first, _ := hex.DecodeString(e.Name()) // isShard has seen to it
			like.First = first[0]
			shards = append(shards, like)
		}
	}
	return shards, err
}

func (t *dirTier) ListShard(ctx context.Context, shard Shard) ([]Info, error) {
	if err := t.ready(ctx); err != nil {
		return nil, classify(err)
	}
	dir := filepath.Join(t.base, shardPath(shard))
	if shard.Class == ClassPage {
		return t.appendPages(nil, dir, Name{Fingerprint: shard.Fingerprint, Class: ClassPage})
	}
	entries, err := t.readDir(dir)
	if err != nil {
		return nil, err
	}
	var infos []Info
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		parent, err := ParseKey(e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		like := Name{Fingerprint: shard.Fingerprint, Class: ClassTail, Parent: parent}
		if infos, err = t.appendPages(infos, filepath.Join(dir, e.Name()), like); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

func (t *dirTier) Aside(ctx context.Context) (Aside, error) {
	if err := t.ready(ctx); err != nil {
		return Aside{}, classify(err)
	}
	aside := Aside{Living: make(map[string]bool), Held: t.temp.sweep()}
	entries, err := t.readDir(t.temp.dir)
	if err != nil {
		return Aside{}, err
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), lockExt); ok {
			aside.Living[id] = true
		}
	}
	for _, e := range entries {
		fi, err := t.fs.Lstat(filepath.Join(t.temp.dir, e.Name()))
		if err != nil || strings.HasSuffix(e.Name(), lockExt) {
			continue
		}
		aside.TempFiles++
		aside.TempBytes += t.fs.PhysicalBytes(fi)
		// A page on its way out is claimed by nobody, and its unlink may hang.
		if id, what, _ := strings.Cut(e.Name(), "-"); !aside.Living[id] || strings.HasPrefix(what, goneWord) {
			aside.OrphanBytes += t.fs.PhysicalBytes(fi)
		}
	}
	quarantine := filepath.Join(t.base, quarantineDir)
	if entries, err = t.readDir(quarantine); err != nil {
		return Aside{}, err
	}
	for _, e := range entries {
		if fi, err := t.fs.Lstat(filepath.Join(quarantine, e.Name())); err == nil {
			aside.QuarantineFiles++
			aside.QuarantineBytes += t.fs.PhysicalBytes(fi)
		}
	}
	return aside, nil
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
		err := t.again(func() error {
			fi, err := t.fs.Lstat(path)
			if err == nil {
				var info Info
				if info, err = t.info(like, path, fi); err == nil {
					infos = append(infos, info)
				}
			}
			return err
		})
		if err != nil && !errors.Is(err, ErrNotFound) {
			return infos, err
		}
	}
	return infos, nil
}

// readDir lists a directory; one that is not there is empty.
func (t *dirTier) readDir(dir string) ([]fs.DirEntry, error) {
	var entries []fs.DirEntry
	err := t.again(func() (err error) {
		entries, err = t.fs.ReadDir(dir)
		return err
	})
	if errors.Is(err, ErrNotFound) {
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
	if _, err := t.Remove(ctx, Info{Name: Name{Fingerprint: fingerprint, Class: ClassManifest}}); err != nil {
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

package diskstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxQuarantined is how many files quarantine keeps. Who reads adds none to so
// many; a repair removes the oldest. What is no regular file is moved there all the
// same: it took as much room in a page's place, and kept that page from being stored.
const maxQuarantined = 16

// errQuarantineFull reports that a file was left where it is.
var errQuarantineFull = errors.New("diskstore: quarantine is full, kvtier repair makes room in it")

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
	dir := filepath.Join(t.base, shard.rel())
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

func (t *dirTier) Quarantine(ctx context.Context, judged Info, reason string) (bool, error) {
	if err := t.ready(ctx); err != nil {
		return false, classify(err)
	}
	dir := filepath.Join(t.base, quarantineDir)
	base := fmt.Sprintf("%s.%s.%d-%d%s", judged.Key, reason, time.Now().UnixNano(), t.moved.Add(1), pageExt)
	err := t.again(func() error { return t.lookAtJudged(judged) })
	if err == nil {
		var entries []fs.DirEntry
		if entries, err = t.readDir(dir); err == nil && len(entries) >= maxQuarantined && judged.Bytes != notRegular {
			err = errQuarantineFull
		}
	}
	if err == nil {
		err = t.opFailed(t.inDir(dir, func() error { return t.moveOut(ctx, judged, filepath.Join(dir, base)) }))
	}
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, errReplaced):
		return false, nil
	case err != nil:
		return false, err
	}
	t.syncAside(t.path(judged.Name))
	return true, nil
}

// syncAside makes durable that what was at path is in quarantine, or back: in a
// power cut it could return to its place beside what has taken its room since.
// Where a sync fails it is found out once more.
func (t *dirTier) syncAside(path string) {
	for _, dir := range []string{filepath.Join(t.base, quarantineDir), filepath.Dir(path)} {
		_ = t.fs.SyncDir(dir)
	}
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
			when := fi.ModTime()
			if beyond(when, time.Now()) {
				when = time.Time{}
			}
			files = append(files, file{path, when})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.when.Compare(b.when), cmp.Compare(a.path, b.path)) })
	for _, f := range files[:max(0, len(files)-maxQuarantined)] {
		_ = t.fs.Remove(f.path)
	}
}

func (t *dirTier) EmptyQuarantine(ctx context.Context) (int64, error) {
	if err := t.ready(ctx); err != nil {
		return 0, classify(err)
	}
	dir := filepath.Join(t.base, quarantineDir)
	entries, err := t.readDir(dir)
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	var freed int64
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := t.fs.Lstat(path); err == nil && t.fs.Remove(path) == nil {
			freed += t.fs.PhysicalBytes(fi)
		}
	}
	return freed, t.opFailed(t.fs.SyncDir(dir))
}

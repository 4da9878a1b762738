package dir

import (
	"context"
	"encoding/hex"
	"errors"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// listing lists the files below a root.
type listing struct {
	*root
	temp *tempDir
}

// Survey lists the directories of fingerprints and of their shards.
func (t *listing) Survey(ctx context.Context) (fingerprints []pagefile.Key, shards []tier.Shard, err error) {
	if err := t.Ready(ctx); err != nil {
		return nil, nil, classify(err)
	}
	entries, err := t.ReadDir(t.base)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		fp, perr := pagefile.ParseKey(e.Name())
		if perr != nil || !e.IsDir() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		fingerprints = append(fingerprints, fp)
		dir := filepath.Join(t.base, fp.String())
		if shards, err = t.appendShards(shards, dir, tier.Shard{Fingerprint: fp, Class: pagefile.ClassPage}); err != nil {
			return nil, nil, err
		}
		tails := filepath.Join(dir, tailsDir)
		if shards, err = t.appendShards(shards, tails, tier.Shard{Fingerprint: fp, Class: pagefile.ClassTail}); err != nil {
			return nil, nil, err
		}
	}
	return fingerprints, shards, nil
}

func (t *listing) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	var infos []tier.Info
	err := t.eachFolder(ctx, shard, func(folder string, like pagefile.Name) (err error) {
		infos, err = t.appendPages(infos, folder, like)
		return err
	})
	return infos, err
}

// NamesWith lists the names of pages and tails whose key begins with prefix, of at least two
// digits. NamesWith reads names only, not files.
func (t *listing) NamesWith(ctx context.Context, prefix string) ([]pagefile.Name, error) {
	_, shards, err := t.Survey(ctx)
	if err != nil {
		return nil, err
	}
	var names []pagefile.Name
	for _, shard := range shards {
		if shard.Class == pagefile.ClassPage && !strings.HasPrefix(prefix, hex.EncodeToString([]byte{shard.First})) {
			continue
		}
		err := t.eachFolder(ctx, shard, func(folder string, like pagefile.Name) error {
			entries, err := t.ReadDir(folder)
			for _, e := range entries {
				if key, ok := parsePageFile(e.Name()); ok && strings.HasPrefix(e.Name(), prefix) {
					like.Key = key
					names = append(names, like)
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// eachFolder calls fn for every folder with page files of a shard: one folder for pages, one for
// tails, and one for each parent of tails of earlier versions. like has every field of their names
// except Key.
func (t *listing) eachFolder(ctx context.Context, shard tier.Shard, fn func(folder string, like pagefile.Name) error) error {
	folder := filepath.Join(t.base, shardPath(shard))
	like := pagefile.Name{Fingerprint: shard.Fingerprint, Class: shard.Class}
	if shard.Class == pagefile.ClassPage {
		return fn(folder, like)
	}
	parents, err := t.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, p := range parents {
		if err := ctx.Err(); err != nil {
			return err
		}
		var ok bool
		if like.Parent, ok = parseTailFolder(p.Name()); !ok || !p.IsDir() {
			continue
		}
		if err := fn(filepath.Join(folder, p.Name()), like); err != nil {
			return err
		}
	}
	return nil
}

func (t *listing) Aside(ctx context.Context) (tier.Aside, error) {
	if err := t.Ready(ctx); err != nil {
		return tier.Aside{}, classify(err)
	}
	aside := tier.Aside{Living: make(map[string]bool), Held: t.temp.sweep()}
	entries, err := t.ReadDir(t.temp.dir)
	if err != nil {
		return tier.Aside{}, err
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), LockExt); ok {
			aside.Living[id] = true
		}
	}
	for _, e := range entries {
		fi, err := t.FS.Lstat(filepath.Join(t.temp.dir, e.Name()))
		if err != nil || strings.HasSuffix(e.Name(), LockExt) {
			continue
		}
		aside.TempFiles++
		aside.TempBytes += t.FS.PhysicalBytes(fi)
		// No claim counts a page that is being removed, and its unlink may hang.
		if id, what, _ := strings.Cut(e.Name(), "-"); !aside.Living[id] || strings.HasPrefix(what, goneWord) {
			aside.OrphanBytes += t.FS.PhysicalBytes(fi)
		}
	}
	quarantine := filepath.Join(t.base, quarantineDir)
	if entries, err = t.ReadDir(quarantine); err != nil {
		return tier.Aside{}, err
	}
	for _, e := range entries {
		if fi, err := t.FS.Lstat(filepath.Join(quarantine, e.Name())); err == nil {
			aside.QuarantineFiles++
			aside.QuarantineBytes += t.FS.PhysicalBytes(fi)
		}
	}
	return aside, nil
}

// appendPages appends the page files in dir; like has every field of their names except Key.
// Misplaced files are left out: no look-up finds them.
func (t *listing) appendPages(infos []tier.Info, dir string, like pagefile.Name) ([]tier.Info, error) {
	entries, err := t.ReadDir(dir)
	if err != nil {
		return infos, err
	}
	for _, e := range entries {
		key, ok := parsePageFile(e.Name())
		like.Key = key
		path := filepath.Join(dir, e.Name())
		if isSilly(e.Name()) {
			t.temp.sweepSilly(path)
		}
		if !ok || path != t.Path(like) {
			continue
		}
		err := t.again(func() error {
			fi, err := t.FS.Lstat(path)
			if err == nil {
				var info tier.Info
				if info, err = t.Info(like, path, fi); err == nil {
					infos = append(infos, info)
				}
			}
			return err
		})
		if err != nil && !errors.Is(err, tier.ErrNotFound) {
			return infos, err
		}
	}
	return infos, nil
}

func (t *listing) OldTails(ctx context.Context, fingerprint, parent pagefile.Key) ([]tier.Info, error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	dir := filepath.Join(t.base, oldTailDir(fingerprint, parent))
	return t.appendPages(nil, dir, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassTail, Parent: parent})
}

package dir

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// NamesWith lists the names of pages and tails whose key begins with prefix. It
// looks at names alone.
func (t *Tier) NamesWith(ctx context.Context, prefix string) ([]pagefile.Name, error) {
	fingerprints, err := t.Fingerprints(ctx)
	if err != nil {
		return nil, err
	}
	var names []pagefile.Name
	pages := func(folder string, like pagefile.Name) error {
		entries, err := t.ReadDir(folder)
		for _, e := range entries {
			if key, ok := ParsePageFile(e.Name()); ok && strings.HasPrefix(e.Name(), prefix) {
				like.Key = key
				names = append(names, like)
			}
		}
		return err
	}
	for _, fp := range fingerprints {
		folder := filepath.Join(t.Base, fp.String())
		if err := pages(filepath.Join(folder, prefix[:2]), pagefile.Name{Fingerprint: fp, Class: pagefile.ClassPage}); err != nil {
			return nil, err
		}
		err := t.eachTailDir(ctx, filepath.Join(folder, TailsDir), func(dir string, parent pagefile.Key) error {
			return pages(dir, pagefile.Name{Fingerprint: fp, Class: pagefile.ClassTail, Parent: parent})
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// eachTailDir calls fn for every directory that holds one parent's tails.
func (t *Tier) eachTailDir(ctx context.Context, folder string, fn func(dir string, parent pagefile.Key) error) error {
	shards, err := t.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, shard := range shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !IsShard(shard.Name()) || !shard.IsDir() {
			continue
		}
		parents, err := t.ReadDir(filepath.Join(folder, shard.Name()))
		if err != nil {
			return err
		}
		for _, p := range parents {
			if parent, err := pagefile.ParseKey(p.Name()); err == nil && p.IsDir() {
				if err := fn(filepath.Join(folder, shard.Name(), p.Name()), parent); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

package diskstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// ErrArguments reports arguments that cannot work.
var ErrArguments = errors.New("diskstore: bad arguments")

// PageFile is a page or a tail as a root holds it.
type PageFile struct {
	Info
	Tier string // TierLocal or TierRemote
	Path string
}

// minPrefixDigits keeps a search from listing everything: two digits name the
// directory that a page is in.
const minPrefixDigits = 4

// tierRoot is one tier, with its name.
type tierRoot struct {
	id   string // TierLocal or TierRemote
	path string
	t    *dirTier
}

// finder looks for the pages and tails whose key begins with prefix. Of a page
// that several tiers hold it takes the first one's.
type finder struct {
	prefix string
	found  []PageFile
	seen   map[Name]bool
}

func (f *finder) check() error {
	if len(f.prefix) < minPrefixDigits || strings.Trim(f.prefix, "0123456789abcdef") != "" {
		return fmt.Errorf("find page %q: want at least %d digits of its key, 0 to 9 and a to f: %w", f.prefix, minPrefixDigits, ErrArguments)
	}
	return nil
}

// find looks in one tier.
func (f *finder) find(ctx context.Context, root tierRoot) error {
	names, err := root.t.namesWith(ctx, f.prefix)
	if err != nil {
		return fmt.Errorf("find page %s in %s: %w", f.prefix, root.t.root, err)
	}
	for _, name := range names {
		if f.seen[name] {
			continue
		}
		info, err := root.t.Stat(ctx, name)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find page %s in %s: %w", f.prefix, root.t.root, err)
		}
		f.seen[name] = true
		f.found = append(f.found, PageFile{Info: info, Tier: root.id, Path: root.t.path(name)})
	}
	return nil
}

// sorted returns what was found in order of key.
func (f *finder) sorted() []PageFile {
	slices.SortFunc(f.found, func(a, b PageFile) int { return slices.Compare(a.Key[:], b.Key[:]) })
	return f.found
}

// namesWith lists the names of pages and tails whose key begins with prefix. It
// looks at names alone.
func (t *dirTier) namesWith(ctx context.Context, prefix string) ([]Name, error) {
	fingerprints, err := t.Fingerprints(ctx)
	if err != nil {
		return nil, err
	}
	var names []Name
	pages := func(dir string, like Name) error {
		entries, err := t.readDir(dir)
		for _, e := range entries {
			if key, ok := parsePageFile(e.Name()); ok && strings.HasPrefix(e.Name(), prefix) {
				like.Key = key
				names = append(names, like)
			}
		}
		return err
	}
	for _, fp := range fingerprints {
		dir := filepath.Join(t.base, fp.String())
		if err := pages(filepath.Join(dir, prefix[:2]), Name{Fingerprint: fp, Class: ClassPage}); err != nil {
			return nil, err
		}
		err := t.eachTailDir(ctx, filepath.Join(dir, tailsDir), func(dir string, parent Key) error {
			return pages(dir, Name{Fingerprint: fp, Class: ClassTail, Parent: parent})
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// eachTailDir calls fn for every directory that holds one parent's tails.
func (t *dirTier) eachTailDir(ctx context.Context, dir string, fn func(dir string, parent Key) error) error {
	shards, err := t.readDir(dir)
	if err != nil {
		return err
	}
	for _, shard := range shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !isShard(shard.Name()) || !shard.IsDir() {
			continue
		}
		parents, err := t.readDir(filepath.Join(dir, shard.Name()))
		if err != nil {
			return err
		}
		for _, p := range parents {
			if parent, err := ParseKey(p.Name()); err == nil && p.IsDir() {
				if err := fn(filepath.Join(dir, shard.Name(), p.Name()), parent); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// openPage opens a page in the first root that has it and reads its header.
func openPage(ctx context.Context, roots []tierRoot, name Name) (Blob, *Header, PageFile, error) {
	worst := error(ErrNotFound)
	for _, p := range roots {
		blob, err := p.t.Open(ctx, name)
		if err == nil {
			var h *Header
			if h, err = readHeader(ctx, blob); err == nil {
				err = h.checkName(name)
			}
			if err == nil {
				return blob, h, PageFile{Info: blob.Info(), Tier: p.id, Path: p.t.path(name)}, nil
			}
			blob.Close()
		}
		if errors.Is(worst, ErrNotFound) {
			worst = err
		}
	}
	return nil, nil, PageFile{}, fmt.Errorf("open page %v: %w", name.Key, worst)
}

// headerIn reads a page's header in the first root that has it.
func headerIn(ctx context.Context, roots []tierRoot, name Name) (*Header, PageFile, error) {
	blob, h, file, err := openPage(ctx, roots, name)
	if err != nil {
		return nil, file, err
	}
	blob.Close()
	return h, file, nil
}

// chainTo returns a page and all that come before it, the first one first. It
// returns ErrNotFound when one of them is missing, and ErrDamaged when they do
// not lead back to a beginning.
func chainTo(ctx context.Context, roots []tierRoot, name Name) ([]PageFile, error) {
	h, file, err := headerIn(ctx, roots, name)
	if err != nil {
		return nil, err
	}
	chain := []PageFile{file}
	for h.Start > 0 {
		next := Name{Fingerprint: h.Fingerprint, Class: ClassPage, Key: h.Parent}
		before, file, err := headerIn(ctx, roots, next)
		if err != nil {
			return nil, fmt.Errorf("tokens before %d: %w", h.Start, err)
		}
		if before.PageTokens != h.PageTokens || uint64(before.Start)+uint64(h.PageTokens) != uint64(h.Start) {
			return nil, damaged("page %v is at token %d, the one after it at %d", next.Key, before.Start, h.Start)
		}
		h, chain = before, append(chain, file)
	}
	if h.Parent != h.Fingerprint {
		return nil, damaged("page %v is the first of its sequence and has a page before it", h.Key)
	}
	slices.Reverse(chain)
	return chain, nil
}

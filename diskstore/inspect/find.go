package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ErrArguments reports arguments that are not valid.
var ErrArguments = errors.New("diskstore: bad arguments")

// PageFile describes the file of a page or tail in a root.
type PageFile struct {
	tier.Info
	Tier string // Local or Remote
	Path string
}

// minPrefixDigits is the shortest prefix of a search. Two digits name the directory of a page,
// so a search does not list every directory.
const minPrefixDigits = 4

// finder searches pages and tails whose key begins with prefix. Of copies in several tiers a
// finder keeps the first tier's.
type finder struct {
	prefix string
	found  []PageFile
	seen   map[pagefile.Name]bool
}

func (f *finder) check() error {
	if len(f.prefix) < minPrefixDigits || strings.Trim(f.prefix, "0123456789abcdef") != "" {
		return fmt.Errorf("find page %q: want at least %d digits of its key, 0 to 9 and a to f: %w", f.prefix, minPrefixDigits, ErrArguments)
	}
	return nil
}

// find searches one tier.
func (f *finder) find(ctx context.Context, root tierRoot) error {
	names, err := root.t.NamesWith(ctx, f.prefix)
	if err != nil {
		return fmt.Errorf("find page %s in %s: %w", f.prefix, root.t.Root, err)
	}
	for _, name := range names {
		if f.seen[name] {
			continue
		}
		info, err := root.t.Stat(ctx, name)
		if errors.Is(err, tier.ErrNotFound) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find page %s in %s: %w", f.prefix, root.t.Root, err)
		}
		f.seen[name] = true
		f.found = append(f.found, PageFile{Info: info, Tier: root.id, Path: root.t.Path(name)})
	}
	return nil
}

// sorted returns the files found, in order of key.
func (f *finder) sorted() []PageFile {
	slices.SortFunc(f.found, func(a, b PageFile) int { return slices.Compare(a.Key[:], b.Key[:]) })
	return f.found
}

// openPage opens a page in the first root that has it and reads its header.
func openPage(ctx context.Context, roots []tierRoot, name pagefile.Name) (tier.Blob, *pagefile.Header, PageFile, error) {
	worst := error(tier.ErrNotFound)
	for _, p := range roots {
		blob, err := p.t.Open(ctx, name)
		if err == nil {
			var h *pagefile.Header
			if h, err = pagefile.ReadHeader(ctx, blob); err == nil {
				err = h.CheckName(name)
			}
			if err == nil {
				return blob, h, PageFile{Info: blob.Info(), Tier: p.id, Path: p.t.Path(name)}, nil
			}
			blob.Close()
		}
		if errors.Is(worst, tier.ErrNotFound) {
			worst = err
		}
	}
	return nil, nil, PageFile{}, fmt.Errorf("open page %v: %w", name.Key, worst)
}

// headerIn reads a page's header in the first root that has it.
func headerIn(ctx context.Context, roots []tierRoot, name pagefile.Name) (*pagefile.Header, PageFile, error) {
	blob, h, file, err := openPage(ctx, roots, name)
	if err != nil {
		return nil, file, err
	}
	blob.Close()
	return h, file, nil
}

// chainTo returns a page and all pages before it in the sequence, the first page first.
// chainTo returns tier.ErrNotFound when a page of the sequence is missing, and pagefile.ErrDamaged
// when the pages do not lead back to a sequence's beginning.
func chainTo(ctx context.Context, roots []tierRoot, name pagefile.Name) ([]PageFile, error) {
	h, file, err := headerIn(ctx, roots, name)
	if err != nil {
		return nil, err
	}
	chain := []PageFile{file}
	for h.Start > 0 {
		next := pagefile.Name{Fingerprint: h.Fingerprint, Class: pagefile.ClassPage, Key: h.Parent}
		before, file, err := headerIn(ctx, roots, next)
		if err != nil {
			return nil, fmt.Errorf("tokens before %d: %w", h.Start, err)
		}
		if before.PageTokens != h.PageTokens || uint64(before.Start)+uint64(h.PageTokens) != uint64(h.Start) {
			return nil, pagefile.Damaged("page %v is at token %d, the one after it at %d", next.Key, before.Start, h.Start)
		}
		h, chain = before, append(chain, file)
	}
	if h.Parent != h.Fingerprint {
		return nil, pagefile.Damaged("page %v is the first of its sequence and has a page before it", h.Key)
	}
	slices.Reverse(chain)
	return chain, nil
}

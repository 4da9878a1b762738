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
		info, err := tier.Stat(ctx, root.t, name)
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

// sorted returns the files found, in order of key. A lossy page is left out where the exact one was
// found: both have one key.
func (f *finder) sorted() []PageFile {
	exact := make(map[pagefile.Name]bool) // lossy names of files found
	for _, file := range f.found {
		name := file.Name
		name.Fingerprint = pagefile.ColdFingerprint(name.Fingerprint)
		exact[name] = true
	}
	f.found = slices.DeleteFunc(f.found, func(file PageFile) bool { return exact[file.Name] })
	slices.SortFunc(f.found, func(a, b PageFile) int { return slices.Compare(a.Key[:], b.Key[:]) })
	return f.found
}

// openPage opens a page in the first root that has it and reads its header.
func openPage(ctx context.Context, roots []tierRoot, name pagefile.Name) (tier.Blob, *pagefile.Header, PageFile, error) {
	worst := error(tier.ErrNotFound)
	for _, p := range roots {
		blob, err := p.t.Open(ctx, name, false)
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

// pageBefore reads the header of the page that h continues, in the first root that has it: exact, or
// else lossy. exact is the fingerprint of exact pages, zero if unknown.
func pageBefore(ctx context.Context, roots []tierRoot, h *pagefile.Header, exact pagefile.Key) (*pagefile.Header, PageFile, error) {
	among := []pagefile.Key{exact, pagefile.ColdFingerprint(exact)}
	if exact.IsZero() {
		among = []pagefile.Key{h.Fingerprint}
	}
	var missing error
	for _, fingerprint := range among {
		before, file, err := headerIn(ctx, roots, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassPage, Key: h.Parent})
		if !errors.Is(err, tier.ErrNotFound) {
			return before, file, err
		}
		missing = err
	}
	return nil, PageFile{}, missing
}

// exactOf returns the fingerprint of the exact pages for which pages of a fingerprint stand: itself,
// except for lossy pages. It is zero for lossy pages without a manifest.
func exactOf(ctx context.Context, roots []tierRoot, h *pagefile.Header) pagefile.Key {
	if !h.Lossy() {
		return h.Fingerprint
	}
	m, err := manifestIn(ctx, roots, h.Fingerprint)
	if err != nil {
		return pagefile.Key{}
	}
	exact, _ := tier.LossyOf(h.Fingerprint, m.Identity)
	return exact
}

// chainTo returns a page and all pages before it in the sequence, the first page first; each page
// before it exact, or lossy where no root has it exact.
// chainTo returns tier.ErrNotFound when a page of the sequence is missing, and pagefile.ErrDamaged
// when the pages do not lead back to a sequence's beginning.
func chainTo(ctx context.Context, roots []tierRoot, name pagefile.Name) ([]PageFile, error) {
	h, file, err := headerIn(ctx, roots, name)
	if err != nil {
		return nil, err
	}
	chain, exact := []PageFile{file}, exactOf(ctx, roots, h)
	for h.Start > 0 {
		before, file, err := pageBefore(ctx, roots, h, exact)
		if err != nil {
			return nil, fmt.Errorf("tokens before %d: %w", h.Start, err)
		}
		if before.PageTokens != h.PageTokens || uint64(before.Start)+uint64(h.PageTokens) != uint64(h.Start) {
			return nil, pagefile.Damaged("page %v is at token %d, the one after it at %d", h.Parent, before.Start, h.Start)
		}
		h, chain = before, append(chain, file)
	}
	if h.Parent != h.Fingerprint && pagefile.ColdFingerprint(h.Parent) != h.Fingerprint {
		return nil, pagefile.Damaged("page %v is the first of its sequence and has a page before it", h.Key)
	}
	slices.Reverse(chain)
	return chain, nil
}

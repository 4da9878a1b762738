package inspect

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Roots are the directories of a store's tiers, with the pages of all fingerprints below them.
// Servers may use the directories at the same time.
type Roots struct {
	Local  *dir.Tier
	Remote *dir.Tier    // nil without a remote directory
	Engine tier.Tier    // the remote tier that is no directory, which Check alone looks at; nil without one
	Where  string       // names Engine
	Log    *slog.Logger // nil discards
}

type tierRoot struct {
	id string // Local or Remote
	t  *dir.Tier
}

// tiers returns the tiers, the local one first.
func (r *Roots) tiers() []tierRoot {
	tiers := []tierRoot{{tier.Local, r.Local}}
	if r.Remote != nil {
		tiers = append(tiers, tierRoot{tier.Remote, r.Remote})
	}
	return tiers
}

// eachRoot calls look for every tier, and continues when a tier does not answer. The error of
// such a tier is returned as silent, any other error as err.
func (r *Roots) eachRoot(look func(tierRoot) error) (silent, err error) {
	for _, root := range r.tiers() {
		err := look(root)
		if tier.NoAnswer(err) {
			silent = errors.Join(silent, err)
		} else if err != nil {
			return silent, err
		}
	}
	return silent, nil
}

// goingOn logs that the pages of a tier were not read.
func (r *Roots) goingOn(silent error) {
	if silent != nil && r.Log != nil {
		r.Log.Warn("kv tier does not answer, its pages are not looked at", "error", silent)
	}
}

// ErrArguments reports arguments that are not valid.
var ErrArguments = errors.New("diskstore: bad arguments")

// PageFile describes the file of a page or tail in a root.
type PageFile struct {
	tier.Info
	Tier   string // Local or Remote
	Path   string
	Header *pagefile.Header // nil where only the directory's entry was read
}

func (p PageFile) end() int { return int(p.Header.Start) + len(p.Header.Tokens) }

// minPrefixDigits is the shortest prefix of a search. Two digits name the directory of a page,
// so a search does not list every directory.
const minPrefixDigits = 4

// Find returns the pages and tails whose key begins with prefix, at least four lower-case hex
// digits, in order of key. Of a page in both tiers Find returns the local file, and of an exact and a
// lossy page with one key the exact one. When one tier
// does not answer and the other has such pages, Find logs the failure and returns these pages.
func (r *Roots) Find(ctx context.Context, prefix string) ([]PageFile, error) {
	if len(prefix) < minPrefixDigits || strings.Trim(prefix, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("find page %q: want at least %d digits of its key, 0 to 9 and a to f: %w", prefix, minPrefixDigits, ErrArguments)
	}
	found := make(map[pagefile.Name]PageFile)
	silent, err := r.eachRoot(func(root tierRoot) error {
		if err := root.find(ctx, prefix, found); err != nil {
			return fmt.Errorf("find page %s in %s: %w", prefix, root.t.Root, err)
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		return nil, errors.Join(err, silent)
	}
	r.goingOn(silent)
	for name := range found {
		delete(found, pagefile.ColdName(name))
	}
	return slices.SortedFunc(maps.Values(found), func(a, b PageFile) int { return slices.Compare(a.Key[:], b.Key[:]) }), nil
}

// find adds the pages and tails whose key begins with prefix, except those found in another tier.
func (root tierRoot) find(ctx context.Context, prefix string, found map[pagefile.Name]PageFile) error {
	_, shards, err := root.t.Survey(ctx)
	if err != nil {
		return err
	}
	first, _ := hex.DecodeString(prefix[:2]) // Find has checked the digits
	for _, shard := range shards {
		if shard.Class == pagefile.ClassPage && shard.First != first[0] {
			continue
		}
		infos, err := root.t.ListShard(ctx, shard)
		if err != nil {
			return err
		}
		for _, info := range infos {
			if _, ok := found[info.Name]; !ok && strings.HasPrefix(info.Key.String(), prefix) {
				found[info.Name] = PageFile{Info: info, Tier: root.id, Path: root.t.Path(info.Name)}
			}
		}
	}
	return nil
}

// Recent returns the last page of the most recently used conversation, among the fingerprints
// that pick accepts; nil accepts all. Of several conversations used within one minute Recent
// returns the longest. Recent returns tier.ErrNotFound without any conversation. When one tier does
// not answer and the other has a conversation, Recent logs the failure and returns that one.
func (r *Roots) Recent(ctx context.Context, pick func(fingerprint pagefile.Key) bool) (PageFile, error) {
	var newest time.Time
	var files []PageFile
	silent, err := r.eachRoot(func(root tierRoot) error {
		err := root.t.Walk(ctx, func(e dir.Entry) error {
			if e.Kind != dir.EntryPage || pick != nil && !pick(e.Name.Fingerprint) {
				return nil
			}
			used := e.Info.ModTime()
			if used.After(newest) {
				newest = used
				files = slices.DeleteFunc(files, func(f PageFile) bool { return f.Used.Before(newest.Add(-sameTime)) })
			}
			if used.Before(newest.Add(-sameTime)) || len(files) == maxArchivePages {
				return nil
			}
			files = append(files, PageFile{Info: dir.InfoOf(root.t.FS, e.Name, e.Info), Tier: root.id, Path: e.Path})
			return nil
		})
		if err != nil {
			return fmt.Errorf("look for the last conversation in %s: %w", root.t.Root, err)
		}
		return nil
	})
	if err != nil || len(files) == 0 && silent != nil {
		return PageFile{}, errors.Join(err, silent)
	}
	r.goingOn(silent)
	return r.longest(ctx, files)
}

// sameTime is the time within which conversations count as used at the same time.
const sameTime = time.Minute

// longest returns the file that ends at the highest position.
func (r *Roots) longest(ctx context.Context, files []PageFile) (best PageFile, err error) {
	for _, f := range files {
		page, err := r.page(ctx, f.Name)
		if ctx.Err() != nil {
			return PageFile{}, ctx.Err()
		}
		if err == nil && (best.Header == nil || page.end() > best.end()) {
			best = page
		}
	}
	if best.Header == nil {
		return best, fmt.Errorf("look for the last conversation: %w", tier.ErrNotFound)
	}
	return best, nil
}

// Chain returns a page and all pages before it in the sequence, the first page first; each page before it
// exact, or lossy where no tier has it exact. Chain returns tier.ErrNotFound when a page of the sequence is
// missing, and pagefile.ErrDamaged when the pages do not lead back to a sequence's beginning.
func (r *Roots) Chain(ctx context.Context, name pagefile.Name) ([]PageFile, error) {
	page, err := r.page(ctx, name)
	if err != nil {
		return nil, err
	}
	chain, exact := []PageFile{page}, r.exactOf(ctx, page.Header)
	h := page.Header
	for h.Start > 0 {
		before, err := r.pageBefore(ctx, h, exact)
		if err != nil {
			return nil, fmt.Errorf("find the tokens before %d, without which the conversation is not whole: %w", h.Start, err)
		}
		if before.Header.PageTokens != h.PageTokens || uint64(before.Header.Start)+uint64(h.PageTokens) != uint64(h.Start) {
			return nil, pagefile.Damaged("page %v is at token %d, the one after it at %d", h.Parent, before.Header.Start, h.Start)
		}
		h, chain = before.Header, append(chain, before)
	}
	if h.Parent != h.Fingerprint && pagefile.ColdFingerprint(h.Parent) != h.Fingerprint {
		return nil, pagefile.Damaged("page %v is the first of its sequence and has a page before it", h.Key)
	}
	slices.Reverse(chain)
	return chain, nil
}

// pageBefore finds the page that h continues, in the first tier that has it: exact, or else lossy. exact
// is the fingerprint of exact pages, zero if unknown.
func (r *Roots) pageBefore(ctx context.Context, h *pagefile.Header, exact pagefile.Key) (page PageFile, err error) {
	among := []pagefile.Key{exact, pagefile.ColdFingerprint(exact)}
	if exact.IsZero() {
		among = []pagefile.Key{h.Fingerprint}
	}
	for _, fingerprint := range among {
		page, err = r.page(ctx, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassPage, Key: h.Parent})
		if !errors.Is(err, tier.ErrNotFound) {
			break
		}
	}
	return page, err
}

// exactOf returns the fingerprint of the exact pages for which pages of a fingerprint stand: itself,
// except for lossy pages. It is zero for lossy pages without a manifest.
func (r *Roots) exactOf(ctx context.Context, h *pagefile.Header) pagefile.Key {
	if !h.Lossy() {
		return h.Fingerprint
	}
	m, err := r.Manifest(ctx, h.Fingerprint)
	if err != nil {
		return pagefile.Key{}
	}
	exact, _ := tier.LossyOf(h.Fingerprint, m.Identity)
	return exact
}

// inFirst returns what read finds in the first tier where it succeeds; else the error that says most.
func inFirst[T any](r *Roots, read func(tierRoot) (T, error)) (found T, err error) {
	worst := error(tier.ErrNotFound)
	for _, root := range r.tiers() {
		if found, err = read(root); err == nil {
			return found, nil
		}
		if errors.Is(worst, tier.ErrNotFound) {
			worst = err
		}
	}
	return found, worst
}

// openPage opens a page in the first tier that has it and reads its header.
func (r *Roots) openPage(ctx context.Context, name pagefile.Name) (blob tier.Blob, page PageFile, err error) {
	page, err = inFirst(r, func(root tierRoot) (page PageFile, err error) {
		page = PageFile{Tier: root.id, Path: root.t.Path(name)}
		if blob, page.Header, err = tier.OpenPage(ctx, root.t, name); err == nil {
			page.Info = blob.Info()
		}
		return page, err
	})
	if err != nil {
		return nil, PageFile{}, fmt.Errorf("open page %v: %w", name.Key, err)
	}
	return blob, page, nil
}

// page describes a page, with its header, in the first tier that has it.
func (r *Roots) page(ctx context.Context, name pagefile.Name) (PageFile, error) {
	blob, page, err := r.openPage(ctx, name)
	if err == nil {
		blob.Close()
	}
	return page, err
}

// Manifest returns a fingerprint's manifest, from the first tier that has a good one.
func (r *Roots) Manifest(ctx context.Context, fp pagefile.Key) (*tier.Manifest, error) {
	return inFirst(r, func(root tierRoot) (*tier.Manifest, error) { return tier.ReadManifest(ctx, root.t, fp) })
}

// ReadHeader reads and checks the header of a page file, for tools; with verify the whole file, and
// returns the damage of each section of the header, nil for a good section. ReadHeader returns
// tier.ErrNotFound, pagefile.ErrMismatch for a newer schema, an error of the filesystem, or
// pagefile.ErrDamaged: with a header if the footer alone is bad.
func ReadHeader(ctx context.Context, fsys vfs.FS, path string, verify bool) (h *pagefile.Header, wrong []error, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("inspect %s: %w", path, err)
		}
	}()
	blob, err := dir.OpenFile(fsys, path, pagefile.Name{})
	if err != nil {
		return nil, nil, err
	}
	defer blob.Close()
	if !verify {
		h, err = pagefile.ReadHeader(ctx, blob)
		return h, nil, err
	}
	c, err := pagefile.NewChecker(nil)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	return c.CheckSections(ctx, blob)
}

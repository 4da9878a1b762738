package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// Roots are the directories of a store's tiers, with the pages of all fingerprints below them.
// Servers may use the directories at the same time.
type Roots struct {
	Local  *dir.Tier
	Remote *dir.Tier    // nil without a remote tier
	Log    *slog.Logger // nil discards
}

// tierRoot is one tier, with its name.
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

// Check checks every file below the roots, and reads pages from beginning to end,
// decompressing compressed sections. Servers may use the roots meanwhile. Check returns one
// result for each tier, and ctx's error.
func (r *Roots) Check(ctx context.Context, opt CheckOptions) ([]TierCheck, error) {
	if math.IsNaN(opt.Sample) || opt.Sample < 0 || opt.Sample > 1 {
		return nil, fmt.Errorf("check: sample is %v, want 0 to 1: %w", opt.Sample, ErrArguments)
	}
	roots := r.tiers()
	var checks []TierCheck
	for i, root := range roots {
		var other *dir.Tier
		if len(roots) > 1 {
			other = roots[1-i].t
		}
		check, err := checkTier(ctx, root.t, other, root.id, opt)
		checks = append(checks, check)
		if err != nil {
			return checks, err
		}
	}
	return checks, nil
}

// Find returns the pages and tails whose key begins with prefix, at least four lower-case hex
// digits, in order of key. Of a page in both tiers Find returns the local file, and of an exact and a
// lossy page with one key the exact one. When one tier
// does not answer and the other has such pages, Find logs the failure and returns these pages.
func (r *Roots) Find(ctx context.Context, prefix string) ([]PageFile, error) {
	f := finder{prefix: prefix, seen: make(map[pagefile.Name]bool)}
	if err := f.check(); err != nil {
		return nil, err
	}
	silent, err := r.eachRoot(func(root tierRoot) error { return f.find(ctx, root) })
	if err != nil || len(f.found) == 0 {
		return nil, errors.Join(err, silent)
	}
	r.goingOn(silent)
	return f.sorted(), nil
}

// Recent returns the last page of the most recently used conversation, among the fingerprints
// that pick accepts; nil accepts all. Of several conversations used within one minute Recent
// returns the longest. Recent returns tier.ErrNotFound without any conversation. When one tier does
// not answer and the other has a conversation, Recent logs the failure and returns that one.
func (r *Roots) Recent(ctx context.Context, pick func(fingerprint pagefile.Key) bool) (PageFile, error) {
	var newest time.Time
	var files []PageFile
	silent, err := r.eachRoot(func(root tierRoot) error {
		w := &dir.Walker{Ctx: ctx, T: root.t, Visit: func(e dir.Entry) error {
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
			info, err := root.t.Info(e.Name, e.Path, e.Info)
			if err == nil {
				files = append(files, PageFile{Info: info, Tier: root.id, Path: e.Path})
			}
			return err
		}}
		if err := w.Walk(); err != nil {
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
func (r *Roots) longest(ctx context.Context, files []PageFile) (PageFile, error) {
	best, end := PageFile{}, 0
	for _, f := range files {
		h, _, err := headerIn(ctx, r.tiers(), f.Name)
		if ctx.Err() != nil {
			return PageFile{}, ctx.Err()
		}
		if err == nil && int(h.Start)+len(h.Tokens) > end {
			best, end = f, int(h.Start)+len(h.Tokens)
		}
	}
	if end == 0 {
		return PageFile{}, fmt.Errorf("look for the last conversation: %w", tier.ErrNotFound)
	}
	return best, nil
}

// Chain returns a page and all pages before it in the sequence, the first page first. Chain
// returns tier.ErrNotFound when one of them is missing. A page before it is lossy where no tier has
// it exact.
func (r *Roots) Chain(ctx context.Context, name pagefile.Name) ([]PageFile, error) {
	return chainTo(ctx, r.tiers(), name)
}

// Manifest returns a fingerprint's manifest, from the first tier that has one.
func (r *Roots) Manifest(ctx context.Context, fingerprint pagefile.Key) (*tier.Manifest, error) {
	return manifestIn(ctx, r.tiers(), fingerprint)
}

// Export writes the pages of chain, a result of Chain, and their manifest to w as one archive
// for Import. Every byte is checked; after an error the written bytes are not an archive. Export
// returns ErrLossy for a chain with a lossy page, and has written nothing.
// progress is called with the bytes of each step.
func (r *Roots) Export(ctx context.Context, chain []PageFile, w io.Writer, progress func(bytes int64)) (*ArchiveManifest, error) {
	if len(chain) == 0 || len(chain) > maxArchivePages {
		return nil, fmt.Errorf("export %d pages, want 1 to %d: %w", len(chain), maxArchivePages, ErrArguments)
	}
	return exportChain(ctx, r.tiers(), chain, w, progress)
}

package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/vfs"
)

// Options configures Open. Local is required.
type Options struct {
	Local, Remote string // the roots of a store's tiers; "" is no tier

	// Timeout is how long one operation of a filesystem may take, such as a look at a
	// file, or reading 1 MiB of it. A root that takes longer is not waited for again:
	// what needs it fails with an error that names it, which NoAnswer reports, and the
	// other root is used where it is of use alone. 0 means any time.
	Timeout time.Duration

	FS     vfs.FS       // nil means the operating system's
	Logger *slog.Logger // nil discards
}

// Roots are the directories that hold a store's tiers, with the pages of all
// fingerprints below them. Servers may use them meanwhile.
type Roots struct {
	tiers []tierRoot // the local one first
	log   *slog.Logger
}

// Open looks whether the local root is safe. It makes nothing. It returns ErrArguments,
// the errors of dir.CheckRoot, or tier.ErrRootMissing. The remote root is looked at when
// it is used: one that hangs costs its time once.
func Open(ctx context.Context, opt Options) (*Roots, error) {
	if opt.Local == "" {
		return nil, fmt.Errorf("open root: no local root is named: %w", ErrArguments)
	}
	r := &Roots{log: opt.Logger}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	for _, root := range []tierRoot{{id: tier.Local, path: opt.Local}, {id: tier.Remote, path: opt.Remote}} {
		if root.path == "" {
			continue
		}
		path, err := filepath.Abs(root.path)
		if err != nil {
			return nil, fmt.Errorf("open root %s: %w", root.path, err)
		}
		root.t = dir.New(opt.FS, path, dir.Options{
			Shared: root.id == tier.Remote, Timeout: opt.Timeout, Log: r.log.With("tier", root.id, "root", path),
		})
		r.tiers = append(r.tiers, root)
	}
	local := r.tiers[0].t
	if err := local.Ready(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open root %s: %w", local.Root, err), r.Close())
	}
	return r, nil
}

// Close gives up what this process holds below the roots. A root that does not answer is
// no error here: what stays there is cleaned by the next process.
func (r *Roots) Close() error {
	var errs []error
	for _, root := range r.tiers {
		if err := root.t.Close(); !tier.NoAnswer(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// eachRoot calls look for every tier, and goes on when one does not answer. That
// is returned as silent, any other error as err.
func (r *Roots) eachRoot(look func(tierRoot) error) (silent, err error) {
	for _, root := range r.tiers {
		err := look(root)
		if tier.NoAnswer(err) {
			silent = errors.Join(silent, err)
		} else if err != nil {
			return silent, err
		}
	}
	return silent, nil
}

// goingOn says that the other tier was not looked at.
func (r *Roots) goingOn(silent error) {
	if silent != nil {
		r.log.Warn("kv tier does not answer, its pages are not looked at", "error", silent)
	}
}

// Check looks at everything below the roots, and reads the pages from beginning
// to end, decompressing what is compressed. Servers may use the roots meanwhile.
// It returns one result for each tier, and ctx's error.
func (r *Roots) Check(ctx context.Context, opt CheckOptions) ([]TierCheck, error) {
	if math.IsNaN(opt.Sample) || opt.Sample < 0 || opt.Sample > 1 {
		return nil, fmt.Errorf("check: sample is %v, want 0 to 1: %w", opt.Sample, ErrArguments)
	}
	roots := r.tiers
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

// Find returns the pages and tails whose key begins with prefix, at least four
// lower-case hex digits, in order of key. Of a page in both tiers it returns the
// local file. When one tier does not answer, and the other has such pages, it
// logs that and returns those.
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

// Recent returns the end of the conversation that was used last, among the
// fingerprints that pick accepts; nil accepts all. Of several conversations in
// that minute it is the longest. It returns ErrNotFound when there is none. When
// one tier does not answer, and the other has one, it logs that and returns it.
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
				files = dropOlder(files, newest.Add(-sameTime))
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

// sameTime is how far apart conversations were used that count as used together.
const sameTime = time.Minute

// dropOlder removes the files that were last used before a time.
func dropOlder(files []PageFile, before time.Time) []PageFile {
	kept := files[:0]
	for _, f := range files {
		if !f.Used.Before(before) {
			kept = append(kept, f)
		}
	}
	return kept
}

// longest returns the file that ends at the highest position.
func (r *Roots) longest(ctx context.Context, files []PageFile) (PageFile, error) {
	best, end := PageFile{}, 0
	for _, f := range files {
		h, _, err := headerIn(ctx, r.tiers, f.Name)
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

// Chain returns a page and all that come before it, the first one first. It
// returns ErrNotFound when one of them is missing.
func (r *Roots) Chain(ctx context.Context, name pagefile.Name) ([]PageFile, error) {
	return chainTo(ctx, r.tiers, name)
}

// Manifest returns a fingerprint's manifest, from the tier that has it.
func (r *Roots) Manifest(ctx context.Context, fingerprint pagefile.Key) (*tier.Manifest, error) {
	return manifestIn(ctx, r.tiers, fingerprint)
}

// Export writes the pages of chain, which Chain has returned, and their manifest
// to w as one archive, for Import. Every byte is checked; after an error what
// was written is no archive. progress is called with the bytes of each step.
func (r *Roots) Export(ctx context.Context, chain []PageFile, w io.Writer, progress func(bytes int64)) (*ArchiveManifest, error) {
	if len(chain) == 0 || len(chain) > maxArchivePages {
		return nil, fmt.Errorf("export %d pages, want 1 to %d: %w", len(chain), maxArchivePages, ErrArguments)
	}
	return exportChain(ctx, r.tiers, chain, w, progress)
}

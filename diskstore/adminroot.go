package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// tierRoots returns the root's tiers, the local one first. A tool may wait longer
// for a slow mount than a server, so that nothing is isolated here; what hangs
// ends with RootOptions.Timeout.
func (r *Root) tierRoots() []tierRoot {
	roots := []tierRoot{{TierLocal, r.s.local.(*dirTier)}}
	if r.s.remote != nil {
		roots = append(roots, tierRoot{TierRemote, r.s.remote.inner.(*dirTier)})
	}
	return roots
}

// eachRoot calls look for every tier, and goes on when one does not answer. That
// is returned as silent, any other error as err.
func (r *Root) eachRoot(look func(tierRoot) error) (silent, err error) {
	for _, root := range r.tierRoots() {
		err := look(root)
		if NoAnswer(err) {
			silent = errors.Join(silent, err)
		} else if err != nil {
			return silent, err
		}
	}
	return silent, nil
}

// goingOn says that what was found is of one tier alone.
func (r *Root) goingOn(silent error) {
	if silent != nil {
		r.s.log.Warn("kv tier does not answer, its pages are not looked at", "error", silent)
	}
}

// Check looks at everything below the roots, and reads the pages from beginning
// to end, decompressing what is compressed. Servers may use the roots meanwhile.
// It returns one result for each tier, and ctx's error.
func (r *Root) Check(ctx context.Context, opt CheckOptions) ([]TierCheck, error) {
	ctx, leave, err := r.s.life.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if math.IsNaN(opt.Sample) || opt.Sample < 0 || opt.Sample > 1 {
		return nil, fmt.Errorf("check: sample is %v, want 0 to 1: %w", opt.Sample, ErrOptions)
	}
	roots := r.tierRoots()
	var checks []TierCheck
	for i, root := range roots {
		var other *dirTier
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
func (r *Root) Find(ctx context.Context, prefix string) ([]PageFile, error) {
	ctx, leave, err := r.s.life.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	f := finder{prefix: prefix, seen: make(map[Name]bool)}
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
func (r *Root) Recent(ctx context.Context, pick func(fingerprint Key) bool) (PageFile, error) {
	ctx, leave, err := r.s.life.enter(ctx)
	if err != nil {
		return PageFile{}, err
	}
	defer leave()
	var newest time.Time
	var files []PageFile
	silent, err := r.eachRoot(func(root tierRoot) error {
		w := &walker{ctx: ctx, t: root.t, visit: func(e entry) error {
			if e.kind != entryPage || pick != nil && !pick(e.name.Fingerprint) {
				return nil
			}
			used := e.info.ModTime()
			if used.After(newest) {
				newest = used
				files = dropOlder(files, newest.Add(-touchEvery))
			}
			if used.Before(newest.Add(-touchEvery)) || len(files) == maxArchivePages {
				return nil
			}
			info, err := root.t.info(e.name, e.path, e.info)
			if err == nil {
				files = append(files, PageFile{Info: info, Tier: root.id, Path: e.path})
			}
			return err
		}}
		if err := w.walk(); err != nil {
			return fmt.Errorf("look for the last conversation in %s: %w", root.t.root, err)
		}
		return nil
	})
	if err != nil || len(files) == 0 && silent != nil {
		return PageFile{}, errors.Join(err, silent)
	}
	r.goingOn(silent)
	return r.longest(ctx, files)
}

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
func (r *Root) longest(ctx context.Context, files []PageFile) (PageFile, error) {
	best, end := PageFile{}, 0
	for _, f := range files {
		h, _, err := headerIn(ctx, r.tierRoots(), f.Name)
		if ctx.Err() != nil {
			return PageFile{}, ctx.Err()
		}
		if err == nil && int(h.Start)+len(h.Tokens) > end {
			best, end = f, int(h.Start)+len(h.Tokens)
		}
	}
	if end == 0 {
		return PageFile{}, fmt.Errorf("look for the last conversation: %w", ErrNotFound)
	}
	return best, nil
}

// Chain returns a page and all that come before it, the first one first. It
// returns ErrNotFound when one of them is missing.
func (r *Root) Chain(ctx context.Context, name Name) ([]PageFile, error) {
	ctx, leave, err := r.s.life.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return chainTo(ctx, r.tierRoots(), name)
}

// Manifest returns a fingerprint's manifest, from the tier that has it.
func (r *Root) Manifest(ctx context.Context, fingerprint Key) (*Manifest, error) {
	ctx, leave, err := r.s.life.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return manifestIn(ctx, r.tierRoots(), fingerprint)
}

// Export writes the pages of chain, which Chain has returned, and their manifest
// to w as one archive, for Import. Every byte is checked; after an error what
// was written is no archive. progress is called with the bytes of each step.
func (r *Root) Export(ctx context.Context, chain []PageFile, w io.Writer, progress func(bytes int64)) (*ArchiveManifest, error) {
	ctx, leave, err := r.s.life.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if len(chain) == 0 || len(chain) > maxArchivePages {
		return nil, fmt.Errorf("export %d pages, want 1 to %d: %w", len(chain), maxArchivePages, ErrOptions)
	}
	return exportChain(ctx, r.tierRoots(), chain, w, progress)
}

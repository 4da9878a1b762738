package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// QuarantineDrop is what DropQuarantined removed from one tier.
type QuarantineDrop struct {
	Tier  string
	Files int
	Bytes int64 // physical
}

// DropQuarantined removes the files in quarantine that are, or may be, pages of
// the fingerprints that picked accepts: a page that is damaged is a prompt all
// the same. A file whose header does not say whose it is may be anybody's. With
// dryRun it only counts. It returns what went, by tier, and the errors of either.
func (r *Root) DropQuarantined(ctx context.Context, picked func(fingerprint Key) bool, dryRun bool) ([]QuarantineDrop, error) {
	ctx, leave, err := r.s.life.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var drops []QuarantineDrop
	var errs []error
	for i, root := range r.tierRoots() {
		drop := QuarantineDrop{Tier: root.id}
		counts := r.s.books[i].counts()
		err := root.t.dropQuarantined(ctx, picked, dryRun, &drop)
		if !dryRun && err == nil {
			r.s.books[i].release(drop.Bytes, counts)
		}
		drops = append(drops, drop)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove what is in quarantine in %s: %w", root.t.root, err))
		}
	}
	return drops, errors.Join(errs...)
}

func (t *dirTier) dropQuarantined(ctx context.Context, picked func(fingerprint Key) bool, dryRun bool, drop *QuarantineDrop) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	dir := filepath.Join(t.base, quarantineDir)
	w := &walker{ctx: ctx, t: t, visit: func(e entry) error { return e.err }}
	err := w.each(dir, func(_, path string, info fs.FileInfo) error {
		if !info.Mode().IsRegular() || !t.mayBe(ctx, path, picked) {
			return nil
		}
		if !dryRun {
			err := t.fs.Remove(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // by somebody else
			}
			if err != nil {
				return err
			}
		}
		drop.Files++
		drop.Bytes += t.fs.PhysicalBytes(info)
		return nil
	})
	if err != nil || dryRun || drop.Files == 0 {
		return err
	}
	return t.fs.SyncDir(dir)
}

// mayBe reports whether a file may be a page of the fingerprints picked.
func (t *dirTier) mayBe(ctx context.Context, path string, picked func(fingerprint Key) bool) bool {
	blob, err := openFileBlob(t.fs, path, Name{})
	if err != nil {
		return true
	}
	defer blob.Close()
	h, err := readHeader(ctx, blob)
	return err != nil || picked(h.Fingerprint)
}

package diskstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// QuarantineDrop is the number of files and bytes that DropQuarantined removed from one tier.
type QuarantineDrop struct {
	Tier  string
	Files int
	Bytes int64 // physical
}

// errNoDirectory reports a tier whose quarantine cannot be looked through.
var errNoDirectory = errors.New("diskstore: the tier is not a directory, and keeps quarantined files by its own rules")

// DropQuarantined removes the files in quarantine that are, or may be, pages of the
// fingerprints that picked accepts: a damaged page contains a prompt as well. A file whose
// header names no fingerprint may belong to any. With dryRun, DropQuarantined only counts.
// DropQuarantined returns the removed files by tier, and the errors of both tiers. A RemoteTier
// that is not a directory is left alone, with an error.
func (r *Root) DropQuarantined(ctx context.Context, picked func(fingerprint pagefile.Key) bool, dryRun bool) ([]QuarantineDrop, error) {
	ctx, leave, err := r.s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var drops []QuarantineDrop
	var errs []error
	for _, lv := range r.s.tiers {
		root, counts := lv.root, lv.book.Counts()
		if root == nil {
			errs = append(errs, fmt.Errorf("remove files in quarantine in %s: %w", lv.where, errNoDirectory))
			continue
		}
		files, bytes, err := root.DropQuarantined(ctx, picked, dryRun)
		if !dryRun && err == nil {
			lv.book.Release(bytes, counts)
		}
		drops = append(drops, QuarantineDrop{Tier: lv.name, Files: files, Bytes: bytes})
		if err != nil {
			errs = append(errs, fmt.Errorf("remove files in quarantine in %s: %w", root.Root, err))
		}
	}
	return drops, errors.Join(errs...)
}

package diskstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Reclaimed counts the pages and bytes that Reclaim removed, over both tiers.
type Reclaimed struct {
	Fingerprints int
	Pages        int // full pages and tails
	Bytes        int64
}

// Reclaim removes all pages of the fingerprints that unwanted picks from found, a result of
// Survey. Pages of this store's own fingerprint, and lossy ones that stand for them, are never
// removed. A page that was stored or used since it was found stays.
//
// Reclaim returns the removed pages together with the first error of the local tier. A remote
// tier that cannot be reached is not an error.
func (s *Store) Reclaim(ctx context.Context, found Usage, unwanted func(FingerprintUsage) bool) (Reclaimed, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return Reclaimed{}, err
	}
	defer leave()
	var r Reclaimed
	var errs []error
	for _, lv := range s.tiers {
		use := found.Local
		if lv == s.remote {
			use = found.Remote
		}
		err := lv.reclaimTier(ctx, use.Others, unwanted, &r)
		if err != nil && lv == s.local {
			errs = append(errs, fmt.Errorf("reclaim pages in %s: %w", lv.where, err))
		}
	}
	return r, errors.Join(errs...)
}

func (lv *level) reclaimTier(ctx context.Context, uses []FingerprintUsage, unwanted func(FingerprintUsage) bool, r *Reclaimed) error {
	if len(uses) == 0 {
		return nil
	}
	now, err := lv.ageClock(ctx)
	if err != nil {
		return err
	}
	for _, use := range uses {
		if use.Unused, use.Tier = now.Sub(use.LastUsed), lv.name; !unwanted(use) {
			continue
		}
		found := purge{fingerprint: use.Fingerprint, reason: TombstoneUnused, before: use.LastUsed.Add(1), removed: func(info tier.Info) {
			r.Pages++
			r.Bytes += info.Physical
		}}
		all, err := lv.purge(ctx, found)
		if err != nil {
			return err
		}
		if all {
			r.Fingerprints++
		}
	}
	return nil
}

// purge selects the files of one fingerprint to delete, independent of budgets.
type purge struct {
	fingerprint pagefile.Key
	before      time.Time // only files last used earlier; zero for all
	dry         bool      // delete nothing
	reason      TombstoneReason
	removed     func(tier.Info)
}

// picks reports whether a file of the fingerprint is to be deleted.
func (p purge) picks(info tier.Info) bool {
	return p.before.IsZero() || info.Used.Before(p.before)
}

// purge deletes files from a tier, and the fingerprint's directory when no file is left. all
// reports that no file is left.
func (lv *level) purge(ctx context.Context, p purge) (all bool, err error) {
	gone := lv.files.NewRemoval()
	defer func() { gone.Record(ctx) }()
	removedPages := make(map[pagefile.Name]bool)
	defer func() { lv.branches.PruneOf(ctx, p.fingerprint, removedPages) }()
	all = true
	for info, err := range lv.filesOf(ctx, p.fingerprint) {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return false, err
		}
		if !p.picks(info) {
			all = false
			continue
		}
		if !p.dry {
			removed, err := lv.purgeFile(ctx, p, info)
			switch {
			case errors.Is(err, tier.ErrReplaced):
				all = false
				continue
			case err != nil:
				return false, fmt.Errorf("remove page %v: %w", info.Key, err)
			case removed.Bytes == 0:
				continue // removed by another process
			}
			gone.Add(removed)
			removedPages[removed.Name] = true
		}
		p.removed(info)
	}
	if p.dry || !all {
		return all, nil
	}
	clear(removedPages) // dropFingerprint removes all branches
	if left, err := lv.dropFingerprint(ctx, p.fingerprint); left || err != nil {
		return false, err
	}
	return true, lv.book.Forget(ctx, p.fingerprint)
}

// purgeFile deletes a file as Tier.Drop does, unless it has come into use.
func (lv *level) purgeFile(ctx context.Context, p purge, info tier.Info) (removed tier.Info, err error) {
	still := func(now tier.Info) bool { return now.Bytes == info.Bytes && p.picks(now) }
	removed, err = lv.files.DropIf(ctx, info, still)
	if errors.Is(err, tier.ErrReplaced) { // or another machine has touched the file, as seen only now
		removed, err = lv.files.DropIf(ctx, info, still)
	}
	if err == nil && removed.Bytes > 0 {
		lv.noteGone(removed, p.reason)
	}
	return removed, err
}

// dropFingerprint removes a fingerprint that has no file. left reports that a page has come
// meanwhile: its store may have seen the manifest before that was removed, and made a branch that
// was, so dropFingerprint puts both back.
func (lv *level) dropFingerprint(ctx context.Context, fingerprint pagefile.Key) (left bool, err error) {
	m, readErr := tier.ReadManifest(ctx, lv.tier, fingerprint)
	if _, err := lv.tier.Remove(ctx, tier.Info{Name: pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest}}); err != nil {
		return false, err
	}
	if err := lv.branches.Drop(ctx, fingerprint); err != nil {
		return false, err
	}
	if err := lv.tier.DropFolders(ctx, fingerprint); err != nil {
		return false, err
	}
	var files []tier.Info
	for info, ferr := range lv.filesOf(ctx, fingerprint) {
		if err = ferr; err == nil {
			files = append(files, info)
		}
	}
	if len(files) > 0 && readErr == nil {
		err = errors.Join(err, tier.WriteManifest(ctx, lv.tier, fingerprint, m))
	}
	for _, info := range files {
		if h, herr := tier.ReadHeader(ctx, lv.tier, info.Name); herr == nil {
			_, berr := lv.addBranch(ctx, h)
			err = errors.Join(err, berr)
		}
	}
	return len(files) > 0, err
}

// filesOf yields a tier's files of a fingerprint. An error comes last.
func (lv *level) filesOf(ctx context.Context, fingerprint pagefile.Key) iter.Seq2[tier.Info, error] {
	return func(yield func(tier.Info, error) bool) {
		_, shards, err := lv.tier.Survey(ctx)
		for _, shard := range shards {
			if err != nil || shard.Fingerprint != fingerprint {
				continue
			}
			var infos []tier.Info
			infos, err = lv.tier.ListShard(ctx, shard)
			for _, info := range infos {
				if !yield(info, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(tier.Info{}, err)
		}
	}
}

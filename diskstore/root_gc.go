package diskstore

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// rootUsage counts one root.
func (s *Store) rootUsage(ctx context.Context, id tierID) (RootTierUsage, error) {
	u := RootTierUsage{TierConfig: s.config(id)}
	var err error
	if u.Space, err = s.tier(id).Space(ctx); err != nil {
		return u, err
	}
	found, err := s.look(ctx, id)
	if err != nil {
		return u, err
	}
	if u.Fingerprints, err = s.identify(ctx, id, found); err != nil {
		return u, err
	}
	for _, use := range u.Fingerprints {
		u.Pages += use.Pages
		u.Tails += use.Tails
		u.Bytes += use.Bytes
	}
	u.TempFiles, u.TempBytes = found.aside.TempFiles, found.aside.TempBytes
	u.QuarantineFiles, u.QuarantineBytes = found.aside.QuarantineFiles, found.aside.QuarantineBytes
	u.Processes = len(found.aside.Living)
	l, err := s.books[id].Read(ctx)
	if err != nil {
		return u, err
	}
	for i := range u.Fingerprints {
		u.Fingerprints[i].Hits = l.Hits[u.Fingerprints[i].Fingerprint.String()]
	}
	u.Hits = l.AllHits()
	u.Written = l.Days()
	if l.Counts > 0 {
		u.Booked, u.Counted = l.Figure(), l.Counted
	}
	return u, nil
}

// look counts a tier's files without writing anything.
func (s *Store) look(ctx context.Context, id tierID) (*tally, error) {
	found := &tally{fingerprints: make(map[pagefile.Key]*FingerprintUsage)}
	if err := s.list(ctx, id, found.add); err != nil {
		return nil, err
	}
	var err error
	found.aside, err = s.tier(id).Aside(ctx)
	return found, err
}

// gcTier removes from one tier what opt says, and returns from how many
// fingerprints it removed everything.
func (s *Store) gcTier(ctx context.Context, id tierID, opt GCOptions) (fingerprints int, err error) {
	if err := s.books[id].Refresh(ctx); err != nil {
		return 0, err
	}
	switch {
	case !opt.budgetOnly():
		return s.gcPicked(ctx, id, opt)
	case opt.DryRun:
		return 0, s.gcRehearse(ctx, id)
	}
	return 0, s.collect(ctx, id, demand{})
}

// gcPicked deletes what opt picks, whatever the budgets.
func (s *Store) gcPicked(ctx context.Context, id tierID, opt GCOptions) (fingerprints int, err error) {
	found, err := s.look(ctx, id)
	if err != nil {
		return 0, err
	}
	uses, err := s.identify(ctx, id, found)
	if err != nil {
		return 0, err
	}
	p := purge{dry: opt.DryRun, removed: func(info tier.Info) { s.watch.removed(id, info, false) }}
	if opt.OlderThan > 0 {
		now := s.now()
		if !opt.DryRun { // which writes nothing to tell the time by
			if now, err = s.ageClock(ctx, id); err != nil {
				return 0, err
			}
		}
		p.before = now.Add(-opt.OlderThan)
	}
	for _, use := range uses {
		if opt.Fingerprints != nil && !opt.Fingerprints(use) {
			continue
		}
		p.fingerprint = use.Fingerprint
		all, err := s.purge(ctx, id, p)
		if err != nil {
			return fingerprints, err
		}
		if all {
			fingerprints++
		}
	}
	return fingerprints, nil
}

// gcRehearse reports what collect would evict, and evicts nothing.
func (s *Store) gcRehearse(ctx context.Context, id tierID) error {
	found, err := s.look(ctx, id)
	if err != nil {
		return err
	}
	l, err := s.books[id].Read(ctx)
	if err != nil {
		return err
	}
	s.books[id].Suppose(found.total() + l.Claimed())
	// By this machine's clock alone: nothing is written to tell the filesystem's by.
	over, before, err := s.shortage(ctx, id, demand{young: s.now().Add(-touchEvery)})
	if err != nil || over <= 0 {
		return err
	}
	pick := newVictims(over, before)
	if err := s.list(ctx, id, pick.add); err != nil {
		return err
	}
	for _, info := range pick.order(ctx, s, s.tier(id)) {
		if over <= 0 {
			break
		}
		over -= info.Physical
		s.watch.removed(id, info, id == tierLocal && s.guard != nil)
	}
	return nil
}

package branch

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Sweeper is the part of a tier that a Sweep needs.
type Sweeper interface {
	Lists
	tier.Finder
	RemoveBranch(ctx context.Context, branch tier.Branch) error
}

// Sweep removes branches whose pages have gone. It counts the pages and tails removed from a tier, by
// fingerprint: a page's branch does not go with the page, because the page's name does not tell the branch.
type Sweep struct {
	tier   Sweeper
	failed func(error)

	mu   sync.Mutex
	gone map[pagefile.Key]int

	sweeping sync.Mutex                   // held while next is used
	next     map[pagefile.Key]*sweepPlace // where the sweep of a fingerprint's branches goes on
}

// sweepPlace is a place among branches: at the prefixes that begin with first, after a branch.
type sweepPlace struct {
	first byte
	last  tier.Branch
}

func byPlace(a, b tier.Branch) int {
	return cmp.Or(slices.Compare(a.Prefix[:], b.Prefix[:]), cmp.Compare(a.Class, b.Class), slices.Compare(a.Key[:], b.Key[:]))
}

// NewSweep returns the sweep of a tier. failed is told errors of the tier.
func NewSweep(t Sweeper, failed func(error)) *Sweep {
	return &Sweep{tier: t, failed: failed, gone: make(map[pagefile.Key]int), next: make(map[pagefile.Key]*sweepPlace)}
}

// Removed counts a removed file.
func (s *Sweep) Removed(name pagefile.Name) {
	if name.Class == pagefile.ClassManifest {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[name.Fingerprint]++
}

// sweepShare is the number of branches that a sweep looks at for each page removed. With 3, a
// third of all branches, at most, has no page.
const sweepShare = 3

// Run removes branches without a page, in proportion to the pages removed since the
// last sweep. While another sweep runs, and after ctx has ended, the next one makes up for it.
func (s *Sweep) Run(ctx context.Context) {
	if ctx.Err() != nil || !s.sweeping.TryLock() {
		return
	}
	defer s.sweeping.Unlock()
	s.mu.Lock()
	removed := s.gone
	s.gone = make(map[pagefile.Key]int)
	s.mu.Unlock()
	for fingerprint, gone := range removed {
		left := sweepShare * gone
		for range 256 {
			if left = s.sweepFirst(ctx, fingerprint, left); left == 0 || ctx.Err() != nil {
				break
			}
		}
	}
}

// sweepFirst sweeps the branches whose prefixes begin with one byte, most branches at most, and
// returns the number of branches left to look at.
func (s *Sweep) sweepFirst(ctx context.Context, fingerprint pagefile.Key, most int) int {
	at := s.next[fingerprint]
	if at == nil {
		at = &sweepPlace{first: byte(rand.N(256))} // processes with short lives begin anywhere
		s.next[fingerprint] = at
	}
	branches, err := s.tier.Branches(ctx, fingerprint, []byte{at.first})
	if err != nil {
		s.failed(err)
		return 0
	}
	slices.SortFunc(branches, byPlace)
	for _, b := range branches {
		if b.Longer || byPlace(b, at.last) <= 0 {
			continue
		}
		if most == 0 || ctx.Err() != nil {
			return 0
		}
		s.Prune(ctx, b)
		at.last = b
		most--
	}
	*at = sweepPlace{first: at.first + 1}
	return most
}

// Prune removes a branch if its page is gone. A page that another process stores just then keeps its branch.
func (s *Sweep) Prune(ctx context.Context, b tier.Branch) {
	gone := func() bool {
		_, err := tier.Stat(ctx, s.tier, b.Name())
		return errors.Is(err, tier.ErrNotFound)
	}
	if gone() && s.tier.RemoveBranch(ctx, b) == nil && !gone() {
		s.failed(s.tier.AddBranch(ctx, b, b.Class == pagefile.ClassTail))
	}
}

// PruneOf removes the branches of removed pages and tails.
func (s *Sweep) PruneOf(ctx context.Context, fingerprint pagefile.Key, removed map[pagefile.Name]bool) {
	if len(removed) == 0 {
		return
	}
	for first := range 256 {
		branches, err := s.tier.Branches(ctx, fingerprint, []byte{byte(first)})
		s.failed(err)
		for _, b := range branches {
			if !b.Longer && removed[b.Name()] && ctx.Err() == nil {
				s.Prune(ctx, b)
			}
		}
	}
}

// Drop removes all branches of a fingerprint without pages. Branches of pages that another process has
// stored meanwhile stay, and the marks before them.
func (s *Sweep) Drop(ctx context.Context, fingerprint pagefile.Key) error {
	for first := range 256 {
		branches, err := s.tier.Branches(ctx, fingerprint, []byte{byte(first)})
		if err != nil {
			return err
		}
		slices.SortFunc(branches, marksLast)
		names := make([]pagefile.Name, len(branches)) // that of a mark is no file's
		for i, b := range branches {
			names[i] = b.Name()
		}
		pages, err := s.tier.Find(ctx, names, false)
		if err != nil {
			return err
		}
		used := make(map[pagefile.Key]bool) // prefixes with branches of pages
		for i, b := range branches {
			if used[b.Prefix] = used[b.Prefix] || pages[i].Found(); pages[i].Found() || b.Longer && used[b.Prefix] {
				continue
			}
			if err := s.tier.RemoveBranch(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// marksLast orders branches before the marks that there are longer ones.
func marksLast(a, b tier.Branch) int {
	switch {
	case a.Longer == b.Longer:
		return 0
	case a.Longer:
		return 1
	}
	return -1
}

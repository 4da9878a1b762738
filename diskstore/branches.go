package diskstore

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

// branchTries bounds the headers of one tier that a look-up reads to find the page that begins
// most like a prompt.
const branchTries = 16

// linkIn follows the storing of a page or tail in a tier.
func (lv *level) linkIn(ctx context.Context, h *pagefile.Header) {
	if h.Tail() {
		lv.trimTails(ctx, h)
	} else {
		lv.addBranch(ctx, h)
	}
}

// addBranch makes a stored page known to look-ups for text that begins like the page's. The next
// Put of the page retries a failure.
func (lv *level) addBranch(ctx context.Context, h *pagefile.Header) {
	leads, _ := pagefile.LeadsOf(h.Tokens, h.Media, h.PageTokens)
	lv.noteTierError(lv.tier.AddBranch(ctx, tier.Branch{Fingerprint: h.Fingerprint, Parent: h.Parent, Key: h.Key, Leads: leads}))
}

// candidate is a page that shares at most so many tokens with a prompt.
type candidate struct {
	tier.Branch
	most int
}

// findBranch returns the full page at a place that shares the longest prefix with rest, the
// tokens from there on, if the prefix is longer than best's, and best otherwise.
func (s *Store) findBranch(ctx, remoteCtx context.Context, at after, rest []int32, media []pagefile.Media, best Ref) Ref {
	for _, lv := range s.levels(tier.Local) {
		tierCtx := lv.lookupCtx(ctx, remoteCtx)
		candidates := lv.candidates(tierCtx, at, rest, media)
		for _, c := range candidates[:min(len(candidates), branchTries)] {
			if c.most <= best.Tokens || tierCtx.Err() != nil {
				break
			}
			if ref, ok := lv.matchBranch(tierCtx, c.Branch, at.start, rest, media); ok && ref.Tokens > best.Tokens {
				best = ref
			}
		}
	}
	return best
}

// candidates returns the pages at a place that may begin like rest, the most promising first.
func (lv *level) candidates(ctx context.Context, at after, rest []int32, media []pagefile.Media) []candidate {
	pageTokens := lv.s.opt.PageTokens
	branches, err := lv.tier.Branches(ctx, at.fingerprint, at.parent[:])
	lv.noteTierError(err)
	leads, parts := pagefile.LeadsOf(rest, media, pageTokens)
	candidates := make([]candidate, len(branches))
	for i, b := range branches {
		candidates[i] = candidate{b, min(b.Leads.Most(leads, parts, pageTokens), len(rest))}
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(b.most-a.most, slices.Compare(a.Key[:], b.Key[:]))
	})
	return slices.CompactFunc(candidates, func(a, b candidate) bool { return a.Key == b.Key })
}

// matchBranch compares one stored page with rest. A branch whose page is gone is removed.
func (lv *level) matchBranch(ctx context.Context, b tier.Branch, start int, rest []int32, media []pagefile.Media) (Ref, bool) {
	ref, err := lv.match(ctx, b.Name(), b.Parent, start, rest, media)
	if errors.Is(err, tier.ErrNotFound) {
		lv.s.promoting.Submit(b, func(ctx context.Context) { lv.pruneBranch(ctx, b) })
	}
	return ref, ref.Tokens > 0
}

// pruneBranch removes a branch if its page is gone. A page that another process stores just then
// keeps its branch.
func (lv *level) pruneBranch(ctx context.Context, b tier.Branch) {
	gone := func() bool {
		_, err := lv.tier.Stat(ctx, b.Name())
		return errors.Is(err, tier.ErrNotFound)
	}
	if gone() && lv.tier.RemoveBranch(ctx, b) == nil && !gone() {
		lv.noteTierError(lv.tier.AddBranch(ctx, b))
	}
}

// pruneBranchesOf removes the branches of removed pages.
func (lv *level) pruneBranchesOf(ctx context.Context, fingerprint pagefile.Key, removed map[pagefile.Key]bool) {
	if len(removed) == 0 {
		return
	}
	for first := range 256 {
		branches, err := lv.tier.Branches(ctx, fingerprint, []byte{byte(first)})
		lv.noteTierError(err)
		for _, b := range branches {
			if removed[b.Key] && ctx.Err() == nil {
				lv.pruneBranch(ctx, b)
			}
		}
	}
}

// branchSweep counts the pages removed from a tier, by fingerprint: a page's branch does not go
// with the page, because the page's name does not tell the branch.
type branchSweep struct {
	mu   sync.Mutex
	gone map[pagefile.Key]int

	sweeping sync.Mutex                   // held while next is used
	next     map[pagefile.Key]*sweepPlace // where the sweep of a fingerprint's branches goes on
}

// sweepPlace is a place among branches: at the parents that begin with first, after the branch
// to key.
type sweepPlace struct {
	first byte
	key   pagefile.Key
}

func newBranchSweep() *branchSweep {
	return &branchSweep{gone: make(map[pagefile.Key]int), next: make(map[pagefile.Key]*sweepPlace)}
}

// place returns where the sweep of a fingerprint's branches goes on.
func (b *branchSweep) place(fingerprint pagefile.Key) *sweepPlace {
	at := b.next[fingerprint]
	if at == nil {
		at = &sweepPlace{first: byte(rand.N(256))} // processes with short lives begin anywhere
		b.next[fingerprint] = at
	}
	return at
}

// removed counts a removed file.
func (b *branchSweep) removed(name pagefile.Name) {
	if name.Class != pagefile.ClassPage {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone[name.Fingerprint]++
}

// take returns the counts, and begins new ones.
func (b *branchSweep) take() map[pagefile.Key]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	gone := b.gone
	b.gone = make(map[pagefile.Key]int)
	return gone
}

// sweepShare is the number of branches that a sweep looks at for each page removed. With 3, a
// third of all branches, at most, has no page.
const sweepShare = 3

// sweepBranches removes branches without a page, in proportion to the pages removed since the
// last sweep. While another sweep runs, and after ctx has ended, the next one makes up for it.
func (lv *level) sweepBranches(ctx context.Context) {
	if ctx.Err() != nil || !lv.branches.sweeping.TryLock() {
		return
	}
	defer lv.branches.sweeping.Unlock()
	for fingerprint, gone := range lv.branches.take() {
		left := sweepShare * gone
		for range 256 {
			if left = lv.sweepFirst(ctx, fingerprint, left); left == 0 || ctx.Err() != nil {
				break
			}
		}
	}
}

// sweepFirst sweeps the branches whose parents begin with one byte, most branches at most, and
// returns the number of branches left to look at.
func (lv *level) sweepFirst(ctx context.Context, fingerprint pagefile.Key, most int) int {
	at := lv.branches.place(fingerprint)
	branches, err := lv.tier.Branches(ctx, fingerprint, []byte{at.first})
	lv.noteTierError(err)
	slices.SortFunc(branches, func(a, b tier.Branch) int { return slices.Compare(a.Key[:], b.Key[:]) })
	for _, b := range branches {
		if slices.Compare(b.Key[:], at.key[:]) <= 0 {
			continue
		}
		if most == 0 || ctx.Err() != nil {
			return 0
		}
		lv.pruneBranch(ctx, b)
		at.key = b.Key
		most--
	}
	*at = sweepPlace{first: at.first + 1}
	return most
}

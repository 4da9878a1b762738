package diskstore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// branchTries bounds the headers of one tier that a look-up reads to find the page that begins
	// most like a prompt.
	branchTries = 16

	// goneTries bounds the branches to pages that have gone that a look-up meets besides.
	goneTries = 64

	// wholeTries is the number of tails of one tier and place that a search for a state reads.
	wholeTries = 32

	// ramTails is the number of tails of one parent that are kept in memory.
	ramTails = 16
)

// linkIn follows the storing of a page or tail in a tier: look-ups for text that begins like it
// find it, and the tails that it extends go.
func (lv *level) linkIn(ctx context.Context, h *pagefile.Header) error {
	met, err := lv.addBranch(ctx, h)
	if err == nil && h.Tail() {
		lv.dropExtended(ctx, h, met)
	}
	return err
}

// addBranch makes a stored page or tail known to look-ups, and returns those that begin like it.
// Without its branch a tail is not found, so the branch is as durable as the tail, and its error
// that of a tail. The next Put of a page retries a failure.
func (lv *level) addBranch(ctx context.Context, h *pagefile.Header) ([]branch.Candidate, error) {
	if !lv.far {
		ctx = context.WithoutCancel(ctx) // a visible page is stored, even if the caller has left
	}
	met, err := branch.Add(ctx, lv.tier, h, h.Tail())
	if !h.Tail() {
		lv.noteTierError(err)
		err = nil
	}
	return met, err
}

// findLast returns the tail or page of a tier that shares the longest prefix with the tokens at a
// place, and best if none is better: shares more, or as much in a shorter file.
func (lv *level) findLast(ctx context.Context, at after, best Ref) Ref {
	found, err := branch.Find(ctx, lv.tier, at.Prompt)
	lv.noteTierError(err)
	// First the longest whole tail, which surely shares all of its tokens.
	if i := slices.IndexFunc(found, branch.Candidate.Whole); i > 0 {
		whole := found[i]
		found = slices.Insert(slices.Delete(found, i, i+1), 0, whole)
	}
	tries, gone := 0, 0
	for _, c := range found {
		if tries == branchTries || gone == goneTries || ctx.Err() != nil {
			break
		}
		if c.Most < best.Tokens || c.Most == best.Tokens && c.Tokens >= best.Stored {
			continue
		}
		ref, err := lv.match(ctx, c.Name(), at)
		if errors.Is(err, tier.ErrNotFound) {
			gone++
			lv.behind.Submit(c.Branch, func(ctx context.Context) { lv.branches.Prune(ctx, c.Branch) })
			continue
		}
		tries++
		best = better(best, ref)
	}
	return best
}

// better returns ref if it shares more tokens than best, or as many in a shorter file.
func better(best, ref Ref) Ref {
	if ref.Tokens > best.Tokens || ref.Tokens > 0 && ref.Tokens == best.Tokens && ref.Stored < best.Stored {
		return ref
	}
	return best
}

// tailsWithin returns the exact tails at a place whose tokens and media are all in the prompt, the
// longest first. Tails that cannot be read are left out, and all but the longest wholeTries of each tier.
func (f *lookup) tailsWithin(ctx context.Context, at after) []Ref {
	remoteCtx, cancel := context.WithTimeout(ctx, f.remoteTimeout)
	defer cancel()
	var refs []Ref
	for _, lv := range f.tiers {
		tierCtx := lv.lookupCtx(ctx, remoteCtx)
		for _, name := range lv.wholeTails(tierCtx, at) {
			known := slices.ContainsFunc(refs, func(r Ref) bool { return r.Key == name.Key })
			if known || tierCtx.Err() != nil {
				continue
			}
			if ref, _ := lv.match(tierCtx, name, at); ref.Tokens > 0 && ref.Tokens == ref.Stored {
				refs = append(refs, ref)
			}
		}
	}
	slices.SortStableFunc(refs, func(a, b Ref) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return refs
}

// wholeTails returns the tails at a place with which the tokens there may begin, the longest first, wholeTries
// at most.
func (lv *level) wholeTails(ctx context.Context, at after) (names []pagefile.Name) {
	found, err := branch.Find(ctx, lv.tier, at.Prompt)
	lv.noteTierError(err)
	for _, c := range found {
		if c.MayBeWhole() && c.Class == pagefile.ClassTail && len(names) < wholeTries {
			names = append(names, c.Name())
		}
	}
	return names
}

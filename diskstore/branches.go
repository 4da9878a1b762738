package diskstore

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

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

	// wholeTries is the number of tails of one tier that TailsWithin reads.
	wholeTries = 32

	// ramTails is the number of tails of one parent that are kept in memory.
	ramTails = 16

	// adoptAtOnce is the number of old branches that a background job lists and adopts.
	adoptAtOnce = 4096

	// adoptAgain is the time before a failed adoption is tried again.
	adoptAgain = time.Minute
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
	met, err := branch.Add(ctx, lv.tier, h, h.Tail() && !lv.lazyNames)
	if !h.Tail() {
		lv.noteTierError(err)
		err = nil
	}
	return met, err
}

// findLast returns the tail or page of a tier that shares the longest prefix with rest, the tokens
// from a place on, and best if none is better: shares more, or as much in a shorter file.
func (lv *level) findLast(ctx context.Context, at after, rest []int32, media []pagefile.Media, best Ref) Ref {
	lv.adoptOld(at.fingerprint)
	found, err := branch.Find(ctx, lv.tier, lv.prompt(at, rest, media))
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
		ref, err := lv.match(ctx, c.Name(), at.parent, at.start, rest, media)
		if errors.Is(err, tier.ErrNotFound) {
			gone++
			lv.behind.Submit(c.Branch, func(ctx context.Context) { lv.pruneBranch(ctx, c.Branch) })
			continue
		}
		tries++
		best = better(best, ref)
	}
	for _, info := range lv.oldTails(ctx, at.fingerprint, at.parent) {
		ref, _ := lv.match(ctx, info.Name, at.parent, at.start, rest, media)
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

// prompt describes the tokens from a place on for a look-up.
func (lv *level) prompt(at after, rest []int32, media []pagefile.Media) branch.Prompt {
	return branch.Prompt{Fingerprint: at.fingerprint, Parent: at.parent, Tokens: rest, Media: media, PageTokens: lv.pageTokens}
}

// wholeTails returns the tails at a place with which rest may begin, the longest first, wholeTries
// at most, and after them tails of earlier versions, which may be any.
func (lv *level) wholeTails(ctx context.Context, at after, rest []int32, media []pagefile.Media) (names []pagefile.Name) {
	found, err := branch.Find(ctx, lv.tier, lv.prompt(at, rest, media))
	lv.noteTierError(err)
	for _, c := range found {
		if c.MayBeWhole() && c.Class == pagefile.ClassTail && len(names) < wholeTries {
			names = append(names, c.Name())
		}
	}
	for _, info := range lv.oldTails(ctx, at.fingerprint, at.parent) {
		names = append(names, info.Name)
	}
	return names
}

// oldTails returns the tails of parent that an earlier version stored, 16 in each tier.
func (lv *level) oldTails(ctx context.Context, fingerprint, parent pagefile.Key) []tier.Info {
	older, ok := lv.tier.(tier.Older)
	if !ok || ctx.Err() != nil {
		return nil
	}
	infos, err := older.OldTails(ctx, fingerprint, parent)
	lv.noteTierError(err)
	return infos
}

// adoptOld gives the pages that an earlier version stored branches of this one, in the background.
// After an error a look-up tries again, adoptAgain later at the earliest.
func (lv *level) adoptOld(fingerprint pagefile.Key) {
	older, ok := lv.tier.(tier.Older)
	if !ok || !lv.answers() {
		return
	}
	now := lv.now()
	if failed, begun := lv.adopted.LoadOrStore(fingerprint, time.Time{}); begun {
		at := failed.(time.Time) // zero while a job runs, and after the last one
		if at.IsZero() || now.Sub(at) < adoptAgain || !lv.adopted.CompareAndSwap(fingerprint, at, time.Time{}) {
			return
		}
	}
	type adoptJob struct {
		of          *level
		fingerprint pagefile.Key
	}
	var next func(ctx context.Context)
	next = func(ctx context.Context) {
		old, err := older.OldBranches(ctx, fingerprint, adoptAtOnce)
		adopted := 0
		for _, b := range old {
			if ctx.Err() != nil {
				break
			}
			if aerr := lv.adopt(ctx, older, b); aerr != nil {
				err = aerr
				continue
			}
			adopted++
		}
		lv.noteTierError(err)
		if err != nil {
			lv.adopted.Store(fingerprint, lv.now())
		}
		if adopted > 0 && adopted == len(old) {
			lv.behind.Submit(adoptJob{lv, fingerprint}, next)
		}
	}
	lv.behind.Submit(adoptJob{lv, fingerprint}, next)
}

// adopt replaces an old branch. That of a page that is gone or damaged is removed.
func (lv *level) adopt(ctx context.Context, older tier.Older, b tier.OldBranch) error {
	h, err := tier.ReadHeader(ctx, lv.tier, b.Name())
	if err == nil {
		_, err = branch.Add(ctx, lv.tier, h, false)
	} else if errors.Is(err, tier.ErrNotFound) || tier.Doubtful(err) {
		err = nil
	}
	if err != nil {
		return err
	}
	return older.RemoveOldBranch(ctx, b)
}

// pruneBranch removes a branch if its page is gone. A page that another process stores just then
// keeps its branch.
func (lv *level) pruneBranch(ctx context.Context, b tier.Branch) {
	gone := func() bool {
		_, err := lv.tier.Stat(ctx, b.Name())
		return errors.Is(err, tier.ErrNotFound)
	}
	if gone() && lv.tier.RemoveBranch(ctx, b) == nil && !gone() {
		lv.noteTierError(lv.tier.AddBranch(ctx, b, b.Class == pagefile.ClassTail))
	}
}

// pruneBranchesOf removes the branches of removed pages and tails.
func (lv *level) pruneBranchesOf(ctx context.Context, fingerprint pagefile.Key, removed map[pagefile.Name]bool) {
	if len(removed) == 0 {
		return
	}
	for first := range 256 {
		branches, err := lv.tier.ListBranches(ctx, fingerprint, byte(first))
		lv.noteTierError(err)
		for _, b := range branches {
			if removed[b.Name()] && ctx.Err() == nil {
				lv.pruneBranch(ctx, b)
			}
		}
	}
}

// branchSweep counts the pages and tails removed from a tier, by fingerprint: a page's branch does
// not go with the page, because the page's name does not tell the branch.
type branchSweep struct {
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

// byPlace orders the branches of a sweep.
func byPlace(a, b tier.Branch) int {
	return cmp.Or(slices.Compare(a.Prefix[:], b.Prefix[:]), cmp.Compare(a.Class, b.Class), slices.Compare(a.Key[:], b.Key[:]))
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
	if name.Class == pagefile.ClassManifest {
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

// sweepFirst sweeps the branches whose prefixes begin with one byte, most branches at most, and
// returns the number of branches left to look at.
func (lv *level) sweepFirst(ctx context.Context, fingerprint pagefile.Key, most int) int {
	at := lv.branches.place(fingerprint)
	branches, err := lv.tier.ListBranches(ctx, fingerprint, at.first)
	if err != nil {
		lv.noteTierError(err)
		return 0
	}
	slices.SortFunc(branches, byPlace)
	for _, b := range branches {
		if byPlace(b, at.last) <= 0 {
			continue
		}
		if most == 0 || ctx.Err() != nil {
			return 0
		}
		lv.pruneBranch(ctx, b)
		at.last = b
		most--
	}
	*at = sweepPlace{first: at.first + 1}
	return most
}

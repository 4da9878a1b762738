package diskstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// pageFinder returns the leading pages of names that some tier holds, and the error with which the
// remote tier ended the search.
type pageFinder func(ctx context.Context, names []pagefile.Name, parent pagefile.Key, start int) ([]Ref, error)

// chain looks a prompt up: full pages with find, then the last page or tail among the pages of some
// fingerprints, of which the first has the exact pages.
func (f *lookup) chain(ctx context.Context, p Prompt, find pageFinder, fingerprints ...pagefile.Key) []Ref {
	refs, err := find(ctx, f.chainNames(p), p.Parent, p.Start)
	remoteCtx, cancel := context.WithTimeout(ctx, f.remoteTimeout)
	defer cancel()
	if err != nil {
		cancel() // the remote tier has had its time
	}
	p = p.behind(refs)
	at := f.after(p, p.Parent, p.Start)
	var last Ref
	for _, at.Fingerprint = range fingerprints {
		last = f.findLast(ctx, remoteCtx, at, last)
	}
	if last.Tokens > 0 {
		refs = append(refs, last)
	}
	return refs
}

// chainNames computes the names of all full pages of a prompt.
func (f *lookup) chainNames(p Prompt) []pagefile.Name {
	size, parent := f.pageTokens, p.Parent
	names := make([]pagefile.Name, 0, len(p.Tokens)/size)
	for at := 0; at+size <= len(p.Tokens); at += size {
		parent = pagefile.ChainKey(parent, p.Tokens[at:at+size], pagefile.MediaWithin(p.Media, p.Start+at, size))
		names = append(names, f.pages.Page(parent))
	}
	return names
}

func (f *lookup) findPages(ctx context.Context, names []pagefile.Name, parent pagefile.Key, start int) ([]Ref, error) {
	found := make([]sighting, 0, len(names))
	var missing []pagefile.Name // from memory and the local tier, in order
	for _, name := range names {
		at := f.sight(ctx, name)
		if at.from == nil {
			if f.remote == nil {
				break
			}
			missing = append(missing, name)
		}
		found = append(found, at)
	}
	var remote []tier.Info
	var failed error // the tier counts errors; pages found before an error are good
	if len(missing) > 0 {
		remote, failed = tier.Leading(ctx, f.below, missing)
	}
	refs := f.newRefs(parent, start)
	for _, at := range found {
		if at.from == nil {
			if len(remote) == 0 || f.remote.checked.Bad.IsBad(remote[0]) {
				break
			}
			at.info, at.from, remote = remote[0], f.remote, remote[1:]
		}
		refs.add(at.info, at.from, at.inRAM)
	}
	return refs.refs, failed
}

// chainRefs are the pages of a chain in order, as a look-up finds them.
type chainRefs struct {
	of   *lookup
	refs []Ref

	parent  pagefile.Key
	start   uint32    // of the next page
	at, now time.Time // at is the last use of the chain up to the page before
}

func (f *lookup) newRefs(parent pagefile.Key, start int) *chainRefs {
	now := f.now()
	return &chainRefs{of: f, parent: parent, start: uint32(start), at: now, now: now}
}

// add adds the file of the next page, which is in tier from. inRAM tells that the page is in memory
// and no check of the file is due.
func (c *chainRefs) add(info tier.Info, from *level, inRAM bool) {
	f := c.of
	used := recency.Used(info.Used, c.start)
	if from.fresh(used, c.now) && used.Before(c.at) {
		c.at = used
	}
	l := recency.Link{Place: recency.Place{Parent: c.parent, Start: c.start}}
	if !from.far {
		l.Used = used
	}
	f.chains.Note(info.Key, l)
	name := from.name
	if inRAM || f.ram.Confirm(ram.File{Info: info, Tier: from.name}) {
		name = tier.RAM
	}
	c.refs = append(c.refs, Ref{
		Key: info.Key, Parent: c.parent, Start: c.start, Lossy: info.Fingerprint == f.pages.Lossy,
		Tokens: f.pageTokens, Stored: f.pageTokens,
		Tier: name, Bytes: info.Bytes, used: info.Used.UnixNano(), at: c.at.UnixNano(),
	})
	c.parent, c.start = info.Key, c.start+uint32(f.pageTokens)
}

// after is the place behind the pages of a chain, and the tokens of a prompt there: a page at most.
type after struct {
	branch.Prompt     // among the pages of a fingerprint
	start         int // position
}

// after returns the place behind the page parent, before position start, in the exact pages.
func (f *lookup) after(p Prompt, parent pagefile.Key, start int) after {
	rest := p.Tokens[start-p.Start:]
	rest = rest[:min(len(rest), f.pageTokens)]
	return after{branch.Prompt{
		Fingerprint: f.pages.Exact, Parent: parent, Tokens: rest, Media: pagefile.MediaWithin(p.Media, start, len(rest)), PageTokens: f.pageTokens,
	}, start}
}

// findLast returns the tail or page at a place that shares the longest prefix with the tokens there, if the
// prefix is longer than best's, and best otherwise. Of equally long prefixes findLast prefers that of the
// shortest file, which is a tail's, then that in memory, then that of the local tier.
func (f *lookup) findLast(ctx, remoteCtx context.Context, at after, best Ref) Ref {
	most := min(len(at.Tokens), f.pageTokens-1)
	if best.Tokens >= most {
		return best
	}
	found := f.ram.tail(remoteCtx, at)
	for _, lv := range f.tiers {
		if found.Tokens < most { // else no longer prefix can exist
			found = lv.findLast(lv.lookupCtx(ctx, remoteCtx), at, found)
		}
	}
	if found.Tokens > best.Tokens {
		return found
	}
	return best
}

// lookupCtx returns the one of two contexts that bounds look-ups in a tier.
func (lv *level) lookupCtx(ctx, remoteCtx context.Context) context.Context {
	if lv.far {
		return remoteCtx
	}
	return ctx
}

// match compares a stored page or tail with the tokens at a place. Ref.Tokens is the number of
// leading tokens that they share, and 0 after an error.
func (lv *level) match(ctx context.Context, name pagefile.Name, at after) (Ref, error) {
	h, info, err := lv.checked.Header(ctx, name)
	if err != nil {
		return Ref{}, err
	}
	if lv.pages.CheckPlace(h, name) != nil || h.PageTokens != lv.pageTokens || h.Parent != at.Parent || int64(h.Start) != int64(at.start) {
		return Ref{}, nil
	}
	return Ref{
		Key: name.Key, Parent: at.Parent, Start: h.Start, Lossy: h.Lossy(),
		Tokens: pagefile.CommonPrefix(h.Tokens, h.Media, at.Tokens, at.Media), Stored: len(h.Tokens), Tail: h.Tail(), Media: h.Media,
		Tier: lv.name, Bytes: info.Bytes, state: h.Layout.HasState(), used: info.Used.UnixNano(),
	}, nil
}

// noteTierError counts an error of the local tier unless a file is just missing; the remote tier counts
// its own errors.
func (lv *level) noteTierError(err error) {
	if !lv.far && err != nil && !errors.Is(err, tier.ErrNotFound) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		lv.failures.Add(1)
		lv.counts.failed.Add(1)
	}
}

const (
	// mixedRound is the number of pages for which findMixed asks the remote tier at first, and in
	// how many more each time, up to mixedRoundMost: most prompts are stored no further than that.
	mixedRound     = 8
	mixedRoundMost = 3 * mixedRound
)

func (f *lookup) findMixed(ctx context.Context, names []pagefile.Name, parent pagefile.Key, start int) ([]Ref, error) {
	refs := f.newRefs(parent, start)
	var failed error
	for size := mixedRound; len(names) > 0; size = min(size+mixedRound, mixedRoundMost) {
		round := names[:min(len(names), size)]
		names = names[len(round):]
		found := make([]sighting, len(round))
		for i, name := range round {
			found[i] = f.sight(ctx, name, pagefile.ColdName(name))
		}
		if f.remote != nil && failed == nil {
			failed = f.sightBelow(ctx, round, found)
		}
		for _, at := range found {
			if at.from == nil {
				return refs.refs, failed
			}
			refs.add(at.info, at.from, at.inRAM)
		}
	}
	return refs.refs, failed
}

// sighting is the file of a page that a look-up found; from is nil for none.
type sighting struct {
	info  tier.Info
	from  *level
	inRAM bool // the page is in memory, and no check of its file is due
}

// sight looks in memory and in the local tier for the first of some names.
func (f *lookup) sight(ctx context.Context, names ...pagefile.Name) sighting {
	for i, name := range names {
		if i > 0 && ctx.Err() != nil {
			break // nothing is known of the names before on disk
		}
		if file, fresh := f.ram.Fresh(name); fresh {
			return sighting{file.Info, f.tiers.named(file.Tier), true}
		}
		info, err := tier.Stat(ctx, f.local.tier, name)
		if err == nil && !f.local.checked.Bad.IsBad(info) {
			return sighting{info, f.local, false}
		}
		f.local.noteTierError(err)
	}
	return sighting{}
}

// sightBelow looks in the remote tier for better files than those found: for each page that was not
// found exact, for the exact one, and for each that was not found, for the lossy one.
func (f *lookup) sightBelow(ctx context.Context, names []pagefile.Name, found []sighting) error {
	var ask []pagefile.Name
	var of []int // indexes in found
	for i, name := range names {
		if at := found[i]; at.from == nil {
			ask, of = append(ask, name, pagefile.ColdName(name)), append(of, i, i)
		} else if at.info.Name != name {
			ask, of = append(ask, name), append(of, i)
		}
	}
	infos, err := f.below.Find(ctx, ask, false)
	for j, info := range infos {
		at := &found[of[j]]
		exact := info.Name == names[of[j]]
		if info.Bytes == 0 || f.remote.checked.Bad.IsBad(info) || at.from != nil && !exact {
			continue
		}
		*at = sighting{info, f.remote, false}
	}
	return err
}

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

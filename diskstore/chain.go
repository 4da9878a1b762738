package diskstore

import (
	"context"
	"errors"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
)

// Ref is a stored page that Chain found. The page may be evicted at any time: Read then
// returns tier.ErrNotFound.
type Ref struct {
	Key    pagefile.Key
	Parent pagefile.Key
	Start  uint32 // position of the page's first token
	Tokens int    // usable rows: of the last page of a chain the prefix that it shares with the prompt
	Stored int    // tokens in the file; Read expects a Layout of as many tokens
	Tail   bool   // a tail, not a full page
	Lossy  bool   // the page's rows are not those that were put; only ChainLossy finds such a page
	Tier   string // RAM, Local or Remote: the tier in which the page was found
	Bytes  int64  // size of the file

	// Media are those of the last page of a chain and of a tail, as stored; offsets count from Start.
	Media []pagefile.Media

	// Ahead is set by a caller that reads the page before a request wants it: the page does not
	// count as used.
	Ahead bool

	old  bool  // a tail of an earlier version, in its place
	used int64 // recency when found, in Unix nanoseconds
	at   int64 // the last use of the chain, if the page is read; 0 for the time of reading
}

// name returns the page's name in every tier.
func (r Ref) name(of *names.Pages) pagefile.Name {
	name := of.Page(r.Key)
	if r.Tail {
		name = of.Tail(r.Key)
	}
	if r.old {
		name.Parent = r.Parent
	}
	if r.Lossy {
		name.Fingerprint = of.Lossy
	}
	return name
}

// place is the place of the page in its chain.
func (r Ref) place() recency.Place { return recency.Place{Parent: r.Parent, Start: r.Start} }

// Whole reports whether the page is a full one whose rows can all be used.
func (r Ref) Whole() bool { return !r.Tail && r.Tokens == r.Stored }

// Chain returns the longest stored chain of pages for a sequence that begins with tokens: full
// pages from position 0 on, then the page or tail after the last of them that shares the longest
// prefix with the remaining tokens. Offsets of media count from position 0.
//
// Chain never fails: an error ends the chain. A remote tier that does not answer adds at most
// Options.RemoteTimeout; one that does may add as much again for each batch of pages that it
// finds, and for the last one. Returned pages may be gone before they are read.
func (s *Store) Chain(ctx context.Context, tokens []int32, media []pagefile.Media) []Ref {
	return s.ChainFrom(ctx, s.opt.Fingerprint, 0, tokens, media)
}

// ChainFrom does as Chain, for a caller that already has the pages before position start.
// parent is the key of the last of these pages (the fingerprint when start is 0), start is a
// multiple of Options.PageTokens, and tokens are the tokens from start on. Offsets of media
// still count from position 0; media before start is ignored.
func (s *Store) ChainFrom(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []Ref {
	refs := s.find.chain(ctx, parent, start, tokens, media, s.find.findPages, s.opt.Fingerprint)
	if len(refs) == 0 {
		s.counts.misses.Add(1)
	}
	return refs
}

// lookup finds the pages of prompts.
type lookup struct {
	pages         *names.Pages
	pageTokens    int
	local, remote *level        // remote is nil without a remote tier
	tiers         levels        // both
	below         *guard.Tier   // the remote tier; nil without one
	remoteTimeout time.Duration // Options.RemoteTimeout
	ram           *memory
	chains        *recency.Chains
	now           func() time.Time
	life          *work.Life
}

// pageFinder returns the leading pages of names that some tier holds, and the error with which the
// remote tier ended the search.
type pageFinder func(ctx context.Context, names []pagefile.Name, parent pagefile.Key, start int) ([]Ref, error)

// chain looks a sequence up: full pages with find, then the last page or tail among the pages of
// some fingerprints, of which the first has the exact pages.
func (f *lookup) chain(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media, find pageFinder, fingerprints ...pagefile.Key) []Ref {
	if start < 0 || start%f.pageTokens != 0 {
		return nil
	}
	ctx, leave, err := f.life.Enter(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	names := f.chainNames(parent, start, tokens, media)
	refs, err := find(ctx, names, parent, start)
	remoteCtx, cancel := context.WithTimeout(ctx, f.remoteTimeout)
	defer cancel()
	if err != nil {
		cancel() // the remote tier has had its time
	}
	if n := len(refs); n > 0 {
		parent = refs[n-1].Key
	}
	done := len(refs) * f.pageTokens
	rest := tokens[done:]
	rest = rest[:min(len(rest), f.pageTokens)]
	restMedia := pagefile.MediaWithin(media, start+done, len(rest))
	var last Ref
	for _, fingerprint := range fingerprints {
		last = f.findLast(ctx, remoteCtx, after{fingerprint, parent, start + done}, rest, restMedia, last)
	}
	if last.Tokens > 0 {
		refs = append(refs, last)
	}
	return refs
}

// chainNames computes the names of all full pages of tokens.
func (f *lookup) chainNames(parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []pagefile.Name {
	pageTokens := f.pageTokens
	names := make([]pagefile.Name, 0, len(tokens)/pageTokens)
	for at := 0; at+pageTokens <= len(tokens); at += pageTokens {
		parent = pagefile.ChainKey(parent, tokens[at:at+pageTokens], pagefile.MediaWithin(media, start+at, pageTokens))
		names = append(names, f.pages.Page(parent))
	}
	return names
}

// findPages is a pageFinder of exact pages.
func (f *lookup) findPages(ctx context.Context, names []pagefile.Name, parent pagefile.Key, start int) ([]Ref, error) {
	found := make([]tier.Info, 0, len(names))
	from := make([]*level, len(names)) // the tier that has the file
	inRAM := make([]bool, len(names))  // and no check of the file is due
	var missing []pagefile.Name        // from the local tier, in order
	for _, name := range names {
		if file, fresh := f.ram.Fresh(name); fresh {
			from[len(found)], inRAM[len(found)] = f.tiers.named(file.Tier), true
			found = append(found, file.Info)
			continue
		}
		from[len(found)] = f.local
		info, err := tier.Stat(ctx, f.local.tier, name)
		if err != nil || f.local.checked.Verdicts.IsBad(info) {
			f.local.noteTierError(err)
			if f.remote == nil {
				break
			}
			missing = append(missing, name)
			from[len(found)] = f.remote
		}
		found = append(found, info)
	}
	var remote []tier.Info
	var failed error // the tier counts errors; pages found before an error are good
	if len(missing) > 0 {
		remote, failed = tier.Leading(ctx, f.below, missing)
	}
	refs := f.newRefs(parent, start)
	for i, info := range found {
		if from[i].far && !inRAM[i] {
			if len(remote) == 0 {
				break
			}
			if info, remote = remote[0], remote[1:]; f.remote.checked.Verdicts.IsBad(info) {
				break
			}
		}
		refs.add(info, from[i], inRAM[i])
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

// after is the place behind the pages of a chain, among the pages of a fingerprint.
type after struct {
	fingerprint pagefile.Key
	parent      pagefile.Key
	start       int // position of the first token at the place
}

// findLast returns the tail or page at a place that shares the longest prefix with rest, the
// tokens from there on, if the prefix is longer than best's, and best otherwise. Of equally long
// prefixes findLast prefers that of the shortest file, which is a tail's, then that in memory, then
// that of the local tier.
func (f *lookup) findLast(ctx, remoteCtx context.Context, at after, rest []int32, media []pagefile.Media, best Ref) Ref {
	most := min(len(rest), f.pageTokens-1)
	if best.Tokens >= most {
		return best
	}
	found := f.ram.tail(remoteCtx, at, rest, media)
	for _, lv := range f.tiers {
		if found.Tokens < most { // else no longer prefix can exist
			found = lv.findLast(lv.lookupCtx(ctx, remoteCtx), at, rest, media, found)
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

// match compares a stored page or tail after parent with rest, the tokens from position start on.
// Ref.Tokens is the number of leading tokens that they share, and 0 after an error.
func (lv *level) match(ctx context.Context, name pagefile.Name, parent pagefile.Key, start int, rest []int32, media []pagefile.Media) (Ref, error) {
	h, info, err := lv.checked.Header(ctx, name)
	if err != nil {
		return Ref{}, err
	}
	if lv.pages.CheckPlace(h, name) != nil || h.PageTokens != lv.pageTokens || h.Parent != parent || int64(h.Start) != int64(start) {
		return Ref{}, nil
	}
	return Ref{
		Key: name.Key, Parent: parent, Start: h.Start, Lossy: h.Lossy(),
		Tokens: pagefile.CommonPrefix(h.Tokens, h.Media, rest, media), Stored: len(h.Tokens), Tail: h.Tail(), Media: h.Media,
		Tier: lv.name, Bytes: info.Bytes, used: info.Used.UnixNano(), old: name.Parent != pagefile.Key{},
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

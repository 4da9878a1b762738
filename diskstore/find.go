package diskstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
)

// Ref is a stored page that Find found. The page may be evicted at any time: Read then returns
// tier.ErrNotFound.
type Ref struct {
	Key    pagefile.Key
	Parent pagefile.Key
	Start  uint32 // position of the page's first token
	Tokens int    // usable rows: of the last page of a chain the prefix that it shares with the prompt
	Stored int    // tokens in the file; Read expects a Layout of as many tokens
	Tail   bool   // a tail, not a full page
	Lossy  bool   // the page's rows are not those that were put; only chains of Found.Mixed have such a page
	Tier   string // RAM, Local or Remote: the tier in which the page was found
	Bytes  int64  // size of the file

	// Media are those of the last page of a chain and of a tail, as stored; offsets count from Start.
	Media []pagefile.Media

	// Ahead is set by a caller that reads the page before a request wants it: the page does not
	// count as used.
	Ahead bool

	state bool  // of a tail: it was stored with a state
	used  int64 // recency when found, in Unix nanoseconds
	at    int64 // the last use of the chain, if the page is read; 0 for the time of reading
}

func (r Ref) name(of *names.Pages) pagefile.Name {
	name := of.Page(r.Key)
	if r.Tail {
		name = of.Tail(r.Key)
	}
	if r.Lossy {
		name.Fingerprint = of.Lossy
	}
	return name
}

// place is the place of the page in its chain.
func (r Ref) place() recency.Place { return recency.Place{Parent: r.Parent, Start: r.Start} }

// End is the position after the page's usable rows.
func (r Ref) End() int { return int(r.Start) + r.Tokens }

// Whole reports whether the page is a full one whose rows can all be used.
func (r Ref) Whole() bool { return !r.Tail && r.Tokens == r.Stored }

// Prompt is a sequence of tokens whose stored pages Find looks for.
type Prompt struct {
	Tokens []int32          // from position Start on
	Media  []pagefile.Media // offsets count from position 0; media before Start is ignored

	// Start is the end of the pages that the caller has already, a multiple of Options.PageTokens, and
	// Parent is the key of the last of them. Without such pages Parent is zero or the fingerprint.
	Start  int
	Parent pagefile.Key

	Forms Forms // of the pages that are looked for

	// State reports whether the engine can go on after a position, if a page brings the state
	// there. Nil means that no state is looked for.
	State func(position int) bool

	// Beyond is a position up to which Found.Mixed and Found.State are of no use, and Limit one
	// after which no row is of use; a Limit of 0 is the end of Tokens.
	Beyond, Limit int
}

// Forms are the forms of pages that Find looks for.
type Forms int

// The forms. Without Options.Cold, a store finds exact pages alone.
const (
	ExactOnly  Forms = iota // Found.Exact
	ExactFirst              // Found.Exact, and Found.Mixed where that can reach further
	AnyForm                 // Found.Mixed alone, however far it reaches
)

// Found are the stored pages of a prompt, which may be gone before they are read. A chain begins at
// Prompt.Start with full pages, and ends with the page or tail after the last of them that shares the
// longest prefix with the remaining tokens.
type Found struct {
	// Exact is the longest chain of exact pages.
	Exact []Ref

	// Mixed is the longest chain with pages of both forms: each page exact where a tier has it exact, else
	// lossy. Of a last page or tail the longest prefix counts, and of equally long ones an exact one. With
	// ExactFirst, Mixed is nil unless it ends a page behind Exact and Prompt.Beyond. While the remote tier
	// does not answer, Mixed may have a lossy page of the local tier that the remote one has exact.
	Mixed []Ref

	// State begins like Exact, and ends with the last page or tail that was stored with the state after it,
	// all of whose tokens are in the prompt; nil if none ends between Prompt.Beyond and Prompt.Limit.
	State []Ref

	// Unread are pages of Exact whose header was read for a state, in vain.
	Unread []Unread

	// Media are those of the prompt, with the reaches that the last page of Exact tells.
	Media []pagefile.Media
}

// Unread is a page that could not be read.
type Unread struct {
	Ref
	Err error
}

// stateTime bounds the search for a state: a disk may be slow, and a prompt long.
const stateTime = 3 * time.Second

// Find looks up which pages of a prompt are stored, and in which form and tier.
//
// Find never fails: an error ends a chain. A remote tier that does not answer adds at most
// Options.RemoteTimeout; one that does may add as much again for each batch of pages that it
// finds, and for the last page of each chain. The search for a state takes 3 s more, at most.
func (s *Store) Find(ctx context.Context, p Prompt) Found {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return Found{}
	}
	defer leave()
	found := s.lookup.find(ctx, p)
	if len(found.Exact) == 0 && p.Forms != AnyForm {
		s.counts.misses.Add(1)
	}
	return found
}

type lookup struct {
	pages         *names.Pages
	pageTokens    int
	local, remote *level        // remote is nil without a remote tier
	tiers         levels        // both
	below         *guard.Tier   // the remote tier; nil without one
	remoteTimeout time.Duration // Options.RemoteTimeout
	stateTime     time.Duration
	ram           *memory
	chains        *recency.Chains
	now           func() time.Time
}

func (f *lookup) find(ctx context.Context, p Prompt) (found Found) {
	if p.Start < 0 || p.Start%f.pageTokens != 0 {
		return found
	}
	if p.Parent.IsZero() {
		p.Parent = f.pages.Exact
	}
	if end := p.Start + len(p.Tokens); p.Limit == 0 || p.Limit > end {
		p.Limit = end
	}
	if p.Forms == AnyForm {
		found.Mixed = f.mixed(ctx, p)
		return found
	}
	found.Exact = f.chain(ctx, p, f.findPages, f.pages.Exact)
	if n := len(found.Exact); n > 0 {
		last := found.Exact[n-1]
		p.Media = pagefile.WithReaches(p.Media, last.Media, last.Start, last.Tokens)
	}
	found.Media = p.Media
	if least := max(p.Beyond, p.endOf(found.Exact)) + f.pageTokens; p.Forms == ExactFirst && f.pages.Cold && least <= p.Limit {
		exact := found.Exact
		if n := len(exact); n > 0 && !exact[n-1].Whole() {
			exact = exact[:n-1]
		}
		if chain := slices.Concat(exact, f.mixed(ctx, p.behind(exact))); p.endOf(chain) >= least {
			found.Mixed = chain
		}
	}
	if p.State != nil {
		f.findState(ctx, p, &found)
	}
	return found
}

// mixed looks up a chain of exact and lossy pages.
func (f *lookup) mixed(ctx context.Context, p Prompt) []Ref {
	find := f.findPages
	if f.pages.Cold {
		find = f.findMixed
	}
	return f.chain(ctx, p, find, f.pages.Fingerprints()...)
}

// behind is the rest of a prompt behind full pages.
func (p Prompt) behind(refs []Ref) Prompt {
	if n := len(refs); n > 0 {
		end := refs[n-1].End()
		p.Tokens, p.Start, p.Parent = p.Tokens[end-p.Start:], end, refs[n-1].Key
	}
	return p
}

// endOf is the position after the rows of a chain that are of use.
func (p *Prompt) endOf(refs []Ref) int {
	if len(refs) == 0 {
		return p.Start
	}
	return min(p.Limit, refs[len(refs)-1].End())
}

// findState looks for the last position with a state in a prompt's exact chain.
func (f *lookup) findState(ctx context.Context, p Prompt, found *Found) {
	ctx, cancel := context.WithTimeout(ctx, f.stateTime)
	defer cancel()
	p.Tokens = p.Tokens[:max(0, p.Limit-p.Start)]
	useful := func(ref Ref) bool { return ref.End() > p.Beyond && ref.End() <= p.Limit && p.State(ref.End()) }
	for i := len(found.Exact) - 1; i >= 0 && ctx.Err() == nil; i-- {
		ref := found.Exact[i]
		if int(ref.Start)+ref.Stored <= p.Beyond {
			return
		}
		if int(ref.Start) >= p.Limit {
			continue
		}
		if ref.Whole() && useful(ref) {
			has, err := f.hasState(ctx, ref)
			if err != nil {
				found.Unread = append(found.Unread, Unread{ref, err})
			}
			if has {
				found.State = found.Exact[: i+1 : i+1]
				return
			}
		}
		for _, tail := range f.tailsWithin(ctx, f.after(p, ref.Parent, int(ref.Start))) {
			if tail.state && useful(tail) {
				found.State = append(found.Exact[:i:i], tail)
				return
			}
		}
	}
}

// hasState reports whether a page was stored with a state, by its header.
func (f *lookup) hasState(ctx context.Context, ref Ref) (bool, error) {
	var failed error
	for _, lv := range f.tiers.from(ref.Tier) {
		h, err := tier.ReadHeader(ctx, lv.tier, ref.name(f.pages))
		if err == nil {
			return h.Layout.HasState(), nil
		}
		failed = cmp.Or(failed, err)
	}
	return false, failed
}

// AnyOf returns the first of keys whose exact full page a tier holds: a page of which the caller
// knows all but one of a few things. AnyOf costs one system call for each key in the local tier,
// and where that has none of them as many in the remote one, which has Options.RemoteTimeout.
func (s *Store) AnyOf(ctx context.Context, keys []pagefile.Key) (key pagefile.Key, found bool) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return key, false
	}
	defer leave()
	names := make([]pagefile.Name, len(keys))
	for i, key := range keys {
		names[i] = s.pages.Page(key)
		if _, fresh := s.ram.Fresh(names[i]); fresh {
			return key, true
		}
		info, err := tier.Stat(ctx, s.disk, names[i])
		switch {
		case err == nil && !s.local.checked.Bad.IsBad(info):
			return key, true
		case err != nil && !errors.Is(err, tier.ErrNotFound):
			s.local.noteTierError(err)
			return key, false
		}
	}
	if s.remote == nil {
		return key, false
	}
	ctx, cancel := context.WithTimeout(ctx, s.lookup.remoteTimeout)
	defer cancel()
	infos, _ := s.guard.Find(ctx, names, false) // the tier counts errors
	for i, info := range infos {
		if info.Key == keys[i] && !s.remote.checked.Bad.IsBad(info) {
			return keys[i], true
		}
	}
	return key, false
}

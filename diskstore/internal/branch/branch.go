/*
Package branch finds the pages and tails that begin like a prompt.

The children of a page may be a million: all conversations behind one system prompt. So a look-up
never lists children. It lists branches, by prefix: each child has one branch at a prefix of its
own tokens. The shortest prefix, the empty one, takes the first children, and one that has its
share sends further children to the next longer prefix of their tokens. A prompt that begins like
a child has the same prefixes. So a look-up lists the prompt's prefixes, from the empty one on, as
long as a list says that there are longer ones: at most steps lists of at most lastMost names.

A look-up's best page shares at least as many tokens with the prompt as the best child does, less
one step. When a list overflows at the longest prefix of a child, the child has no branch: others
that share all but one step are in the list.

Several processes add and remove branches without a lock. A list may then be longer than its share
by one branch for each process.
*/
package branch

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// steps is the number of prefixes of a page that have lists, one for each part with a lead.
	steps = pagefile.Parts

	// listMost is the number of branches in a list before others go to a longer prefix.
	listMost = 32

	// lastMost is the same for the longest prefix of a child, which has no longer one.
	lastMost = 200
)

// Lists are the branches of a tier, as in tier.Tier.
type Lists interface {
	AddBranch(ctx context.Context, branch tier.Branch, durable bool) error
	Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]tier.Branch, error)
}

// listed returns the branches at a prefix, and whether there is a mark that others are at longer ones.
func listed(ctx context.Context, lists Lists, fingerprint, prefix pagefile.Key) (branches []tier.Branch, longer bool, err error) {
	branches, err = lists.Branches(ctx, fingerprint, prefix[:])
	all := len(branches)
	branches = slices.DeleteFunc(branches, func(b tier.Branch) bool { return b.Longer })
	return branches, len(branches) < all, err
}

// Prompt is a sequence of tokens after a page. Offsets of Media count from the first of Tokens.
type Prompt struct {
	Fingerprint pagefile.Key // of the pages that are looked up
	Parent      pagefile.Key
	Tokens      []int32
	Media       []pagefile.Media
	PageTokens  int
}

// key is the chain key of the first n tokens.
func (p Prompt) key(n int) pagefile.Key {
	return pagefile.ChainKey(p.Parent, p.Tokens[:n], pagefile.MediaWithin(p.Media, 0, n))
}

// prefix is the key of the prefix of n tokens: a prompt does not know the reach of its images.
func (p Prompt) prefix(n int) pagefile.Key {
	if n == 0 {
		return p.Parent
	}
	return pagefile.ChainKey(p.Parent, p.Tokens[:n], pagefile.Unreached(pagefile.MediaWithin(p.Media, 0, n)))
}

// prefixes yields the lengths of the prefixes that have lists, in tokens, and which one is the last.
func (p Prompt) prefixes() iter.Seq2[int, bool] {
	return func(yield func(n int, last bool) bool) {
		end := func(step int) int { return step * p.PageTokens / steps }
		for step := 0; step < steps && end(step) <= len(p.Tokens); step++ {
			if step > 0 && end(step) == end(step-1) {
				continue // pages of few tokens have fewer steps
			}
			last := true
			for next := step + 1; next < steps && last; next++ {
				last = end(next) == end(step) || end(next) > len(p.Tokens)
			}
			if !yield(end(step), last) {
				return
			}
		}
	}
}

// Candidate is a page or tail that shares at least Least and at most Most tokens with a prompt.
type Candidate struct {
	tier.Branch
	Least, Most int
}

// Whole reports whether the prompt surely begins with all tokens of the page or tail.
func (c Candidate) Whole() bool { return c.Tokens > 0 && c.Least == c.Tokens }

// MayBeWhole reports whether the prompt may begin with all tokens of the page or tail.
func (c Candidate) MayBeWhole() bool { return c.Most == c.Tokens }

type ranking struct {
	Prompt
	leads pagefile.Leads
	parts int
	keys  map[int]pagefile.Key // of the prompt's prefixes, by length
}

func newRanking(p Prompt) *ranking {
	r := &ranking{Prompt: p, keys: make(map[int]pagefile.Key)}
	r.leads, r.parts = pagefile.LeadsOf(p.Tokens, pagefile.Unreached(p.Media), p.PageTokens)
	return r
}

// candidate compares a branch at a prefix of n of the prompt's tokens.
func (r *ranking) candidate(b tier.Branch, n int) Candidate {
	c := Candidate{Branch: b, Least: n}
	if b.Tokens <= len(r.Tokens) {
		if _, known := r.keys[b.Tokens]; !known {
			r.keys[b.Tokens] = r.key(b.Tokens)
		}
		if r.keys[b.Tokens] == b.Key {
			c.Least, c.Most = b.Tokens, b.Tokens
			return c
		}
	}
	// A tail with an image of which the prompt does not know the reach may be whole nevertheless.
	parts := min(r.parts, pagefile.PartsIn(b.Tokens, r.PageTokens))
	c.Most = max(n, min(b.Leads.Most(r.leads, parts, r.PageTokens), b.Tokens, len(r.Tokens)))
	return c
}

// Find returns the pages and tails that may begin like a prompt, those first that may share most.
// After an error Find returns those found before.
func Find(ctx context.Context, lists Lists, p Prompt) ([]Candidate, error) {
	r := newRanking(p)
	var found []Candidate
	for n, last := range p.prefixes() {
		branches, longer, err := listed(ctx, lists, p.Fingerprint, p.prefix(n))
		for _, b := range branches {
			found = append(found, r.candidate(b, n))
		}
		if err != nil || last || !longer {
			return inOrder(found), err
		}
	}
	return inOrder(found), nil
}

// inOrder sorts candidates, those first that may share most, and leaves out branches to the same page.
func inOrder(found []Candidate) []Candidate {
	slices.SortFunc(found, func(a, b Candidate) int {
		return cmp.Or(b.Most-a.Most, b.Least-a.Least, a.Tokens-b.Tokens, slices.Compare(a.Key[:], b.Key[:]))
	})
	return slices.CompactFunc(found, func(a, b Candidate) bool { return a.Key == b.Key && a.Class == b.Class })
}

// Of returns the branch of a page or tail, without its prefix.
func Of(h *pagefile.Header) tier.Branch {
	b := tier.Branch{Fingerprint: h.Fingerprint, Class: pagefile.ClassPage, Key: h.Key, Tokens: len(h.Tokens)}
	if h.Tail() {
		b.Class = pagefile.ClassTail
	}
	b.Leads, _ = pagefile.LeadsOf(h.Tokens, pagefile.Unreached(h.Media), h.PageTokens)
	return b
}

// Add adds the branch of a stored page or tail, and returns the pages and tails that begin like it,
// itself left out. With durable the branch survives a power cut.
func Add(ctx context.Context, lists Lists, h *pagefile.Header, durable bool) (met []Candidate, err error) {
	p := Prompt{Fingerprint: h.Fingerprint, Parent: h.Parent, Tokens: h.Tokens, Media: h.Media, PageTokens: h.PageTokens}
	r, b := newRanking(p), Of(h)
	place := -1 // tokens of the shortest prefix with room
	for n, last := range p.prefixes() {
		b.Prefix = p.prefix(n)
		branches, longer, err := listed(ctx, lists, p.Fingerprint, b.Prefix)
		if err != nil {
			return inOrder(met), err
		}
		for _, other := range branches {
			if other != b {
				met = append(met, r.candidate(other, n))
			}
		}
		if slices.Contains(branches, b) {
			place = n
			break
		}
		if place < 0 && (len(branches) < listMost || last && len(branches) < lastMost) {
			place = n
		}
		if last || place >= 0 && !longer {
			break
		}
		if !longer {
			// The mark is durable in any case: without it no branch at a longer prefix is found.
			if err := lists.AddBranch(ctx, tier.Branch{Fingerprint: p.Fingerprint, Prefix: b.Prefix, Longer: true}, true); err != nil {
				return inOrder(met), err
			}
		}
	}
	met = inOrder(met)
	switch i := slices.IndexFunc(met, func(c Candidate) bool { return c.Whole() && c.Class == b.Class }); {
	case place >= 0:
		b.Prefix = p.prefix(place)
	case i >= 0: // the place of a tail that this one extends
		b.Prefix = met[i].Prefix
	default:
		return met, nil
	}
	return met, lists.AddBranch(ctx, b, durable)
}

package kvcache

import (
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
)

// slot mirrors what one of the runner's sequences holds in the caches, as far as it is
// computed and follows from its tokens and media.
type slot struct {
	// tokens of positions 0, 1, …: computed, exact. media are the images among them.
	tokens []int32
	media  []diskstore.Media

	// cells of each position in each group, of which those from position `from` on still
	// hold its rows.
	cells [][]int32
	from  []int

	// broken: the caches hold positions past tokens whose rows are not what their prefix
	// gives (shifted, or after something without identity), or that nobody noted. Nothing
	// there is stored.
	broken bool

	// keys of the leading full pages; sealed counts those that are stored or on their way,
	// as far as is known after so many losses of the queue. known counts those of which only
	// what was lost is missing: others may be where Has does not look, in a remote tier.
	keys                  []diskstore.Key
	sealed, known, losses int

	// private is the position from which rows may not be stored. ahead are rows of private
	// requests that have seen text after them, and secret is the first of which the slot has
	// let that text go: whatever request comes next, from there on nothing is stored.
	private, secret int
	ahead           []ahead

	// promptOpen: the last token of the prompt has not been computed yet.
	promptOpen bool
	// ending: the sequence is done, its tail is saved when its last flight lands.
	ending bool

	// tailTokens is how long the sequence was when a tail was last saved.
	tailTokens int

	// stateAt is the position that recurrent state was last known to be after, -1 if it is
	// not known; stateSaved the one that it was last stored for.
	stateAt, stateSaved int
}

func newSlot(groups int) *slot {
	return &slot{private: math.MaxInt, secret: math.MaxInt, cells: make([][]int32, groups), from: make([]int, groups)}
}

// truncate forgets positions from n on.
func (s *slot) truncate(n int) {
	for g := range s.from {
		s.from[g] = min(s.from[g], n)
	}
	s.forgetAhead(n)
	if n >= len(s.tokens) {
		return
	}
	s.tokens = s.tokens[:n]
	for g := range s.cells {
		s.cells[g] = s.cells[g][:n]
	}
	s.media = slices.DeleteFunc(s.media, func(m diskstore.Media) bool { return int(m.Offset) >= n })
	s.tailTokens = min(s.tailTokens, n)
	s.stateSaved = min(s.stateSaved, n)
	s.stateAt = -1
}

// forgetAhead keeps in mind what rows before n have seen of what comes after.
func (s *slot) forgetAhead(n int) {
	if s.secret >= n {
		s.secret = math.MaxInt
	}
	s.ahead = slices.DeleteFunc(s.ahead, func(a ahead) bool {
		if a.begin < n && n < a.end {
			s.saw(a)
		}
		return n < a.end
	})
}

// saw notes rows that have seen private text which the slot does not hold.
func (s *slot) saw(a ahead) {
	s.secret = min(s.secret, a.begin)
	s.private = min(s.private, s.secret)
}

// trimKeys drops keys of pages that are no longer whole.
func (s *slot) trimKeys(pageTokens int) {
	if pages := len(s.tokens) / pageTokens; pages < len(s.keys) {
		s.keys = s.keys[:pages]
	}
	s.sealed = min(s.sealed, len(s.keys))
	s.known = min(s.known, len(s.keys))
}

// add appends computed positions, which begin at pos. Positions that do not follow the last
// one break the slot: there are rows before them that nobody noted.
func (s *slot) add(pos int, tokens []int32, media []diskstore.Media, cells [][]int32) {
	if s.broken {
		return
	}
	if pos != len(s.tokens) || slices.ContainsFunc(cells, func(c []int32) bool { return slices.Contains(c, -1) }) {
		s.broken = true
		return
	}
	s.tokens = append(s.tokens, tokens...)
	s.media = append(s.media, media...)
	for g := range s.cells {
		s.cells[g] = append(s.cells[g], cells[g]...)
	}
}

// clonePrefix is the state of a slot that starts with this one's first n positions.
func (s *slot) clonePrefix(n int) *slot {
	c := newSlot(len(s.cells))
	held := min(n, len(s.tokens))
	c.tokens = slices.Clone(s.tokens)
	c.media = slices.Clone(s.media)
	for g := range s.cells {
		c.cells[g] = slices.Clone(s.cells[g])
	}
	copy(c.from, s.from)
	c.keys = slices.Clone(s.keys)
	c.sealed, c.known, c.losses = s.sealed, s.known, s.losses
	c.private, c.secret, c.ahead = s.private, s.secret, slices.Clone(s.ahead)
	c.broken = s.broken && n > held
	c.truncate(held)
	c.tailTokens = 0
	return c
}

// mediaWithin are the media of n tokens from start on, with offsets from start.
func mediaWithin(media []diskstore.Media, start, n int) []diskstore.Media {
	var in []diskstore.Media
	for _, m := range media {
		if at := int(m.Offset) - start; at >= 0 && at < n {
			in = append(in, diskstore.Media{Offset: uint32(at), Hash: m.Hash})
		}
	}
	return in
}

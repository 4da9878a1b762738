package kvcache

import (
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
)

// slot mirrors what one of the runner's sequences holds in the cache, as far as it is
// computed and follows from its tokens.
type slot struct {
	// tokens and cells of positions 0, 1, …: computed, exact, in the cache.
	tokens []int32
	cells  []int32

	// broken: the cache holds positions past tokens whose rows are not what their prefix
	// gives (shifted, or after an image), or that nobody noted. Nothing there is stored.
	broken bool

	// keys of the leading full pages; sealed counts those that are stored or on their way.
	keys   []diskstore.Key
	sealed int

	// private is the position from which rows may not be stored.
	private int

	// promptOpen: the last token of the prompt has not been computed yet.
	promptOpen bool
	// ending: the sequence is done, its tail is saved when its last flight lands.
	ending bool

	// tailTokens is how long the sequence was when a tail was last saved.
	tailTokens int
}

func newSlot() *slot { return &slot{private: math.MaxInt} }

// truncate forgets positions from n on.
func (s *slot) truncate(n int) {
	if n >= len(s.tokens) {
		return
	}
	s.tokens, s.cells = s.tokens[:n], s.cells[:n]
	s.tailTokens = min(s.tailTokens, n)
}

// trimKeys drops keys of pages that are no longer whole.
func (s *slot) trimKeys(pageTokens int) {
	if pages := len(s.tokens) / pageTokens; pages < len(s.keys) {
		s.keys = s.keys[:pages]
	}
	s.sealed = min(s.sealed, len(s.keys))
}

// add appends a computed position. A position that does not follow the last one breaks
// the slot: there are rows before it that nobody noted.
func (s *slot) add(pos int32, token, cell int32) {
	if s.broken {
		return
	}
	if int(pos) != len(s.tokens) || cell < 0 {
		s.broken = true
		return
	}
	s.tokens = append(s.tokens, token)
	s.cells = append(s.cells, cell)
}

// clonePrefix is the state of a slot that starts with this one's first n positions.
func (s *slot) clonePrefix(n int) *slot {
	c := newSlot()
	held := min(n, len(s.tokens))
	c.tokens = slices.Clone(s.tokens[:held])
	c.cells = slices.Clone(s.cells[:held])
	c.keys = slices.Clone(s.keys)
	c.sealed = s.sealed
	c.private = s.private
	c.broken = s.broken && n > held
	return c
}

package kvcache

import (
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// slot mirrors what one of the runner's sequences holds in the caches, as far as it is
// computed and follows from its tokens and media. TieredCausal.mu guards it.
type slot struct {
	// tokens of positions 0, 1, …: computed, exact. media are the images among them.
	tokens []int32
	media  []pagefile.Media

	// cells of each position in each group, of which those from position `from` on still
	// hold its rows.
	cells [][]int32
	from  []int

	// broken: the caches hold positions past tokens whose rows are not what their prefix
	// gives (shifted, or after something without identity), or that nobody noted. Nothing
	// there is stored.
	broken bool

	// keys of the leading full pages, and what is known of each. given says that the store gave
	// up something of the slot since its request began: what is tried all the same is stored
	// only where there is room.
	keys  []pagefile.Key
	pages []pageState
	given bool

	// private is the position from which rows may not be stored; withheld says that those
	// which are computed now may not. ahead are rows of private requests that have seen text
	// after them, and secret is the first of which the slot has let that text go: whatever
	// request comes next, from there on nothing is stored.
	private, secret int
	withheld        bool
	ahead           []ahead

	request requestState

	// stateAt is the position that recurrent state was last known to be after, -1 if it is
	// not known.
	stateAt int

	// tail and state are what was saved last of the sequence's end, and of its state.
	tail, state saved
}

// requestState is how far a slot's request is.
type requestState uint8

const (
	requestNone   requestState = iota // or the rows of the last one are gone
	requestPrompt                     // the last token of the prompt is in no batch yet
	requestAnswer
	requestEnded // the slot's tail is saved when its last flight lands
)

// pageState is what is known of a full page of a slot.
type pageState uint8

const (
	pageNew    pageState = iota // perhaps another has stored it
	pageStored                  // or on its way, in one tier or another
	pageGiven                   // could not be stored, and is left alone until a request or a flush
)

// saved is something that was queued after so many tokens.
type saved struct {
	tokens int
	key    pagefile.Key
	given  bool // up, as a page is
}

// dropped notes what was given up.
func (s *slot) dropped(gone map[pagefile.Key]bool) {
	for i, key := range s.keys {
		if gone[key] {
			s.pages[i], s.given = pageGiven, true
		}
	}
	for _, end := range []*saved{&s.tail, &s.state} {
		if end.tokens > 0 && gone[end.key] {
			end.given, s.given = true, true
		}
	}
}

// anew lets everything be tried that was given up. It reports whether anything was.
func (s *slot) anew() bool {
	if !s.given {
		return false
	}
	for i, state := range s.pages {
		if state == pageGiven {
			s.pages[i] = pageNew
		}
	}
	for _, end := range []*saved{&s.tail, &s.state} {
		if end.given {
			*end = saved{}
		}
	}
	return true
}

// stored is how many of the leading pages are stored or on their way.
func (s *slot) stored() int {
	if i := slices.IndexFunc(s.pages, func(state pageState) bool { return state != pageStored }); i >= 0 {
		return i
	}
	return len(s.pages)
}

// markNew takes some of the pages that keys name for new: they are stored no more, or
// nobody knows.
func (s *slot) markNew(keys []pagefile.Key, from, to int) {
	for page := from; page < min(to, len(s.keys)); page++ {
		if s.keys[page] == keys[page] && s.pages[page] == pageStored {
			s.pages[page] = pageNew
		}
	}
}

// hasAll reports whether every group still has the rows from a position on.
func (s *slot) hasAll(begin int) bool { return begin >= slices.Max(s.from) }

// leads reports whether what follows so many pages can be found.
func (s *slot) leads(pages int) bool {
	return !slices.Contains(s.pages[:pages], pageGiven)
}

func newSlot(groups int) *slot {
	return &slot{private: math.MaxInt, secret: math.MaxInt, cells: make([][]int32, groups), from: make([]int, groups)}
}

// truncate drops positions from n on. What a private request puts there next, which may be
// its text from further on, is private.
func (s *slot) truncate(n int) {
	if s.withheld {
		s.private = min(s.private, n)
	}
	for g := range s.from {
		s.from[g] = min(s.from[g], n)
	}
	s.truncateAhead(n)
	if n >= len(s.tokens) {
		return
	}
	s.tokens = s.tokens[:n]
	for g := range s.cells {
		s.cells[g] = s.cells[g][:n]
	}
	s.media = slices.DeleteFunc(s.media, func(m pagefile.Media) bool { return int(m.Offset) >= n })
	s.tail.tokens = min(s.tail.tokens, n)
	s.state.tokens = min(s.state.tokens, n)
	s.stateAt = -1
}

// truncateAhead keeps in mind what rows before n have seen of what comes after.
func (s *slot) truncateAhead(n int) {
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

// trimKeys drops keys of pages that are no longer full.
func (s *slot) trimKeys(pageTokens int) {
	if pages := len(s.tokens) / pageTokens; pages < len(s.keys) {
		s.keys, s.pages = s.keys[:pages], s.pages[:pages]
	}
}

// add appends computed positions, which begin at pos. Positions that do not follow the last
// one break the slot: there are rows before them that nobody noted.
func (s *slot) add(pos int, tokens []int32, media []pagefile.Media, cells [][]int32) {
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
	c.keys, c.pages, c.given = slices.Clone(s.keys), slices.Clone(s.pages), s.given
	c.private, c.secret, c.ahead = s.private, s.secret, slices.Clone(s.ahead)
	c.broken = s.broken && n > held
	c.truncate(held)
	return c
}

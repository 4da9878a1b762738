package kvcache

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
)

// slot mirrors the caches' content for one of the runner's sequences, as far as rows are
// computed and follow from the sequence's tokens and media. TieredCausal.mu guards it.
type slot struct {
	chain

	// tokens of positions 0, 1, …: computed, exact. media are the images and sounds among them.
	tokens []int32
	media  []pagefile.Media

	// cells[g][i] is the cell of position i in group g, which has dropped positions before from[g].
	cells [][]int32
	from  []int

	// broken: the caches hold rows past tokens that do not follow from their prefix
	// (shifted, lossy, or after an input without identity), or that were never noted. No such
	// row is stored. lossy: some of these rows came from lossy pages, or may depend on such rows.
	broken, lossy bool

	// keys of the leading full pages, and the state of each. given: the store gave up a page since the
	// request began; a page that is tried nevertheless is stored only where there is room.
	keys  []pagefile.Key
	pages []pageState
	given bool

	// found are the pages of the last request's prompt that the look-up found near by: when
	// they are computed nevertheless, they need not be stored again.
	found map[pagefile.Key]bool

	// far are the pages of the slot that were found in the remote tier.
	far map[pagefile.Key]bool

	// private is the position from which rows may not be stored; withheld: rows of the present request
	// may not be stored. ahead are rows of private requests that attend to later text. secret is the
	// first such row whose later text the slot no longer holds: rows from secret on are never stored,
	// for any request. foreign is the first row that attended to other text behind an image than the
	// present request has: rows from there on are not stored for this request.
	private, secret int
	foreign         int
	withheld        bool
	ahead           []ahead

	request requestState
	tailDue time.Time // of an ended request

	// stateAt is the number of tokens that the recurrent state covers, -1 if unknown.
	stateAt int

	// early is the restore that filled the slot before its first request.
	early early

	// tail and state are the last saved tail of the sequence, and its last saved state.
	tail, state saved
}

// chain says how a text is cut into pages: the key before the first one, and the tokens of a page.
type chain struct {
	root pagefile.Key
	size int
}

// slots are the slots by their sequence. TieredCausal.mu guards them.
type slots struct {
	chain
	groups int
	of     map[int]*slot
}

// at returns the slot of a sequence, a new one where there is none yet.
func (m *slots) at(seq int) *slot {
	s, ok := m.of[seq]
	if !ok {
		s = newSlot(m.chain, m.groups)
		m.of[seq] = s
	}
	return s
}

// ahead is a range of rows [begin, end) of which some attend to positions up to end: rows
// of an image attend to all of their batch.
type ahead struct{ begin, end int }

// nothingAhead begins after every row.
var nothingAhead = ahead{begin: math.MaxInt}

// early is the restore that filled a slot before its first request.
type early struct {
	Restored
	from engine.Origins
}

// takeEarly returns the restore that filled the slot, once.
func (s *slot) takeEarly() early {
	e := s.early
	s.early = early{}
	return e
}

// elsewhere reports whether another slot than that of a sequence has a text's token at a position, and
// may store it. A page with other text behind is not missing because a slot has it.
func (m *slots) elsewhere(seq, at int, text *prompt) bool {
	for other, s := range m.of {
		if other == seq || at >= s.private {
			continue
		}
		if n := s.shared(text); n > at && (n == len(s.tokens) || n-at >= m.size) {
			return true
		}
	}
	return false
}

// requestState is the progress of a slot's request.
type requestState uint8

const (
	requestNone   requestState = iota // no request, or its rows are gone
	requestPrompt                     // the prompt's last token is in no batch yet
	requestAnswer
	requestEnded // the slot's tail is saved when its last in-flight batch lands
)

// pageState is the state of a slot's full page.
type pageState uint8

const (
	pageNew    pageState = iota // not stored by this slot; another may have stored it
	pageStored                  // stored in some tier, or queued
	pageGiven                   // given up, and not tried until the next request or flush
)

// saved is a tail or a state that was queued, after its number of tokens.
type saved struct {
	tokens int
	key    pagefile.Key
	given  bool // given up
}

// dropped marks pages, tail and state that were given up.
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

// anew marks everything that was given up as new. anew reports whether anything was given up.
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

// stored counts the leading pages that are stored or queued.
func (s *slot) stored() int {
	if i := slices.IndexFunc(s.pages, func(state pageState) bool { return state != pageStored }); i >= 0 {
		return i
	}
	return len(s.pages)
}

// lastStored counts the pages up to the last one that is stored or queued.
func (s *slot) lastStored() int {
	for n := len(s.pages); n > 0; n-- {
		if s.pages[n-1] == pageStored {
			return n
		}
	}
	return 0
}

// lost marks a page as new, because it is not stored any more or cannot be read.
func (s *slot) lost(key pagefile.Key) {
	delete(s.found, key)
	delete(s.far, key)
	if page := slices.Index(s.keys, key); page >= 0 && s.pages[page] == pageStored {
		s.pages[page] = pageNew
	}
}

// hasAll reports whether every group still has the rows from a position on.
func (s *slot) hasAll(begin int) bool { return begin >= slices.Max(s.from) }

// nowFar notes which of the pages that a look-up has found are in the remote tier alone, as far as
// is known. Other pages of the slot stay where they were.
func (s *slot) nowFar(refs []diskstore.Ref) {
	far := make(map[pagefile.Key]bool)
	for _, key := range s.keys {
		if s.far[key] {
			far[key] = true
		}
	}
	for _, ref := range refs {
		if ref.Tier == tier.Remote {
			far[ref.Key] = true
		} else {
			delete(far, ref.Key)
		}
	}
	s.far = far
}

// leads reports whether a lookup can reach the data after so many pages.
func (s *slot) leads(pages int) bool {
	return !slices.Contains(s.pages[:pages], pageGiven)
}

func newSlot(of chain, groups int) *slot {
	return &slot{chain: of, private: math.MaxInt, secret: math.MaxInt, foreign: math.MaxInt, cells: make([][]int32, groups), from: make([]int, groups)}
}

// truncate drops positions from n on. Positions that a private request adds next are
// private; their text may have been further on before.
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

// truncateAhead notes rows before n that attend to dropped text.
func (s *slot) truncateAhead(n int) {
	if s.secret >= n {
		s.secret = math.MaxInt
	}
	if s.foreign >= n {
		s.foreign = math.MaxInt
	}
	s.ahead = slices.DeleteFunc(s.ahead, func(a ahead) bool {
		if a.begin < n && n < a.end {
			s.saw(a)
		}
		return n < a.end
	})
}

// saw notes rows that attend to private text outside the slot.
func (s *slot) saw(a ahead) {
	s.secret = min(s.secret, a.begin)
	s.private = min(s.private, s.secret)
}

// extendKeys computes the keys of pages that became full.
func (s *slot) extendKeys() {
	for page, size := len(s.keys), s.size; (page+1)*size <= len(s.tokens); page++ {
		s.keys = append(s.keys, pagefile.ChainKey(s.parent(page), s.tokens[page*size:(page+1)*size], pagefile.MediaWithin(s.media, page*size, size)))
		s.pages = append(s.pages, pageNew)
	}
}

// parent is the key of the page before, or the root for the first.
func (s *slot) parent(page int) pagefile.Key {
	if page == 0 {
		return s.root
	}
	return s.keys[page-1]
}

// knownPrefix is the start of a look-up: the end of the pages before a position whose keys the slot
// knows, and the key of the last of them.
func (s *slot) knownPrefix(base int) (parent pagefile.Key, start int) {
	s.extendKeys()
	pages := min(base/s.size, len(s.keys))
	return s.parent(pages), pages * s.size
}

// restoreBase is the position from which rows are restored when the slot holds the first `have` tokens
// of a prompt. Rows of a broken slot do not follow from the prompt, and exact rows replace them. The
// base is 0 where a group may have dropped rows of the part that is exact.
func (s *slot) restoreBase(have int, text *prompt, divisible bool) int {
	exact := s.shared(text)
	switch broken := s.broken || exact < min(len(s.tokens), have); {
	case !broken:
		return have
	case !divisible:
		return 0
	default:
		return min(exact, have)
	}
}

// shared counts the leading positions at which slot and prompt agree.
func (s *slot) shared(text *prompt) int {
	return pagefile.CommonPrefix(s.tokens, s.media, text.tokens, text.media)
}

// trimKeys drops keys of pages that are no longer full.
func (s *slot) trimKeys() {
	if pages := len(s.tokens) / s.size; pages < len(s.keys) {
		s.keys, s.pages = s.keys[:pages], s.pages[:pages]
	}
}

// add appends computed positions, which begin at pos. Positions that do not follow the last
// one break the slot: rows between them were never noted.
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

// clonePrefix returns a new slot with this slot's first n positions.
func (s *slot) clonePrefix(n int) *slot {
	c := newSlot(s.chain, len(s.cells))
	held := min(n, len(s.tokens))
	c.tokens = slices.Clone(s.tokens)
	c.media = slices.Clone(s.media)
	for g := range s.cells {
		c.cells[g] = slices.Clone(s.cells[g])
	}
	copy(c.from, s.from)
	c.keys, c.pages, c.given, c.found = slices.Clone(s.keys), slices.Clone(s.pages), s.given, maps.Clone(s.found)
	c.far = maps.Clone(s.far)
	c.private, c.secret, c.foreign, c.ahead = s.private, s.secret, s.foreign, slices.Clone(s.ahead)
	c.broken = s.broken && n > held
	c.lossy = s.lossy && c.broken
	c.truncate(held)
	return c
}

// publish adds positions [base, held) of a plan, which follow from the prompt's beginning, to the slot,
// and marks the slot's stored pages. reaches: images attend to text behind them.
func (s *slot) publish(p *plan, held int, groups []group, reaches bool) {
	s.truncate(p.base)
	s.trimKeys()
	if len(s.tokens) < p.base {
		s.broken = true
		return
	}
	s.broken, s.lossy = false, false
	if p.state && held == p.end {
		s.stateAt, s.state = held, saved{tokens: held}
	}
	s.tokens = append(s.tokens, p.prompt.tokens[p.base:held]...)
	for _, m := range p.prompt.media {
		if at := int(m.Offset); at >= p.base && at < held {
			s.media = append(s.media, m)
			if reaches && m.Reach() == 0 { // cannot happen: such an image's page is not found
				s.foreign = min(s.foreign, at)
			}
		}
	}
	for g := range s.cells {
		s.publishCells(p, held, g, groups[g].oldest(p.end))
	}
	for _, ref := range slices.Concat(p.passed, p.refs) { // each ends after base
		full := ref.Whole() && int(ref.Start)+ref.Tokens <= held
		if full && int(ref.Start) == len(s.keys)*s.size && ref.Parent == s.parent(len(s.keys)) {
			state := pageStored
			if !s.found[ref.Key] && ref.Tier != tier.Remote { // another request could not read it since
				state = pageNew
			}
			s.keys, s.pages = append(s.keys, ref.Key), append(s.pages, state)
		}
	}
	s.extendKeys()
	if last := len(p.refs) - 1; held == p.end && last >= 0 && (!p.refs[last].Whole() || held < int(p.refs[last].Start)+p.refs[last].Tokens) {
		s.tail = saved{tokens: held} // stored already, perhaps as the beginning of a longer page
	}
}

// publishCells notes group g's cells of positions [base, held). Positions before oldest, which the
// group would have dropped, have no cell.
func (s *slot) publishCells(p *plan, held, g, oldest int) {
	if p.begin[g] > p.base {
		s.from[g] = min(p.begin[g], held)
	}
	s.from[g] = max(s.from[g], oldest)
	for len(s.cells[g]) < min(p.begin[g], held) {
		s.cells[g] = append(s.cells[g], -1)
	}
	s.cells[g] = append(s.cells[g], p.cells[g][:held-len(s.cells[g])]...)
}

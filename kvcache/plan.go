package kvcache

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// plan is what a restore is going to do: pages that cover positions [base, end), of which
// each group gets those from its begin on.
type plan struct {
	seq       int
	prompt    prompt
	refs      []diskstore.Ref
	passed    []diskstore.Ref // pages before refs of which no group wants a row
	base, end int
	begin     []int
	state     bool      // the last page has the state after it
	preferred [][]int32 // cells of positions [begin, end) of each group that reuses cells
	cells     [][]int32 // those that were taken
	free      *idleJob  // nothing that was built before uses them any more

	// by is how far from where they were stored the rows go: positions of the plan are those
	// of the pages, and what is at one of them is wanted at it plus by.
	by int
}

// wanted is where the slot gets what was stored at a position.
func (p *plan) wanted(position int) int { return position + p.by }

// needs reports whether a group gets rows of a page. The one after the last group is state.
func (p *plan) needs(page, group int) bool {
	if group == len(p.begin) {
		return p.state && page == len(p.refs)-1
	}
	ref := p.refs[page]
	return int(ref.Start)+ref.Tokens > p.begin[group]
}

// pageEnd is the position after the last that a page contributes.
func (p *plan) pageEnd(page int) int {
	ref := p.refs[page]
	return min(int(ref.Start)+ref.Tokens, p.end)
}

// layout is that of the sections of a page that are read.
func (p *plan) layout(geo *geometry, page int) (pagefile.Layout, error) {
	return geo.layout(p.refs[page].Stored, func(group int) bool { return p.needs(page, group) })
}

// bytes is about how much of a page's file is read.
func (p *plan) bytes(geo *geometry, page int) int64 {
	ref := p.refs[page]
	wanted, err := p.layout(geo, page)
	all, err2 := geo.layout(ref.Stored, func(int) bool { return true })
	if err != nil || err2 != nil {
		return ref.Bytes
	}
	return int64(float64(ref.Bytes) * float64(wanted.Size()) / float64(all.Size()))
}

// thinMax bounds how many pages are known to be stored without some rows.
const thinMax = 4096

// chain looks up what follows from the prompt's beginning, up to a limit, and decides whether
// reading it pays.
func (r *restoring) chain(limit int) lookUp {
	p, have := plan{seq: r.seq, prompt: r.prompt}, r.result.Held
	r.mu.Lock()
	defer r.mu.Unlock()
	p.base = r.restoreBaseLocked(r.seq, have, &p.prompt)
	parent, start := r.knownPrefixLocked(r.seq, p.base)
	if !r.readyLocked() || limit <= p.base {
		return nil
	}
	return func(ctx context.Context) (plan, bool) {
		r.awaitPending(ctx, &p.prompt, p.base, parent, start)
		p.take(r.opts.Store.ChainFrom(ctx, parent, start, p.prompt.tokens[start:], p.prompt.media), limit)
		least := max(have, p.base+1) // rows that the slot holds are read again only where they are not exact
		if r.stateful() {
			r.endAtState(ctx, &p, limit)
			least = max(least, p.end) // there is no state elsewhere
		}
		return p, r.worth(ctx, &p, least)
	}
}

// take plans to read pages, up to a limit.
func (p *plan) take(refs []diskstore.Ref, limit int) {
	for _, ref := range refs {
		if end := min(int(ref.Start)+ref.Tokens, limit); end > max(p.base, int(ref.Start)) {
			p.refs, p.end = append(p.refs, ref), end
		}
	}
}

// worth ends a plan where it can end and where that pays. It reports whether it still leads as
// far as it must.
func (t *TieredCausal) worth(ctx context.Context, p *plan, least int) bool {
	t.trim(ctx, p)
	return p.end >= least && ctx.Err() == nil && t.decide(ctx, p) && p.end >= least
}

// awaitPending waits for pages on their way to the store that hold tokens of a prompt past
// have. parent is the key of the page before start. What is not written soon is computed
// again.
func (t *TieredCausal) awaitPending(ctx context.Context, text *prompt, have int, parent pagefile.Key, start int) {
	wait, cancel := context.WithTimeout(ctx, pendingWait)
	defer cancel()
	_ = t.queue.waitFor(wait, t.extends(text, have, parent, start))
}

// extends says which queued pages awaitPending waits for. Keys of the prompt's pages are only
// computed when a page with the prompt's tokens is queued.
func (t *TieredCausal) extends(text *prompt, have int, parent pagefile.Key, start int) func(*writeJob) bool {
	size, before := t.opts.PageTokens, []pagefile.Key{parent} // keys before the prompt's pages from start on
	return func(j *writeJob) bool {
		at := int(j.page.Start)
		if at < start || at >= len(text.tokens) {
			return false
		}
		if shared := pagefile.Shared(j.page.Tokens, text.tokens[at:]); shared == 0 || at+shared <= have {
			return false
		}
		for len(before) <= (at-start)/size {
			end := start + len(before)*size
			before = append(before, pagefile.ChainKey(before[len(before)-1], text.tokens[end-size:end], pagefile.MediaWithin(text.media, end-size, size)))
		}
		return before[(at-start)/size] == j.page.Parent
	}
}

// restoreBaseLocked is the position restored rows start from. Rows of a broken slot do not
// follow from the prompt: exact ones replace them, all of them where a group may have
// forgotten some of those that are left.
func (t *TieredCausal) restoreBaseLocked(seq, have int, text *prompt) int {
	s := t.slotLocked(seq)
	exact := text.shared(s)
	switch broken := s.broken || exact < min(len(s.tokens), have); {
	case !broken:
		return have
	case !t.divisible():
		return 0
	default:
		return min(exact, have)
	}
}

// divisible reports whether a slot can be given up at any position: without windows, which are
// those of one position, and state, which is that of one.
func (t *TieredCausal) divisible() bool {
	return !t.groups[len(t.groups)-1].windowed() && !t.stateful() // those with a window come last
}

// recheck asks the store for the pages that the slot counts as stored: since then it may have
// evicted some, or set them aside. What is gone is stored again from the slot's rows.
func (r *restoring) recheck(ctx context.Context) {
	r.mu.Lock()
	s := r.slotLocked(r.seq)
	r.noteDroppedLocked()
	keys := slices.Clone(s.keys[:s.stored()])
	tokens := slices.Clone(s.tokens[:len(keys)*r.opts.PageTokens])
	media := pagefile.MediaWithin(s.media, 0, len(tokens))
	r.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	var gone []int
	var known int
	r.unlocked(func() { gone, known = r.holes(ctx, keys, tokens, media) })
	if len(gone) == 0 || ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, page := range gone {
		s.markNew(keys, page, page+1)
	}
	s.markNew(keys, known, len(keys))
}

// holes returns which pages of a chain are neither stored nor on their way, and of how many
// leading ones that is known.
func (t *TieredCausal) holes(ctx context.Context, keys []pagefile.Key, tokens []int32, media []pagefile.Media) (gone []int, known int) {
	parent, size := t.opts.Fingerprint, t.opts.PageTokens
	for at := 0; at < len(keys); {
		next := at
		for _, ref := range t.opts.Store.ChainFrom(ctx, parent, at*size, tokens[at*size:], media) {
			if !ref.Tail {
				next++
			}
		}
		queued := next
		for queued < len(keys) && t.queue.has(keys[queued]) {
			queued++
		}
		switch {
		case next == len(keys):
		case queued > next:
			next = queued
		case next == at && len(gone) > 0 && gone[len(gone)-1] == at-1:
			return gone, at // two in a row: each of the rest would be a lookup
		default:
			gone = append(gone, next)
			next++
		}
		at, parent = next, keys[next-1]
	}
	return gone, len(keys)
}

// knownPrefixLocked is where the lookup starts: after the pages whose keys the slot knows.
func (t *TieredCausal) knownPrefixLocked(seq, base int) (parent pagefile.Key, start int) {
	s := t.slotLocked(seq)
	t.extendKeysLocked(s)
	pages := min(base/t.opts.PageTokens, len(s.keys))
	return t.parentLocked(s, pages), pages * t.opts.PageTokens
}

// trim ends a plan at the last position at which every group can have what it needs there:
// between batches, and with the window before it stored.
func (t *TieredCausal) trim(ctx context.Context, p *plan) {
	known := make(map[pagefile.Key]map[int][]int32)
	for {
		p.end = p.prompt.boundary(p.end)
		for len(p.refs) > 0 && int(p.refs[len(p.refs)-1].Start) >= p.end {
			p.refs = p.refs[:len(p.refs)-1]
		}
		if p.end <= p.base {
			return
		}
		if t.beginGroups(ctx, p, known) {
			p.pass(&t.geometry)
			return
		}
	}
}

// pass leaves out leading pages of which nothing is wanted: all are before every window, in a
// model whose layers all have one.
func (p *plan) pass(geo *geometry) {
	wanted := func(page int) bool {
		return geo.any(func(group int) bool { return p.needs(page, group) })
	}
	n := 0
	for n < len(p.refs) && !wanted(n) {
		n++
	}
	p.passed, p.refs = append(p.passed, p.refs[:n]...), p.refs[n:]
}

// beginGroups fills in where each group begins and the cells its rows had. When a page
// lacks rows that are needed at the plan's end it moves the end before that page, and
// reports false. Pages are asked for what they have once, which known remembers.
func (t *TieredCausal) beginGroups(ctx context.Context, p *plan, known map[pagefile.Key]map[int][]int32) bool {
	p.begin = make([]int, len(t.groups))
	p.preferred = make([][]int32, len(t.groups))
	for g := range t.groups {
		group := &t.groups[g]
		p.begin[g] = max(p.base, group.oldest(p.end))
		if !group.windowed() {
			continue
		}
		var cells []int32
		for i := len(p.refs) - 1; i >= 0 && p.needs(i, g); i-- {
			ref := p.refs[i]
			if known[ref.Key] == nil {
				known[ref.Key] = t.cellNumbersOf(ctx, p, i)
			}
			had, ok := known[ref.Key][g]
			if !ok && p.pageEnd(i) > group.visible(p.end) {
				p.end = int(ref.Start)
				return false
			}
			if !ok {
				p.begin[g] = p.pageEnd(i)
				break
			}
			from, to := max(p.begin[g], int(ref.Start))-int(ref.Start), p.pageEnd(i)-int(ref.Start)
			cells = append(had[from:to:to], cells...)
		}
		p.preferred[g] = cells
	}
	return true
}

// cellNumbersOf reads which cells the rows of a page had, by group. A group that is missing has
// no rows in the page.
func (t *TieredCausal) cellNumbersOf(ctx context.Context, p *plan, page int) map[int][]int32 {
	ref := p.refs[page]
	numbers := make(map[int][]int32)
	for g := range t.groups {
		if !t.groups[g].windowed() {
			continue
		}
		layout, err := pagefile.NewLayout([]pagefile.Section{t.groups[g].cellNumbers()}, ref.Stored)
		if err != nil {
			continue // not of a page that was found
		}
		buf := make([]byte, layout.Size())
		err = t.opts.Store.Read(ctx, ref, p.prompt.tokens[ref.Start:int(ref.Start)+ref.Tokens], layout, buf)
		if errors.Is(err, pagefile.ErrMismatch) {
			t.mu.Lock()
			if len(t.thin) >= thinMax {
				clear(t.thin)
			}
			t.thin[ref.Key] = true
			t.mu.Unlock()
		}
		if err != nil {
			continue
		}
		rows := layout.Rows(buf, 0)
		cells := make([]int32, ref.Stored)
		for i := range cells {
			cells[i] = int32(binary.LittleEndian.Uint32(rows[4*i:]))
		}
		numbers[g] = cells
	}
	return numbers
}

package kvcache

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/rates"
)

// plan lists the pages that a restore reads: they cover positions [base, end), and group g
// gets the rows from begin[g] on.
type plan struct {
	seq       int
	prompt    prompt
	refs      []diskstore.Ref
	passed    []diskstore.Ref // stored pages before refs, not read: no group needs a row of them
	base, end int
	begin     []int
	state     bool      // the last page brings the state after it
	preferred [][]int32 // cells of positions [begin, end) of each group that reuses cells
	cells     [][]int32 // the cells reserved for these positions
	free      *idleJob  // done when no earlier batch uses the cells any more
	ahead     bool      // no request wants the rows yet

	// by is the distance that rows move. Positions of the plan are those of the stored
	// pages; the row stored at position i goes to position i+by of the slot.
	by int
}

// wanted is the slot's position of the row stored at a position.
func (p *plan) wanted(position int) int { return position + p.by }

// needs reports whether a group gets rows of a page. Group len(begin) stands for state.
func (p *plan) needs(page, group int) bool {
	if group == len(p.begin) {
		return p.state && page == len(p.refs)-1
	}
	ref := p.refs[page]
	return int(ref.Start)+ref.Tokens > p.begin[group]
}

// pageEnd is the position after the last row that a page contributes.
func (p *plan) pageEnd(page int) int {
	ref := p.refs[page]
	return min(int(ref.Start)+ref.Tokens, p.end)
}

// layout lays out the sections of a page that the plan reads.
func (p *plan) layout(geo *geometry, page int) (pagefile.Layout, error) {
	return geo.layout(p.refs[page].Stored, func(group int) bool { return p.needs(page, group) })
}

// bytes estimates how many bytes of a page's file are read, and in which form. A page without
// state or without a window may seem smaller than its rows.
func (p *plan) bytes(geo *geometry, page int) (int64, rates.Form) {
	ref := p.refs[page]
	wanted, err := p.layout(geo, page)
	all, err2 := geo.layout(ref.Stored, func(int) bool { return true })
	if err != nil || err2 != nil {
		return ref.Bytes, rates.Whole
	}
	return int64(float64(ref.Bytes) * float64(wanted.Size()) / float64(all.Size())), rates.FormOf(ref.Bytes, int64(all.Size()))
}

// chain returns a lookup of the pages that follow from the prompt's beginning, up to a
// limit, and that are worth reading.
func (r *restoring) chain(limit int) lookUp {
	p, have := plan{seq: r.seq, prompt: r.prompt, ahead: r.ahead}, r.result.Held
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slotLocked(r.seq)
	p.base = s.restoreBase(have, &p.prompt, r.caches.divisible())
	parent, start := s.knownPrefix(p.base)
	if !r.readyLocked() || limit <= p.base {
		return nil
	}
	return func(ctx context.Context) (plan, bool) {
		r.discover(ctx, &p.prompt, parent, start)
		r.awaitPending(ctx, &p.prompt, p.base, parent, start)
		refs, err := r.store.chainFrom(ctx, parent, start, p.prompt.tokens[start:], p.prompt.media)
		r.learnEnds(&p.prompt, refs)
		r.lookedUp(&p, refs, limit, err, parent, start)
		r.nowFound(r.seq, refs)
		if mixed, ok := r.mixed(ctx, p, refs, limit, parent, start); ok {
			return mixed, true
		}
		p.take(refs, limit)
		least := max(have, p.base+1) // rows of the slot are read again only if they are not exact
		if r.caches.stateful() {
			r.endAtState(ctx, &p, limit)
			least = max(least, p.end) // no other position has a state
		}
		return p, r.worth(ctx, &p, least)
	}
}

// nowFound notes the full pages that a look-up for a slot's request has found. A page in a
// remote tier does not count: stored near by, it is quicker to read.
func (t *TieredCausal) nowFound(seq int, refs []diskstore.Ref) {
	found := make(map[pagefile.Key]bool)
	for _, ref := range refs {
		if ref.Whole() && ref.Tier != tier.Remote {
			found[ref.Key] = true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slotLocked(seq)
	s.found = found
	s.nowFar(refs)
}

// notFound notes that pages which a look-up has found are not stored whole.
func (t *TieredCausal) notFound(seq int, refs []diskstore.Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ref := range refs {
		delete(t.slotLocked(seq).found, ref.Key)
	}
}

// noteRead notes the result of reading a page. A page that cannot be read is stored again by a
// slot that computes its rows, or that has them.
func (t *TieredCausal) noteRead(ref diskstore.Ref, err error) {
	if !unreadable(err) {
		return
	}
	t.queue.lost(ref.Key)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.slots {
		s.lost(ref.Key)
	}
}

// unreadable reports whether an error of reading a page concerns this page, and not the store, the
// reader or the rows that were wanted. The store has set the page aside, or Put finds it in its
// place.
func unreadable(err error) bool {
	if failed := (*writeError)(nil); errors.As(err, &failed) {
		return false
	}
	for _, other := range []error{pagefile.ErrMismatch, pagefile.ErrInvalidPage, context.Canceled, context.DeadlineExceeded, steady.ErrHung, errLeftBehind, tier.ErrClosed} {
		if errors.Is(err, other) {
			return false
		}
	}
	return err != nil && !storeFails(err)
}

// take adds pages to the plan, up to a limit.
func (p *plan) take(refs []diskstore.Ref, limit int) {
	for _, ref := range refs {
		ref.Ahead = p.ahead
		if end := min(int(ref.Start)+ref.Tokens, limit); end > max(p.base, int(ref.Start)) {
			p.refs, p.end = append(p.refs, ref), end
		}
	}
}

// worth shortens a plan to an end at which the sequence can go on and up to which reading
// pays. worth reports whether the end is still at least `least`.
func (t *TieredCausal) worth(ctx context.Context, p *plan, least int) bool {
	t.trim(ctx, p)
	return p.end >= least && ctx.Err() == nil && t.decide(ctx, p) && p.end >= least
}

// awaitPending waits, for a bounded time, for queued pages that hold tokens of a prompt
// past have. parent is the key of the page before start. Pages written later than that are
// computed again.
func (t *TieredCausal) awaitPending(ctx context.Context, text *prompt, have int, parent pagefile.Key, start int) {
	wait, cancel := context.WithTimeout(ctx, t.store.patience.queue)
	defer cancel()
	_ = t.queue.waitFor(wait, t.extends(text, have, parent, start))
}

// extends returns the condition of awaitPending: whether a queued page holds tokens of the
// prompt past have. Keys of the prompt's pages are computed only when a page with the
// prompt's tokens is queued.
func (t *TieredCausal) extends(text *prompt, have int, parent pagefile.Key, start int) func(*writeJob) bool {
	size, before := t.opts.PageTokens, []pagefile.Key{parent} // before[i]: key of the parent of the prompt's i-th page after start
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

// recheck asks the store for the pages that the slot counts as stored: the store may have
// evicted or set aside some. Missing pages are stored again from the slot's rows.
func (r *restoring) recheck(ctx context.Context) {
	r.mu.Lock()
	s := r.slotLocked(r.seq)
	s.found = nil // this request's look-up may find less, or there may be none
	r.sealer.noteDropped()
	keys := slices.Clone(s.keys[:s.lastStored()])
	tokens := slices.Clone(s.tokens[:len(keys)*r.opts.PageTokens])
	media := pagefile.MediaWithin(s.media, 0, len(tokens))
	r.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	var gone []int
	var err error
	r.unlocked(func() { gone, err = r.holes(ctx, keys, tokens, media) })
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, page := range gone {
		s.lost(keys[page])
	}
}

// holes returns the pages of a chain that are neither stored nor queued. The queue is asked
// before the store: a page that is written meanwhile is in either. The error says that nothing is
// known of the pages.
func (t *TieredCausal) holes(ctx context.Context, keys []pagefile.Key, tokens []int32, media []pagefile.Media) (gone []int, err error) {
	parent, size, waiting := t.opts.Fingerprint, t.opts.PageTokens, t.queue.keys()
	for at := 0; at < len(keys); {
		refs, err := t.standing(ctx, parent, at*size, tokens[at*size:], media)
		if err != nil {
			return nil, err
		}
		next := at
		for _, ref := range refs {
			if ref.Whole() {
				next++
			}
		}
		queued := next
		for queued < len(keys) && waiting[keys[queued]] {
			queued++
		}
		switch {
		case next == len(keys):
		case queued > next:
			next = queued
		case next == at && len(gone) > 0 && gone[len(gone)-1] == at-1:
			rest, err := t.absent(ctx, keys, at, waiting) // two in a row: every further page would cost a look-up
			return append(gone, rest...), err
		default:
			gone = append(gone, next)
			next++
		}
		at, parent = next, keys[next-1]
	}
	return gone, nil
}

// absent returns the pages from index `from` on that are neither in waiting nor stored near by.
func (t *TieredCausal) absent(ctx context.Context, keys []pagefile.Key, from int, waiting map[pagefile.Key]bool) (gone []int, err error) {
	for page := from; page < len(keys); page++ {
		if waiting[keys[page]] {
			continue
		}
		has, err := t.store.has(ctx, keys[page])
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		if !has {
			gone = append(gone, page)
		}
	}
	return gone, nil
}

// trim ends a plan at the last position that is outside every span and whose window is
// stored for every group.
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
			p.pass(&t.caches.geometry)
			return
		}
	}
}

// pass leaves out leading pages of which no row is needed: in a model whose layers all have
// a window, pages before every window.
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
// lacks rows that are needed at the plan's end, beginGroups moves the end before that page
// and reports false. known keeps the cell numbers of pages, so that each page is read once.
func (t *TieredCausal) beginGroups(ctx context.Context, p *plan, known map[pagefile.Key]map[int][]int32) bool {
	p.begin = make([]int, len(t.caches.groups))
	p.preferred = make([][]int32, len(t.caches.groups))
	for g := range t.caches.groups {
		group := &t.caches.groups[g]
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

// cellNumbersOf reads the cell numbers that a page's rows had, by group. The page has no
// rows of a group that is missing in the result.
func (t *TieredCausal) cellNumbersOf(ctx context.Context, p *plan, page int) map[int][]int32 {
	ref := p.refs[page]
	numbers := make(map[int][]int32)
	for g := range t.caches.groups {
		if !t.caches.groups[g].windowed() {
			continue
		}
		layout, err := pagefile.NewLayout([]pagefile.Section{t.caches.groups[g].cellNumbers()}, ref.Stored)
		if err != nil {
			continue // cannot happen for a page that was found
		}
		buf := make([]byte, layout.Size())
		err = t.store.Read(ctx, ref, p.prompt.tokens[ref.Start:int(ref.Start)+ref.Tokens], layout, buf)
		if errors.Is(err, pagefile.ErrMismatch) {
			t.thin.add(ref.Key)
		}
		t.store.noteRead(ref, err)
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

package kvcache

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/kvcache/runs"
)

// finder asks the store and the write queue which pages of a text there are, and plans how to read
// them. It knows no slot. Its methods are called without the runner's lock and TieredCausal.mu, and
// wait for the store in bounded time.
type finder struct {
	chain
	store   *disk
	queue   *writeQueue
	caches  *caches
	gate    *engine.Gate
	partial *partialPages
	index   *runs.Index // of text that may move; may be nil
	reach   int         // see Options.Reach
	lossy   bool        // lossy pages are restored where the model allows it
}

// stored looks up the pages of a plan's prompt, of use between the tokens that the slot has and a limit.
// The prompt learns where the batches of its images ended. parent is the key of the page before start.
// The error says that nothing is known of pages behind those that were found.
func (f *finder) stored(ctx context.Context, p *plan, have, limit int, parent pagefile.Key, start int) (diskstore.Found, error) {
	f.discover(ctx, &p.prompt, parent, start)
	f.awaitPending(ctx, &p.prompt, p.base, parent, start)
	text := p.prompt
	ask := diskstore.Prompt{
		Parent: parent, Start: start, Tokens: text.tokens[start:], Media: text.media,
		Beyond: max(have, p.base), Limit: limit,
	}
	if f.restoresLossy() {
		ask.Forms = diskstore.ExactFirst
	}
	if f.caches.stateful() {
		ask.Beyond, ask.State = p.base, func(end int) bool { return text.boundary(end) == end }
	}
	found, err := f.store.Find(ctx, ask)
	if f.reach > 0 && len(found.Exact) > 0 {
		p.prompt.media = found.Media
	}
	return found, err
}

// awaitPending waits, for a bounded time, for queued pages that hold tokens of a prompt past have.
// parent is the key of the page before start. Pages written later than that are computed again.
func (f *finder) awaitPending(ctx context.Context, text *prompt, have int, parent pagefile.Key, start int) {
	wait, cancel := context.WithTimeout(ctx, f.store.patience.queue)
	defer cancel()
	_ = f.queue.waitFor(wait, extends(text, f.size, have, parent, start))
}

// extends returns whether a queued page holds tokens of a prompt past have. parent is the key of the
// page before start. Keys are computed only when a page with the prompt's tokens is queued.
func extends(text *prompt, size, have int, parent pagefile.Key, start int) func(*writeJob) bool {
	before := []pagefile.Key{parent} // before[i]: key of the parent of the prompt's i-th page after start
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

// restoresLossy reports whether lossy pages are restored. A window and a state belong to one position
// each, from which nothing exact could follow.
func (f *finder) restoresLossy() bool { return f.lossy && f.caches.divisible() }

// standing looks up the pages that stand for pages of a slot: exact ones, and lossy ones where these
// are restored. A page that moved down stays there although the slot has its rows. Stored near by
// again, the page would push out others, which move down in their turn: slots that are together larger
// than the local tier would write all their pages at every turn.
func (f *finder) standing(ctx context.Context, p diskstore.Prompt) ([]diskstore.Ref, error) {
	if f.restoresLossy() {
		p.Forms = diskstore.AnyForm
	}
	found, err := f.store.Find(ctx, p)
	return append(found.Exact, found.Mixed...), err // one of them is empty
}

// holes returns the pages of a chain that are neither stored nor queued. It asks the queue first: a
// page that is written meanwhile is in either. The error says that nothing is known of the pages.
func (f *finder) holes(ctx context.Context, keys []pagefile.Key, tokens []int32, media []pagefile.Media) (gone []int, err error) {
	parent, size, waiting := f.root, f.size, f.queue.keys()
	for at := 0; at < len(keys); {
		refs, err := f.standing(ctx, diskstore.Prompt{Parent: parent, Start: at * size, Tokens: tokens[at*size:], Media: media})
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
			rest, err := f.absent(ctx, keys, at, waiting) // two in a row: every further page would cost a look-up
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
func (f *finder) absent(ctx context.Context, keys []pagefile.Key, from int, waiting map[pagefile.Key]bool) (gone []int, err error) {
	for page := from; page < len(keys); page++ {
		if waiting[keys[page]] {
			continue
		}
		has, err := f.store.Has(ctx, keys[page])
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		if !has {
			gone = append(gone, page)
		}
	}
	return gone, nil
}

// trim ends a plan at the last position outside every span whose window is stored for every group.
func (f *finder) trim(ctx context.Context, p *plan) {
	known := make(map[pagefile.Key]map[int][]int32)
	for {
		p.end = p.prompt.boundary(p.end)
		for len(p.refs) > 0 && int(p.refs[len(p.refs)-1].Start) >= p.end {
			p.refs = p.refs[:len(p.refs)-1]
		}
		if p.end <= p.base {
			return
		}
		if f.beginGroups(ctx, p, known) {
			p.pass(&f.caches.geometry)
			return
		}
	}
}

// beginGroups fills in where each group begins and the cells its rows had. When a page
// lacks rows that are needed at the plan's end, beginGroups moves the end before that page
// and reports false. known keeps the cell numbers of pages, so that each page is read once.
func (f *finder) beginGroups(ctx context.Context, p *plan, known map[pagefile.Key]map[int][]int32) bool {
	p.begin = make([]int, len(f.caches.groups))
	p.preferred = make([][]int32, len(f.caches.groups))
	for g := range f.caches.groups {
		group := &f.caches.groups[g]
		p.begin[g] = max(p.base, group.oldest(p.end))
		if !group.windowed() {
			continue
		}
		var cells []int32
		for i := len(p.refs) - 1; i >= 0 && p.needs(i, g); i-- {
			ref := p.refs[i]
			if known[ref.Key] == nil {
				known[ref.Key] = f.cellNumbersOf(ctx, p, i)
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
func (f *finder) cellNumbersOf(ctx context.Context, p *plan, page int) map[int][]int32 {
	ref := p.refs[page]
	numbers := make(map[int][]int32)
	for g := range f.caches.groups {
		if !f.caches.groups[g].windowed() {
			continue
		}
		layout, err := pagefile.NewLayout([]pagefile.Section{f.caches.groups[g].cellNumbers()}, ref.Stored)
		if err != nil {
			continue // cannot happen for a page that was found
		}
		buf := make([]byte, layout.Size())
		err = f.store.Read(ctx, ref, p.prompt.tokens[ref.Start:ref.End()], layout, diskstore.Into{Rows: buf})
		if errors.Is(err, pagefile.ErrMismatch) {
			f.partial.add(ref.Key)
		}
		f.store.NoteRead(ref, err)
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

// partialMax bounds the pages that are remembered as partial.
const partialMax = 4096

// partialPages are pages that are known to be stored without some group's rows. A slot that has the rows
// stores such a page again. Methods may be called with any lock held.
type partialPages struct {
	mu   sync.Mutex
	keys map[pagefile.Key]bool
}

func (p *partialPages) add(key pagefile.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keys == nil || len(p.keys) >= partialMax {
		p.keys = make(map[pagefile.Key]bool)
	}
	p.keys[key] = true
}

func (p *partialPages) has(key pagefile.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[key]
}

func (p *partialPages) remove(key pagefile.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.keys, key)
}

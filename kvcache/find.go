package kvcache

import (
	"cmp"
	"context"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/rates"
)

// finder asks the store and the write queue which pages of a text there are, and plans how to read
// them. It knows no slot. Its methods are called without the runner's lock and TieredCausal.mu, and
// wait for the store in bounded time.
type finder struct {
	chain
	store  *steadyStore
	queue  *writeQueue
	caches *caches
	rates  *rates.Rates
	thin   *thinPages
	index  *runs.Index // of text that may move; may be nil
	reach  int         // see Options.Reach
	lossy  bool        // lossy pages are restored where the model allows it
	always bool        // pages are read even where computing is quicker
}

// awaitPending waits, for a bounded time, for queued pages that hold tokens of a prompt
// past have. parent is the key of the page before start. Pages written later than that are
// computed again.
func (f *finder) awaitPending(ctx context.Context, text *prompt, have int, parent pagefile.Key, start int) {
	wait, cancel := context.WithTimeout(ctx, f.store.patience.queue)
	defer cancel()
	_ = f.queue.waitFor(wait, extends(text, f.size, have, parent, start))
}

// extends returns whether a queued page holds tokens of a prompt past have. parent is the key of the
// page before start. Keys of the prompt's pages are computed only when a page with the prompt's tokens
// is queued.
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
func (f *finder) standing(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) ([]diskstore.Ref, error) {
	if f.restoresLossy() {
		return f.store.chainLossy(ctx, parent, start, tokens, media)
	}
	return f.store.chainFrom(ctx, parent, start, tokens, media)
}

// holes returns the pages of a chain that are neither stored nor queued. The queue is asked
// before the store: a page that is written meanwhile is in either. The error says that nothing is
// known of the pages.
func (f *finder) holes(ctx context.Context, keys []pagefile.Key, tokens []int32, media []pagefile.Media) (gone []int, err error) {
	parent, size, waiting := f.root, f.size, f.queue.keys()
	for at := 0; at < len(keys); {
		refs, err := f.standing(ctx, parent, at*size, tokens[at*size:], media)
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
		has, err := f.store.has(ctx, keys[page])
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		if !has {
			gone = append(gone, page)
		}
	}
	return gone, nil
}

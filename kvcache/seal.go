package kvcache

import (
	"github.com/kvtier/kvtier/diskstore"
)

// seal hands every full page of a slot that is not stored yet to the write queue. leaving
// says that the rows are about to be removed or rotated: then they are copied even when
// the queue is full. Otherwise a page that finds no room stays in the cache, and is tried
// again when the next batch is done.
func (t *TieredCausal) seal(s *slot, leaving bool) {
	t.extendKeys(s)
	size := t.opts.PageTokens
	for s.sealed < len(s.keys) && (s.sealed+1)*size <= s.private {
		page := s.sealed
		key := s.keys[page]
		if !t.queue.has(key) && !t.opts.Store.Has(key) {
			if !t.copyOut(s, page*size, (page+1)*size, leaving) {
				return
			}
			t.stats.SealedPages++
		}
		s.sealed++
	}
}

// sealTail saves the incomplete last page of a slot.
func (t *TieredCausal) sealTail(s *slot) {
	n := len(s.tokens)
	full := n / t.opts.PageTokens * t.opts.PageTokens
	if n == full || n > s.private || n == s.tailTokens {
		return
	}
	t.extendKeys(s)
	if t.copyOut(s, full, n, true) {
		s.tailTokens = n
		t.stats.SealedTails++
	}
}

// extendKeys computes the keys of pages that became whole.
func (t *TieredCausal) extendKeys(s *slot) {
	size := t.opts.PageTokens
	for page := len(s.keys); (page+1)*size <= len(s.tokens); page++ {
		s.keys = append(s.keys, diskstore.ChainKey(t.parent(s, page), s.tokens[page*size:(page+1)*size], nil))
	}
}

// parent is the key of the page before, or the fingerprint for the first.
func (t *TieredCausal) parent(s *slot, page int) diskstore.Key {
	if page == 0 {
		return t.opts.Fingerprint
	}
	return s.keys[page-1]
}

// copyOut copies the rows of positions [begin, end), which lie in one page, into staging
// and queues them. It reports whether they are on their way.
func (t *TieredCausal) copyOut(s *slot, begin, end int, leaving bool) bool {
	if t.geometry.sections == nil {
		return false
	}
	layout, err := diskstore.NewLayout(t.geometry.sections, end-begin)
	if err != nil {
		t.copyFailed("lay out a page", err)
		return false
	}
	payload := t.queue.stage(layout.Size(), leaving)
	if payload == nil {
		return false
	}
	t.Rows.SynchronizeRows()
	if err := t.geometry.gather(t.Rows, layout, s.cells[begin:end], payload); err != nil {
		t.copyFailed("copy a page out of the cache", err)
		return false
	}

	parent := t.parent(s, begin/t.opts.PageTokens)
	page := &diskstore.Page{
		Parent:  parent,
		Start:   uint32(begin),
		Tokens:  append([]int32(nil), s.tokens[begin:end]...),
		Layout:  layout,
		Payload: payload,
	}
	t.queue.push(diskstore.ChainKey(parent, page.Tokens, nil), page)
	return true
}

// copyFailed reports the first failure of its kind; what could not be copied is computed
// again when it is needed.
func (t *TieredCausal) copyFailed(what string, err error) {
	if t.stats.FailedCopies == 0 {
		t.log.Warn("kv tier: could not "+what+"; it will be computed again when needed", "error", err)
	}
	t.stats.FailedCopies++
}

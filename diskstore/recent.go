package diskstore

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Recent knows the most recently used pages of a store's fingerprint, as of the count that Open
// begins: Recent counts only where that count failed, and does not see later changes.
type Recent struct {
	*reader
	life       *work.Life
	traffic    *work.Traffic // of Reads and Puts, for which Recent waits
	aheadBytes int64         // Options.ReadAheadBytes
	latest     int           // Options.LatestPages
}

// Recent returns what the store knows of its most recently used pages.
func (s *Store) Recent() *Recent {
	return &Recent{&s.reader, s.life, &s.traffic, s.opt.ReadAheadBytes, s.opt.LatestPages}
}

// PageTokens is the position and the tokens of a page, from its header.
type PageTokens struct {
	Key, Parent pagefile.Key
	Start       uint32 // position of the first token
	Tokens      []int32
}

// Pages returns the latest full pages without media, at most Options.LatestPages of them, the most
// recent first: the local tier's pages, then pages that only the remote tier has. A second call finds
// none. Pages reads headers, and waits while Reads and Puts run. Pages that cannot be read are left
// out; Read finds their damage. Pages returns the pages found so far together with tier.ErrClosed,
// ctx's error or an error of counting the local tier.
func (r *Recent) Pages(ctx context.Context) ([]PageTokens, error) {
	ctx, leave, err := r.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var found []PageTokens
	seen := make(map[pagefile.Key]bool)
	for _, lv := range r.tiers {
		if _, err := lv.files.AwaitFirst(ctx, lv.counting...); err != nil {
			lv.noteTierError(err)
			if !lv.far || ctx.Err() != nil {
				return found, err
			}
			continue
		}
		for _, info := range lv.files.First.TakeLatest() {
			if len(found) == r.latest {
				return found, nil
			}
			if err := r.traffic.StandBack(ctx); err != nil {
				return found, err
			}
			h, err := tier.ReadHeader(ctx, lv.tier, info.Name)
			if err != nil || seen[info.Key] || len(h.Media) > 0 || h.PageTokens != r.pageTokens {
				continue
			}
			seen[info.Key] = true
			found = append(found, PageTokens{Key: info.Key, Parent: h.Parent, Start: h.Start, Tokens: h.Tokens})
		}
	}
	return found, nil
}

// Text returns the tokens of the most recently used conversation in the local tier, from its first token to
// the last that is stored, or nil. Text knows the files that ReadAhead reads, and is called before it:
// Options.ReadAheadBytes bounds both. The conversation ends before its first page with media, and before a
// page that cannot be read. The error is tier.ErrClosed, ctx's or that of counting the local tier.
func (r *Recent) Text(ctx context.Context) ([]int32, error) {
	ctx, leave, err := r.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	local := r.tiers[0]
	if _, err := local.files.AwaitFirst(ctx, local.counting...); err != nil {
		return nil, err
	}
	text := latestText{end: r.pages.Exact, past: make(map[pagefile.Key]bool), early: make(map[pagefile.Key][]*pagefile.Header)}
	for _, info := range local.files.First.Recent() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if text.complete(info.Used) {
			break
		}
		h, err := tier.ReadHeader(ctx, local.tier, info.Name)
		if err == nil && len(h.Media) == 0 && h.PageTokens == r.pageTokens && text.add(h) {
			text.used = info.Used
		} else {
			text.vain++
		}
	}
	return append(text.tokens, text.tail...), nil
}

// latestText joins pages, of which each follows the page before it.
type latestText struct {
	tokens []int32
	end    pagefile.Key // the last full page, or the fingerprint
	tail   []int32
	past   map[pagefile.Key]bool               // pages after which nothing more of the text comes
	used   time.Time                           // recency of the last file that was added
	vain   int                                 // files that were not added
	early  map[pagefile.Key][]*pagefile.Header // files before the page that they follow, by its key
}

// earlyMax bounds the keys of latestText.early, and the files that are looked at in vain to find the
// pages before those: copies of files may have lost their order.
const earlyMax = 1024

// complete reports whether the files from some recency on are of other conversations. The files of a
// conversation differ by 10 ns for each token; files of others that were used in the same minute may
// be among them.
func (t *latestText) complete(used time.Time) bool {
	if t.used.IsZero() {
		return t.vain >= earlyMax
	}
	return t.used.Sub(used) > time.Second && (len(t.early) == 0 || t.vain >= earlyMax)
}

// add adds a page or a tail. add reports false for one that does not go on with the text.
func (t *latestText) add(h *pagefile.Header) bool {
	switch {
	case h.Key == t.end: // exact and lossy
		return false
	case t.past[h.Parent], h.Parent == t.end && pagefile.Shared(h.Tokens, t.tail) < min(len(h.Tokens), len(t.tail)):
		t.past[h.Key] = true // another conversation
		return false
	case h.Parent != t.end:
		if len(t.early) < earlyMax {
			t.early[h.Parent] = append(t.early[h.Parent], h)
		}
		return false
	}
	if h.Tail() {
		if len(h.Tokens) > len(t.tail) {
			t.tail = h.Tokens
		}
		return true
	}
	t.past[t.end] = true
	t.tokens, t.end, t.tail = append(t.tokens, h.Tokens...), h.Key, nil
	next := t.early[h.Key]
	delete(t.early, h.Key)
	for _, after := range next {
		t.add(after)
	}
	return true
}

package diskstore

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// PageTokens is the position and the tokens of a page, from its header.
type PageTokens struct {
	Key, Parent pagefile.Key
	Start       uint32 // position of the first token
	Tokens      []int32
}

// Latest returns the most recently used full pages without media, at most `most` of them, the
// most recent first: the local tier's pages, then pages that only the remote tier has. The first
// call for at most Options.LatestPages uses the result of Open's count, and does not see later
// changes; other calls list the tiers. Latest reads headers, and waits while Reads and Puts
// run. Pages that cannot be read are left out; Read finds their damage. Latest returns the pages
// found so far together with tier.ErrClosed, ctx's error or an error of listing the local tier.
func (s *Store) Latest(ctx context.Context, most int) ([]PageTokens, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var found []PageTokens
	seen := make(map[pagefile.Key]bool)
	for _, lv := range s.levels(tier.Local) {
		infos, err := lv.latest(ctx, most)
		if err != nil {
			lv.noteTierError(err)
			if lv == s.local || ctx.Err() != nil {
				return found, err
			}
			continue
		}
		for _, info := range infos {
			if len(found) == most {
				return found, nil
			}
			if err := s.traffic.StandBack(ctx); err != nil {
				return found, err
			}
			h, err := s.headerOf(ctx, lv.tier, info.Name)
			if err != nil || seen[info.Key] || len(h.Media) > 0 || h.PageTokens != s.opt.PageTokens {
				continue
			}
			seen[info.Key] = true
			found = append(found, PageTokens{Key: info.Key, Parent: h.Parent, Start: h.Start, Tokens: h.Tokens})
		}
	}
	return found, nil
}

func newLatest(fingerprint pagefile.Key, most int) *recents {
	r := newRecents(fingerprint, math.MaxInt64)
	r.most = most
	return r
}

// latest returns at least `most` of a tier's latest full pages, the most recent first, if the
// tier has as many.
func (lv *level) latest(ctx context.Context, most int) ([]tier.Info, error) {
	if most <= lv.s.opt.LatestPages {
		if _, err := lv.awaitFirst(ctx); err != nil {
			return nil, err
		}
		if latest := lv.first.takeLatest(); latest != nil {
			return latest.order(), nil
		}
	}
	found := &wanted{latest: newLatest(lv.s.opt.Fingerprint, most)}
	err := lv.list(ctx, found.add)
	return found.latest.order(), err
}

// LatestTexts returns the tokens of the most recently used conversations in the local tier, at most
// `most`, the most recent first, each from its first token to the last that is stored. LatestTexts
// knows the files that ReadAhead reads, and is called before it: Options.ReadAheadBytes bounds
// both. A conversation ends before its first page with media, and before a page that cannot be
// read. LatestTexts returns tier.ErrClosed, ctx's error or an error of counting the local tier.
func (s *Store) LatestTexts(ctx context.Context, most int) ([][]int32, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if _, err := s.local.awaitFirst(ctx); err != nil {
		return nil, err
	}
	texts := latestTexts{
		root: s.opt.Fingerprint, most: most,
		pages: make(map[pagefile.Key]*pagefile.Header), early: make(map[pagefile.Key][]*pagefile.Header),
	}
	for _, info := range s.local.first.recentFiles() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if texts.end(info.Used) {
			break
		}
		h, err := s.headerOf(ctx, s.local.tier, info.Name)
		if err == nil && len(h.Media) == 0 && h.PageTokens == s.opt.PageTokens && texts.add(h) {
			texts.used = info.Used
		} else {
			texts.vain++
		}
	}
	return texts.tokens(), nil
}

// latestTexts joins pages, of which each follows the page before it, to conversations.
type latestTexts struct {
	root  pagefile.Key
	most  int
	pages map[pagefile.Key]*pagefile.Header
	early map[pagefile.Key][]*pagefile.Header // pages and tails before the page that they follow, by its key
	ends  []textEnd
	used  time.Time // recency of the last file that was added
	vain  int       // files that were not added
}

// earlyMax bounds the keys of latestTexts.early, and the files that are looked at in vain to find the
// pages before those: copies of files may have lost their order.
const earlyMax = 1024

// textEnd is the end of a conversation.
type textEnd struct {
	page pagefile.Key // the last full page, or the root
	tail []int32
}

// end reports whether the files from some recency on are of other conversations. Files of one
// conversation, and of two that were used in the same minute, differ by 10 ns for each token.
func (t *latestTexts) end(used time.Time) bool {
	full := t.most == 0 || len(t.ends) == t.most && t.used.Sub(used) > time.Second
	return full && (len(t.early) == 0 || t.vain >= earlyMax)
}

// add adds a page or a tail. add reports false for one that is in none of the conversations.
func (t *latestTexts) add(h *pagefile.Header) bool {
	if _, known := t.pages[h.Parent]; !known && h.Parent != t.root {
		if len(t.early) < earlyMax {
			t.early[h.Parent] = append(t.early[h.Parent], h)
		}
		return false
	}
	i := slices.IndexFunc(t.ends, func(end textEnd) bool { return end.goesOnWith(h) })
	if i < 0 {
		if len(t.ends) == t.most || h.Tail() && t.goesOn(h) {
			return false
		}
		i, t.ends = len(t.ends), append(t.ends, textEnd{page: h.Parent})
	}
	end := &t.ends[i]
	switch {
	case !h.Tail():
		t.pages[h.Key] = h
		*end = textEnd{page: h.Key}
	case len(h.Tokens) > len(end.tail):
		end.tail = h.Tokens
	}
	after := t.early[h.Key]
	delete(t.early, h.Key)
	for _, next := range after {
		t.add(next)
	}
	return true
}

// goesOnWith reports whether a page or a tail follows the end's last full page, and has the end's
// tail or its beginning.
func (e *textEnd) goesOnWith(h *pagefile.Header) bool {
	return h.Parent == e.page && pagefile.Shared(h.Tokens, e.tail) == min(len(h.Tokens), len(e.tail))
}

// goesOn reports whether a tail is the beginning of a page: the conversation went on.
func (t *latestTexts) goesOn(tail *pagefile.Header) bool {
	for _, page := range t.pages {
		if page.Parent == tail.Parent && pagefile.Shared(page.Tokens, tail.Tokens) == len(tail.Tokens) {
			return true
		}
	}
	return false
}

// tokens returns the conversations' tokens.
func (t *latestTexts) tokens() [][]int32 {
	texts := make([][]int32, len(t.ends))
	for i, end := range t.ends {
		parts := [][]int32{end.tail}
		for key := end.page; key != t.root; key = t.pages[key].Parent {
			parts = append(parts, t.pages[key].Tokens)
		}
		slices.Reverse(parts)
		texts[i] = slices.Concat(parts...)
	}
	return texts
}

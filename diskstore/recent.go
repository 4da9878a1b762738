package diskstore

import (
	"context"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
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
	text := newLatestText(r.pages.Exact)
	for _, info := range local.files.First.Recent() {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if text.complete(info.Used) {
			break
		}
		h, err := tier.ReadHeader(ctx, local.tier, info.Name)
		if err == nil && len(h.Media) == 0 && h.PageTokens == r.pageTokens && text.add(h, recency.Used(info.Used, h.Start)) {
			text.used = info.Used
		} else {
			text.vain++
		}
	}
	return text.tokens(), nil
}

// latestText joins pages and tails, of which each follows the page before it.
type latestText struct {
	root  *latestPage
	found map[recency.Place]*latestPage   // by the place behind it; the root by the first one
	order []*latestPage                   // without the root; none is before the page that it follows
	used  time.Time                       // recency of the last file that was the first to follow its page
	vain  int                             // other files
	early map[recency.Place][]*latestPage // files before the page that they follow, by their place
}

// latestPage is a page or a tail.
type latestPage struct {
	behind   recency.Place // where the next one begins; none does behind a tail
	before   *latestPage
	followed bool // some page goes on from it
	tokens   []int32
	used     time.Time   // the last use of its chain, or of one that goes on from it
	next     *latestPage // that goes on from it; nil for none
	length   int         // tokens from its first to the text's last, if the text has it
}

func newLatestText(fingerprint pagefile.Key) *latestText {
	root := &latestPage{behind: recency.Place{Parent: fingerprint}}
	return &latestText{root: root, found: map[recency.Place]*latestPage{root.behind: root}, early: make(map[recency.Place][]*latestPage)}
}

// earlyMax bounds the keys of latestText.early, and the files that are looked at in vain to find the
// pages before those: copies of files may have lost their order.
const earlyMax = 1024

// sameUse is the time within which two conversations' last uses count as one.
const sameUse = time.Second

// complete reports whether the files from some recency on are of other conversations. The files of a
// conversation differ by 10 ns for each token; files of others that were used in the same minute may
// be among them.
func (t *latestText) complete(used time.Time) bool {
	if t.used.IsZero() {
		return t.vain >= earlyMax
	}
	return t.used.Sub(used) > sameUse && (len(t.early) == 0 || t.vain >= earlyMax)
}

// add adds a page or a tail, whose chain was last used at a time. add reports whether it is the first to
// follow the page before it.
func (t *latestText) add(h *pagefile.Header, used time.Time) bool {
	at, behind := recency.Place{Parent: h.Parent, Start: h.Start}, recency.Place{Parent: h.Key, Start: h.Start + uint32(len(h.Tokens))}
	if t.found[behind] != nil { // exact and lossy
		return false
	}
	p := &latestPage{behind: behind, tokens: h.Tokens, used: used}
	if p.before = t.found[at]; p.before == nil {
		if len(t.early) < earlyMax {
			t.early[at] = append(t.early[at], p)
		}
		return false
	}
	first := !p.before.followed
	p.before.followed = true
	t.join(p)
	return first
}

// join joins a page that follows another one, and those that wait for it.
func (t *latestText) join(p *latestPage) {
	for joined := []*latestPage{p}; len(joined) > 0; {
		p, joined = joined[0], joined[1:]
		if t.found[p.behind] != nil {
			continue
		}
		t.found[p.behind], t.order = p, append(t.order, p)
		for _, after := range t.early[p.behind] {
			after.before, p.followed = p, true
			joined = append(joined, after)
		}
		delete(t.early, p.behind)
	}
}

// tokens returns the text. Pages that are stored within a minute after one beginning have the same
// recencies: an answer that was cut off, and the prompt that has another one in its place. Of those the
// longest chain is taken.
func (t *latestText) tokens() (tokens []int32) {
	for _, p := range slices.Backward(t.order) {
		p.length = len(p.tokens)
		if p.next != nil {
			p.length += p.next.length
		}
		p.before.goOn(p)
	}
	for p := t.root.next; p != nil; p = p.next {
		tokens = append(tokens, p.tokens...)
	}
	return tokens
}

// goOn has a page go on with another one if that is better than the one before.
func (p *latestPage) goOn(next *latestPage) {
	if next.used.After(p.used) {
		p.used = next.used
	}
	if p.next != nil {
		later := next.used.Sub(p.next.used)
		if later < -sameUse || later <= sameUse && next.length <= p.next.length {
			return
		}
	}
	p.next = next
}

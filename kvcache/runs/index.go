package runs

import (
	"cmp"
	"container/list"
	"iter"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// maxTwins bounds how many pages with the same tokens in different chains are tried, latest first.
const maxTwins = 8

// pageBytes is roughly the memory of a page besides its tokens: the page, and its entries in the index.
const pageBytes = 300

// Page is a full page without media.
type Page struct {
	Key, Parent pagefile.Key
	Start       int // position of the first token
	Tokens      []int32
}

// Run is a stored run of tokens: the first one is the page's token From, and the others
// follow in the page and in the pages that continue it.
type Run struct {
	Page Page
	From int
	// Tokens is the number of the run's tokens in pages of the index.
	Tokens int
}

// Position is the stored position of the run's first token.
func (r Run) Position() int { return r.Page.Start + r.From }

// Index keeps the tokens of a bounded number of pages. Methods may be called from several goroutines.
type Index struct {
	size  int // tokens per page
	most  int // most pages
	twins int // maxTwins, except in tests
	lead  uint64

	mu       sync.Mutex
	pages    map[pagefile.Key]*list.Element // elements are *Page
	byHash   map[uint64][]*Page
	children map[pagefile.Key][]*Page // by parent
	recent   *list.List               // latest first
}

// New returns an index of at most `most` pages of pageTokens tokens each. The index takes 4
// bytes per token and about 300 per page.
func New(pageTokens, most int) *Index {
	x := &Index{
		size: pageTokens, most: most, twins: maxTwins, lead: 1, recent: list.New(),
		pages: make(map[pagefile.Key]*list.Element), byHash: make(map[uint64][]*Page), children: make(map[pagefile.Key][]*Page),
	}
	for range pageTokens - 1 {
		x.lead *= base
	}
	return x
}

// Learn adds a page of a store, unless the page has media. A nil index learns nothing.
func (x *Index) Learn(key pagefile.Key, page *pagefile.Page) {
	if x != nil && len(page.Media) == 0 {
		x.Add(Page{Key: key, Parent: page.Parent, Start: int(page.Start), Tokens: page.Tokens})
	}
}

// Add makes a page the latest, with a copy of its tokens. Pages of another length are left out.
func (x *Index) Add(page Page) {
	if len(page.Tokens) != x.size {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.pages[page.Key]; ok {
		x.recent.MoveToFront(e)
		return
	}
	if x.recent.Len() >= x.most {
		x.dropLocked(x.recent.Back())
	}
	page.Tokens = slices.Clone(page.Tokens)
	x.pages[page.Key] = x.recent.PushFront(&page)
	h := x.hash(page.Tokens)
	x.byHash[h] = append(x.byHash[h], &page)
	x.children[page.Parent] = append(x.children[page.Parent], &page)
}

// Remove drops a page.
func (x *Index) Remove(key pagefile.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e, ok := x.pages[key]; ok {
		x.dropLocked(e)
	}
}

func (x *Index) dropLocked(e *list.Element) {
	page := x.recent.Remove(e).(*Page)
	delete(x.pages, page.Key)
	without(x.byHash, x.hash(page.Tokens), page)
	without(x.children, page.Parent, page)
}

// without removes a page from a list in a map.
func without[K comparable](m map[K][]*Page, key K, page *Page) {
	if m[key] = slices.DeleteFunc(m[key], func(o *Page) bool { return o == page }); len(m[key]) == 0 {
		delete(m, key)
	}
}

// Len is the number of pages in the index.
func (x *Index) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.recent.Len()
}

// Bytes estimates the memory of the index, of which most is a copy of the pages' tokens.
func (x *Index) Bytes() int64 { return int64(x.Len()) * (4*int64(x.size) + pageBytes) }

// Find returns the runs, longest first, that hold leading tokens of the given ones at
// another position than `position`, at least one full page of them.
func (x *Index) Find(tokens []int32, position int) []Run {
	x.mu.Lock()
	defer x.mu.Unlock()
	var runs []Run
	for at, h := range x.windows(tokens) {
		for i, page := range slices.Backward(x.byHash[h]) {
			if len(x.byHash[h])-i > x.twins {
				break
			}
			run, ok := x.runThroughLocked(page, tokens, at)
			if ok && run.Position() != position {
				runs = append(runs, run)
			}
		}
	}
	slices.SortStableFunc(runs, func(a, b Run) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return runs
}

// runThroughLocked is the run that begins with tokens and has the given page at tokens[at].
func (x *Index) runThroughLocked(page *Page, tokens []int32, at int) (Run, bool) {
	if !slices.Equal(page.Tokens, tokens[at:at+x.size]) {
		return Run{}, false
	}
	run := Run{Page: *page}
	if at > 0 {
		e, ok := x.pages[page.Parent]
		if !ok {
			return Run{}, false
		}
		before := e.Value.(*Page)
		run = Run{Page: *before, From: x.size - at}
		if !slices.Equal(before.Tokens[run.From:], tokens[:at]) {
			return Run{}, false
		}
	}
	for end := at; page != nil; page = x.childLocked(page.Key, tokens[end:]) {
		end += x.size
		run.Tokens = end
	}
	return run, true
}

// childLocked is a page after parent whose tokens are the first of the given tokens, or nil.
func (x *Index) childLocked(parent pagefile.Key, tokens []int32) *Page {
	for _, page := range x.children[parent] {
		if len(tokens) >= x.size && slices.Equal(page.Tokens, tokens[:x.size]) {
			return page
		}
	}
	return nil
}

// base of the polynomial that hashes a page's tokens: odd, so that no power is 0 modulo 2^64.
const base = 0x9e3779b97f4a7c15

// hash is the hash of one page's tokens.
func (x *Index) hash(tokens []int32) uint64 {
	var h uint64
	for _, token := range tokens {
		h = h*base + digit(token)
	}
	return h
}

// digit is a token's coefficient in the polynomial, never 0.
func digit(token int32) uint64 { return uint64(uint32(token)) + 1 }

// windows yields the start and the hash of every window of a page's length in tokens, in order.
func (x *Index) windows(tokens []int32) iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		if len(tokens) < x.size {
			return
		}
		h := x.hash(tokens[:x.size])
		for at := 0; at < x.size; at++ {
			if !yield(at, h) || at+x.size >= len(tokens) {
				return
			}
			h = (h-digit(tokens[at])*x.lead)*base + digit(tokens[at+x.size])
		}
	}
}

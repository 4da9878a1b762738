package runs

import (
	"cmp"
	"container/list"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// maxTwins is how many pages with the same tokens in different chains are looked at, the
// latest first.
const maxTwins = 8

// Page is a full page without media.
type Page struct {
	Key, Parent pagefile.Key
	Start       int // position of its first token
	Tokens      []int32
}

// Run is where tokens were stored: the first of them is the page's token From, and the others
// follow in it and in the pages that continue it.
type Run struct {
	Page Page
	From int
	// Tokens is how many of them are in pages that the index knows.
	Tokens int
}

// Position is where the run's first token was.
func (r Run) Position() int { return r.Page.Start + r.From }

// Index knows the tokens of pages, as many as it is made for. Its methods may be called from
// several goroutines.
type Index struct {
	size  int // tokens of a page
	most  int // pages
	twins int // maxTwins, but in tests
	lead  uint64

	mu       sync.Mutex
	pages    map[pagefile.Key]*list.Element // of *Page
	byHash   map[uint64][]*Page
	children map[pagefile.Key][]*Page // by parent
	recent   *list.List               // the latest first
}

// New returns an index of at most so many pages of a number of tokens: 4 bytes for each token
// and about 300 for each page.
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

// Len is how many pages the index knows.
func (x *Index) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.recent.Len()
}

// Begins returns the page after parent that begins with the most of tokens, and how many
// those are; none is 0.
func (x *Index) Begins(parent pagefile.Key, tokens []int32) (Page, int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var best Page
	most := 0
	for _, page := range x.children[parent] {
		if n := pagefile.Shared(page.Tokens, tokens); n > most {
			best, most = *page, n
		}
	}
	return best, most
}

// Find returns where else tokens, which are wanted from a position on, are stored from the
// first of them on, at least one full page of them: the longest run first.
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

// runThroughLocked is the run that begins with tokens and has a page at one of them.
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

// childLocked is a page after parent that tokens begin with.
func (x *Index) childLocked(parent pagefile.Key, tokens []int32) *Page {
	for _, page := range x.children[parent] {
		if len(tokens) >= x.size && slices.Equal(page.Tokens, tokens[:x.size]) {
			return page
		}
	}
	return nil
}

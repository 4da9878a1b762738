package search

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// pagesMax bounds the pages that one search looks at: more are not looked at, and are counted.
const pagesMax = 1 << 20

// page is a page or tail of the local tier.
type page struct {
	place
	name  pagefile.Name
	used  time.Time
	score float64 // of its best part
	at    int     // that part's first token in the page
	rated bool    // it has vectors, and a score
}

// list returns the pages of the local tier, the last used first, and the number of those beyond pagesMax.
func list(ctx context.Context, from Pages) (pages []*page, beyond int, err error) {
	_, shards, err := from.Survey(ctx)
	for _, shard := range shards {
		if err != nil {
			break
		}
		var infos []tier.Info
		infos, err = from.ListShard(ctx, shard)
		for _, info := range infos {
			if len(pages) == pagesMax {
				beyond++
				continue
			}
			pages = append(pages, &page{name: info.Name, used: info.Used})
		}
	}
	slices.SortFunc(pages, func(a, b *page) int {
		return cmp.Or(b.used.Compare(a.used), slices.Compare(a.name.Key[:], b.name.Key[:]))
	})
	return pages, beyond, err
}

// conversations are pages by their keys, and of each page the last page of the conversation that was used last of
// those that begin with it.
type conversations struct {
	pages map[pagefile.Key]*page
	last  map[pagefile.Key]*page
}

// converse puts pages whose places are known into their conversations.
func converse(pages []*page) conversations {
	c := conversations{pages: make(map[pagefile.Key]*page), last: make(map[pagefile.Key]*page)}
	for _, p := range pages {
		if c.pages[p.Key] == nil { // an exact and a lossy page may have the same key
			c.pages[p.Key] = p
		}
	}
	backwards := slices.SortedFunc(slices.Values(pages), func(a, b *page) int { return cmp.Compare(b.Start, a.Start) })
	for _, p := range backwards {
		last := c.last[p.Key]
		if last == nil {
			last = p
			c.last[p.Key] = p
		}
		if before := c.last[p.Parent]; p.Start > 0 && (before == nil || before.used.Before(last.used) || before.used.Equal(last.used) && before.end() < last.end()) {
			c.last[p.Parent] = last
		}
	}
	return c
}

// stored returns the number of tokens of the conversation with this last page that the local tier has, from its
// end to the first page that is missing.
func (c conversations) stored(last *page) (tokens int) {
	for p := last; p != nil; p = c.pages[p.Parent] {
		tokens += p.Tokens
		if p.Start == 0 || tokens > last.end() {
			break
		}
	}
	return min(tokens, last.end())
}

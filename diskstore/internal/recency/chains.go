package recency

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Place is a place in a chain: behind its parent, or at the chain's beginning with start 0.
type Place struct {
	Parent pagefile.Key
	Start  uint32
}

// Link is the place of a page in its chain.
type Link struct {
	Place
	Used time.Time // last use of the chain in the local tier, by the page's file, or earlier; zero if unknown
}

// Chains moves the recencies of a store's pages in its local tier.
type Chains struct {
	local   tier.Tier
	pages   *names.Pages
	now     func() time.Time
	horizon func() time.Time // of Fresh
	used    Use

	mu    sync.Mutex
	links map[pagefile.Key]Link // noted times may be too early, never too late: times in a tier only move forward
}

// maxLinks bounds Chains.links, to about 20 MiB; beyond maxLinks every entry is dropped.
const maxLinks = 1 << 17

// New returns the chains of pages. horizon returns the recency up to which files of the local tier
// have been evicted. used is told of each use of a file.
func New(local tier.Tier, pages *names.Pages, now, horizon func() time.Time, used Use) *Chains {
	return &Chains{local: local, pages: pages, now: now, horizon: horizon, used: used, links: make(map[pagefile.Key]Link)}
}

func (c *Chains) noted(key pagefile.Key) (Link, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.links[key]
	return l, ok
}

// Note notes the place of a full page, and the last use of its chain in the local tier if that is known.
func (c *Chains) Note(key pagefile.Key, l Link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.links) >= maxLinks {
		clear(c.links)
	}
	if old, ok := c.links[key]; ok && old.Used.After(l.Used) {
		l.Used = old.Used
	}
	c.links[key] = l
}

// Forget drops everything that was noted: files have moved back.
func (c *Chains) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.links)
}

// LinkIn returns the place of a tier's full page in its chain, of any fingerprint. For a page whose header
// cannot be read, LinkIn returns a place on which no page depends; reading the page shows the cause.
func (c *Chains) LinkIn(ctx context.Context, t tier.Tier, name pagefile.Name) Link {
	if l, ok := c.noted(name.Key); ok {
		return l
	}
	h, err := tier.ReadHeader(ctx, t, name)
	if err != nil {
		return Link{}
	}
	l := Link{Place: Place{h.Parent, h.Start}}
	c.Note(name.Key, l)
	return l
}

// Link returns the place of a full page of this store and the last use of its chain in
// the local tier. Link returns false for a page that is neither stored locally nor noted.
func (c *Chains) Link(ctx context.Context, key pagefile.Key) (Link, bool) {
	l, ok := c.noted(key)
	if ok && !l.Used.IsZero() && !tier.Beyond(l.Used, c.now()) {
		return l, true
	}
	c.mu.Lock()
	delete(c.links, key)
	c.mu.Unlock()
	info, err := c.pages.Stat(ctx, c.local, key)
	if err != nil {
		return l, ok
	}
	if !ok {
		h, err := tier.ReadHeader(ctx, c.local, info.Name)
		if err != nil {
			return Link{}, false
		}
		l = Link{Place: Place{h.Parent, h.Start}}
	}
	l.Used = Used(info.Used, l.Start)
	c.Note(key, l)
	return l, true
}

// Fresh reports whether a chain of the local tier used at the given time counts as just used.
func (c *Chains) Fresh(used, now time.Time) bool { return Fresh(used, now, c.horizon()) }

// Time returns the use time of a local page that is stored or used now: the parent's time
// if fresh, and otherwise now, after moving all pages before this one up to now.
func (c *Chains) Time(ctx context.Context, at Place, now time.Time) time.Time {
	if at.Start == 0 {
		return now
	}
	l, ok := c.Link(ctx, at.Parent)
	if ok && !l.Used.IsZero() && c.Fresh(l.Used, now) && !c.movedBack(ctx, at.Parent, l) {
		return l.Used
	}
	c.raise(ctx, at.Parent, now)
	return now
}

// movedBack reports whether a page's recency is much earlier than the noted one. If so, another host took the
// page for one from the future and moved it back, and every noted time is dropped.
func (c *Chains) movedBack(ctx context.Context, key pagefile.Key, l Link) bool {
	info, err := c.pages.Stat(ctx, c.local, key)
	if err != nil || Of(l.Used, l.Start).Sub(info.Used) < tier.ClockSlack/2 {
		return false
	}
	c.Forget()
	return true
}

// MoveUp moves all local pages before some places up to now, or to a later time for which the recency
// at each place is later than after. MoveUp returns the recency of a page at the last place. Files with
// an earlier recency are not part of the chains.
func (c *Chains) MoveUp(ctx context.Context, after time.Time, places ...Place) time.Time {
	var last uint32
	for _, at := range places {
		last = max(last, at.Start)
	}
	used := tier.Later(c.now(), Used(after, last).Add(Step))
	for _, at := range places {
		if at.Start > 0 {
			c.raise(ctx, at.Parent, used)
		}
	}
	return Of(used, last)
}

// MostUses returns the largest number of uses of a page that continues another one: a page with more would
// leave after that one.
func (c *Chains) MostUses(ctx context.Context, parent pagefile.Key) int {
	if parent != c.pages.Exact {
		if info, err := c.pages.Stat(ctx, c.local, parent); err == nil {
			return Uses(info.Used)
		}
	}
	return reuse.MostUses
}

// raise moves the recency of a local page, and of the pages before it, up to the recency of a
// chain used at the given time. raise stops at the first page with such a recency, because the
// pages before that page have one, too. The result is that of MostUses.
func (c *Chains) raise(ctx context.Context, key pagefile.Key, used time.Time) (most int) {
	type step struct {
		key pagefile.Key
		Link
	}
	var steps []step
	used = used.Truncate(Step)
	for key != c.pages.Exact {
		l, ok := c.Link(ctx, key)
		if !ok || !l.Used.Before(used) && !l.Used.IsZero() {
			break
		}
		steps = append(steps, step{key, l})
		key = l.Parent
	}
	most = c.MostUses(ctx, key)
	for _, st := range slices.Backward(steps) {
		name := c.pages.Page(st.key)
		uses, err := c.forward(ctx, name, Of(used, st.Start), most)
		if errors.Is(err, tier.ErrNotFound) && c.pages.Cold {
			uses, err = c.forward(ctx, pagefile.ColdName(name), Of(used, st.Start), most)
		}
		if errors.Is(err, tier.ErrNotFound) {
			continue // a later page may exist nevertheless
		}
		if err != nil {
			return most // the pages after this one keep their times, and the order holds
		}
		most = uses
		st.Used = used
		c.Note(st.key, st.Link)
	}
	return most
}

// forward returns the file's number of uses.
func (c *Chains) forward(ctx context.Context, name pagefile.Name, to time.Time, most int) (uses int, err error) {
	_, now, err := Forward(ctx, c.local, name, to, most, c.used)
	return Uses(now), err
}

// Touch moves the recency of a local file up to that of a chain used at the given time,
// after moving the pages before it.
func (c *Chains) Touch(ctx context.Context, name pagefile.Name, at Place, used time.Time) {
	most := reuse.MostUses
	if at.Start > 0 {
		most = c.raise(ctx, at.Parent, used)
	}
	if _, err := c.forward(ctx, name, Of(used, at.Start), most); err == nil && name.Class == pagefile.ClassPage {
		c.Note(name.Key, Link{Place: at, Used: used})
	}
}

package diskstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

/*
A file's modification time is its recency, and this time alone orders files: a page's
recency is always later than the recency of every page that continues it. So a collection
needs only a listing: the least recently used files, in the order of their times, are the
files to evict.

	recency of a page = time its chain was last used − start × 10 ns

All pages that one look-up finds, and all pages stored after them, share the first term. The
first term only moves forward, from a chain's first page to its last; future.go handles
wrong clocks. Before a page's recency moves, the recencies of the pages before it move as
far, unless they are later already.

10 ns per token distinguish neighbours on filesystems that store 100 ns. Where times are
coarser, and for files whose times were lost in a copy, headers order pages with equal
times. Times are not synced: a power cut costs order, not pages.
*/
const recencyStep = 10 * time.Nanosecond // per token

// touchEvery is the time for which a chain counts as just used: an order within one minute has
// no effect on pages kept for days.
const touchEvery = time.Minute

// freshShare is the divisor of the lifetime of files in a tier that bounds the delay of a
// chain's recency. freshShare has an effect where a budget fills in less than an hour.
const freshShare = 60

// recency returns the recency of a page in a chain last used at the given time.
func recency(used time.Time, start uint32) time.Time {
	return used.Add(-time.Duration(start) * recencyStep)
}

// chainUsed is the inverse of recency: the last use of the chain of a page with this recency.
func chainUsed(recency time.Time, start uint32) time.Time {
	return recency.Add(time.Duration(start) * recencyStep)
}

// fresh reports whether a chain used at the given time counts as just used.
func (lv *level) fresh(used, now time.Time) bool {
	if tier.Beyond(used, now) {
		return false
	}
	age := now.Sub(used)
	if horizon := lv.book.Horizon(); !horizon.IsZero() && !tier.Beyond(horizon, now) && age > max(0, now.Sub(horizon))/freshShare {
		return false
	}
	return age < touchEvery
}

// link is the place of a page in its chain.
type link struct {
	parent pagefile.Key
	start  uint32
	used   time.Time // chainUsed in the local tier, of the file that statPage describes, or earlier; zero if unknown
}

// linkCache caches links. Cached times may be too early, never too late: times in a tier only
// move forward.
type linkCache struct {
	mu    sync.Mutex
	byKey map[pagefile.Key]link
}

// maxLinks bounds the cache, to about 20 MiB; beyond maxLinks every entry is dropped.
const maxLinks = 1 << 17

func (c *linkCache) get(key pagefile.Key) (link, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.byKey[key]
	return l, ok
}

func (c *linkCache) put(key pagefile.Key, l link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byKey) >= maxLinks {
		clear(c.byKey)
	}
	if old, ok := c.byKey[key]; ok && old.used.After(l.used) {
		l.used = old.used
	}
	c.byKey[key] = l
}

// clear drops every entry.
func (c *linkCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.byKey)
}

// forget drops the entry of one page.
func (c *linkCache) forget(key pagefile.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byKey, key)
}

// linkOf returns a full page's place in its chain. For a page whose header cannot be read, linkOf
// returns a place on which no page depends; reading the page shows the cause.
func (s *Store) linkOf(ctx context.Context, t tier.Tier, name pagefile.Name) link {
	if l, ok := s.links.get(name.Key); ok {
		return l
	}
	h, err := s.headerOf(ctx, t, name)
	if err != nil {
		return link{}
	}
	l := link{parent: h.Parent, start: h.Start}
	s.links.put(name.Key, l)
	return l
}

// localLink returns the place of a full page of this store and the last use of its chain in
// the local tier. localLink returns false for a page that is neither stored locally nor
// cached.
func (s *Store) localLink(ctx context.Context, key pagefile.Key) (link, bool) {
	l, ok := s.links.get(key)
	if ok && !l.used.IsZero() && !tier.Beyond(l.used, s.now()) {
		return l, true
	}
	s.links.forget(key)
	info, err := s.local.statPage(ctx, key)
	if err != nil {
		return l, ok
	}
	if !ok {
		h, err := s.headerOf(ctx, s.disk, info.Name)
		if err != nil {
			return link{}, false
		}
		l = link{parent: h.Parent, start: h.Start}
	}
	l.used = chainUsed(info.Used, l.start)
	s.links.put(key, l)
	return l, true
}

// position is a place in a chain.
type position struct {
	parent pagefile.Key
	start  uint32
}

// chainTime returns the use time of a local page that is stored or used now: the parent's time
// if fresh, and otherwise now, after moving all pages before this one up to now.
func (s *Store) chainTime(ctx context.Context, at position, now time.Time) time.Time {
	if at.start == 0 {
		return now
	}
	l, ok := s.localLink(ctx, at.parent)
	if ok && !l.used.IsZero() && s.local.fresh(l.used, now) && !s.movedBack(ctx, at.parent, l) {
		return l.used
	}
	s.raise(ctx, at.parent, now)
	return now
}

// movedBack reports whether a page's recency is much earlier than the cached one. If so,
// another host took the page for one from the future and moved it back, and every cached time
// is dropped.
func (s *Store) movedBack(ctx context.Context, key pagefile.Key, l link) bool {
	info, err := s.local.statPage(ctx, key)
	if err != nil || recency(l.used, l.start).Sub(info.Used) < tier.ClockSlack/2 {
		return false
	}
	s.links.clear()
	return true
}

// moveUp moves all local pages before a place up to now and returns the recency of a page at
// that place. Files with an earlier recency are not part of its chain.
func (s *Store) moveUp(ctx context.Context, at position) time.Time {
	now := s.now()
	if at.start > 0 {
		s.raise(ctx, at.parent, now)
	}
	return recency(now, at.start)
}

// raise moves the recency of a local page, and of the pages before it, up to the recency of a
// chain used at the given time. raise stops at the first page with such a recency, because the
// pages before that page have one, too.
func (s *Store) raise(ctx context.Context, key pagefile.Key, used time.Time) {
	type step struct {
		key pagefile.Key
		link
	}
	var steps []step
	for key != s.opt.Fingerprint {
		l, ok := s.localLink(ctx, key)
		if !ok || !l.used.Before(used) && !l.used.IsZero() {
			break
		}
		steps = append(steps, step{key, l})
		key = l.parent
	}
	for _, st := range slices.Backward(steps) {
		name := s.pageName(st.key)
		err := forward(ctx, s.disk, name, recency(used, st.start))
		if errors.Is(err, tier.ErrNotFound) && s.opt.Cold.on() {
			err = forward(ctx, s.disk, coldName(name), recency(used, st.start))
		}
		if errors.Is(err, tier.ErrNotFound) {
			continue // a later page may exist nevertheless
		}
		if err != nil {
			return // the pages after this one keep their times, and the order holds
		}
		st.used = used
		s.links.put(st.key, st.link)
	}
}

// touchRef touches the file of ref in a tier, whose recency in that tier is recent. The remote
// tier is touched in the background, in the order of reading.
func (lv *level) touchRef(ctx context.Context, ref Ref, recent time.Time) {
	now := lv.s.now()
	if ref.Ahead || lv.fresh(chainUsed(recent, ref.Start), now) {
		return
	}
	used := time.Unix(0, ref.at)
	if !lv.fresh(used, now) { // found long ago, or not by Chain
		used = now
	}
	name := lv.s.refName(ref)
	if lv == lv.s.remote {
		type touch struct{ pagefile.Name }
		lv.s.promoting.Submit(touch{name}, func(ctx context.Context) {
			lv.forwardCopy(ctx, name, recency(used, ref.Start))
		})
		return
	}
	lv.s.touchLocal(ctx, name, position{parent: ref.Parent, start: ref.Start}, used)
}

// touchLocal moves the recency of a local file up to that of a chain used at the given time,
// after moving the pages before it.
func (s *Store) touchLocal(ctx context.Context, name pagefile.Name, at position, used time.Time) {
	if at.start > 0 {
		s.raise(ctx, at.parent, used)
	}
	if forward(ctx, s.disk, name, recency(used, at.start)) == nil && name.Class == pagefile.ClassPage {
		s.links.put(name.Key, link{parent: at.parent, start: at.start, used: used})
	}
}

// forward moves a file's recency forward to the given one, unless another process has moved
// the recency further.
func forward(ctx context.Context, t tier.Tier, name pagefile.Name, to time.Time) error {
	info, err := t.Stat(ctx, name)
	if err != nil || !info.Used.Before(to) {
		return err
	}
	return t.Touch(ctx, name, to)
}

// forwardCopy does as forward for a file of the remote tier. A copy known to be good stays known.
func (lv *level) forwardCopy(ctx context.Context, name pagefile.Name, to time.Time) {
	info, err := lv.tier.Stat(ctx, name)
	if err != nil || !info.Used.Before(to) {
		return
	}
	if lv.tier.Touch(ctx, name, to) == nil {
		lv.copies.touched(info, to)
	}
}

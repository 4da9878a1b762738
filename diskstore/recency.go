package diskstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

/*
A file's modification time is its recency, and orders files by itself: a page's
is always later than that of every page that continues it. So the least recently
used files of a listing, in the order of their times, are also those to evict,
and nothing but the listing is needed to find them.

	recency of a page = time its chain was last used − start × 10 ns

All pages that one lookup finds, and all that are stored after them, share the
first term. It is only moved forward, from a chain's first page to its last; see
future.go for what clocks do. Where a page's is moved, that of the pages before
it is moved first, as far as it is earlier.

10 ns a token keep neighbours apart on filesystems that store 100 ns. Where times
are coarser, and for files whose times were not kept when they were copied, pages
with equal times are told apart by their headers. Times are not synced: a power
cut costs order, not pages.
*/
const recencyStep = 10 * time.Nanosecond // per token

// touchEvery is how long a chain counts as just used: order within a minute
// decides nothing about what to keep for days.
const touchEvery = time.Minute

// freshShare is the share of the time that files live in a tier by which a
// chain's recency may be late. It matters where a budget is filled in less than
// an hour.
const freshShare = 60

// recency returns the recency of a page in a chain last used at the given time.
func recency(used time.Time, start uint32) time.Time {
	return used.Add(-time.Duration(start) * recencyStep)
}

// chainUsed is the inverse: when the chain of a page with this recency was last
// used.
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

// link is where a page stands in its chain.
type link struct {
	parent pagefile.Key
	start  uint32
	used   time.Time // chainUsed in the local tier, at least; zero if not known
}

// linkCache remembers links. Its times may be too early, never too late: times
// in a tier only move forward.
type linkCache struct {
	mu    sync.Mutex
	byKey map[pagefile.Key]link
}

// maxLinks bounds the cache, to about 20 MiB; beyond it everything is forgotten.
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

// clear forgets everything.
func (c *linkCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.byKey)
}

// forget forgets one page.
func (c *linkCache) forget(key pagefile.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byKey, key)
}

// linkOf returns a page's place in its chain. For a page whose header cannot be
// read it is one that nothing depends on; reading it will show why.
func (s *Store) linkOf(ctx context.Context, t tier.Tier, name pagefile.Name) link {
	if name.Class == pagefile.ClassTail {
		return link{parent: name.Parent, start: math.MaxUint32}
	}
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

// localLink returns the place of a full page of this store, and when its chain
// was last used in the local tier. It is false for a page that is not there and
// that nothing is known about.
func (s *Store) localLink(ctx context.Context, key pagefile.Key) (link, bool) {
	l, ok := s.links.get(key)
	if ok && !l.used.IsZero() && !tier.Beyond(l.used, s.now()) {
		return l, true
	}
	s.links.forget(key)
	name := s.pageName(key)
	info, err := s.disk.Stat(ctx, name)
	if err != nil {
		return l, ok
	}
	if !ok {
		h, err := s.headerOf(ctx, s.disk, name)
		if err != nil {
			return link{}, false
		}
		l = link{parent: h.Parent, start: h.Start}
	}
	l.used = chainUsed(info.Used, l.start)
	s.links.put(key, l)
	return l, true
}

// position is where in a chain a page is.
type position struct {
	parent pagefile.Key
	start  uint32
}

// chainTime returns the time that a local page stored or used now counts as used
// at: that of its parent if that is fresh, and otherwise now, which all pages
// before it are then moved up to.
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

// movedBack reports whether a page's recency is far from what it was: then another
// host has taken it for one from the future, and nothing that was known of times
// holds any more.
func (s *Store) movedBack(ctx context.Context, key pagefile.Key, l link) bool {
	info, err := s.disk.Stat(ctx, s.pageName(key))
	if err != nil || recency(l.used, l.start).Sub(info.Used) < tier.ClockSlack/2 {
		return false
	}
	s.links.clear()
	return true
}

// moveUp moves all local pages before a place up to now, and returns the recency
// of a page there. Files with an earlier one are no part of its chain.
func (s *Store) moveUp(ctx context.Context, at position) time.Time {
	now := s.now()
	if at.start > 0 {
		s.raise(ctx, at.parent, now)
	}
	return recency(now, at.start)
}

// raise moves the recency of a local page, and of those before it, up to that of
// a chain used at the given time. It stops at the first page that is there
// already, because those before it are too.
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
		err := forward(ctx, s.disk, s.pageName(st.key), recency(used, st.start))
		if errors.Is(err, tier.ErrNotFound) {
			continue // a page after it may be there all the same
		}
		if err != nil {
			return // those after it keep their times, and the order
		}
		st.used = used
		s.links.put(st.key, st.link)
	}
}

// touchRef touches the file of ref in a tier, whose recency there is given. For
// the remote tier that happens in the background, in the order of reading.
func (lv *level) touchRef(ctx context.Context, ref Ref, recent time.Time) {
	now := lv.s.now()
	if lv.fresh(chainUsed(recent, ref.Start), now) {
		return
	}
	used := time.Unix(0, ref.at)
	if !lv.fresh(used, now) { // found long ago, or by nobody
		used = now
	}
	name := lv.s.refName(ref)
	if lv == lv.s.remote {
		type touch struct{ pagefile.Name }
		lv.s.promoting.Submit(touch{name}, func(ctx context.Context) {
			_ = forward(ctx, lv.s.guard, name, recency(used, ref.Start))
		})
		return
	}
	lv.s.touchLocal(ctx, name, position{parent: ref.Parent, start: ref.Start}, used)
}

// touchLocal moves the recency of a local file up to that of a chain used at the
// given time, after that of the pages before it.
func (s *Store) touchLocal(ctx context.Context, name pagefile.Name, at position, used time.Time) {
	if at.start > 0 {
		s.raise(ctx, at.parent, used)
	}
	if forward(ctx, s.disk, name, recency(used, at.start)) == nil && name.Class == pagefile.ClassPage {
		s.links.put(name.Key, link{parent: at.parent, start: at.start, used: used})
	}
}

// forward moves a file's recency forward to the given one. Another process may
// have moved it further.
func forward(ctx context.Context, t tier.Tier, name pagefile.Name, to time.Time) error {
	info, err := t.Stat(ctx, name)
	if err != nil || !info.Used.Before(to) {
		return err
	}
	return t.Touch(ctx, name, to)
}

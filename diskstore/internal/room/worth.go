package room

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/internal/tombstones"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// coarse is the step of file times, in nanoseconds, of filesystems that do not keep the number of uses. On others
// one of ten chains has such times by chance.
const coarse = 100

// idle collects the pages of a listing that wait for their next use, and those that left the tier.
type idle struct {
	of    *Collector
	now   time.Time
	gone  map[tombstones.Beginning]tombstones.Tombstone
	pages reuse.Idle
	fine  bool // the filesystem's times keep the number of uses
}

func (c *Collector) newIdle(ctx context.Context) *idle {
	i := &idle{of: c, now: c.opt.Now()}
	if c.byUse() {
		i.gone = c.opt.Gone(ctx)
	}
	return i
}

// byUse reports whether uses decide which pages leave: not before one is known.
func (c *Collector) byUse() bool { return c.opt.Gone != nil && c.files.Book.Uses().Pages() > 0 }

func (i *idle) add(info tier.Info) {
	if info.Class == pagefile.ClassPage {
		i.pages.Add(recency.Uses(info.Used), i.now.Sub(info.Used))
		i.fine = i.fine || info.Used.Nanosecond()%coarse != 0
		delete(i.gone, tombstones.BeginningOf(info.Key))
	}
}

// end keeps the result of the listing.
func (i *idle) end() {
	for _, g := range i.gone {
		i.pages.Add(int(g.Uses), g.IdleAt(i.now))
	}
	i.gone = nil
	i.of.idle.Store(i)
}

// idleFor is the time for which a listing tells how long pages have been idle; that of a tier with many files tells
// it for as long as they are not counted again.
const idleFor = time.Hour

// worths returns what the tier's pages are worth, by the last listing; false when it is too old, or there was
// none. Without Options.Gone, or a page that was used again, all pages are worth the same.
func (c *Collector) worths() (worths *reuse.Worths, known bool) {
	if !c.byUse() {
		return nil, true
	}
	_, took := c.files.Counted()
	last := c.idle.Load()
	if last == nil || c.opt.Now().Sub(last.now).Abs() > max(idleFor, 2*countPause*took) {
		return nil, false
	}
	return c.files.Book.Uses().Worths(&last.pages, last.fine), true
}

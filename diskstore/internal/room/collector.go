package room

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Fate is the end of a page for which its tier has no room.
type Fate int

const (
	NoPlace    Fate = iota // there is no room below, or no file any more
	Moved                  // the tier below has the page
	MovedLossy             // the tier below has a lossy page that stands for it
	Refused                // the tier below takes no page now
	SetAside               // the file was damaged; it went to quarantine, or its next check decides
	Useless                // the file is of no use here, and stays in its place
)

// Below is a tier below, to which pages move instead of being deleted.
type Below interface {
	// Down makes the tier below hold a page, and returns the file that this is about, which may have
	// been written or touched since info was read. The error is that of ctx, and the page stays then.
	Down(ctx context.Context, info tier.Info) (Fate, tier.Info, error)

	// Refuses reports whether the tier below is likely to take no pages: it is down, or refused one
	// within some time.
	Refuses(within time.Duration) bool
}

// Options are the place of a Collector in a store.
type Options struct {
	CountEvery time.Duration // age at which the tier is counted again: CountEvery or FarCountEvery
	Below      Below         // nil: pages that leave the tier are deleted
	Chains     *recency.Chains
	Now        func() time.Time

	// Failed is told errors of the tier.
	Failed func(error)

	// Left is told of each file that left the tier for want of room.
	Left func(name pagefile.Name, moved bool)

	// Crowded is told of bytes that are wanted on a filesystem that took no file; nil for nobody.
	Crowded func(wanted, free int64)

	// Swept runs after a collection, when others may collect.
	Swept func(ctx context.Context)
}

// Collector makes room in one tier.
type Collector struct {
	// Left is told of each file that leaves, or would leave; nil for nobody.
	Left func(info tier.Info, moved bool)

	files   *counted.Tier
	opt     Options
	trimmed Moment // time of the last trim that evicted all but recent files, and needed more

	// turn holds a token while one goroutine of this process collects; Tier.Lock does the
	// same between processes.
	turn chan struct{}
}

// NewCollector returns the collector of a tier.
func NewCollector(files *counted.Tier, opt Options) *Collector {
	return &Collector{files: files, opt: opt, turn: make(chan struct{}, 1)}
}

// placeOf returns a function that returns the place of a full page of the tier.
func (c *Collector) placeOf(ctx context.Context) func(pagefile.Name) recency.Link {
	return func(name pagefile.Name) recency.Link { return c.opt.Chains.LinkIn(ctx, c.files.Tier, name) }
}

// Tidy brings the tier within its limit in the background, in a queue of collections.
func (c *Collector) Tidy(queue *work.Queue) {
	type tidyJob struct{}
	queue.Submit(tidyJob{}, func(ctx context.Context) {
		_ = c.Collect(ctx, Demand{}) // the tier counts errors
	})
}

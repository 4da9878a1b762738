package paging

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/pagedenv"
)

const (
	// firstCells are attended to until it is known how long a token takes.
	firstCells = 2048
	// paceTokens are the last tokens that decide.
	paceTokens = 8
	// slackest is the least share of the given time with which a token is as quick as asked for.
	slackest = 0.85
)

// A Pace is how many cells a new token attends to. Where a time is given for a token it finds the number that
// takes so long: the median of a few decides, so that a token that waits for something else does not.
type Pace struct {
	target      time.Duration // 0: the number is given
	page, least int           // numbers are multiples of page

	cells, seen atomic.Int64
	took        []time.Duration // of the last tokens with this number
}

// Pace is nil where a token attends to all.
func (c Config) Pace() *Pace {
	if c.Select.All() {
		return nil
	}
	p := &Pace{target: c.Select.Time, page: c.PageCells, least: pagedenv.MinSelectPages * c.PageCells}
	cells := c.Select.Cells
	if p.target > 0 {
		cells = max(firstCells, p.least)
	}
	p.cells.Store(int64(cells))
	return p
}

// Cells is how many cells a token attends to now.
func (p *Pace) Cells() int { return int(p.cells.Load()) }

// Seen notes how many cells the context has: a greater number would tell nothing.
func (p *Pace) Seen(cells int) { p.seen.Store(int64(cells)) }

// Took notes the time of a batch of new tokens. Calls come one after the other, beside those of other
// methods.
func (p *Pace) Took(d time.Duration) {
	if p.target == 0 {
		return
	}
	p.took = append(p.took[max(0, len(p.took)+1-paceTokens):], d)
	if len(p.took) < paceTokens {
		return
	}
	share := float64(slices.Sorted(slices.Values(p.took))[(paceTokens-1)/2]) / float64(p.target)
	if share >= slackest && share <= 1 {
		return
	}
	p.took = p.took[:0]
	factor := min(max((1+slackest)/2/share, 0.25), 2)
	most := max(p.least, (int(p.seen.Load())+p.page-1)/p.page*p.page)
	p.cells.Store(int64(min(max(int(factor*float64(p.Cells()))/p.page*p.page, p.least), most)))
}

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

	// chosenMost of chosenOf blocks are no choice; see CHOICE_MOST in choose.cpp.
	chosenMost, chosenOf = 3, 4
	// backoffMin is the number of tokens before all is attended to again after that took too long; it doubles
	// each time, up to backoffMax.
	backoffMin, backoffMax = 64, 4096
)

// A Pace is how many cells a new token attends to. Where a time is given for a token it finds the number that
// takes so long: the median of a few decides, so that a token that waits for something else does not.
type Pace struct {
	target      time.Duration // 0: the number is given
	page, least int           // numbers are multiples of page

	cells, seen atomic.Int64
	took        []time.Duration // of the last tokens with this number
	all         bool            // they attended to all
	backoff     int             // tokens, after all took too long
	wait        int             // tokens left of it
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

// Seen notes how many cells the longest answer of a batch could attend to.
func (p *Pace) Seen(cells int) { p.seen.Store(int64(cells)) }

// Took notes the time of a batch of new tokens. Calls come one after the other, beside those of other
// methods.
func (p *Pace) Took(d time.Duration) {
	if p.target == 0 {
		return
	}
	p.wait = max(0, p.wait-1)
	if all := p.Cells() > p.most(); all != p.all {
		p.all, p.took = all, p.took[:0]
	}
	p.took = append(p.took[max(0, len(p.took)+1-paceTokens):], d)
	if len(p.took) < paceTokens {
		return
	}
	share := float64(slices.Sorted(slices.Values(p.took))[(paceTokens-1)/2]) / float64(p.target)
	if next := p.next(share); next != p.Cells() {
		p.cells.Store(int64(next))
		p.took = p.took[:0]
	}
}

// most is the greatest number that is a choice: a token attends to all rather than to three quarters.
func (p *Pace) most() int { return (chosenMost*int(p.seen.Load()) - 1) / chosenOf / p.page * p.page }

// next is the number behind tokens whose time was a share of the given one.
func (p *Pace) next(share float64) int {
	cells, seen := p.Cells(), int(p.seen.Load())
	most := p.most()
	factor := min(max((1+slackest)/2/share, 0.25), 2)
	switch {
	case p.all && most < p.least, share <= 1 && (p.all || share >= slackest):
		return cells // the time tells nothing of a choice, or it is met
	case p.all:
		p.backoff = min(max(2*p.backoff, backoffMin), backoffMax)
		p.wait = p.backoff
		return p.pages(factor * float64(most))
	}
	next := p.pages(factor * float64(cells))
	if next > most && (p.wait > 0 || share*float64(seen) > float64(cells)) {
		return most // all took too long, or would
	}
	return next
}

// pages are whole pages of at most some cells, and the least there can be.
func (p *Pace) pages(cells float64) int { return max(int(cells)/p.page*p.page, p.least) }

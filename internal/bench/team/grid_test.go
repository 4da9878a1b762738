package team

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/virtual"
	"github.com/kvtier/kvtier/rates"
)

// lengths are those of prompts, in pages.
var lengths = []int{1, 4, 16, 64}

// within requires that a prompt takes at most some times as long as the better of reading all of its pages
// and computing them, and returns its seconds.
func (c Cell) within(t *testing.T, most float64, r *rates.Rates, pages int, when string) float64 {
	took := c.Prompt(r, pages)
	require.LessOrEqual(t, took/c.Better(pages), most, "%d pages, %s: %+v", pages, when, c)
	return took
}

// TestGrid bounds the time of a prompt in every cell. An engine that was not measured costs at most waiting in
// vain for as long as the prompt takes to compute. A model that was not measured costs at most waiting ten
// times as long, or computing what was read in a tenth of the time.
func TestGrid(t *testing.T) {
	for _, pages := range lengths {
		for _, c := range Grid() {
			c.within(t, 1.1, c.Warm(), pages, "after some prompts")
			c.within(t, 2.001, c.Known(), pages, "engine not measured")
			c.within(t, 11.6, rates.New(), pages, "nothing measured")
			c.Jitter = 0.3
			c.within(t, 1.1, c.Warm(), pages, "with jitter")
		}
	}
}

// TestLinkThatChanges: another server reads over the link too, or its rate halves for three prompts, a minute
// in all. The first prompt of a single page may take what was predicted and computing it, in vain. Once the
// link is as before, probes find that out, one a minute.
func TestLinkThatChanges(t *testing.T) {
	const probes = 3
	for _, change := range []func(*Link){
		func(l *Link) { l.Shared = true },
		func(l *Link) { l.BytesPerSecond /= 2 },
	} {
		for _, pages := range lengths {
			for _, c := range Grid() {
				clock, worse := new(virtual.Clock), c
				change(&worse.Link)
				r := c.warm(clock)
				for i := range 3 {
					most := 1.1
					if pages == 1 {
						most = []float64{3.1, 1.4, 1.1}[i]
					}
					clock.Pass(worse.within(t, most, r, pages, "worse") + between)
				}
				for range probes {
					clock.Pass(60 + c.Prompt(r, pages))
				}
				c.within(t, 1.1, r, pages, "as before")
			}
		}
	}
}

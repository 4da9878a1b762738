package team

import (
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/bench/virtual"
	"github.com/kvtier/kvtier/rates"
)

// PageTokens are the tokens of a page.
const PageTokens = 256

// Cell is one field of the grid.
type Cell struct {
	Link
	Token float64 // seconds to compute one
	Bytes int64   // of a page
}

// Grid returns every cell.
func Grid() (cells []Cell) {
	for _, mbits := range []float64{10, 100, 1000, 10_000, 25_000} {
		for _, roundTrip := range []float64{0.0001, 0.001, 0.01, 0.1} {
			for _, token := range []float64{0.0001, 0.001, 0.01} {
				for _, mib := range []int64{1, 8, 32} {
					cells = append(cells, Cell{Link{BytesPerSecond: mbits * 1e6 / 8, RoundTrip: roundTrip}, token, mib << 20})
				}
			}
		}
	}
	return cells
}

// Fetch and Compute are the seconds to read all pages of a prompt, and to compute them.
func (c Cell) Fetch(pages int) float64   { return c.links().all(c.chain(pages).Pages) }
func (c Cell) Compute(pages int) float64 { return c.computing(0, pages*PageTokens) }

// Better is the better of both.
func (c Cell) Better(pages int) float64 { return min(c.Fetch(pages), c.Compute(pages)) }

func (c Cell) links() Links                     { return Links{tier.Remote: c.Link} }
func (c Cell) computing(begin, end int) float64 { return c.Token * float64(end-begin) }

// Prompt is the seconds of a prompt whose pages are all stored in the engine, as rates decide and learn.
func (c Cell) Prompt(r *rates.Rates, pages int) float64 {
	chain := c.chain(pages)
	n, took := c.links().restore(r, chain, r.Plan(chain))
	computed(r, c.computing, n*PageTokens, pages*PageTokens)
	if skipped := chain.After(n); n < pages && took == 0 {
		c.links().probe(r, skipped)
	}
	return took + c.Compute(pages-n)
}

func (c Cell) chain(pages int) (chain rates.Chain) {
	for i := range pages {
		chain.Pages = append(chain.Pages, rates.Page{Start: i * PageTokens, Tokens: PageTokens, Bytes: c.Bytes, Tier: tier.Remote})
	}
	return chain
}

// restore reads the first pages of a chain as engine.Reading does, and returns how many came and when.
func (l Links) restore(r *rates.Rates, chain rates.Chain, planned int) (n int, took float64) {
	if chain.Pages = chain.Pages[:planned]; planned == 0 {
		return 0, 0
	}
	w := r.Watch(chain, engine.PagesAtOnce)
	reads := l.read(chain.Pages, engine.PagesAtOnce)
	if w.Alone() {
		reads.atOnce = 1
	}
	for n < planned {
		until := w.Deadline()
		if !reads.await(n, until.Seconds()) {
			w.GaveUp(until)
			return n, until.Seconds()
		}
		n++
		reads.used, reads.atOnce = n, engine.PagesAtOnce
		if !w.Arrived(seconds(reads.now)) {
			break
		}
	}
	return n, reads.now
}

// computed tells rates of tokens that were computed in Ollama's batches. computing has the seconds.
func computed(r *rates.Rates, computing func(begin, end int) float64, begin, end int) {
	for ; begin < end; begin += 512 {
		to := min(begin+512, end)
		r.Computed(to-begin, float64(begin+to-1)/2, seconds(computing(begin, to)))
	}
}

// probe reads as engine.Gate does behind a request that skipped pages, and returns how many pages came.
func (l Links) probe(r *rates.Rates, skipped rates.Chain) (came int) {
	n, limit := r.Probe(skipped, engine.PagesAtOnce)
	if n == 0 {
		return 0
	}
	parts := []int{n}
	if n > 1 && r.Watch(skipped, n).Alone() {
		parts = []int{1, n - 1}
	}
	for _, part := range parts {
		pages := skipped.Pages[came : came+part]
		took := seconds(l.all(pages))
		r.Probed(pages, min(took, limit), took <= limit)
		if took > limit {
			return came
		}
		came += part
		limit -= took
	}
	return came
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Known are rates that have measured computing, and nothing of the engine.
func (c Cell) Known() *rates.Rates { return c.known(new(virtual.Clock)) }

func (c Cell) known(t *virtual.Clock) *rates.Rates {
	r := rates.NewAt(t.Now)
	computed(r, c.computing, 0, 8192)
	return r
}

// between are the seconds between the ends of prompts and the next ones.
const between = 20

// Warm are rates after some prompts.
func (c Cell) Warm() *rates.Rates { return c.warm(new(virtual.Clock)) }

func (c Cell) warm(t *virtual.Clock) *rates.Rates {
	r := c.known(t)
	for _, pages := range []int{8, 3, 32, 1, 16, 5} {
		t.Pass(c.Prompt(r, pages) + between)
	}
	return r
}

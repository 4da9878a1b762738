package kvcache

import "time"

// gate decides whether reading pages beats computing them, from what both have cost so
// far. Until it has seen both, reading wins: on the hardware this is for it does by orders
// of magnitude, and a wrong first guess costs one restore.
type gate struct {
	computeRate float64 // tokens per second of prompt batches
	readRate    float64 // bytes per second of page reads

	builtAt map[int]time.Time
	doneAt  time.Time
	refused int
}

const (
	// gateTokensMin is the smallest batch whose speed says something about a prompt's.
	gateTokensMin = 64
	// gateWeight is the share of a new observation in a moving average.
	gateWeight = 0.3
	// gateRetry lets every so-manieth refused restore through, so that a store that was
	// slow once is measured again.
	gateRetry = 8
)

func (g *gate) built(id int) {
	if g.builtAt == nil {
		g.builtAt = make(map[int]time.Time)
	}
	g.builtAt[id] = time.Now()
}

// done observes a batch: it computed from when it was built or the one before was done.
func (g *gate) done(id, tokens int) {
	began := g.builtAt[id]
	delete(g.builtAt, id)
	if g.doneAt.After(began) {
		began = g.doneAt
	}
	g.doneAt = time.Now()
	if tokens >= gateTokensMin {
		observe(&g.computeRate, float64(tokens)/g.doneAt.Sub(began).Seconds())
	}
}

// read observes a page read.
func (g *gate) read(bytes int64, took time.Duration) {
	observe(&g.readRate, float64(bytes)/max(took, time.Microsecond).Seconds())
}

func observe(average *float64, value float64) {
	if *average == 0 {
		*average = value
		return
	}
	*average += gateWeight * (value - *average)
}

// pays reports whether reading bytes is expected to be quicker than computing tokens.
func (g *gate) pays(tokens int, bytes int64) bool {
	if g.computeRate == 0 || g.readRate == 0 {
		return true
	}
	if float64(bytes)/g.readRate <= float64(tokens)/g.computeRate {
		g.refused = 0
		return true
	}
	g.refused++
	return g.refused%gateRetry == 0
}

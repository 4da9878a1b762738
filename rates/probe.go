package rates

import "time"

const (
	// probeEvery is the least time between two probes of a refused tier.
	probeEvery = time.Minute
	// probeFactor bounds a probe, in multiples of the time to compute its pages: slower is
	// slow enough to know.
	probeFactor = 2
)

// Probe plans a probe of the tier of a chain that no request reads. n is the number of pages
// to read, limit the time to wait for them. parallel is the number of pages that a restore
// reads at a time. Probe returns n = 0 when the tier was probed less than probeEvery ago;
// otherwise the probe counts as begun, and the caller reports its result to [Rates.Probed].
func (r *Rates) Probe(c Chain, parallel int) (n int, limit time.Duration) {
	if len(c.Pages) == 0 {
		return 0, 0
	}
	pages := c.Pages
	r.mu.Lock()
	defer r.mu.Unlock()
	t, now := r.tierLocked(pages[0].Tier), r.now()
	if since := now.Sub(t.tried); since >= 0 && since < probeEvery { // negative: the clock was put back
		return 0, 0
	}
	for n < min(parallel, len(pages)) && pages[n].alike(pages[0]) {
		n++
	}
	t.tried = now
	r.sawLocked(t)
	each := r.computingLocked(c.Base, c.end()) / float64(len(pages))
	return n, seconds(probeFactor * max(each, patienceMin) * float64(n))
}

// Probed notes the time that a probe took. complete: all pages arrived.
func (r *Rates) Probed(pages []Page, took time.Duration, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if complete {
		r.tookLocked(pages, took.Seconds())
		return
	}
	r.disappointedLocked(pages[0], took.Seconds()/float64(len(pages)))
}

package rates

import "time"

const (
	// probeEvery is how often a tier that is refused is read from.
	probeEvery = time.Minute
	// probeFactor is how many times as long as computing its pages a probe may take: then
	// enough is known.
	probeFactor = 2
)

// Probe says how many pages of a chain that is not going to be read for a request to read
// all the same, only to see how quick their tier is now, and how long to wait for them.
// ahead is how many a restore would read at a time. It returns 0 when the tier was probed a
// short while ago; otherwise that counts as begun, and [Rates.Probed] is to be told.
func (r *Rates) Probe(c Chain, parallel int) (n int, limit time.Duration) {
	if len(c.Pages) == 0 {
		return 0, 0
	}
	pages := c.Pages
	r.mu.Lock()
	defer r.mu.Unlock()
	t, now := r.tierLocked(pages[0].Tier), r.now()
	if since := now.Sub(t.tried); since >= 0 && since < probeEvery { // else the clock was put back
		return 0, 0
	}
	for n < min(parallel, len(pages)) && pages[n].Tier == pages[0].Tier {
		n++
	}
	t.tried = now
	r.sawLocked(t)
	each := r.computingLocked(c.Base, c.end()) / float64(len(pages))
	return n, seconds(probeFactor * max(each, patienceMin) * float64(n))
}

// Probed notes how long the pages of a probe took, or that they were not all there by then.
func (r *Rates) Probed(pages []Page, took time.Duration, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if complete {
		r.tookLocked(pages, took.Seconds())
		return
	}
	r.disappointedLocked(pages[0], took.Seconds()/float64(len(pages)))
}

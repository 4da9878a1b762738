package rates

import (
	"slices"
	"time"
)

// Watch follows one restore, which reads its pages in order and a few ahead, for one goroutine. Times
// count from the first page's request. Methods that end in Locked need Rates.mu.
type Watch struct {
	rates    *Rates
	chain    Chain
	parallel int // pages read at a time

	next     int     // index of the awaited page
	since    float64 // start of the wait, in seconds
	run      int     // index of the first page of the present run: pages in a row of one tier and form
	runSince float64
	trusted  bool      // the run's tier was trusted when the run began
	paces    []float64 // seconds per unit in the run, after each of its last pages
}

// Watch begins to follow a restore of a chain. parallel is the number of pages read at a time.
func (r *Rates) Watch(c Chain, parallel int) *Watch {
	w := &Watch{rates: r, chain: c, parallel: parallel}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.beginRunLocked(0)
	return w
}

func (w *Watch) beginRunLocked(now float64) {
	w.run, w.runSince, w.paces = w.next, now, nil
	if w.next == len(w.chain.Pages) {
		return
	}
	page := w.chain.Pages[w.next]
	if w.trusted = w.rates.tierLocked(page.Tier).trusted(page.Form); w.trusted {
		w.paces = slices.Repeat([]float64{1}, w.parallel)
	}
}

// Alone reports whether the first page should be read before any other: the tier's speed is
// not known, and parallel reads would make every page late.
func (w *Watch) Alone() bool { return w.next == 0 && !w.trusted }

// Deadline is the time at which the awaited page is given up.
func (w *Watch) Deadline() time.Duration {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	rest := w.chain.After(w.next)
	// Patience is the mean time to compute a page of the rest: the first page alone may be
	// quicker to compute than to read although the rest as a whole is not.
	share := len(rest.Pages)
	if rest.Indivisible {
		share = len(w.chain.Pages)
	}
	patience := w.rates.computingLocked(rest.Base, rest.end()) / float64(share)
	for _, page := range rest.Pages[:min(w.parallel, len(rest.Pages))] { // they share the tier
		patience += w.grantedLocked(page)
	}
	return seconds(w.since + max(patience, patienceMin))
}

// patienceMin is the least wait for a page, in seconds: machines are busy now and then, and
// shorter waits do not matter to users.
const patienceMin = 0.02

// grantedLocked is the time in seconds that reading a page may take: as long as pages of its tier took
// before, unless the tier disappointed, and as long as pages of this restore took. The latter alone
// grants too little, because its first pages may have been in the page cache.
func (w *Watch) grantedLocked(page Page) float64 {
	granted := 0.0
	if tier := w.rates.tierLocked(page.Tier); tier.trusted(page.Form) {
		granted = tier.reading(page)
	}
	paced, _ := w.pacedLocked(page)
	return max(granted, paced)
}

func (w *Watch) readingLocked(page Page) float64 {
	if paced, ok := w.pacedLocked(page); ok {
		return paced
	}
	return w.rates.tierLocked(page.Tier).reading(page)
}

// pacedLocked predicts the seconds to read a page from the pace of the present run; false for
// a page of another tier or form, and before the run has a pace.
func (w *Watch) pacedLocked(page Page) (float64, bool) {
	if len(w.paces) == 0 || !page.alike(w.chain.Pages[w.run]) {
		return 0, false
	}
	return slices.Min(w.paces) * w.unitLocked(page), true
}

// unitLocked is a page's size in a pace: predicted seconds for a trusted tier, otherwise bytes.
func (w *Watch) unitLocked(page Page) float64 {
	if w.trusted {
		return w.rates.tierLocked(page.Tier).reading(page)
	}
	return max(1, float64(page.Bytes))
}

// observeLocked notes the pace of the run up to now. Pages that are read in parallel may
// arrive together, so that the first of them seems to have taken the time of all: of the
// last `parallel` paces the least is the true one.
func (w *Watch) observeLocked(now float64) {
	took, units := now-w.runSince, 0.0
	for _, page := range w.chain.Pages[w.run:w.next] {
		units += w.unitLocked(page)
	}
	w.paces = append(w.paces, took/units)
	w.paces = w.paces[max(0, len(w.paces)-w.parallel):]
}

// Arrived notes the arrival of the awaited page, and reports whether to wait for the next
// one. False ends the restore: all pages are in, or computing the rest is quicker.
func (w *Watch) Arrived(at time.Duration) bool {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	now := at.Seconds()
	w.next++
	w.since = now
	w.observeLocked(now)
	if w.next == len(w.chain.Pages) || !w.chain.Pages[w.next].alike(w.chain.Pages[w.run]) {
		w.rates.tookLocked(w.chain.Pages[w.run:w.next], now-w.runSince)
		w.beginRunLocked(now)
		if w.next == len(w.chain.Pages) {
			return false
		}
	}
	rest := w.chain.After(w.next)
	if w.rates.bestLocked(rest, w.readingLocked) > 0 {
		return true
	}
	rest.Then = ""
	tier := w.rates.bestLocked(rest, w.readingLocked) == 0 // the tier is too slow, not the step after it
	if page := w.chain.Pages[w.next]; tier && w.next > w.run {
		w.refuseLocked(w.readingLocked(page))
	}
	return false
}

// gaveUpFactor times the wait is the assumed time of a page that was given up: long enough
// that no plan waits for such a page before a probe.
const gaveUpFactor = 2

// GaveUp notes that the awaited page was given up.
func (w *Watch) GaveUp(at time.Duration) {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	w.refuseLocked(gaveUpFactor * (at.Seconds() - w.since))
}

// refuseLocked notes that the awaited page takes too long. The page's tier may be probed at
// once: the delay may have been a short one.
func (w *Watch) refuseLocked(took float64) {
	w.rates.disappointedLocked(w.chain.Pages[w.next], took).tried = time.Time{}
}

func seconds(s float64) time.Duration { return time.Duration(min(s, costMax) * float64(time.Second)) }

const (
	// probeEvery is the least time between two probes of a refused tier.
	probeEvery = time.Minute
	// probeFactor bounds a probe, in multiples of its pages' computing time: slower is slow enough.
	probeFactor = 2
)

// Probe plans a probe of the tier of a chain that no request reads: n pages to read, and the time to wait
// for them. parallel is the number of pages that a restore reads at a time. n is 0 when the tier was
// probed less than probeEvery ago; otherwise the caller reports the result to [Rates.Probed].
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

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

	next  int     // index of the awaited page
	since float64 // start of the wait, in seconds

	// The present run; its times are seconds.
	begin      int // index of its first page
	beginSince float64
	first      float64 // until the first page was there
	trusted    bool    // the tier was trusted before the restore
	measured   bool    // the tier's costs are known
	seen       run     // the pages that arrived
	paces      []float64
}

// Watch begins to follow a restore of a chain. parallel is the number of pages read at a time.
func (r *Rates) Watch(c Chain, parallel int) *Watch {
	w := &Watch{rates: r, chain: c, parallel: parallel}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.beginLocked(0)
	return w
}

// beginLocked begins a run at the awaited page, the first one or the one behind it where that was read alone.
func (w *Watch) beginLocked(now float64) {
	behindAlone := w.next == 1 && !w.trusted && w.chain.Pages[0].alike(w.chain.Pages[min(1, len(w.chain.Pages)-1)])
	w.begin, w.beginSince, w.seen, w.paces = w.next, now, run{}, nil
	if w.next == len(w.chain.Pages) {
		return
	}
	page := w.chain.Pages[w.next]
	w.trusted = !behindAlone && w.rates.tierLocked(page.Tier).trusted(page.Form)
	if w.measured = w.trusted || behindAlone; w.measured {
		w.paces = slices.Repeat([]float64{1}, w.parallel)
	}
}

// Alone reports whether the first page should be read before any other: the tier's speed is
// not known, and parallel reads would not tell round trips from a low rate.
func (w *Watch) Alone() bool { return w.next == 0 && !w.trusted }

// Deadline is the time at which the awaited page is given up. Of a trusted tier, a page may take as long as
// predicted, and the mean time to compute a page of the rest more: the first page alone may be quicker to compute
// than to read although the rest as a whole is not. Of any other tier, it may take as long as reading the
// rest can still be quicker than computing, if the other pages take as long.
func (w *Watch) Deadline() time.Duration {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	rest := w.chain.After(w.next)
	share := len(rest.Pages)
	if rest.Indivisible {
		share = len(w.chain.Pages)
	}
	all := w.rates.computingLocked(rest.Base, rest.end())
	each := all / float64(share)
	ahead := rest.Pages[:min(w.parallel, len(rest.Pages))] // they share the tier
	patience := each * float64(len(ahead))
	switch {
	case w.trusted:
		patience = each + w.grantedLocked(ahead)
	case w.Alone():
		patience = all / groups(share)
	case w.measured:
		patience = max(patience, each+w.grantedLocked(ahead))
	}
	if !w.rates.compute.known() {
		patience = max(patience, unknownMin)
	}
	return seconds(w.since + max(patience, patienceMin))
}

// patienceMin is the least wait for a page, in seconds: machines are busy now and then, and
// shorter waits do not matter to users.
const patienceMin = 0.02

// grantedLocked is the time in seconds that reading the next pages may take: as long as pages of their tier
// took before, and as long as pages of this restore took. The latter alone grants too little, because
// the first pages may have been in the page cache.
func (w *Watch) grantedLocked(pages []Page) float64 {
	granted := reading{rates: w.rates}
	for _, page := range pages {
		if page.alike(pages[0]) {
			granted.add(page)
		}
	}
	return granted.took() * max(1, slices.Min(w.paces))
}

// costs are the costs of a page in the present run, or numbers in proportion to them.
func (w *Watch) costs(page Page) (alone, more float64) {
	if w.measured {
		return w.rates.tierLocked(page.Tier).costs(page)
	}
	bytes := max(1, float64(page.Bytes))
	return bytes, bytes
}

// ahead predicts the time of the pages behind those that arrived, at the pace of the present run.
func (w *Watch) ahead() reading {
	if len(w.paces) == 0 {
		return reading{rates: w.rates}
	}
	r := reading{rates: w.rates, last: w.chain.Pages[w.begin], run: w.seen, pace: slices.Min(w.paces), costs: w.costs}
	r.done = -r.took()
	return r
}

// observeLocked notes the pace of the run up to now. Pages that are read in parallel may
// arrive together, so that the first of them seems to have taken the time of all: of the
// last `parallel` paces the least is the true one.
func (w *Watch) observeLocked(now float64) {
	if w.seen.n == 0 {
		w.first = now - w.beginSince
	}
	w.seen.add(w.costs(w.chain.Pages[w.next-1]))
	w.paces = append(w.paces, (now-w.beginSince)/max(w.seen.took(), clockStep))
	w.paces = w.paces[max(0, len(w.paces)-w.parallel):]
}

// Arrived notes the arrival of the awaited page, and reports whether to wait for the next
// one. False ends the restore: all pages are in, or computing the rest is quicker.
func (w *Watch) Arrived(at time.Duration) bool {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	now, alone := at.Seconds(), w.Alone()
	w.next++
	w.since = now
	w.observeLocked(now)
	if w.next == len(w.chain.Pages) || alone || !w.chain.Pages[w.next].alike(w.chain.Pages[w.begin]) {
		w.noteLocked(w.next, now)
		w.beginLocked(now)
		if w.next == len(w.chain.Pages) {
			return false
		}
	}
	rest := w.chain.After(w.next)
	if w.rates.bestLocked(rest, w.ahead()) > 0 {
		return true
	}
	rest.Then = ""
	if w.next > w.begin && w.rates.bestLocked(rest, w.ahead()) == 0 { // not because of the step after it
		w.stopLocked(rest, now)
	}
	return false
}

// noteLocked notes the time of the present run, up to the page of index end.
func (w *Watch) noteLocked(end int, now float64) {
	pages, took := w.chain.Pages[w.begin:end], now-w.beginSince
	if w.parallel == 1 {
		pages, took = pages[:1], took/float64(len(pages))
	}
	w.rates.tookLocked(pages, w.first, took)
}

// stopLocked notes what a restore teaches that ends before its rest, because of the present run's pace.
func (w *Watch) stopLocked(rest Chain, now float64) {
	ahead := w.ahead()
	for _, page := range rest.Pages {
		ahead.add(page)
	}
	end := w.begin + w.parallel*((w.seen.n+w.parallel-1)/w.parallel) // the tier was busy with these pages
	for end = min(end, len(w.chain.Pages)); !w.chain.Pages[end-1].alike(w.chain.Pages[w.begin]); end-- {
	}
	w.noteLocked(end, now)
	if w.rates.bestLocked(rest, reading{rates: w.rates}) > 0 { // earlier restores still count more
		w.refuseLocked(ahead.took() / groups(len(rest.Pages)))
	}
}

// gaveUpFactor times the wait is the assumed time of a page that was given up: long enough
// that no plan waits for such a page before a probe.
const gaveUpFactor = 2

// GaveUp notes that the awaited page was given up.
func (w *Watch) GaveUp(at time.Duration) {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	rest, took := w.chain.After(w.next), gaveUpFactor*(at.Seconds()-w.since)
	w.refuseLocked(max(took, gaveUpFactor*w.rates.computingLocked(rest.Base, rest.end())/groups(len(rest.Pages))))
	page := rest.Pages[0]
	p := w.rates.tierLocked(page.Tier).pace(page.Form)
	if n := min(w.parallel, len(rest.Pages)); w.measured && n > 1 && !p.more.known() {
		p.more.add(sample{float64(page.Bytes), max(clockStep, took/float64(n))}) // no probe of so few pages would tell
	}
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
// for them. The first page is read alone, which tells the round trips, and then the others together, which
// tells the rate. parallel is the number of pages that a restore reads at a time. n is 0 when the tier was
// probed less than probeEvery ago; otherwise the caller reports both results to [Rates.Probed].
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

// Probed notes the time that pages took which were read together by a probe. complete: all pages arrived.
func (r *Rates) Probed(pages []Page, took time.Duration, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if complete {
		r.tookLocked(pages, took.Seconds(), took.Seconds())
		return
	}
	each := r.computingLocked(pages[0].Start, pages[0].end())
	r.disappointedLocked(pages[0], max(took.Seconds()/groups(len(pages)), gaveUpFactor*PagesAtOnce*each))
}

package rates

import (
	"slices"
	"time"
)

// Watch follows one restore, which reads its pages in order and a few ahead. Times are since
// its first page was asked for. A Watch is used by one goroutine at a time; in methods that end
// in Locked Rates.mu is held.
type Watch struct {
	rates    *Rates
	chain    Chain
	parallel int // pages are read at a time

	next     int     // the page that is waited for
	since    float64 // when that began, in seconds
	run      int     // the first of the pages in a row from the same tier as next
	runSince float64
	trusted  bool      // the run's tier was, when the run began
	paces    []float64 // of the run, after each of the last pages: seconds per unit
}

// Watch begins to follow a restore of a chain, which reads so many pages at a time.
func (r *Rates) Watch(c Chain, parallel int) *Watch {
	w := &Watch{rates: r, chain: c, parallel: parallel}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.beginRunLocked(0)
	return w
}

// beginRunLocked begins with the pages of a tier.
func (w *Watch) beginRunLocked(now float64) {
	w.run, w.runSince, w.paces = w.next, now, nil
	if w.next == len(w.chain.Pages) {
		return
	}
	if w.trusted = w.rates.tierLocked(w.chain.Pages[w.next].Tier).trusted(); w.trusted {
		w.paces = slices.Repeat([]float64{1}, w.parallel)
	}
}

// Alone reports whether the first page should be read before any other is asked for: what
// its tier is worth is not known, and pages that share it would all come late.
func (w *Watch) Alone() bool { return w.next == 0 && !w.trusted }

// Deadline is when the page that is waited for is to be given up, if it is not there.
func (w *Watch) Deadline() time.Duration {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	rest := w.chain.After(w.next)
	// Computing the first of the rest may take less than reading it and computing all of
	// it more than reading: what counts is the mean.
	share := len(rest.Pages)
	if rest.Indivisible {
		share = len(w.chain.Pages)
	}
	patience := w.rates.computingLocked(rest.Base, rest.end()) / float64(share)
	for _, page := range rest.Pages[:min(w.parallel, len(rest.Pages))] { // they share the tier
		patience += w.readingLocked(page)
	}
	return seconds(w.since + max(patience, patienceMin))
}

// patienceMin is how long every page is waited for, in seconds: machines are busy, and for
// less than that nobody waits.
const patienceMin = 0.02

// readingLocked is what a page that has not arrived is expected to take, in seconds, after what
// this restore has seen.
func (w *Watch) readingLocked(page Page) float64 {
	if len(w.paces) == 0 || page.Tier != w.chain.Pages[w.run].Tier {
		return w.rates.tierLocked(page.Tier).reading(page.Bytes)
	}
	return slices.Min(w.paces) * w.unitLocked(page)
}

// unitLocked is what a pace counts: what the page was expected to take, or bytes where nothing
// was expected.
func (w *Watch) unitLocked(page Page) float64 {
	if w.trusted {
		return w.rates.tierLocked(page.Tier).reading(page.Bytes)
	}
	return max(1, float64(page.Bytes))
}

// observeLocked notes how fast the pages of the run came up to now. Pages that are read at a
// time may come all at once, so that the first of them seems to have taken the time of all:
// only the last of as many paces tells, which is the least.
func (w *Watch) observeLocked(now float64) {
	took, units := now-w.runSince, 0.0
	for _, page := range w.chain.Pages[w.run:w.next] {
		units += w.unitLocked(page)
	}
	w.paces = append(w.paces, took/units)
	w.paces = w.paces[max(0, len(w.paces)-w.parallel):]
}

// Arrived notes that the page waited for is in, and reports whether to wait for the next. If
// not, the rest would now be computed sooner; the restore is over.
func (w *Watch) Arrived(at time.Duration) bool {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	now := at.Seconds()
	w.next++
	w.since = now
	w.observeLocked(now)
	if w.next == len(w.chain.Pages) || w.chain.Pages[w.next].Tier != w.chain.Pages[w.run].Tier {
		w.rates.tookLocked(w.chain.Pages[w.run:w.next], now-w.runSince)
		w.beginRunLocked(now)
		if w.next == len(w.chain.Pages) {
			return false
		}
	}
	if w.rates.bestLocked(w.chain.After(w.next), w.readingLocked) > 0 {
		return true
	}
	if page := w.chain.Pages[w.next]; w.next > w.run {
		w.refuseLocked(w.readingLocked(page))
	}
	return false
}

// gaveUpFactor is how many times the time that a page was waited for it is thought to take:
// enough for it not to be waited for again, before a probe tells.
const gaveUpFactor = 2

// GaveUp notes that the page waited for was given up.
func (w *Watch) GaveUp(at time.Duration) {
	w.rates.mu.Lock()
	defer w.rates.mu.Unlock()
	w.refuseLocked(gaveUpFactor * (at.Seconds() - w.since))
}

// refuseLocked notes that the page waited for takes too long. Its tier is to be probed at once:
// it may have been a bad moment.
func (w *Watch) refuseLocked(took float64) {
	w.rates.disappointedLocked(w.chain.Pages[w.next], took).tried = time.Time{}
}

func seconds(s float64) time.Duration { return time.Duration(min(s, costMax) * float64(time.Second)) }

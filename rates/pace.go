package rates

// A run is pages in a row of one tier and form, of which PagesAtOnce are read at a time. Its time depends on
// two costs of a page, in seconds by its bytes: alone, until a page that is read alone is there, and more,
// which is what the tier or the link is busy with a page. n pages take the longer of
//
//	alone · ⌈n/PagesAtOnce⌉    of round trips: nothing but waiting
//	alone + more · (n-1)       of bytes: pages queue for the tier
//
// as in the roofline model of processors.
type pace struct{ alone, more line }

// clockStep is the shortest time that an observation can have, in seconds.
const clockStep = 1e-6

// groups is the number of times in which n pages are read, PagesAtOnce each.
func groups(n int) float64 { return float64((n + PagesAtOnce - 1) / PagesAtOnce) }

// run is the predicted time of a run.
type run struct {
	n     int
	alone float64 // of the page that takes longest
	first float64 // alone, of the first page
	more  float64 // of all pages but the first
}

func (r *run) add(alone, more float64) {
	if r.n++; r.n == 1 {
		r.first = alone
	} else {
		r.more += more
	}
	r.alone = max(r.alone, alone)
}

func (r run) took() float64 { return max(r.alone*groups(r.n), r.first+r.more) }

// reading predicts the time of pages that are read in order. Rates.mu guards it.
type reading struct {
	rates *Rates
	last  Page
	run   run     // the last one
	pace  float64 // of the last run's times that it takes; 0 for once
	costs func(Page) (alone, more float64)
	done  float64 // seconds of the runs before
}

func (r *reading) add(page Page) {
	if r.run.n > 0 && !page.alike(r.last) {
		*r = reading{rates: r.rates, done: r.took()}
	}
	if r.last = page; r.costs != nil {
		r.run.add(r.costs(page))
		return
	}
	r.run.add(r.rates.tierLocked(page.Tier).costs(page))
}

// took is the time in seconds.
func (r *reading) took() float64 {
	if r.pace > 0 {
		return r.done + r.pace*r.run.took()
	}
	return r.done + r.run.took()
}

// pace returns the observations of pages of a form. Before the first one, those of whole pages
// count, which take less for each byte.
func (t *tier) pace(form Form) *pace {
	if own := &t.read[form]; own.alone.known() {
		return own
	}
	return &t.read[Whole]
}

// trusted reports whether pages of a form were read from the tier, which was not too slow since.
func (t *tier) trusted(form Form) bool { return t.pace(form).alone.known() && t.slow == sample{} }

// costs predicts the costs of a page; zero without observations. Before several pages were read at a time,
// they are taken not to queue: whoever reads them finds out, and pages that are not read teach nothing.
func (t *tier) costs(page Page) (alone, more float64) {
	bytes, p := float64(page.Bytes), t.pace(page.Form)
	if p.alone.known() {
		alone = p.alone.at(bytes)
	}
	if p.more.known() {
		more = p.more.at(bytes)
	}
	return max(alone, t.slowAt(bytes)), more
}

// slowAt is the lower bound in seconds, by slow, for a page of a size, at most slow's own.
func (t *tier) slowAt(bytes float64) float64 {
	if t.slow == (sample{}) {
		return 0
	}
	return t.slow.y * min(1, bytes/t.slow.x)
}

// tookLocked notes the seconds in which a run of pages arrived, and in which its first page did.
func (r *Rates) tookLocked(pages []Page, first, took float64) {
	n, bytes := float64(len(pages)), 0.0
	for _, page := range pages {
		bytes += float64(page.Bytes)
	}
	took, bytes = max(took, clockStep), bytes/n
	t := r.tierLocked(pages[0].Tier)
	p := &t.read[pages[0].Form]
	p.observe(n, bytes, first, took)
	if t.slow != (sample{}) {
		if each := took / groups(len(pages)); each < t.slowAt(bytes) {
			t.slow = sample{}
		} else {
			t.slow = sample{max(1, bytes), each}
		}
	}
	r.sawLocked(t)
}

// observe notes the seconds of a run of n pages, of some bytes each. One page tells alone. More pages tell
// only the bounds of both costs, and the prediction within these bounds stays.
func (p *pace) observe(n, bytes, first, took float64) {
	alone := took / n
	if known := p.alone.known(); known && n > 1 {
		before := p.alone.at(bytes)
		alone = max(min(before, first), alone)
		if alone != before {
			p.alone.add(sample{bytes, alone})
		}
	} else {
		p.alone.add(sample{bytes, alone})
	}
	if n == 1 {
		return
	}
	more := (took - alone) / (n - 1)
	if took <= alone*groups(int(n))*queueLeast { // round trips alone explain it
		before := 0.0
		if p.more.known() {
			before = p.more.at(bytes)
		}
		more = min(more, before)
	}
	p.more.add(sample{bytes, max(more, clockStep)})
}

// queueLeast is the least ratio of a run's time to its round trips' that shows that pages queue.
const queueLeast = 1.05

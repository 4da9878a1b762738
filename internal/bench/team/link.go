package team

import (
	"math"

	"github.com/kvtier/kvtier/engine"
)

// Limits of package guard and of package pagefile.
const (
	stepBytes    = 1 << 20 // of a request
	stepsOfPage  = 2       // requests of one page on the way
	stepsOfPages = 4       // requests of all pages on the way
	roundTrips   = 2       // before the rows of a page: to open it, and for its header
)

// Link is the way to an engine.
type Link struct {
	BytesPerSecond float64
	RoundTrip      float64 // seconds
}

// reads are pages that are read over a link, a few ahead. Times are in seconds.
type reads struct {
	link    Link
	bytes   float64 // of a page
	atOnce  int     // pages
	used    int     // pages that have room for another behind them
	pages   []reading
	answers []answer
	now     float64
	free    float64 // when the link has sent what waits
	running int     // requests for rows on the way
}

// reading is a page that is being read.
type reading struct {
	heads   int     // answers that came before the first rows
	asked   float64 // bytes
	came    float64 // bytes
	running int
}

type answer struct {
	at, bytes float64
	page      int
}

func read(link Link, bytes float64, pages, atOnce int) *reads {
	return &reads{link: link, bytes: bytes, atOnce: atOnce, pages: make([]reading, pages)}
}

// await waits for a page at most until a time. It reports whether the page has come.
func (r *reads) await(page int, until float64) bool {
	for r.pages[page].came < r.bytes {
		r.ask()
		next := 0
		for i, a := range r.answers {
			if a.at < r.answers[next].at {
				next = i
			}
		}
		a := r.answers[next]
		if a.at > until {
			return false
		}
		r.now = a.at
		r.answers = append(r.answers[:next], r.answers[next+1:]...)
		p := &r.pages[a.page]
		p.running--
		if a.bytes == 0 {
			p.heads++
			continue
		}
		p.came += a.bytes
		r.running--
	}
	return true
}

// ask sends the requests that may be on the way now.
func (r *reads) ask() {
	for i := r.used; i < min(r.used+r.atOnce, len(r.pages)); i++ {
		p := &r.pages[i]
		if p.heads < roundTrips && p.running == 0 {
			p.running++
			r.answers = append(r.answers, answer{at: r.now + r.link.RoundTrip, page: i})
		}
		for p.heads == roundTrips && p.asked < r.bytes && p.running < stepsOfPage && r.running < stepsOfPages {
			n := min(stepBytes, r.bytes-p.asked)
			p.asked += n
			p.running++
			r.running++
			r.free = max(r.free, r.now+r.link.RoundTrip/2) + n/r.link.BytesPerSecond
			r.answers = append(r.answers, answer{r.free + r.link.RoundTrip/2, n, i})
		}
	}
}

// all is the time to read some pages.
func (l Link) all(bytes float64, pages int) float64 {
	r := read(l, bytes, pages, engine.PagesAtOnce)
	for i := range pages {
		r.await(i, math.Inf(1))
		r.used = i + 1
	}
	return r.now
}

package team

import (
	"math"
	"math/rand/v2"

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
	Jitter         float64 // most of a round trip by which one may differ
	Shared         bool    // another server reads pages over the link all the time
}

// wire is a link in use. Times are in seconds.
type wire struct {
	Link
	random  *rand.Rand
	readers []*reads
	answers []answer
	now     float64
	free    float64 // when the link has sent what waits
}

// reads are pages that a server reads over a link, a few ahead.
type reads struct {
	*wire
	bytes   float64 // of a page
	atOnce  int     // pages
	used    int     // pages that have room for another behind them
	pages   []reading
	running int // requests for rows on the way
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
	from      *reads
	page      int
}

// read begins to read pages. The same link gives the same times.
func read(link Link, bytes float64, pages, atOnce int) *reads {
	w := &wire{Link: link, random: rand.New(rand.NewPCG(1, uint64(pages)))}
	ours := &reads{wire: w, bytes: bytes, atOnce: atOnce, pages: make([]reading, pages)}
	w.readers = append(w.readers, ours)
	if link.Shared {
		w.readers = append(w.readers, &reads{wire: w, bytes: bytes, atOnce: engine.PagesAtOnce})
	}
	return ours
}

// await waits for a page at most until a time. It reports whether the page has come.
func (r *reads) await(page int, until float64) bool {
	for r.pages[page].came < r.bytes {
		for i, reader := range r.readers {
			if i > 0 {
				reader.goOn()
			}
			reader.ask()
		}
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
		a.from.got(a)
	}
	return true
}

// goOn makes room behind the pages that have come: there is always another page.
func (r *reads) goOn() {
	for r.used < len(r.pages) && r.pages[r.used].came >= r.bytes {
		r.used++
	}
	for len(r.pages) < r.used+r.atOnce {
		r.pages = append(r.pages, reading{})
	}
}

func (r *reads) got(a answer) {
	p := &r.pages[a.page]
	p.running--
	if a.bytes == 0 {
		p.heads++
		return
	}
	p.came += a.bytes
	r.running--
}

// ask sends the requests that may be on the way now.
func (r *reads) ask() {
	for i := r.used; i < min(r.used+r.atOnce, len(r.pages)); i++ {
		p := &r.pages[i]
		if p.heads < roundTrips && p.running == 0 {
			p.running++
			r.answers = append(r.answers, answer{at: r.now + r.roundTrip(), from: r, page: i})
		}
		for p.heads == roundTrips && p.asked < r.bytes && p.running < stepsOfPage && r.running < stepsOfPages {
			n, trip := min(stepBytes, r.bytes-p.asked), r.roundTrip()
			p.asked += n
			p.running++
			r.running++
			r.free = max(r.free, r.now+trip/2) + n/r.BytesPerSecond
			r.answers = append(r.answers, answer{r.free + trip/2, n, r, i})
		}
	}
}

func (w *wire) roundTrip() float64 { return w.RoundTrip * (1 + w.Jitter*(2*w.random.Float64()-1)) }

// all is the time to read some pages.
func (l Link) all(bytes float64, pages int) float64 {
	r := read(l, bytes, pages, engine.PagesAtOnce)
	for i := range pages {
		r.await(i, math.Inf(1))
		r.used = i + 1
	}
	return r.now
}

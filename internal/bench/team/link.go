package team

import (
	"math"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/rates"
)

// Limits of package guard and of package pagefile.
const (
	stepBytes    = 1 << 20 // of a request
	stepsOfPage  = 2       // requests of one page on the way
	stepsOfPages = 4       // requests of all pages on the way
	roundTrips   = 2       // before the rows of a page: to open it, and for its header
)

// Limits of a directory on NFS. A path has three folders, whose attributes are asked for anew.
const (
	fileRoundTrips = 3 + roundTrips
	filesAtOnce    = 4 // look-ups of package guard
)

// Link is the way to an engine.
type Link struct {
	BytesPerSecond float64
	RoundTrip      float64 // seconds
	Files          bool    // the engine is a directory on NFS
}

// look is the time to look for some pages.
func (l Link) look(calls, names int) float64 {
	if l.Files {
		return l.RoundTrip * float64((names+filesAtOnce-1)/filesAtOnce)
	}
	return l.RoundTrip * float64(calls)
}

// Links are the ways to the tiers of a server, by the tiers' names.
type Links map[string]Link

// way is a link that is in use.
type way struct {
	Link
	heads   int     // round trips before the rows of a page
	free    float64 // when the link has sent what waits
	running int     // requests for rows on the way
}

// reads are pages that are read over links, a few ahead. Times are in seconds.
type reads struct {
	atOnce  int // pages
	used    int // pages that have room for another behind them
	pages   []reading
	answers []answer
	now     float64
}

// reading is a page that is being read.
type reading struct {
	way     *way
	bytes   float64
	heads   int     // answers that came before the first rows
	asked   float64 // bytes
	came    float64 // bytes
	running int
}

type answer struct {
	at, bytes float64
	page      int
}

func (l Links) read(pages []rates.Page, atOnce int) *reads {
	r, ways := &reads{atOnce: atOnce}, make(map[string]*way)
	for _, page := range pages {
		if ways[page.Tier] == nil {
			w := &way{Link: l[page.Tier], heads: roundTrips}
			if w.Files {
				w.heads = fileRoundTrips
			}
			ways[page.Tier] = w
		}
		r.pages = append(r.pages, reading{way: ways[page.Tier], bytes: float64(page.Bytes)})
	}
	return r
}

// await waits for a page at most until a time. It reports whether the page has come.
func (r *reads) await(page int, until float64) bool {
	for r.pages[page].came < r.pages[page].bytes {
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
		p.way.running--
	}
	return true
}

// ask sends the requests that may be on the way now.
func (r *reads) ask() {
	for i := r.used; i < min(r.used+r.atOnce, len(r.pages)); i++ {
		p := &r.pages[i]
		w := p.way
		if p.heads < w.heads && p.running == 0 {
			p.running++
			r.answers = append(r.answers, answer{at: r.now + w.RoundTrip, page: i})
		}
		for p.heads == w.heads && p.asked < p.bytes && p.running < stepsOfPage && w.running < stepsOfPages {
			n := min(stepBytes, p.bytes-p.asked)
			p.asked += n
			p.running++
			w.running++
			w.free = max(w.free, r.now+w.RoundTrip/2) + n/w.BytesPerSecond
			r.answers = append(r.answers, answer{w.free + w.RoundTrip/2, n, i})
		}
	}
}

// all is the time to read some pages.
func (l Links) all(pages []rates.Page) float64 {
	r := l.read(pages, engine.PagesAtOnce)
	for i := range pages {
		r.await(i, math.Inf(1))
		r.used = i + 1
	}
	return r.now
}

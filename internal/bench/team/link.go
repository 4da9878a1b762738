package team

import (
	"math"
	"math/rand/v2"

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
	Jitter         float64 // most of a round trip by which one may differ
	Shared         bool    // another server reads pages over the link all the time
	Files          bool    // the engine is a directory on NFS
}

// heads are the round trips before the rows of a page.
func (l Link) heads() int {
	if l.Files {
		return fileRoundTrips
	}
	return roundTrips
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

// wire is a link in use. Times are in seconds.
type wire struct {
	Link
	random *rand.Rand
	free   float64 // when it has sent what waits
}

func (w *wire) roundTrip() float64 { return w.RoundTrip * (1 + w.Jitter*(2*w.random.Float64()-1)) }

// way is a server's way to an engine.
type way struct {
	*wire
	running int // requests for rows on the way
}

// network has the answers that are on the way to servers.
type network struct {
	readers []*reads
	answers []answer
	now     float64
}

type answer struct {
	at, bytes float64
	page      *reading
}

// reads are pages that a server reads over links, a few ahead.
type reads struct {
	*network
	atOnce int // pages
	used   int // pages that have room for another behind them
	pages  []*reading
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

// read begins to read pages. The same links give the same times.
func (l Links) read(pages []rates.Page, atOnce int) *reads {
	ours, ways := &reads{network: new(network), atOnce: atOnce}, make(map[string]*way)
	ours.readers = append(ours.readers, ours)
	for _, page := range pages {
		w := ways[page.Tier]
		if w == nil {
			w = &way{wire: &wire{Link: l[page.Tier], random: rand.New(rand.NewPCG(1, uint64(len(pages))))}}
			ways[page.Tier] = w
			if w.Shared {
				first := &reading{way: &way{wire: w.wire}, bytes: float64(page.Bytes)}
				ours.readers = append(ours.readers, &reads{network: ours.network, atOnce: engine.PagesAtOnce, pages: []*reading{first}})
			}
		}
		ours.pages = append(ours.pages, &reading{way: w, bytes: float64(page.Bytes)})
	}
	return ours
}

// await waits for a page at most until a time. It reports whether the page has come.
func (r *reads) await(page int, until float64) bool {
	for r.pages[page].came < r.pages[page].bytes {
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
		a.page.got(a.bytes)
	}
	return true
}

// goOn makes room behind the pages that have come: there is always another page like the first.
func (r *reads) goOn() {
	for r.used < len(r.pages) && r.pages[r.used].came >= r.pages[r.used].bytes {
		r.used++
	}
	for first := r.pages[0]; len(r.pages) < r.used+r.atOnce; {
		r.pages = append(r.pages, &reading{way: first.way, bytes: first.bytes})
	}
}

func (p *reading) got(bytes float64) {
	p.running--
	if bytes == 0 {
		p.heads++
		return
	}
	p.came += bytes
	p.way.running--
}

// ask sends the requests that may be on the way now.
func (r *reads) ask() {
	for i := r.used; i < min(r.used+r.atOnce, len(r.pages)); i++ {
		p := r.pages[i]
		w := p.way
		if p.heads < w.heads() && p.running == 0 {
			p.running++
			r.answers = append(r.answers, answer{at: r.now + w.roundTrip(), page: p})
		}
		for p.heads == w.heads() && p.asked < p.bytes && p.running < stepsOfPage && w.running < stepsOfPages {
			n, trip := min(stepBytes, p.bytes-p.asked), w.roundTrip()
			p.asked += n
			p.running++
			w.running++
			w.free = max(w.free, r.now+trip/2) + n/w.BytesPerSecond
			r.answers = append(r.answers, answer{w.free + trip/2, n, p})
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

package rates

import (
	"sync"
	"time"
)

// Page is a stored page of a prompt, as far as its cost goes.
type Page struct {
	Start  int   // position of its first token
	Tokens int   // how many of its tokens the prompt shares
	Bytes  int64 // what has to be read
	Tier   string
}

func (page Page) end() int { return page.Start + page.Tokens }

// Chain is the stored pages of a prompt, in order.
type Chain struct {
	Base  int // how many of the prompt's tokens are there already
	Pages []Page
	// Indivisible says that the pages are of use only all together: windows of attention and
	// recurrent state end where the last one does.
	Indivisible bool
}

// After is what is left of a chain when its first n pages are there, or are not read.
func (c Chain) After(n int) Chain {
	if n > 0 && !c.Indivisible {
		c.Base = c.Pages[n-1].end()
	}
	c.Pages = c.Pages[n:]
	return c
}

// end is up to where the chain leads.
func (c Chain) end() int { return c.Pages[len(c.Pages)-1].end() }

const (
	// batchTokensMin is the smallest batch whose speed says something about a prompt's.
	batchTokensMin = 64

	// computeHalfLife is in batches: a prompt of 8k tokens, in Ollama's batches of 512.
	computeHalfLife = 16
	// readHalfLife is in restores.
	readHalfLife = 2

	// assumedTokenSeconds is taken for what computing a token costs until a prompt was: a
	// page of 256 is then waited for 5 s, which a disk needs 6 MB/s for at 8B.
	assumedTokenSeconds = 1.0 / 50
)

// Rates knows what computing a model's tokens and reading its pages cost. Its methods may be
// called from several goroutines.
type Rates struct {
	now  func() time.Time
	file *file // nil keeps nothing

	mu       sync.Mutex // guards the fields below
	compute  line       // seconds of a token at a position
	computed time.Time  // when that was last observed by this process
	tiers    map[string]*tier
}

// tier is what reading from one tier costs. Rates.mu guards it.
type tier struct {
	read line // seconds of a page of a size, when several are read at once
	// slow is what a page took at least when the tier disappointed: no page of that size
	// is expected sooner until one was. Zero when there is no reason to think so.
	slow sample
	// tried is when a probe of it last began.
	tried time.Time
	// seen is when something about it was last observed by this process.
	seen time.Time
}

// New returns rates that know nothing and keep nothing; see [Open].
func New() *Rates {
	return &Rates{now: time.Now, compute: newComputeLine(), tiers: make(map[string]*tier)}
}

func newComputeLine() line { return line{halfLife: computeHalfLife} }

func newReadLine() line { return line{halfLife: readHalfLife, proportional: true} }

// Computed notes what a batch took: tokens is their number, position the mean of their
// positions. Batches too small to say anything about a prompt are left out.
func (r *Rates) Computed(tokens int, position float64, took time.Duration) {
	if tokens < batchTokensMin {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.compute.add(sample{position, took.Seconds() / float64(tokens)})
	r.computed = r.now()
	r.file.changedLocked(r)
}

// computingLocked is the time in seconds that computing positions [begin, end) takes.
func (r *Rates) computingLocked(begin, end int) float64 {
	if end <= begin {
		return 0
	}
	each := assumedTokenSeconds
	if r.compute.known() {
		each = r.compute.at(float64(begin+end-1) / 2)
	}
	return each * float64(end-begin)
}

// tierLocked returns what is known of a tier.
func (r *Rates) tierLocked(name string) *tier {
	if r.file != nil && r.file.names[name] != "" {
		name = r.file.names[name]
	}
	return r.keptTierLocked(name)
}

// keptTierLocked is tier by the name that it is kept under.
func (r *Rates) keptTierLocked(name string) *tier {
	t, ok := r.tiers[name]
	if !ok {
		t = &tier{read: newReadLine()}
		r.tiers[name] = t
	}
	return t
}

// trusted reports whether the tier was read from and has not disappointed since.
func (t *tier) trusted() bool { return t.read.known() && t.slow == sample{} }

// reading is the time in seconds that a page of a size takes, as far as is known; zero when
// nothing is.
func (t *tier) reading(bytes int64) float64 {
	took := 0.0
	if t.read.known() {
		took = t.read.at(float64(bytes))
	}
	return max(took, t.slowAt(float64(bytes)))
}

// slowAt is what a page of a size takes at least, in seconds: a larger one at least as long
// as the one that disappointed.
func (t *tier) slowAt(bytes float64) float64 {
	if t.slow == (sample{}) {
		return 0
	}
	return t.slow.y * min(1, bytes/t.slow.x)
}

// tookLocked notes what pages of one tier took in seconds, that all came.
func (r *Rates) tookLocked(pages []Page, took float64) {
	n, bytes := float64(len(pages)), int64(0)
	for _, page := range pages {
		bytes += page.Bytes
	}
	each := sample{float64(bytes) / n, max(took, clockStep) / n}
	t := r.tierLocked(pages[0].Tier)
	t.read.add(each)
	if t.slow != (sample{}) {
		if each.y < t.slowAt(each.x) {
			t.slow = sample{}
		} else {
			t.slow = each
		}
	}
	r.sawLocked(t)
}

// clockStep is the shortest time that is told from none, in seconds.
const clockStep = 1e-6

// disappointedLocked notes that a page took at least so many seconds.
func (r *Rates) disappointedLocked(page Page, took float64) *tier {
	t := r.tierLocked(page.Tier)
	if s := (sample{max(1, float64(page.Bytes)), took}); s.valid() {
		t.slow = s
	}
	r.sawLocked(t)
	return t
}

func (r *Rates) sawLocked(t *tier) {
	t.seen = r.now()
	r.file.changedLocked(r)
}

// Plan returns how many leading pages of a chain to read. The rest up to the end of the last
// page is computed.
func (r *Rates) Plan(c Chain) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bestLocked(c, func(page Page) float64 { return r.tierLocked(page.Tier).reading(page.Bytes) })
}

// gainMin is how much sooner, in seconds, a prompt must be there for stored pages to be
// computed: less is noise, and does not show beside what a request takes anyhow.
const gainMin = 0.005

// bestLocked is the number of leading pages with which the time up to the end of the last page
// is least, when reading one takes that long in seconds; all, if no other gains anything.
func (r *Rates) bestLocked(c Chain, reading func(Page) float64) int {
	if len(c.Pages) == 0 {
		return 0
	}
	best, least, read := 0, r.computingLocked(c.Base, c.end()), 0.0
	for i, page := range c.Pages {
		read += reading(page)
		if c.Indivisible && i+1 < len(c.Pages) {
			continue
		}
		if total := read + r.computingLocked(page.end(), c.end()); total <= least {
			best, least = i+1, total
		}
	}
	if read <= least+gainMin {
		return len(c.Pages)
	}
	return best
}

package rates

import (
	"sync"
	"time"
)

// Page describes a stored page of a prompt by its cost.
type Page struct {
	Start  int   // position of the first token
	Tokens int   // number of tokens that the prompt shares
	Bytes  int64 // bytes to read
	Tier   string
	Form   Form // how much smaller the bytes are than the page's rows
	// Rows are the bytes of rows that go through the step Chain.Then, 0 for as many as Bytes.
	Rows int64
}

// step is the page as it goes through a step.
func (page Page) step(name string) Page {
	page.Tier, page.Form = name, Whole
	if page.Rows > 0 {
		page.Bytes = page.Rows
	}
	return page
}

func (page Page) alike(other Page) bool { return page.Tier == other.Tier && page.Form == other.Form }

func (page Page) end() int { return page.Start + page.Tokens }

// Chain is the stored pages of a prompt, in order.
type Chain struct {
	Base  int // number of the prompt's tokens that the slot holds already
	Pages []Page
	// Indivisible: pages are of use only all together, because attention windows and
	// recurrent state belong to the end of the last page.
	Indivisible bool
	// Then names a step that every page goes through after it was read, such as a copy to
	// where it is used; "" for none. The step has rates as a tier has.
	Then string
}

// After is the chain without its first n pages.
func (c Chain) After(n int) Chain {
	if n > 0 && !c.Indivisible {
		c.Base = max(c.Base, c.Pages[n-1].end())
	}
	c.Pages = c.Pages[n:]
	return c
}

func (c Chain) end() int { return c.Pages[len(c.Pages)-1].end() }

const (
	// batchTokensMin is the smallest batch that counts as an observation of prefill. A smaller one
	// takes longer for each of its tokens, and shows only that a prediction is too high.
	batchTokensMin = 64

	// computeHalfLife is the half-life of compute observations in batches: a prompt of 8k
	// tokens, in Ollama's batches of 512.
	computeHalfLife = 16
	// readHalfLife is the half-life of read observations in restores.
	readHalfLife = 2

	// assumedTokenSeconds is the assumed time to compute a token before the first observation: the middle,
	// by ratio, of what machines take, 0.1 to 10 ms. A first prompt then takes at most eleven times as
	// long as the better choice (waiting for a tenth of it in vain, or computing what was ten times as
	// quick to read), and no other value bounds it better.
	assumedTokenSeconds = 1.0 / 1000
	// storingTokenSeconds is assumed in its place where what is stored depends on it: too high a value
	// stores too much, too low a one nothing of a slow machine's first prompt.
	storingTokenSeconds = 1.0 / 50
)

// PagesAtOnce bounds the pages of a prompt that are read at the same time.
const PagesAtOnce = 3

// Rates holds the observed costs of computing a model's tokens and of reading pages. Methods
// may be called from several goroutines.
type Rates struct {
	now  func() time.Time
	file *file // nil: observations are not saved

	mu       sync.Mutex // guards the fields below
	compute  line       // seconds per token, by position
	computed time.Time  // time of this process's last observation of compute
	whole    []sample   // seconds of prompts that were computed as a whole, by tokens
	tiers    map[string]*tier
}

// tier holds the observed costs of reading from one tier. Rates.mu guards it.
type tier struct {
	read [forms]pace
	// slow is a lower bound from the tier's last slow page: a page of that size that is read alone is
	// predicted to take as long until one is read faster. Zero for a trusted tier.
	slow sample
	// tried is the start of the tier's last probe.
	tried time.Time
	// seen is the time of this process's last observation of the tier.
	seen time.Time
}

// New returns rates without observations and without a file; see [Open].
func New() *Rates { return NewAt(time.Now) }

// NewAt does as New, with a clock of its own that tells the age of observations.
func NewAt(now func() time.Time) *Rates {
	return &Rates{now: now, compute: newComputeLine(), tiers: make(map[string]*tier)}
}

// Apart returns a copy that keeps observations to itself: those of a time that tells nothing of others.
func (r *Rates) Apart() *Rates {
	r.mu.Lock()
	defer r.mu.Unlock()
	apart := &Rates{now: r.now, compute: r.compute.clone(), computed: r.computed, tiers: make(map[string]*tier, len(r.tiers))}
	if r.file != nil {
		apart.file = &file{names: r.file.names, closed: true}
	}
	for name, t := range r.tiers {
		own := *t
		for form := range own.read {
			own.read[form] = pace{t.read[form].alone.clone(), t.read[form].more.clone()}
		}
		apart.tiers[name] = &own
	}
	return apart
}

func newComputeLine() line { return line{halfLife: computeHalfLife} }

func newReadLine() line { return line{halfLife: readHalfLife, proportional: true} }

// Computed notes the time of a batch. tokens is the number of tokens, position the mean of
// their positions. A batch of fewer than batchTokensMin tokens counts only if it took less time
// than predicted: where every prompt is read from the store, no larger batch may come.
func (r *Rates) Computed(tokens int, position float64, took time.Duration) {
	if tokens <= 0 {
		return
	}
	each := took.Seconds() / float64(tokens)
	r.mu.Lock()
	defer r.mu.Unlock()
	if tokens < batchTokensMin && (!r.compute.known() || each >= r.compute.at(position)) {
		return
	}
	r.compute.add(sample{position, each})
	r.computed = r.now()
	r.file.changedLocked(r)
}

// computingLocked predicts the seconds to compute positions [begin, end).
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

func (r *Rates) tierLocked(name string) *tier {
	if r.file != nil && r.file.names[name] != "" {
		name = r.file.names[name]
	}
	return r.keptTierLocked(name)
}

// keptTierLocked returns the observations of a tier by its name in the file.
func (r *Rates) keptTierLocked(name string) *tier {
	t, ok := r.tiers[name]
	if !ok {
		t = new(tier)
		for form := range t.read {
			t.read[form] = pace{newReadLine(), newReadLine()}
		}
		r.tiers[name] = t
	}
	return t
}

// disappointedLocked notes that a page that is read alone takes at least `took` seconds.
func (r *Rates) disappointedLocked(page Page, took float64) *tier {
	t := r.tierLocked(page.Tier)
	if s := (sample{max(1, float64(page.Bytes)), took}); s.valid() && took > t.slowAt(s.x) {
		t.slow = s
	}
	r.sawLocked(t)
	return t
}

func (r *Rates) sawLocked(t *tier) {
	t.seen = r.now()
	r.file.changedLocked(r)
}

// Plan returns how many leading pages of a chain to read; the rest of its tokens is computed.
func (r *Rates) Plan(c Chain) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bestLocked(c, reading{rates: r})
}

// Stepped notes the time in which pages of a chain went through the step Then.
func (r *Rates) Stepped(c Chain, took time.Duration) {
	if len(c.Pages) == 0 || c.Then == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes, n := 0.0, float64(len(c.Pages))
	for _, page := range c.Pages {
		bytes += float64(page.step(c.Then).Bytes)
	}
	t := r.tierLocked(c.Then)
	t.read[Whole].alone.add(sample{bytes / n, max(took.Seconds(), clockStep) / n})
	r.sawLocked(t)
}

// steppingLocked predicts the seconds in which a page goes through the step Then. A step that
// was not observed lately counts nothing, so that a slow one is tried again.
func (r *Rates) steppingLocked(c Chain, page Page) float64 {
	if c.Then == "" {
		return 0
	}
	t := r.tierLocked(c.Then)
	if since := r.now().Sub(t.seen); since < 0 || since >= probeEvery {
		return 0
	}
	alone, _ := t.costs(page.step(c.Then))
	return alone
}

// Reading predicts the time of a page among many that are read from its tier, or alone where no others were;
// zero without observations.
func (r *Rates) Reading(page Page) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	alone, more := r.tierLocked(page.Tier).costs(page)
	if more > 0 {
		alone = max(more, alone/PagesAtOnce)
	}
	return seconds(alone)
}

// Stepping predicts the time in which a page goes through the step of its tier's name. It is zero where
// the step was not observed lately, so that a slow one is tried again.
func (r *Rates) Stepping(page Page) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return seconds(r.steppingLocked(Chain{Then: page.Tier}, page))
}

// Computing predicts the time to compute the tokens from position begin to end.
func (r *Rates) Computing(begin, end int) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.compute.known() {
		return seconds(storingTokenSeconds * float64(max(0, end-begin)))
	}
	return seconds(r.computingLocked(begin, end))
}

// gainMin is the gain, in seconds, for which stored pages are computed instead of read: smaller gains are noise
// beside the other costs of a request. gainShare of a time is enough where that is not noise itself.
const (
	gainMin   = 0.005
	gainShare = 0.07
)

// unknownMin is the least gain, and the least wait for a page, in seconds before computing was observed: it
// does not matter to users once, and a busy machine needs that for a page of a few tokens.
const unknownMin = 0.25

// gainLocked is the gain that counts of a time.
func (r *Rates) gainLocked(time float64) float64 {
	switch {
	case !r.compute.known():
		return unknownMin
	case time < patienceMin:
		return gainMin
	}
	return min(gainMin, gainShare*time)
}

// bestLocked is the number of leading pages to read such that reading them and computing the
// rest takes least. read predicts the time of the pages. All pages are read unless another
// number gains more than gainLocked.
func (r *Rates) bestLocked(c Chain, read reading) int {
	if len(c.Pages) == 0 {
		return 0
	}
	best, least, stepping := 0, r.computingLocked(c.Base, c.end()), 0.0
	for i, page := range c.Pages {
		read.add(page)
		stepping += r.steppingLocked(c, page)
		if c.Indivisible && i+1 < len(c.Pages) {
			continue
		}
		if total := read.took() + stepping + r.computingLocked(page.end(), c.end()); total <= least {
			best, least = i+1, total
		}
	}
	if read.took()+stepping <= least+r.gainLocked(least) {
		return len(c.Pages)
	}
	return best
}

// Form tells how much smaller a page's file is than the rows in it. Smaller rows are decoded after they
// are read, which takes the longer for each byte of the file, the smaller they are: a tier has a rate
// of its own for each form. The size of a file is known before it is opened, its encoding is not.
type Form uint8

const (
	Whole   Form = iota // the file is as large as the rows
	Packed              // smaller: encodings without loss of f16 and bf16
	Half                // about half as large: q8_0 for f16
	Quarter             // about a quarter: 4 bits for f16
	forms
)

// Least ratios of the rows' size to the file's, in tenths.
const (
	halfTenths    = 17
	quarterTenths = 28
)

// FormOf returns the form of a file of some bytes that holds rows of some bytes.
func FormOf(file, rows int64) Form {
	switch {
	case file >= rows:
		return Whole
	case 10*rows < halfTenths*file:
		return Packed
	case 10*rows < quarterTenths*file:
		return Half
	}
	return Quarter
}

// String is the form's name in the file of rates.
func (f Form) String() string { return formNames[f] }

var formNames = []string{"whole", "packed", "half", "quarter"}

package trial

import (
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Form is a form of pages.
type Form int

const (
	Raw Form = iota
	Compressed
	forms
)

const (
	// kept is the number of reads of a form that count: the latest ones.
	kept = 64

	// least is the number of reads of either form from which on they are compared.
	least = 16

	// probing is the share of new pages that take the form which is not the quicker one.
	probing = 16

	// gain is the share of the time of raw pages that compressed ones must save before new pages
	// become compressed, so that chance does not move the verdict to and fro. They become raw again as
	// soon as compressed ones take longer.
	gain = 0.05
)

// Verdict is the quicker form, and the time of either, in seconds for 10⁹ bytes of rows.
type Verdict struct {
	Known   bool
	Form    Form
	Seconds [forms]float64 // 0 where rows do not become smaller, so that there is nothing to compare
}

// Trial is a comparison. Its methods may be called from several goroutines.
type Trial struct {
	mu      sync.Mutex
	times   [forms]samples
	futile  int // pages in a row that did not become smaller
	verdict Verdict
	changed bool // since the last Record
}

// New returns a trial in which nothing is known.
func New() *Trial { return &Trial{} }

// samples are the latest times of a form, in no order.
type samples struct {
	seconds [kept]float64
	n       int // that were added
}

func (s *samples) add(seconds float64) {
	s.seconds[s.n%kept] = seconds
	s.n++
}

func (s *samples) median() float64 {
	all := slices.Clone(s.seconds[:min(s.n, kept)])
	slices.Sort(all)
	return all[len(all)/2]
}

// Compress reports whether a new page with a key is to be compressed.
func (t *Trial) Compress(key pagefile.Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.verdict.Known {
		return key[0]%2 == 1
	}
	return (t.verdict.Form == Compressed) != (key[0]%probing == 0)
}

// Read notes the time in which the rows of a page came back, in bytes. It reports whether another form
// is the quicker one now.
func (t *Trial) Read(form Form, rows int, took time.Duration) (now Verdict, changed bool) {
	if rows <= 0 || took <= 0 {
		return now, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times[form].add(took.Seconds() / (float64(rows) / 1e9))
	if t.times[Raw].n < least || t.times[Compressed].n < least {
		return t.verdict, false
	}
	v := Verdict{Known: true, Seconds: [forms]float64{t.times[Raw].median(), t.times[Compressed].median()}}
	limit := v.Seconds[Raw] * (1 - gain)
	if t.verdict.Known && t.verdict.Form == Compressed {
		limit = v.Seconds[Raw]
	}
	if v.Seconds[Compressed] <= limit {
		v.Form = Compressed
	}
	return t.decide(v)
}

// Encoded notes whether a page that was to be compressed became smaller. It reports whether it is known
// now that pages do not.
func (t *Trial) Encoded(smaller bool) (now Verdict, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if smaller {
		t.futile = 0
		return t.verdict, false
	}
	if t.futile++; t.futile < least {
		return t.verdict, false
	}
	t.futile, t.times[Compressed] = 0, samples{} // reads of before say nothing of pages that do not shrink
	return t.decide(Verdict{Known: true, Form: Raw})
}

// decide sets the verdict. t.mu is held.
func (t *Trial) decide(v Verdict) (now Verdict, changed bool) {
	changed = !t.verdict.Known || t.verdict.Form != v.Form
	t.verdict, t.changed = v, t.changed || changed
	return v, changed
}

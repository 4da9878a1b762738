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
	// kept is the number of pairs that count: the latest ones.
	kept = 64

	// least is the number of pairs from which on there is a verdict.
	least = 16

	// recent is the number of reads among which a page's neighbor is looked for: restores read several
	// pages at a time.
	recent = 8

	// probing is the share of new pages that take the form which is not the quicker one.
	probing = 16

	// gain is the share of the time of raw pages that compressed ones must save before new pages
	// become compressed, so that chance does not move the verdict to and fro. They become raw again as
	// soon as compressed ones take longer.
	gain = 0.05
)

// Verdict is the quicker form, and the time of either, in seconds for 10⁹ bytes of rows. That of compressed
// pages is that beside the raw pages they were compared with.
type Verdict struct {
	Known   bool
	Form    Form
	Seconds [forms]float64 // 0 where rows do not become smaller, so that there is nothing to compare
}

// Trial is a comparison. Its methods may be called from several goroutines.
type Trial struct {
	mu      sync.Mutex
	reads   [recent]read // the latest that are not part of a pair
	next    int          // the place in reads of the next one
	pairs   pairs
	futile  int  // pages in a row that did not become smaller
	vain    bool // no page has become smaller since the verdict that none does
	verdict Verdict
	version int // of the verdict
	written int // the version in the record
}

// New returns a trial in which nothing is known.
func New() *Trial { return &Trial{} }

// Page names a page of a conversation, and the page before it.
type Page struct{ Key, Parent pagefile.Key }

func (p Page) beside(other Page) bool { return p.Parent == other.Key || p.Key == other.Parent }

// read is the time of a page, in seconds for 10⁹ bytes; 0: there is none.
type read struct {
	page    Page
	form    Form
	seconds float64
}

// pairs are the latest reads of neighbors in a conversation with different forms: of pages that were read
// under the same conditions. The speed of a disk, or of the page cache, is no part of a ratio.
type pairs struct {
	raw    [kept]float64 // seconds for 10⁹ bytes
	ratios [kept]float64 // of the time of compressed pages and that of raw ones
	n      int           // that were added
}

func (p *pairs) add(raw, compressed float64) {
	p.raw[p.n%kept], p.ratios[p.n%kept] = raw, compressed/raw
	p.n++
}

func (p *pairs) median(of *[kept]float64) float64 {
	all := slices.Clone(of[:min(p.n, kept)])
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
func (t *Trial) Read(page Page, form Form, rows int, took time.Duration) (now Verdict, changed bool) {
	if rows <= 0 || took <= 0 {
		return now, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.vain || !t.pair(read{page: page, form: form, seconds: took.Seconds() / (float64(rows) / 1e9)}) || t.pairs.n < least {
		return t.verdict, false
	}
	raw, ratio := t.pairs.median(&t.pairs.raw), t.pairs.median(&t.pairs.ratios)
	v := Verdict{Known: true, Seconds: [forms]float64{raw, raw * ratio}}
	limit := 1 - gain
	if t.verdict.Known && t.verdict.Form == Compressed {
		limit = 1
	}
	if ratio <= limit {
		v.Form = Compressed
	}
	return t.decide(v)
}

// pair makes a pair of a read and the latest one of a neighbor with the other form, or keeps the read. A
// page that is read again belongs to another restore than all reads before. t.mu is held.
func (t *Trial) pair(now read) bool {
	if slices.ContainsFunc(t.reads[:], func(r read) bool { return r.seconds > 0 && r.page == now.page }) {
		t.reads = [recent]read{}
	}
	for back := range recent {
		i := (t.next + 2*recent - 1 - back) % recent
		other := t.reads[i]
		if other.seconds > 0 && other.form != now.form && other.page.beside(now.page) {
			raw, compressed := now, other
			if raw.form != Raw {
				raw, compressed = other, now
			}
			t.pairs.add(raw.seconds, compressed.seconds)
			t.reads[i] = read{}
			return true
		}
	}
	t.reads[t.next] = now
	t.next = (t.next + 1) % recent
	return false
}

// Encoded notes whether a page that was to be compressed became smaller. It reports whether it is known
// now that pages do not.
func (t *Trial) Encoded(smaller bool) (now Verdict, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if smaller {
		t.futile, t.vain = 0, false
		return t.verdict, false
	}
	if t.futile++; t.futile < least {
		return t.verdict, false
	}
	// reads of pages from before say nothing of pages that do not shrink
	t.futile, t.vain, t.pairs, t.reads = 0, true, pairs{}, [recent]read{}
	return t.decide(Verdict{Known: true, Form: Raw})
}

// decide sets the verdict. t.mu is held.
func (t *Trial) decide(v Verdict) (now Verdict, changed bool) {
	changed = !t.verdict.Known || t.verdict.Form != v.Form
	t.verdict = v
	if changed {
		t.version++
	}
	return v, changed
}

package kvcache

import (
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// account describes a prompt until its last batch has landed. TieredCausal.mu guards it.
type account struct {
	seq    int
	began  time.Time // of the look-up
	tokens int
	// private: nobody has said yet that rows of the prompt may be stored, or they may not.
	private bool

	asked    *inquiry // nil without Options.Recents
	from     engine.Origins
	bytes    int64
	restored time.Time     // the end of the restore
	restore  time.Duration // from the look-up to the last row
}

// accounts are those of prompts whose last batch is not built, by slot. TieredCausal.mu guards them.
type accounts struct {
	open   map[int]*account
	visits visits
	rates  *rates.Rates
	meter  *telemetry.Meter
	why    *inquirer
}

// begin opens the account of a prompt of so many tokens. The request before in this slot is gone.
func (l *accounts) begin(seq, tokens int, began time.Time) {
	l.end(seq)
	l.open[seq] = &account{seq: seq, began: began, tokens: tokens, private: true}
}

// take takes an account out whose prompt ends with a batch; nil if there is none.
func (l *accounts) take(seq int) *account {
	a := l.open[seq]
	delete(l.open, seq)
	return a
}

// end closes the account of a slot's request, whose prompt is not through. There may be none.
func (l *accounts) end(seq int) {
	if a := l.take(seq); a != nil {
		l.record(a, 0)
	}
}

// restored enters the result of the restore into the account, if there is one: a closed cache has none.
func (l *accounts) restored(seq int, result *Restored, from engine.Origins) {
	a := l.open[seq]
	if a == nil {
		return
	}
	a.from, a.bytes = from.Cut(result.Held), result.Bytes
	a.restore, a.restored = result.Took, a.began.Add(result.Took)
}

// record records a prompt, once. took is the time from the look-up to the prompt's last
// batch, 0 if the request has ended before.
func (l *accounts) record(a *account, took time.Duration) {
	p := telemetry.Prompt{At: a.began, ID: a.seq, Private: a.private, Tokens: a.tokens, Took: took}
	restored := a.from.CountIn(&p)
	switch {
	case restored:
		p.Restore, p.Saved = a.restore, l.rates.Saved(p.Slot, p.Tokens, took)
		l.visits.note(a, &p)
	case p.Slot == 0:
		l.rates.Whole(p.Tokens, took)
	}
	l.meter.Add(restoredBytes, float64(a.bytes))
	l.why.recordLocked(a.asked, p)
}

// visit sums up the restores into a slot.
type visit struct {
	at     time.Time // of the last one
	tokens int       // of the last one
	saved  time.Duration
}

// visits are those of all slots. They stay when another slot is copied to one, as its mirror does not.
type visits map[int]visit

func (v visits) note(a *account, p *telemetry.Prompt) {
	v[a.seq] = visit{at: a.restored, tokens: p.RAM + p.Local + p.Remote + p.Shifted, saved: v[a.seq].saved + p.Saved}
}

// Series of Options.Meter, besides those of prompts. The others are in Fill.
const restoredBytes = "ollama_kv_restored_bytes_total"

// moved is the series of pages that went from one place to another.
func moved(from, to string) string {
	return telemetry.Series("ollama_kv_page_moves_total", "from", from, "to", to)
}

// countSealed counts a page, a tail or a state that the store has taken.
func countSealed(meter *telemetry.Meter, page *pagefile.Page, pageTokens int) {
	kind := "page"
	switch {
	case slices.ContainsFunc(page.Layout.Sections(), func(s pagefile.Section) bool { return !s.Kind.PerToken() }):
		kind = "state"
	case len(page.Tokens) < pageTokens:
		kind = "tail"
	}
	meter.Add(telemetry.Series("ollama_kv_sealed_pages_total", "kind", kind), 1)
}

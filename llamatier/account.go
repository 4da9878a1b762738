package llamatier

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
	"github.com/kvtier/kvtier/telemetry/why/witness"
)

// restored counts the tokens that a restore has put into a slot.
type restored struct {
	tokens             int // that the slot did not hold before
	ram, local, remote int // these, by tier
	lossy              int // these, from the first lossy page on
	bytes              int64
	took               time.Duration
	saved              time.Duration // known when the request has ended
}

// restoredFrom counts the pages of a plan behind the tokens that a slot held.
func (t *Tier) restoredFrom(p *plan, held int, took time.Duration) restored {
	r := restored{tokens: max(0, len(p.tokens)-held), took: took}
	r.lossy = min(r.tokens, p.lossy())
	for _, ref := range p.refs {
		n := min(int(ref.Start)+ref.Tokens, len(p.tokens)) - max(int(ref.Start), held)
		if n <= 0 {
			continue
		}
		r.bytes += ref.Bytes
		switch ref.Tier {
		case tier.RAM:
			r.ram += n
		case tier.Remote:
			r.remote += n
		default:
			r.local += n
		}
	}
	t.opt.Meter.Add("ollama_kv_restored_bytes_total", float64(r.bytes))
	return r
}

// inquiry collects facts about a request's prompt, for the cause of its miss.
type inquiry struct {
	id    uint64 // in Options.Recents
	facts why.Facts
}

// inquire opens the inquiry about a request's prompt. An image has no identity here.
func (t *Tier) inquire(u *Turn) {
	if t.opt.Recents == nil {
		return
	}
	u.asked = &inquiry{id: t.opt.Recents.Add(why.Text{Tokens: u.tokens}, u.private)}
	u.asked.facts.Page = t.opt.PageTokens
	if u.rest != nil {
		u.asked.facts.Nameless = len(u.tokens) + 1
	}
}

// planned notes the pages that a look-up found, and why some of them were not used.
func (u *Turn) planned(p *plan, held int) {
	if u.asked == nil || p == nil {
		return
	}
	f := &u.asked.facts
	f.Found, f.Unread, f.Tier = max(p.found, held), p.unread, p.unreadTier
	f.Slot = u.t.table.unsavedBeside(u.tokens, f.Found)
}

// record counts a prompt, after its miss was explained behind the request.
func (u *Turn) record(p telemetry.Prompt) {
	t, q := u.t, u.asked
	if q == nil {
		t.opt.Meter.Prompt(p)
		return
	}
	text := why.Text{Tokens: u.tokens}
	q.facts.Tokens, q.facts.Held = p.Tokens, p.Tokens-p.Computed
	job := func() {
		q.facts.Similar = t.opt.Recents.Compare(q.id, text, p.Private, q.facts.Held, t.opt.PageTokens)
		if p.Computed > 1 {
			t.why.Complete(context.Background(), &q.facts, text, p.At)
			p.Miss = why.Explain(q.facts)
		}
		t.opt.Meter.Prompt(p)
		t.opt.Recents.Done(q.id, text, p.Private, why.Fate{})
	}
	if !t.why.Submit(job) {
		p.Miss = why.Explain(q.facts)
		t.opt.Meter.Prompt(p)
		t.opt.Recents.Done(q.id, text, p.Private, why.Fate{}) // or others would wait for this request
	}
}

// forget closes the inquiry about a prompt of which the engine has computed nothing.
func (u *Turn) forget() {
	if u.asked != nil {
		u.t.opt.Recents.Done(u.asked.id, why.Text{}, false, why.Fate{})
	}
}

// inquirer explains prompts behind their requests.
type inquirer struct {
	witness.Queue
	witness.Witness
}

func newInquirer(opt *Options) inquirer {
	store, _ := opt.Store.(witness.Store) // nil if it is none
	return inquirer{Witness: witness.Witness{
		Store: store, Fingerprint: opt.Fingerprint, PageTokens: opt.PageTokens, Patience: whyPatience, Grace: whyPatience / 4,
	}}
}

const (
	// whyPatience bounds the look-ups for one prompt, behind its request.
	whyPatience = 2 * time.Second
	// whyCloseIn bounds the wait for prompts that are not explained when the tier is flushed.
	whyCloseIn = 500 * time.Millisecond
)

// account is the account of a request's prompt. Without the engine's answer, the tokens that the
// slot did not hold, and that were not restored, count as computed, although the request may have
// ended before.
func (u *Turn) account(answer *Answer) telemetry.Prompt {
	p := telemetry.Prompt{
		At: u.began, ID: u.s.id, Private: u.private,
		RAM: u.restored.ram, Local: u.restored.local, Remote: u.restored.remote,
		Restore: u.restored.took,
	}
	cached, computed := u.held+u.restored.tokens, 0
	if answer == nil {
		p.Tokens = len(u.tokens)
		computed = max(0, p.Tokens-cached)
	} else {
		cached, computed = answer.Cached, answer.Processed
		p.Took = u.restored.took + answer.Took
		if u.Staged != nil {
			cached, computed = u.Staged.Cached, computed+u.Staged.Processed
			p.Took += u.Staged.Took
		}
		p.Tokens = cached + computed
	}
	p.Computed = computed
	p.Slot = p.Tokens - computed - u.restored.tokens
	if p.Slot < 0 { // the engine computed some of the restored tokens again
		p.RAM, p.Local, p.Remote, p.Slot = shrink(p.RAM, p.Local, p.Remote, -p.Slot)
	}
	p.Lossy = min(u.restored.lossy, p.RAM+p.Local+p.Remote)
	switch rates := u.t.opt.Rates; {
	case u.restored.tokens > 0:
		p.Saved = rates.Saved(p.Slot, p.Tokens, p.Took)
	case answer != nil && p.Slot == 0 && u.rest == nil: // an image is not computed as tokens are
		rates.Whole(p.Tokens, p.Took)
	}
	return p
}

// shrink takes tokens away from the tiers, from the slowest first.
func shrink(ram, local, remote, n int) (int, int, int, int) {
	for _, of := range []*int{&remote, &local, &ram} {
		less := min(*of, n)
		*of, n = *of-less, n-less
	}
	return ram, local, remote, 0
}

// describe describes a slot that its request leaves, for people.
func (s *slot) describe(answer *Answer, r restored, pageTokens int) telemetry.Slot {
	tokens := len(s.tokens)
	if answer != nil {
		tokens = answer.seen()
	}
	v := s.seen
	v.Tokens, v.Hot, v.Shifted = tokens, tokens/pageTokens, s.broken
	v.Lossy = s.lossy
	if r.tokens > 0 {
		v.LastRestore, v.Restored = time.Now(), r.tokens
		v.Saved += r.saved
	}
	return v
}

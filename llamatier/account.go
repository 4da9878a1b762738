package llamatier

import (
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// accounting is told of the end of each request.
type accounting struct {
	table      *table
	asker      *asker
	why        *engine.Inquirer
	rates      *rates.Rates
	album      *album
	pageTokens int // of a page
	shifts     int // tokens in a slot at which its context is shifted; 0: never
}

// restored is what a restore has put into a slot.
type restored struct {
	tokens int            // that the slot did not hold before
	from   engine.Origins // of the prompt's leading tokens
	bytes  int64
	took   time.Duration
	saved  time.Duration // known when the request has ended
}

// countRestored counts the pages of a plan behind the tokens that a slot held.
func countRestored(p *plan, held int, took time.Duration) restored {
	r := restored{tokens: max(0, len(p.tokens)-held), took: took}
	r.from = engine.Origins(nil).Add(held, telemetry.PlaceSlot).AddPages(p.refs, len(p.tokens))
	for _, ref := range p.refs {
		if int(ref.Start)+ref.Tokens > held {
			r.bytes += ref.Bytes
		}
	}
	return r
}

// account is the account of a request's prompt. Without the engine's answer, the tokens that the slot did not
// hold, and that were not restored, count as computed, although the request may have ended before.
func (u *Turn) account(answer *Answer) telemetry.Prompt {
	p := telemetry.Prompt{
		At: u.began, ID: u.s.id, Private: u.request.Private, Tokens: len(u.request.Tokens), Restore: u.restored.took,
	}
	from := u.restored.from.Add(u.held, telemetry.PlaceSlot)
	if answer != nil {
		cached, computed := answer.Cached, answer.Processed
		p.Took = u.restored.took + answer.Took
		if u.Staged != nil {
			prompt := cached + computed // the slot may hold less than the steps have computed: see search
			cached = min(cached, max(u.Staged.Cached, cached-u.Staged.Processed))
			computed = prompt - cached
			p.Took += u.Staged.Took
		}
		p.Tokens = cached + computed
		from = from.Cut(cached).Add(cached, telemetry.PlaceSlot) // the engine may compute restored tokens again
	}
	switch restored := from.CountIn(&p); {
	case answer != nil && answer.Took == 0 && answer.Processed > 0: // not known
	case restored:
		p.Saved = u.to.rates.Saved(p.Slot, p.Tokens, p.Took)
	case answer != nil && p.Slot == 0 && u.request.textual(): // an image is not computed as tokens are
		u.to.rates.Whole(p.Tokens, p.Took)
	}
	return p
}

// describe describes a slot that its request leaves, for people.
func (s *slot) describe(answer *Answer, r restored, pageTokens int) telemetry.Slot {
	tokens := len(s.tokens)
	if answer != nil {
		tokens = answer.seen()
	}
	v := s.seen
	v.Tokens, v.Hot, v.Shifted, v.Lossy = tokens, tokens/pageTokens, s.broken, s.lossy
	if r.tokens > 0 {
		v.LastRestore, v.Restored = time.Now(), r.tokens
		v.Saved += r.saved
	}
	return v
}

// whyCloseIn bounds the wait for prompts that are not explained when the tier is flushed.
const whyCloseIn = 500 * time.Millisecond

// inquire opens the inquiry about a request's prompt; nil if nothing is explained. An image has no
// identity here.
func inquire(q *engine.Inquirer, r Request) *engine.Inquiry {
	if q.Recents == nil {
		return nil
	}
	i := &engine.Inquiry{Text: r.asked(), Private: r.Private}
	i.ID = q.Recents.Add(i.Text, r.Private)
	if r.Rest != nil {
		i.Facts.Nameless = len(r.Tokens) + 1
	}
	return i
}

// asked is the text of a request's prompt, which is compared with those of the same tenant alone.
func (r *Request) asked() why.Text {
	return why.Text{Tokens: r.Tokens, Media: r.Tenant.media(), Of: r.Tenant}
}

// tell tells an inquiry, if there is one, which pages a look-up found and why some of them were not
// used, or that another slot held more.
func (p *plan) tell(i *engine.Inquiry, held int, slots *table) {
	if i == nil || p == nil {
		return
	}
	f := &i.Facts
	f.Found, f.Unread, f.Tier = max(p.found, held), p.unread, p.unreadTier
	if p.slow != "" {
		f.Down = append(f.Down, p.slow)
	}
	f.Slot = slots.unsavedBeside(i.Text.Of, i.Text.Tokens, f.Found)
}

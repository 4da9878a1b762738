package llamatier

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
	"github.com/kvtier/kvtier/telemetry/why/witness"
)

// inquirer counts prompts, and explains their misses behind the requests.
type inquirer struct {
	witness.Queue
	witness.Witness
	recents *why.Recents // nil: nothing is explained
	meter   *telemetry.Meter
}

const (
	// whyPatience bounds the look-ups for one prompt, behind its request.
	whyPatience = 2 * time.Second
	// whyCloseIn bounds the wait for prompts that are not explained when the tier is flushed.
	whyCloseIn = 500 * time.Millisecond
)

func newInquirer(opt *Options) *inquirer {
	store, _ := opt.Store.(witness.Store) // nil if it is none
	return &inquirer{recents: opt.Recents, meter: opt.Meter, Witness: witness.Witness{
		Store: store, Fingerprint: opt.Fingerprint, PageTokens: opt.PageTokens, Patience: whyPatience, Grace: whyPatience / 4,
	}}
}

// inquiry collects facts about a request's prompt, for the cause of its miss.
type inquiry struct {
	id    uint64 // in Options.Recents
	text  why.Text
	facts why.Facts
}

// open opens the inquiry about a request's prompt; nil if nothing is explained. An image has no
// identity here.
func (q *inquirer) open(r Request) *inquiry {
	if q.recents == nil {
		return nil
	}
	i := &inquiry{text: why.Text{Tokens: r.Tokens}}
	i.id = q.recents.Add(i.text, r.Private)
	i.facts.Page = q.PageTokens
	if r.Rest != nil {
		i.facts.Nameless = len(r.Tokens) + 1
	}
	return i
}

// planned notes the pages that a look-up found, and why some of them were not used, or that another
// slot held more.
func (i *inquiry) planned(p *plan, held int, slots *table) {
	if i == nil {
		return
	}
	f := &i.facts
	f.Found, f.Unread, f.Tier = max(p.found, held), p.unread, p.unreadTier
	f.Slot = slots.unsavedBeside(i.text.Tokens, f.Found)
}

// record counts a prompt, after its miss was explained behind the request.
func (q *inquirer) record(i *inquiry, p telemetry.Prompt) {
	if i == nil {
		q.meter.Prompt(p)
		return
	}
	i.facts.Tokens, i.facts.Held = p.Tokens, p.Tokens-p.Computed
	explained := q.Submit(func() {
		i.facts.Similar = q.recents.Compare(i.id, i.text, p.Private, i.facts.Held, q.PageTokens)
		if p.Computed > 1 {
			q.Complete(context.Background(), &i.facts, i.text, p.At)
			p.Miss = why.Explain(i.facts)
		}
		q.meter.Prompt(p)
		q.recents.Done(i.id, i.text, p.Private, why.Fate{})
	})
	if !explained {
		p.Miss = why.Explain(i.facts)
		q.meter.Prompt(p)
		q.recents.Done(i.id, i.text, p.Private, why.Fate{}) // or others would wait for this request
	}
}

// forget closes the inquiry about a prompt of which the engine has computed nothing.
func (q *inquirer) forget(i *inquiry) {
	if i != nil {
		q.recents.Done(i.id, why.Text{}, false, why.Fate{})
	}
}

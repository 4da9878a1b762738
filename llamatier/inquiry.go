package llamatier

import (
	"time"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry/why"
)

// whyCloseIn bounds the wait for prompts that are not explained when the tier is flushed.
const whyCloseIn = 500 * time.Millisecond

// inquire opens the inquiry about a request's prompt; nil if nothing is explained. An image has no
// identity here.
func inquire(q *engine.Inquirer, r Request) *engine.Inquiry {
	if q.Recents == nil {
		return nil
	}
	i := &engine.Inquiry{Text: why.Text{Tokens: r.Tokens}, Private: r.Private}
	i.ID = q.Recents.Add(i.Text, r.Private)
	if r.Rest != nil {
		i.Facts.Nameless = len(r.Tokens) + 1
	}
	return i
}

// tell tells an inquiry, if there is one, which pages a look-up found and why some of them were not
// used, or that another slot held more.
func (p *plan) tell(i *engine.Inquiry, held int, slots *table) {
	if i == nil {
		return
	}
	f := &i.Facts
	f.Found, f.Unread, f.Tier = max(p.found, held), p.unread, p.unreadTier
	if p.slow != "" {
		f.Down = append(f.Down, p.slow)
	}
	f.Slot = slots.unsavedBeside(i.Text.Tokens, f.Found)
}

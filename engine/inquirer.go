package engine

import (
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Inquirer records prompts, and explains behind their requests why they computed what they might have
// restored.
type Inquirer struct {
	Queue
	Recents     *why.Recents // nil: nothing is explained
	Meter       *telemetry.Meter
	Store       History // nil: it knows nothing
	Fingerprint pagefile.Key
	PageTokens  int

	guard steady.Guard // a look-up that hangs is not the store's
}

// NewInquirer returns an inquirer that asks a store, if that is a [History].
func NewInquirer(store any, fingerprint pagefile.Key, pageTokens int, recents *why.Recents, meter *telemetry.Meter) Inquirer {
	history, _ := store.(History) // nil if it is none
	return Inquirer{Recents: recents, Meter: meter, Store: history, Fingerprint: fingerprint, PageTokens: pageTokens}
}

// Inquiry collects facts about a request's prompt.
type Inquiry struct {
	ID      uint64 // in Inquirer.Recents; 0 before the request has begun
	Text    why.Text
	Private bool
	Facts   why.Facts // those that the engine knows, without Tokens, Held and Page
}

// Record records a prompt, when its miss is explained. Nothing is explained without an inquiry. given
// says why the page with the token at a position could not be stored; nil for an engine that does not
// know.
func (q *Inquirer) Record(ctx context.Context, asked *Inquiry, p telemetry.Prompt, given func(position int) string) {
	if asked == nil {
		q.Meter.Prompt(p)
		return
	}
	i := *asked
	f := &i.Facts
	f.Tokens, f.Held, f.Page = p.Tokens, p.Tokens-p.Computed, q.PageTokens
	explained := q.Submit(func() {
		if i.ID == 0 {
			i.ID = q.Recents.Add(i.Text, true) // a request that was given up during its restore
		}
		f.Similar = q.Recents.Compare(i.ID, i.Text, i.Private, f.Held, f.Page)
		if p.Computed > 1 {
			if given != nil {
				f.Given = given(f.At())
			}
			q.complete(ctx, f, i.Text, p.At)
			p.Miss = why.Explain(*f)
		}
		q.Meter.Prompt(p)
	})
	if !explained {
		p.Miss = why.Explain(*f)
		q.Meter.Prompt(p)
	}
}

// Done notes the text that a request has computed, and where its rows went. There may be no inquiry.
func (q *Inquirer) Done(asked *Inquiry, text why.Text, fate why.Fate) {
	if asked == nil || asked.ID == 0 {
		return
	}
	id, private := asked.ID, asked.Private
	done := func() { q.Recents.Done(id, text, private, fate) }
	if !q.Submit(done) {
		done() // or others would wait for this request
	}
}

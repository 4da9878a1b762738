package engine

import (
	"context"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Inquirer records prompts, and explains behind their requests why they computed what might be stored.
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

// Record records a prompt, when its miss is explained; without an inquiry nothing is. given says why
// the page with the token at a position could not be stored; nil for an engine that does not know.
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

// History may know why a page is not in a store, such as [diskstore.Store]. It is asked behind requests.
type History interface {
	Gone(ctx context.Context, keys ...pagefile.Key) (diskstore.Tombstone, bool)
	Elsewhere(ctx context.Context, tokens []int32, media []pagefile.Media) []diskstore.Elsewhere
	Identity() map[string]string
	Stats() diskstore.Stats
	Failures() (local, remote uint64)
}

const (
	// whyPatience bounds the look-ups for one prompt, and whyGrace those when the engine ends.
	whyPatience = 3 * time.Second
	whyGrace    = whyPatience / 6
)

// PageKeys returns the keys of the page with the token at a position: that of the full page first,
// then those of tails of the text that have the token. There are none behind the text, as for a
// position behind an image without identity.
func (q *Inquirer) PageKeys(text why.Text, position int) (keys []pagefile.Key) {
	if position >= len(text.Tokens) {
		return nil
	}
	size, parent := q.PageTokens, q.Fingerprint
	begin := position / size * size
	for at := 0; at < begin; at += size {
		parent = pagefile.ChainKey(parent, text.Tokens[at:at+size], pagefile.MediaWithin(text.Media, at, size))
	}
	for end := min(begin+size, len(text.Tokens)); end > position; end-- {
		keys = append(keys, pagefile.ChainKey(parent, text.Tokens[begin:end], pagefile.MediaWithin(text.Media, begin, end-begin)))
	}
	return keys
}

// complete completes facts by those that the store knows, in bounded time. Tombstones that are
// younger than the look-up are not its reason.
func (q *Inquirer) complete(ctx context.Context, facts *why.Facts, text why.Text, began time.Time) {
	if q.Store == nil || why.Unused(*facts) {
		return
	}
	found, _ := steady.Do(ctx, &q.guard, steady.Wait{Most: whyPatience, Grace: whyGrace}, func() (why.Facts, error) {
		ctx, cancel := context.WithTimeout(ctx, whyPatience)
		defer cancel()
		return q.testimony(ctx, *facts, text, began), nil
	}, nil)
	if found.Tokens > 0 {
		*facts = found
	}
}

func (q *Inquirer) testimony(ctx context.Context, facts why.Facts, text why.Text, began time.Time) why.Facts {
	stats := q.Store.Stats()
	facts.Down = slices.Clone(facts.Down)
	for name, down := range map[string]bool{tier.Local: stats.Local.Down, tier.Remote: stats.Remote.Down} {
		if down && !slices.Contains(facts.Down, name) {
			facts.Down = append(facts.Down, name)
		}
	}
	slices.Sort(facts.Down)
	if keys := q.PageKeys(text, facts.At()); len(keys) > 0 {
		if g, gone := q.Store.Gone(ctx, keys...); gone && g.Reason == diskstore.TombstoneDamaged {
			facts.Damaged = true
		} else if gone && g.When.Before(began) {
			facts.Tombstone = &why.Tombstone{When: g.When, From: g.Tier, Reason: g.Reason.String()}
		}
	}
	if !why.Open(facts) {
		return facts
	}
	ours := q.Store.Identity()
	for _, e := range q.Store.Elsewhere(ctx, text.Tokens, text.Media) {
		differs := why.Differs(ours, e.Identity)
		if e.PageTokens != q.PageTokens && len(differs) == 0 {
			differs["page_tokens"] = ""
		}
		facts.Others = append(facts.Others, why.Other{Tokens: e.Tokens, Differs: differs})
	}
	return facts
}

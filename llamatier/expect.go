package llamatier

import (
	"context"
	"slices"
	"time"

	"github.com/kvtier/kvtier/rates"
)

// expectMost bounds the time for which an expected conversation keeps another one waiting.
const expectMost = 250 * time.Millisecond

// Expect restores a stored conversation of the zero Tenant, with which the first prompt probably goes on, before
// that prompt comes. Of several slots the prompt might get another one: then nothing is restored. Expect returns
// at once.
func (t *Tier) Expect(conversation []int32) {
	if len(conversation) >= t.context || t.obstacles.off.Load() {
		return // no prompt goes on with it
	}
	s, over := t.table.expects()
	if s == nil {
		return
	}
	t.storing.Spawn(func() {
		defer over()
		t.restorer.expect(s, append(slices.Clip(conversation), 0)) // a prompt has at least one token more
	})
}

// expects makes the only slot busy, in which nothing has run, until the caller calls over. It returns nil if there
// is none. As for an action, requests of which nothing is known wait until then.
func (t *table) expects() (s *slot, over func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s = t.slots[0]
	if len(t.slots) > 1 || t.closed || t.unknown > 0 || s.busy || s.begun > 0 || s.unknown || s.tenant != (Tenant{}) {
		return nil, nil
	}
	action := t.actLocked()
	return s.takeLocked(Tenant{}), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.actedLocked(action)
		t.giveLocked(s)
	}
}

// expect restores pages of a prompt into an empty slot, if that takes no longer than expectMost.
func (r *restorer) expect(s *slot, tokens []int32) {
	ctx, stop := context.WithTimeout(context.Background(), expectMost)
	defer stop()
	ready := make(chan *load, 1)
	r.gate.Spawn(func() { ready <- r.expected(ctx, s, tokens) })
	select {
	case l := <-ready:
		if l != nil {
			l.begin(context.Background())
			s.expected = l.end()
			s.expected.took = 0 // for the prompt
		}
	case <-ctx.Done(): // a disk may hang
		r.gate.Spawn(func() {
			if l := <-ready; l != nil {
				r.files.drop(l.file)
			}
		})
	}
}

// expected makes a file of the pages of a prompt; nil if that takes too long.
func (r *restorer) expected(ctx context.Context, s *slot, tokens []int32) *load {
	began := time.Now()
	p := r.planner.plan(ctx, Tenant{}, tokens, nil, 0, 0)
	if !p.worth() || p.lossy() > 0 || r.loader.streams(p) || r.predicted(p) > expectMost {
		return nil
	}
	loader, gate := *r.loader, *r.gate
	gate.Rates = gate.Rates.Apart() // the loading of the weights may keep the disk busy
	loader.gate = &gate
	f, err := loader.build(ctx, p)
	if err != nil || f == nil {
		return nil
	}
	return &load{restorer: r, s: s, p: p, prompt: len(tokens), began: began, file: f}
}

// predicted is the time that a restore of a plan's pages probably takes.
func (r *restorer) predicted(p *plan) (took time.Duration) {
	c := r.form.costs(p)
	for _, page := range c.Pages {
		took += r.gate.Rates.Reading(page) + r.gate.Rates.Reading(rates.Page{Bytes: page.Rows, Tier: c.Then}) // however long ago
	}
	return took
}

// credit counts the tokens of an expected conversation that a prompt finds in a slot as restored for it.
func (s *sequence) credit(held int, got restored) (int, restored) {
	expected := s.expected
	s.expected = restored{}
	if expected.tokens = min(expected.tokens, held); expected.tokens == 0 || got.tokens > 0 {
		return held, got
	}
	expected.from = expected.from.Cut(held)
	return 0, expected
}

package llamatier

import (
	"context"
	"slices"
	"time"
)

// expectMost bounds the time for which an expected conversation keeps another one waiting.
const expectMost = 250 * time.Millisecond

// Expect restores a stored conversation, with which the first prompt probably goes on, before that prompt comes.
// Of several slots the prompt might get another one: then nothing is restored. Expect returns at once.
func (t *Tier) Expect(conversation []int32) {
	if len(t.table.slots) > 1 {
		return
	}
	t.storing.Spawn(func() {
		s := t.table.takeFree(Request{Slot: -1})
		if s == nil {
			return
		}
		defer t.table.give(s)
		if s.begun == 0 && !t.table.unknownRuns() && !t.table.unknownIn(s) && !t.obstacles.off.Load() {
			t.restorer.expect(s, append(slices.Clip(conversation), 0)) // a prompt has at least one token more
		}
	})
}

// expect restores pages of a prompt into an empty slot, if that takes no longer than expectMost.
func (r *restorer) expect(s *slot, tokens []int32) {
	began := time.Now()
	ctx, stop := context.WithTimeout(context.Background(), expectMost)
	defer stop()
	p := r.planner.plan(ctx, tokens, nil, 0, 0)
	if !p.worth() || p.lossy() > 0 || r.loader.streams(p) || r.predicted(p) > expectMost {
		return
	}
	f, err := r.loader.build(ctx, p)
	if err != nil || f == nil {
		return
	}
	l := &load{restorer: r, s: s, p: p, prompt: len(tokens), began: began, file: f}
	l.begin(context.Background())
	s.expected = l.end()
	s.expected.took = 0 // for the prompt
}

// predicted is the time that a restore of a plan's pages probably takes.
func (r *restorer) predicted(p *plan) (took time.Duration) {
	c := r.form.costs(p)
	for _, page := range c.Pages {
		took += r.gate.Rates.Reading(page)
		page.Tier = c.Then
		took += r.gate.Rates.Stepping(page)
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

package llamatier

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/rates"
)

func TestTheEndOfATurn(t *testing.T) {
	text := prompt(1, 100)
	for want, tokens := range map[int][]int32{
		100: slices.Concat(text, opening),
		103: slices.Concat(text, opening, opening),
		0:   text,
		102: slices.Concat(text, []int32{1, 2, 1010}),
		1:   {5, 1010},
	} {
		require.Equal(t, want, turnEnd(tokens, control))
	}
	require.Zero(t, turnEnd(slices.Concat(opening, text), control), "the opening is not at the end")
	require.Zero(t, turnEnd(nil, control))
	require.Equal(t, 100, turnEnd(slices.Concat(text, []int32{1010}, make([]int32, answerOpening-1)), control))
	require.Zero(t, turnEnd(slices.Concat(text, []int32{1010}, make([]int32, answerOpening)), control))
}

// thinking is a conversation with a model that has a state. Its thoughts are left out of later
// prompts.
type thinking struct {
	*world
	text []int32 // up to the end of the last turn
}

// turn adds some tokens of the user, asks, and returns the tokens that were restored.
func (c *thinking) turn(seed, n int) int {
	c.text = slices.Concat(c.text, prompt(seed, n))
	restored := c.ask(ask(slices.Concat(c.text, opening)), 30) // most of it thoughts
	c.text = slices.Concat(c.text, opening, prompt(seed+1, 5))
	return restored
}

// TestAThinkingConversationComesBack from the end of each turn of the user, although no answer
// is part of the next prompt as it was.
func TestAThinkingConversationComesBack(t *testing.T) {
	c := &thinking{world: &world{t: t, hybrid: true}}
	c.start(1, 4000)
	require.Zero(t, c.turn(1, 300))
	c.tier.Flush(t.Context())

	c.start(1, 4000)
	require.Equal(t, 300, c.turn(3, 300))
	require.Equal(t, 300+607, c.engine.cached, "each step of the second prompt goes on where the one before ended")
	c.idle()
	require.Equal(t, 0, c.turn(5, 10), "the engine can go back behind the restored tokens")

	// Another chat takes the slot, and this one comes back.
	c.ask(ask(prompt(9, 100)), 5)
	require.Equal(t, 607, c.turn(7, 10), "an end is not put where a page ends")
	c.text = c.text[:290]
	require.Zero(t, c.turn(11, 20), "nothing is stored that ends there")
	c.tier.Flush(t.Context())
}

// TestAStageThatIsNotWorthIt: prompts are computed at once where the next end would gain little.
func TestAStageThatIsNotWorthIt(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"dense":       func(w *world) { w.hybrid = false; w.start(1, 4000) },
		"no control":  func(w *world) { w.restart(func(o *Options) { o.Control = nil }) },
		"quick":       func(w *world) { computes(w.rates, time.Microsecond) },
		"slow saves":  func(w *world) { saves(w.rates, 1, time.Second) },
		"too slow":    func(w *world) { computes(w.rates, 3*time.Second) },
		"no memory":   func(w *world) { w.available, w.free = 1, 1 },
		"busy saving": func(w *world) { w.tier.saver.saving <- struct{}{} },
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, hybrid: true}
			w.start(1, 4000)
			change(w)
			turn := w.begin(ask(slices.Concat(prompt(1, 300), opening)))
			require.Nil(t, turn.Staged)
			turn.End(nil)
		})
	}
}

// computes gives rates the time of a token.
func computes(r *rates.Rates, each time.Duration) {
	for i := range 8 {
		r.Computed(64, float64(i*64), 64*each)
	}
}

// saves gives rates the time in which the engine saves a number of bytes.
func saves(r *rates.Rates, bytes int64, took time.Duration) {
	r.Stepped(rates.Chain{Pages: []rates.Page{{Bytes: bytes}}, Then: saving}, took)
}

// TestSavesAreTimed, for the decision whether a prompt is computed in two steps.
func TestSavesAreTimed(t *testing.T) {
	w := newWorld(t, 1, 4000)
	require.Zero(t, w.rates.Reading(saved(fakeShape.RowBytes(300, 0))))
	w.askAndIdle(ask(prompt(1, 300)), 5)
	require.Positive(t, w.rates.Reading(saved(fakeShape.RowBytes(300, 0))))
}

// TestAStageIsAccountedFor, and the request after it is computed from there.
func TestAStageIsAccountedFor(t *testing.T) {
	w := &world{t: t, hybrid: true}
	w.start(1, 4000)
	tokens := slices.Concat(prompt(1, 300), opening)
	turn := w.begin(ask(tokens))
	require.Equal(t, &Answer{Processed: 300, Generated: 1, Took: 6 * time.Second}, turn.Staged)
	answer := w.engine.slots[0].complete(w.engine, t.Context(), tokens, 5)
	require.Equal(t, 300, answer.Cached)
	turn.End(answer)
}

// TestAPromptComputedAtOnce has no stage.
func TestAPromptComputedAtOnce(t *testing.T) {
	w := &world{t: t, hybrid: true}
	w.start(1, 4000)
	tokens := slices.Concat(prompt(1, 300), opening)
	turn := w.begin(Request{Tokens: tokens, Slot: -1, AtOnce: true})
	require.Nil(t, turn.Staged)
	turn.End(w.engine.slots[0].complete(w.engine, t.Context(), tokens, 5))
}

// TestAStageThatTakesTooLong is given up: the client waits for a header.
func TestAStageThatTakesTooLong(t *testing.T) {
	w := &world{t: t, hybrid: true}
	w.start(1, 4000)
	w.tier.patience.stage = 0
	tokens := slices.Concat(prompt(1, 300), opening)
	turn := w.begin(ask(tokens))
	require.Nil(t, turn.Staged)
	turn.End(w.engine.slots[0].complete(w.engine, t.Context(), tokens, 5))
	w.tier.Flush(t.Context())
	require.NotEmpty(t, w.found(tokens))
}

// TestAStageThatFails leaves the request as it was.
func TestAStageThatFails(t *testing.T) {
	w := &world{t: t, hybrid: true}
	w.start(1, 4000)
	tokens := slices.Concat(prompt(1, 300), opening)
	w.engine.refuseNext("/completion", 1)
	turn := w.begin(ask(tokens))
	require.Nil(t, turn.Staged)
	turn.End(w.engine.slots[0].complete(w.engine, t.Context(), tokens, 5))
	w.idle()
}

package llamatier

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamastate"
)

// TestSlotsOfPromptsWithImages: such a prompt gets the slot that holds the same image, and an
// image behind a few common tokens takes no slot from a long conversation.
func TestSlotsOfPromptsWithImages(t *testing.T) {
	w := newWorld(t, 3, 1000)
	image := func(seed, n int) Request {
		return Request{Tokens: prompt(1, 10), Rest: prompt(seed, n), Slot: -1}
	}
	slot := func(r Request) int {
		turn := w.begin(r)
		turn.End(&Answer{Processed: len(r.Tokens) + len(r.Rest), Generated: 5})
		return turn.Slot()
	}
	require.Equal(t, 0, slot(ask(prompt(1, 200))))
	require.Equal(t, 1, slot(image(2, 300)))
	require.Equal(t, 2, slot(image(3, 300)))
	require.Equal(t, 1, slot(image(2, 350)))
	require.Equal(t, 2, slot(image(3, 350)))
	require.Equal(t, 0, slot(ask(prompt(1, 250))))
	require.Equal(t, 1, slot(image(4, 300)), "unused for longest")
}

// TestAnAnswerBehindAnImage: its time is not that of tokens. Without its end it is not known how many
// tokens the slot has seen.
func TestAnAnswerBehindAnImage(t *testing.T) {
	for _, heard := range []bool{true, false} {
		w := newWorld(t, 1, 1000)
		w.unheard(prompt(1, 100), 5)
		before := w.rates.Computing(0, 100)
		turn := w.begin(Request{Tokens: prompt(1, 100), Rest: prompt(2, 300), Slot: -1})
		answer := w.engine.slots[0].complete(w.engine, t.Context(), slices.Concat(prompt(1, 100), prompt(2, 300)), 5)
		if answer.Took = time.Hour; !heard {
			answer = nil
		}
		turn.End(answer)
		require.Equal(t, before, w.rates.Computing(0, 100))
		w.idle()
		require.Equal(t, heard, len(w.found(prompt(1, 100))) > 0)
	}
}

// TestPlansEndBeforeImages: the engine has no use for a part of an image, and fails where it has to compute
// the last token of one alone.
func TestPlansEndBeforeImages(t *testing.T) {
	w := newWorld(t, 1, 1000)
	tokens := prompt(1, 600)
	w.ask(ask(tokens), 5)
	w.idle()
	plan := func(media ...llamastate.Medium) int {
		return len(w.tier.restorer.planner.plan(t.Context(), tokens, media, 0, 0).tokens)
	}
	whole := plan()
	require.Greater(t, whole, 500)
	require.Equal(t, whole, plan(llamastate.Medium{Start: 100, Tokens: 30}))
	require.Equal(t, whole-10, plan(llamastate.Medium{Start: 100, Tokens: 30}, llamastate.Medium{Start: whole - 10, Tokens: 11}))
	require.Equal(t, 580, plan(llamastate.Medium{Start: 580, Tokens: 20}))
	require.Equal(t, 560, plan(llamastate.Medium{Start: 540, Tokens: 20}, llamastate.Medium{Start: 560, Tokens: 40}))
}

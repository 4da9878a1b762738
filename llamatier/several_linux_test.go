package llamatier

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// several sends a prompt of a request that passes when the prompt is computed, and returns the accounts of both.
func (w *world) several(r Request, predict int) (before, answer *Answer) {
	r.Others, r.Cancel = map[string]json.RawMessage{}, func() {}
	turn, err := w.tier.Begin(context.Background(), r)
	if !errors.Is(err, ErrTaken) {
		require.NoError(w.t, err)
		before = w.tier.Prefill(context.Background(), turn)
		w.accounted()
	}
	return before, w.passOf(r, predict)
}

// TestPromptsBeforeTheirAnswers of two chats that take turns are computed once, also after the engine was killed.
func TestPromptsBeforeTheirAnswers(t *testing.T) {
	for _, hybrid := range []bool{false, true} {
		w := (&world{t: t, hybrid: hybrid}).start(3, 1000)
		for round := range 4 {
			for chat := 1; chat <= 2; chat++ {
				before, answer := w.several(ask(prompt(chat, 300)), 5)
				require.Equal(t, [2]int{299, 1}, [2]int{answer.Cached, answer.Processed}, "the engine finds the prompt")
				w.tier.storing.Wait()
				if round == 0 {
					require.Equal(t, &Answer{Processed: 299, Generated: 1, Took: 299 * 20 * time.Millisecond}, before)
					require.Equal(t, telemetry.Prompt{ID: w.latest().ID, Tokens: 299, Computed: 299}, w.latest())
				} else {
					require.Nil(t, before)
					require.Zero(t, w.latest().Computed)
				}
			}
			if round == 1 {
				w.killed()
			}
		}
		w.tier.Flush(t.Context())
	}
}

// TestStepsBeforeSeveralAnswers are one account with the last one.
func TestStepsBeforeSeveralAnswers(t *testing.T) {
	w := newChats(t, 2, 4000)
	var heard []int
	r := ask(slices.Concat(prompt(1, 300), []int32{1011, 7}, prompt(2, 300)))
	r.Stage.Hear = func(p Progress) { heard = append(heard, p.Cached, p.Processed) }
	before, answer := w.several(r, 5)
	require.Equal(t, []int{0, 0, 0, 150, 0, 300, 0, 300, 0, 450, 0, 601}, heard)
	require.Equal(t, &Answer{Processed: 601, Generated: 1, Took: 601 * 20 * time.Millisecond}, before)
	require.Equal(t, 601, answer.Cached)
	require.Equal(t, 601, w.latest().Computed)
	w.tier.Flush(t.Context())
}

// TestPromptsThatAreNotComputedBefore their answers leave the slot as it was, and free.
func TestPromptsThatAreNotComputedBefore(t *testing.T) {
	for name, test := range map[string]struct {
		tokens int
		fails  func(w *world)
	}{
		"short":                  {restoreMin, func(w *world) {}},
		"too long":               {1000, func(w *world) {}},
		"storing is off":         {300, func(w *world) { w.tier.Off("", "") }},
		"the engine refuses it":  {300, func(w *world) { w.engine.refuseNext("/completion", 1) }},
		"another one may run":    {300, func(w *world) { w.tier.Unknown() }},
		"the slot is not stored": {300, func(w *world) { w.tier.table.slots[1].broken = true }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2, 1000)
			r := ask(prompt(1, test.tokens))
			r.Others = map[string]json.RawMessage{}
			turn := w.begin(r)
			require.Equal(t, 1, turn.Slot(), "as llama-server chooses")
			test.fails(w)
			require.Nil(t, w.tier.Prefill(t.Context(), turn))
			require.Empty(t, w.engine.slots[1].tokens)
			require.False(t, w.tier.Slots()[1].Busy)
			require.Empty(t, w.tier.table.slots[1].tokens)
		})
	}
}

// TestARefusedStepBeforeSeveralAnswers leaves the slot as it was: the engine has not begun it.
func TestARefusedStepBeforeSeveralAnswers(t *testing.T) {
	w := newChats(t, 2, 4000)
	w.engine.refuseNext("/completion", 2)
	before, _ := w.several(ask(slices.Concat(prompt(1, 300), []int32{1011, 7}, prompt(2, 300))), 5)
	require.Nil(t, before)
	require.Equal(t, 2, w.engine.requests()["/completion"], "a step, and the prompt")
	for _, s := range w.tier.table.slots {
		require.Empty(t, s.tokens)
		require.False(t, s.mayBegin())
	}
	w.tier.Flush(t.Context())
}

// TestAShortPromptBeforeItsAnswers is computed if it is worth a restore.
func TestAShortPromptBeforeItsAnswers(t *testing.T) {
	w := newWorld(t, 2, 1000)
	r := ask(prompt(1, restoreMin+1))
	r.Others = map[string]json.RawMessage{}
	require.NotNil(t, w.tier.Prefill(t.Context(), w.begin(r)))
	require.Equal(t, prompt(1, restoreMin), w.tier.table.slots[1].tokens)
	w.tier.Flush(t.Context())
}

// TestAClientThatGoesAwayBeforeItsAnswers ends the computing.
func TestAClientThatGoesAwayBeforeItsAnswers(t *testing.T) {
	w := newWorld(t, 2, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	r := ask(prompt(1, 300))
	r.Others = map[string]json.RawMessage{}
	turn := w.begin(r)
	w.engine.onEnter("/completion", cancel)
	require.Nil(t, w.tier.Prefill(ctx, turn))
	require.True(t, w.tier.table.slots[1].unheard())
	require.False(t, w.tier.Slots()[1].Busy)
}

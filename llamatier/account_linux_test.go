package llamatier

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// latest is the account of the latest prompt, without times, its number and its miss.
func (w *world) latest() telemetry.Prompt {
	w.tier.why.Wait(time.Minute)
	_, prompts := w.meter.Read()
	p := prompts[len(prompts)-1]
	require.False(w.t, p.At.IsZero())
	p.Miss = nil
	p.At, p.Seq, p.Restore, p.Took, p.Saved = telemetry.Prompt{}.At, 0, 0, 0, 0
	return p
}

// TestAccounts: each token of a prompt is counted where it came from.
func TestAccounts(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 200, Computed: 200}, w.latest())

	w.ask(ask(prompt(1, 300)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 300, Slot: 200, Computed: 100}, w.latest())

	w.killed()
	restored := w.ask(ask(prompt(1, 350)), 5)
	require.GreaterOrEqual(t, restored, 288)
	require.Equal(t, telemetry.Prompt{Tokens: 350, Local: restored, Computed: 350 - restored}, w.latest())

	w.ask(private(prompt(2, 90)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 90, Computed: 90, Private: true}, w.latest())

	w.tier.why.Wait(time.Minute)
	totals, _ := w.meter.Read()
	require.Equal(t, 4.0, totals["ollama_kv_prompts_total"])
	require.Equal(t, 1.0, totals["ollama_kv_restores_total"])
	require.Equal(t, float64(restored), totals[`ollama_kv_prompt_tokens_total{source="local"}`])
	require.Positive(t, totals[`ollama_kv_sealed_pages_total{kind="page"}`])
}

// TestAnAccountWithoutTheAnswer: a client went away before the engine was heard to the end.
func TestAnAccountWithoutTheAnswer(t *testing.T) {
	w := stored(t)
	turn := w.begin(ask(prompt(1, 300)))
	restored := turn.Restored
	require.Positive(t, restored)
	turn.End(nil)
	w.accounted()
	require.Equal(t, telemetry.Prompt{Tokens: 300, Local: restored, Computed: 300 - restored}, w.latest())
	slots := w.tier.Slots()
	require.Len(t, slots, 1)
	require.Equal(t, restored, slots[0].Restored)
	require.False(t, slots[0].LastRestore.IsZero())
	require.False(t, slots[0].Busy)
}

// TestTheEngineComputesRestoredTokensAgain, as it may, and they count once. Nothing is saved at a guess:
// before a batch was measured, the cost of computing is not known.
func TestTheEngineComputesRestoredTokensAgain(t *testing.T) {
	for _, again := range []bool{true, false} {
		w := stored(t)
		turn := w.begin(ask(prompt(1, 300)))
		require.Positive(t, turn.Restored)
		require.False(t, w.rates.Known())
		cached := turn.Restored
		if again {
			cached = 0
		}
		turn.End(&Answer{Cached: cached, Processed: 300 - cached})
		w.accounted()
		require.Equal(t, telemetry.Prompt{Tokens: 300, Local: cached, Computed: 300 - cached}, w.latest())
		totals, _ := w.meter.Read()
		require.Zero(t, totals["ollama_kv_saved_seconds_total"])
	}
}

// missed is the miss of the latest prompt, once it is explained.
func (w *world) missed() telemetry.Miss {
	w.tier.why.Wait(time.Minute)
	_, prompts := w.meter.Read()
	miss := prompts[len(prompts)-1].Miss
	require.NotNil(w.t, miss, "%+v", prompts[len(prompts)-1])
	return *miss
}

// TestCausesOfMisses plays causes one after the other.
func TestCausesOfMisses(t *testing.T) {
	w := newWorld(t, 1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	require.Equal(t, telemetry.CauseNeverSeen, w.missed().Cause)

	parts := append(slices.Clone(prompt(1, 120)), prompt(2, 100)...)
	w.ask(ask(parts), 5)
	miss := w.missed()
	require.Equal(t, telemetry.CauseDiffers, miss.Cause)
	require.Equal(t, 120, miss.At)
	require.NotNil(t, miss.Words)

	w.ask(private(prompt(3, 200)), 5)
	require.Nil(t, w.missed().Words)
	w.ask(ask(prompt(4, 100)), 5)
	w.ask(ask(prompt(3, 200)), 5)
	miss = w.missed()
	require.Equal(t, telemetry.CausePrivate, miss.Cause)
	require.Nil(t, miss.Words)

	w.killed()
	for _, path := range w.pageFiles() {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		data[len(data)/2] ^= 1
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	w.ask(ask(prompt(1, 200)), 5)
	require.Equal(t, telemetry.CauseDamaged, w.missed().Cause)
}

// TestAPromptBehindAnImageIsExplained: the engine holds more of the prompt than the tokens before the
// image, of which no page has a key.
func TestAPromptBehindAnImageIsExplained(t *testing.T) {
	w := newWorld(t, 1, 1000)
	request := ask(slices.Clip(prompt(1, 20)))
	request.Rest = prompt(2, 300)
	for _, cached := range []int{20, 320} { // the second as in the next turn of a chat
		turn := w.begin(request)
		turn.End(&Answer{Cached: cached, Processed: 360 - cached})
		require.Equal(t, telemetry.CauseImage, w.missed().Cause)
	}
}

// TestPromptsOfTwoSlotsAreExplained: while one is looked up, rows of the other slot are replaced.
func TestPromptsOfTwoSlotsAreExplained(t *testing.T) {
	w := newWorld(t, 2, 1000)
	for seed := range 4 {
		w.ask(ask(prompt(seed, 200)), 2)
	}
	w.killed()
	var both sync.WaitGroup
	for slot := range 2 {
		both.Add(1)
		go func() {
			defer both.Done()
			for i := range 20 {
				turn, err := w.tier.Begin(context.Background(), Request{Tokens: prompt((i+2*slot)%4, 250), Slot: slot, Cancel: func() {}})
				if err != nil {
					panic(err)
				}
				turn.End(nil)
			}
		}()
	}
	both.Wait()
	w.tier.why.Wait(time.Minute)
	totals, _ := w.meter.Read()
	require.Equal(t, 44.0, totals["ollama_kv_prompts_total"])
}

// TestAPromptThatTheEngineHasNotGot computes nothing that others could wait for.
func TestAPromptThatTheEngineHasNotGot(t *testing.T) {
	w := newWorld(t, 1, 1000)
	turn := w.begin(ask(prompt(1, 300)))
	turn.Drop()
	w.ask(ask(prompt(1, 300)), 1)
	require.Equal(t, telemetry.CauseNeverSeen, w.missed().Cause)
}

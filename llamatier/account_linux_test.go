package llamatier

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// latest is the account of the latest prompt, without times and its number.
func (w *world) latest() telemetry.Prompt {
	_, prompts := w.meter.Read()
	p := prompts[len(prompts)-1]
	require.False(w.t, p.At.IsZero())
	p.At, p.Seq, p.Restore, p.Took, p.Saved = telemetry.Prompt{}.At, 0, 0, 0, 0
	return p
}

// TestAccounts: each token of a prompt is counted where it came from.
func TestAccounts(t *testing.T) {
	w := newWorld(t, openStore(t), 1, 1000)
	defer func() { require.NoError(t, w.store.Close()) }()
	w.ask(ask(prompt(1, 200)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 200, Computed: 200}, w.latest())

	w.ask(ask(prompt(1, 300)), 5)
	require.Equal(t, telemetry.Prompt{Tokens: 300, Slot: 200, Computed: 100}, w.latest())

	w.tier.Flush(t.Context())
	w.start(1, 1000) // the engine was killed
	restored := w.ask(ask(prompt(1, 350)), 5)
	require.GreaterOrEqual(t, restored, 288)
	require.Equal(t, telemetry.Prompt{Tokens: 350, Local: restored, Computed: 350 - restored}, w.latest())

	private := ask(prompt(2, 90))
	private.Private = true
	w.ask(private, 5)
	require.Equal(t, telemetry.Prompt{Tokens: 90, Computed: 90, Private: true}, w.latest())

	totals, _ := w.meter.Read()
	require.Equal(t, 4.0, totals["ollama_kv_prompts_total"])
	require.Equal(t, 1.0, totals["ollama_kv_restores_total"])
	require.Equal(t, float64(restored), totals[`ollama_kv_prompt_tokens_total{source="local"}`])
	require.Positive(t, totals[`ollama_kv_sealed_pages_total{kind="page"}`])
}

// TestAnAccountWithoutTheAnswer: a client went away before the engine was heard to the end.
func TestAnAccountWithoutTheAnswer(t *testing.T) {
	w := stored(t)
	turn, err := w.tier.Begin(t.Context(), Request{Tokens: prompt(1, 300), Slot: -1, Cancel: func() {}})
	require.NoError(t, err)
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

// TestTheEngineComputesRestoredTokensAgain, as it may, and they count once.
func TestTheEngineComputesRestoredTokensAgain(t *testing.T) {
	w := stored(t)
	turn, err := w.tier.Begin(t.Context(), Request{Tokens: prompt(1, 300), Slot: -1, Cancel: func() {}})
	require.NoError(t, err)
	turn.End(&Answer{Cached: 0, Processed: 300})
	w.accounted()
	require.Equal(t, telemetry.Prompt{Tokens: 300, Computed: 300}, w.latest())
}

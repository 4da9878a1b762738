package kvcache

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// TestClosingDuringARestore records the prompt once, and the restore ends as any other.
func TestClosingDuringARestore(t *testing.T) {
	for name, opts := range map[string]Options{"counted": {}, "explained": {Recents: why.NewRecents()}} {
		t.Run(name, func(t *testing.T) {
			store, text := newMemStore(t), tokenRange(1, 53)
			stored(t, store, newFakeRunner, text)
			reading, hold := make(chan struct{}, 100), make(chan struct{})
			store.onRead = func(int) { reading <- struct{}{}; <-hold }
			r := newFakeRunner(t, store, 1, 256, opts)
			done := make(chan error)
			prompt := inputsOf(append(slices.Clone(text), 7))
			go func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				_, err := r.restore(context.Background(), &r.mu, 0, 0, prompt, func(int) {})
				done <- err
			}()
			<-reading
			r.tiered.Close()
			close(hold)
			require.NoError(t, <-done)
			totals, _ := r.meter.Read()
			require.Equal(t, 1.0, totals["ollama_kv_prompts_total"])
		})
	}
}

// TestWhyGivenUpLater: a page that could not be stored after the look-up is no reason for the miss.
func TestWhyGivenUpLater(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{Recents: why.NewRecents()})
	text := tokenRange(1, 60)
	r.load(r.slots[0], text, true)
	keys := r.tiered.why.PageKeys(why.Text{Tokens: text}, 0)
	r.tiered.mu.Lock()
	r.tiered.why.givenLocked(keys[0], givenCap) // the batch before the prompt's last one was sealed
	r.tiered.mu.Unlock()
	r.complete(r.slots[0])
	r.requireMiss(telemetry.CauseNeverSeen, 0)
}

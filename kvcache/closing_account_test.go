package kvcache

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// waitingStore lets reads wait.
type waitingStore struct {
	*memStore
	reading, hold chan struct{}
}

func (s *waitingStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	s.wait()
	return s.memStore.Read(ctx, ref, tokens, layout, into)
}

func (s *waitingStore) wait() {
	select {
	case s.reading <- struct{}{}:
	default:
	}
	<-s.hold
}

// TestClosingDuringARestore records the prompt once, and the restore ends as any other.
func TestClosingDuringARestore(t *testing.T) {
	for name, opts := range map[string]Options{"counted": {}, "explained": {Recents: why.NewRecents()}} {
		t.Run(name, func(t *testing.T) {
			store := &waitingStore{newMemStore(t), make(chan struct{}, 1), make(chan struct{})}
			text := tokenRange(1, 53)
			stored(t, store.memStore, newFakeRunner, text)
			r := newFakeRunner(t, store, 1, 256, opts)
			done := make(chan error)
			prompt := inputsOf(append(slices.Clone(text), 7))
			go func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				_, err := r.restore(context.Background(), &r.mu, 0, 0, prompt, func(int) {})
				done <- err
			}()
			<-store.reading
			r.tiered.Close()
			close(store.hold)
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

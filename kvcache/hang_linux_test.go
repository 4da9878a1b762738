package kvcache

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/mounts"
	"github.com/kvtier/kvtier/rates"
)

// TestClosingOnADiskThatHangs ends, and so does a flush before it: the store and the rates are on
// a filesystem of which no request is answered.
func TestClosingOnADiskThatHangs(t *testing.T) {
	silence(t)
	for name, use := range map[string]func(r *fakeRunner){
		"idle": func(*fakeRunner) {},
		"in use": func(r *fakeRunner) {
			r.run(r.slots[0], tokenRange(2, 50), nil, true)
			r.run(r.slots[0], tokenRange(1, 50), nil, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := mounts.NewPassthrough(t, t.TempDir())
			root := filepath.Join(m.Dir, "local")
			store := newDiskStore(t, root)
			known, err := rates.Open(filepath.Join(root, "rates.json"), "model", nil)
			require.NoError(t, err)
			r := newFakeRunner(t, store, 1, 256, Options{Rates: known})
			r.save(r.slots[0], tokenRange(1, 50))

			known.Computed(1000, 0, time.Second) // to be saved
			short := time.Millisecond
			r.tiered.store.Patience = engine.Patience{Look: short, Find: short, Page: short, Grace: short}
			r.tiered.store.patience = patience{queue: short, flush: short, close: short}
			r.tiered.closeIn, r.tiered.queue.stopIn = short, short
			m.Stall(mounts.AllOps...)
			t.Cleanup(func() { // operations left behind end before the folder goes
				m.Heal()
				<-r.tiered.queue.stopped
				require.Eventually(t, func() bool { return !r.tiered.store.Hangs() }, time.Minute, time.Millisecond)
				_ = store.Close()
			})
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			watch := time.AfterFunc(20*time.Second, func() {
				t.Error("a request, a flush or closing hangs")
				m.Heal()
			})
			defer watch.Stop()
			use(r)
			require.Error(t, r.tiered.Flush(ctx))
			r.tiered.Close()
		})
	}
}

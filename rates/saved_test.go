package rates

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSavedIsNoMoreThanWasMeasured: a prompt took 13.05 s, and 1.18 s when it was restored. Batches
// beside other work had been slower.
func TestSavedIsNoMoreThanWasMeasured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	r, err := Open(path, "m", nil)
	require.NoError(t, err)
	require.Zero(t, r.Saved(0, 1114, time.Second), "nothing was measured")
	for range 3 {
		r.Computed(512, 256, 512*15600*time.Microsecond)
	}
	require.Greater(t, r.Computing(0, 1114), 17*time.Second)
	r.Whole(1114, 13050*time.Millisecond)
	r.Whole(1114, 20*time.Second) // beside other work
	want := (13050 - 1180) * time.Millisecond
	require.InDelta(t, want, r.Saved(0, 1114, 1180*time.Millisecond), float64(time.Millisecond))
	require.NoError(t, r.Close())

	again, err := Open(path, "m", nil)
	require.NoError(t, err)
	require.InDelta(t, want, again.Saved(0, 1114, 1180*time.Millisecond), float64(time.Millisecond), "after a restart")
	require.InDelta(t, want/2, again.Saved(557, 1114, 13050*time.Millisecond/2-want/2), float64(10*time.Millisecond), "half was in the slot")
	require.Zero(t, again.Saved(0, 1114, time.Minute), "it cost more than computing")
	require.Zero(t, again.Saved(0, 1114, 0), "it did not end")
	require.LessOrEqual(t, again.Saved(0, 100, time.Nanosecond), 13050*time.Millisecond*100/1114)
	require.NoError(t, again.Close())
}

// The prompts that are kept are bounded.
func TestWholePromptsAreBounded(t *testing.T) {
	r := New()
	for n := 1; n > 0 && n < 1<<40; n *= 2 {
		r.Whole(n, time.Second)
		r.Whole(n, 2*time.Second)
		r.Whole(-n, time.Second)
		r.Whole(n, -time.Second)
	}
	require.LessOrEqual(t, len(r.whole), wholeMax)
}

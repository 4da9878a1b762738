package steady

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	short  = Wait{Most: time.Millisecond, Grace: time.Hour}
	long   = Wait{Most: time.Hour, Grace: time.Hour}
	gentle = Wait{Most: time.Hour, Grace: time.Millisecond}
)

// TestResults are those of the operation, also after the end of its context.
func TestResults(t *testing.T) {
	var g Guard
	n, err := Do(t.Context(), &g, long, func() (int, error) { return 3, nil }, nil)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	refused := errors.New("refused")
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Do(ctx, &g, long, func() (int, error) { cancel(); return 0, refused }, nil)
	require.ErrorIs(t, err, refused)
	require.False(t, g.Hangs())
}

// TestAnOperationThatHangs is left behind when its time is over, or when its context has ended
// and the grace is over. Until it ends no other begins.
func TestAnOperationThatHangs(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, hang := range map[string]struct {
		ctx  context.Context
		wait Wait
	}{"time": {t.Context(), short}, "context": {ended, gentle}} {
		t.Run(name, func(t *testing.T) {
			var g Guard
			release, late := make(chan struct{}), make(chan int)
			_, err := Do(hang.ctx, &g, hang.wait, func() (int, error) { <-release; return 5, nil }, func(n int, _ error) { late <- n })
			require.ErrorIs(t, err, ErrHung)
			require.True(t, g.Hangs())
			_, err = Do(t.Context(), &g, long, func() (int, error) { panic("it began") }, nil)
			require.ErrorIs(t, err, ErrHung)
			close(release)
			require.Equal(t, 5, <-late)
			require.Eventually(t, func() bool { return !g.Hangs() }, time.Minute, time.Microsecond)
			n, err := Do(t.Context(), &g, long, func() (int, error) { return 7, nil }, nil)
			require.NoError(t, err)
			require.Equal(t, 7, n)
		})
	}
}

// TestEnded prefers the end to the end of the time.
func TestEnded(t *testing.T) {
	done := make(chan struct{})
	require.False(t, Ended(done, time.Millisecond))
	close(done)
	for range 100 {
		require.True(t, Ended(done, 0))
	}
}

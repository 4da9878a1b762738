package guard

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	tiertest.Contract(t, func(t *testing.T) tier.Tier {
		root := filepath.Join(t.TempDir(), "root")
		require.NoError(t, os.Mkdir(root, 0o700))
		return New(dir.New(vfs.OS, root, dir.Options{}), time.Minute, time.Minute,
			slog.New(slog.NewTextHandler(io.Discard, nil)), time.Now, func() {})
	})
}

func TestBreaker(t *testing.T) {
	now := time.Unix(0, 0)
	b := newBreaker(slog.New(slog.NewTextHandler(io.Discard, nil)), func() time.Time { return now })
	bad := errors.New("bad")
	for range BreakerThreshold - 1 {
		require.True(t, b.allow())
		b.Failure(bad, false)
	}
	require.True(t, b.allow(), "a few failures are forgiven")
	b.Success()
	for range BreakerThreshold {
		require.True(t, b.allow())
		b.Failure(bad, false)
	}
	wait := breakerBackoffMin
	for range 10 { // failed probes double the backoff up to its limit
		require.False(t, b.allow())
		now = now.Add(wait - 1)
		require.False(t, b.allow())
		now = now.Add(1)
		require.True(t, b.allow(), "one probe")
		require.False(t, b.allow(), "and only one")
		b.Failure(bad, false)
		wait = min(2*wait, BreakerBackoffMax)
	}
	now = now.Add(wait)
	require.True(t, b.allow())
	b.neutral()
	require.True(t, b.allow(), "a probe that says nothing gives its place to the next")
	b.Failure(bad, false)
	b.Failure(bad, false) // a straggler does not prolong the backoff
	now = now.Add(wait)
	require.True(t, b.allow())
	b.Success()
	require.True(t, b.allow())
	require.True(t, b.allow())
	b.Failure(bad, true)
	require.False(t, b.allow(), "some errors need no second look")
}

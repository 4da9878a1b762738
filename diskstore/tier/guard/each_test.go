package guard

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// statTier answers look-ups of one file, by its number.
type statTier struct {
	healthyTier
	stat func(ctx context.Context, number int) (tier.Info, error)
}

func (s statTier) Stat(ctx context.Context, name pagefile.Name) (tier.Info, error) {
	return s.stat(ctx, numberOf(name))
}

// TestEach looks up names of which every third has no file, in several batches.
func TestEach(t *testing.T) {
	const n = 4*leadingBatch + 3
	var asked, failures atomic.Int32
	broken := errors.New("broken")
	stat := func(_ context.Context, number int) (tier.Info, error) {
		asked.Add(1)
		if number%3 == 0 {
			return tier.Info{}, tier.ErrNotFound
		}
		return tier.Info{Bytes: int64(number)}, nil
	}
	tr := New(statTier{stat: func(ctx context.Context, number int) (tier.Info, error) { return stat(ctx, number) }},
		time.Minute, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() { failures.Add(1) })
	names := numbered(n)
	infos, err := tr.Each(ctx, names)
	require.NoError(t, err)
	require.Len(t, infos, n)
	for i, info := range infos {
		want := tier.Info{}
		if i%3 != 0 {
			want = tier.Info{Name: names[i], Bytes: int64(i), Physical: pagefile.AlignUp(int64(i))}
		}
		require.Equal(t, want, info)
	}
	require.EqualValues(t, n, asked.Load())
	none, err := tr.Each(ctx, nil)
	require.NoError(t, err)
	require.Empty(t, none)

	// An error in the first batch ends the look-up, and is one failure.
	good := stat
	asked.Store(0)
	stat = func(ctx context.Context, number int) (tier.Info, error) {
		if number == leadingBatch-1 {
			return tier.Info{}, broken
		}
		return good(ctx, number)
	}
	infos, err = tr.Each(ctx, names)
	require.ErrorIs(t, err, broken)
	require.Len(t, infos, n)
	require.EqualValues(t, leadingBatch-1, asked.Load())
	require.EqualValues(t, 1, failures.Load())
	require.Equal(t, names[1], infos[1].Name, "found before the error")
	require.Zero(t, infos[leadingBatch])

	// A tier that hangs costs its time once.
	hung := New(statTier{stat: func(ctx context.Context, _ int) (tier.Info, error) {
		<-ctx.Done()
		return tier.Info{}, ctx.Err()
	}}, time.Millisecond, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() { failures.Add(1) })
	failures.Store(0)
	_, err = hung.Each(ctx, names)
	require.ErrorIs(t, err, tier.ErrTierTimeout)
	require.EqualValues(t, 1, failures.Load())
}

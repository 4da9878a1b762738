package guard

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// findBatch is the number of names of one look-up of these tiers.
var findBatch = tier.FindAtOnce(leadingTier{})

// leadingTier answers look-ups of batches; batch is the number of a batch's first name.
type leadingTier struct {
	healthyTier
	leading func(ctx context.Context, batch int, names []pagefile.Name) ([]tier.Info, error)
}

func (l leadingTier) Find(ctx context.Context, names []pagefile.Name, _ bool) ([]tier.Info, error) {
	infos, err := l.leading(ctx, numberOf(names[0]), names)
	return append(infos, make([]tier.Info, len(names)-len(infos))...), err
}

// numbered are names with numbers from 0 on.
func numbered(n int) []pagefile.Name {
	names := make([]pagefile.Name, n)
	for i := range names {
		names[i].Class = pagefile.ClassPage
		binary.BigEndian.PutUint32(names[i].Key[:], uint32(i))
	}
	return names
}

func numberOf(name pagefile.Name) int { return int(binary.BigEndian.Uint32(name.Key[:])) }

// foundAll describes all names.
func foundAll(names []pagefile.Name) []tier.Info {
	infos := make([]tier.Info, len(names))
	for i, name := range names {
		infos[i] = tier.Info{Name: name, Bytes: 1}
	}
	return infos
}

// guardLeading guards a tier; failures counts its failures.
func guardLeading(limit time.Duration, leading func(context.Context, int, []pagefile.Name) ([]tier.Info, error)) (tr *Tier, failures *atomic.Int32) {
	failures = new(atomic.Int32)
	return New(leadingTier{leading: leading}, limit, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() { failures.Add(1) }), failures
}

// TestALongLookUp finds all pages of a slow tier, some batches at the same time.
func TestALongLookUp(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	both := make(chan struct{})
	var once sync.Once
	tr, failures := guardLeading(time.Minute, func(_ context.Context, batch int, names []pagefile.Name) ([]tier.Info, error) {
		mu.Lock()
		running++
		most = max(most, running)
		if running == 2 {
			once.Do(func() { close(both) })
		}
		mu.Unlock()
		if batch > 0 { // the second round
			<-both
		}
		mu.Lock()
		defer mu.Unlock()
		running--
		return foundAll(names), nil
	})
	names := numbered(500)
	infos, err := tier.Leading(ctx, tr, names)
	require.NoError(t, err)
	require.Len(t, infos, 500)
	for i, info := range infos {
		require.Equal(t, names[i], info.Name)
	}
	require.LessOrEqual(t, most, findAtOnce)
	require.Less(t, findAtOnce, lookupWorkers, "a worker is left to other look-ups")
	require.Zero(t, failures.Load())
	require.NoError(t, tr.Close())
}

// TestALookUpThatFindsMayTakeLonger than one that finds nothing: the limit holds for a round.
func TestALookUpThatFindsMayTakeLonger(t *testing.T) {
	var first time.Time
	tr, failures := guardLeading(2*time.Second, func(ctx context.Context, batch int, names []pagefile.Name) ([]tier.Info, error) {
		if batch == 0 {
			first, _ = ctx.Deadline()
		}
		if batch == 2*findBatch { // until the time of the first round would be over
			select {
			case <-time.After(time.Until(first)):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return foundAll(names), nil
	})
	infos, err := tier.Leading(ctx, tr, numbered(100))
	require.NoError(t, err)
	require.Len(t, infos, 100)
	require.Zero(t, failures.Load())
	require.NoError(t, tr.Close())
}

// TestALookUpEnds at the first page that is missing, whichever batch answers first, and later
// batches are given up.
func TestALookUpEnds(t *testing.T) {
	for missing := range 120 {
		var ended atomic.Int32
		tr, failures := guardLeading(time.Minute, func(ctx context.Context, batch int, names []pagefile.Name) ([]tier.Info, error) {
			if batch > missing {
				<-ctx.Done()
				ended.Add(1)
				return nil, ctx.Err()
			}
			return foundAll(names[:min(len(names), missing-batch)]), nil
		})
		infos, err := tier.Leading(ctx, tr, numbered(120))
		require.NoError(t, err)
		require.Len(t, infos, missing)
		require.Zero(t, failures.Load())
		require.NoError(t, tr.Close())
		require.False(t, tr.Breaker.Down())
	}
}

// TestALookUpThatHangs fails once, and the pages before it count.
func TestALookUpThatHangs(t *testing.T) {
	over := make(chan struct{})
	tr, failures := guardLeading(time.Second, func(_ context.Context, batch int, names []pagefile.Name) ([]tier.Info, error) {
		if batch > 0 {
			<-over
		}
		return foundAll(names), nil
	})
	infos, err := tier.Leading(ctx, tr, numbered(100))
	require.ErrorIs(t, err, tier.ErrTierTimeout)
	require.Len(t, infos, findBatch)
	require.EqualValues(t, 1, failures.Load())
	require.False(t, tr.Breaker.Down())
	close(over)
	require.NoError(t, tr.Close())
}

// statTier answers look-ups of one file, by its number.
type statTier struct {
	healthyTier
	stat func(ctx context.Context, number int) (tier.Info, error)
}

func (s statTier) Find(ctx context.Context, names []pagefile.Name, _ bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	for i, name := range names {
		info, err := s.stat(ctx, numberOf(name))
		switch {
		case err == nil:
			infos[i] = info
			infos[i].Name = name
		case !errors.Is(err, tier.ErrNotFound):
			return infos, err
		}
	}
	return infos, nil
}

// TestFind looks up names of which every third has no file, in several batches.
func TestFind(t *testing.T) {
	n := 4*findBatch + 3
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
	infos, err := tr.Find(ctx, names, false)
	require.NoError(t, err)
	require.Len(t, infos, n)
	for i, info := range infos {
		want := tier.Info{}
		if i%3 != 0 {
			want = tier.Info{Name: names[i], Bytes: int64(i)}
		}
		require.Equal(t, want, info)
	}
	require.EqualValues(t, n, asked.Load())
	none, err := tr.Find(ctx, nil, false)
	require.NoError(t, err)
	require.Empty(t, none)

	// An error in the first batch ends the look-up, and is one failure.
	good := stat
	asked.Store(0)
	stat = func(ctx context.Context, number int) (tier.Info, error) {
		if number == findBatch-1 {
			return tier.Info{}, broken
		}
		return good(ctx, number)
	}
	infos, err = tr.Find(ctx, names, false)
	require.ErrorIs(t, err, broken)
	require.Len(t, infos, n)
	require.EqualValues(t, findBatch-1, asked.Load())
	require.EqualValues(t, 1, failures.Load())
	require.Equal(t, names[1], infos[1].Name, "found before the error")
	require.Zero(t, infos[findBatch])

	// A tier that hangs costs its time once.
	hung := New(statTier{stat: func(ctx context.Context, _ int) (tier.Info, error) {
		<-ctx.Done()
		return tier.Info{}, ctx.Err()
	}}, time.Millisecond, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() { failures.Add(1) })
	failures.Store(0)
	_, err = hung.Find(ctx, names, false)
	require.ErrorIs(t, err, tier.ErrTierTimeout)
	require.EqualValues(t, 1, failures.Load())
}

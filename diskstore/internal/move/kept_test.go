package move

import (
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// TestKept: ranges that cover a file, in any order, are the file; others are read from the tier. Keeping is bounded,
// and gives its room back.
func TestKept(t *testing.T) {
	below := tiertest.NewMap()
	file := []byte("the bytes of a page")
	tiertest.Upload(t, below, tiertest.Page(1), file, time.Now())
	rapid.Check(t, func(rt *rapid.T) {
		var m Mover
		m.kept.Store(rapid.SampledFrom([]int64{0, keptMost - int64(len(file)), keptMost - int64(len(file)) + 1}).Draw(rt, "kept"))
		before := m.kept.Load()
		blob, err := below.Open(t.Context(), tiertest.Page(1), false)
		require.NoError(rt, err)
		k := m.Keep(blob)
		var covered [32]bool
		var running sync.WaitGroup
		for range rapid.IntRange(0, 6).Draw(rt, "reads") {
			from := rapid.IntRange(0, len(file)).Draw(rt, "from")
			to := rapid.IntRange(from, len(file)+1).Draw(rt, "to")
			running.Add(1)
			go func() {
				defer running.Done()
				if err := k.ReadAt(t.Context(), make([]byte, to-from), int64(from)); err != nil {
					require.True(rt, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF))
				}
			}()
			for i := from; i < to && to <= len(file); i++ {
				covered[i] = true
			}
		}
		running.Wait()
		whole := before+int64(len(file)) <= keptMost
		for i := range file {
			whole = whole && covered[i]
		}
		require.Equal(rt, whole, k.whole())

		from := keptTier{below, k}
		opened, err := from.Open(t.Context(), tiertest.Page(1), false)
		require.NoError(rt, err)
		_, kept := opened.(keptBlob)
		require.Equal(rt, whole, kept)
		got := make([]byte, len(file))
		require.NoError(rt, opened.ReadAt(t.Context(), got, 0))
		require.Equal(rt, file, got)
		require.Error(rt, opened.ReadAt(t.Context(), got, 1))
		anew, err := from.Open(t.Context(), tiertest.Page(1), true)
		require.NoError(rt, err)
		require.NotEqual(rt, tier.Blob(keptBlob{k}), anew)

		k.Drop()
		k.Drop()
		require.Equal(rt, before, m.kept.Load())
	})
}

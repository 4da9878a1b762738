package llamastate

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAFileWithoutSomeRows: of a file that is written piece by piece, all rows are right but those
// of the positions that were dropped, and these are nowhere.
func TestAFileWithoutSomeRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape, n := aShape(rt), rapid.IntRange(1, 70).Draw(rt, "tokens")
		saved, _ := aServer(rt, shape, n, aWindow(rt, shape))
		tokens := saved.tokens
		b := saved.save(rapid.Bool().Draw(rt, "packed"))
		if shape.Caches[0].Kind != Full {
			_, _, err := shape.Begin(bytes.NewReader(b), int64(len(b)))
			require.ErrorIs(t, err, ErrUnknown)
			return
		}
		var begin *Beginning
		need := int64(0)
		for asked := int64(-1); begin == nil; {
			require.Greater(t, need, asked, "each time more is needed")
			asked = need
			var err error
			begin, need, err = shape.Begin(bytes.NewReader(b[:asked]), asked)
			require.NoError(t, err)
		}
		require.Equal(t, tokens, begin.Tokens)
		start := rapid.IntRange(0, n).Draw(rt, "start")
		end := rapid.IntRange(start, n).Draw(rt, "end")
		filter := begin.Without(start, end)

		out, kept := &file{b: make([]byte, len(b))}, int64(0)
		for off := 0; off < len(b); {
			piece := min(len(b)-off, rapid.IntRange(1, 300).Draw(rt, "piece"))
			require.NoError(t, filter.Each(b[off:off+piece], int64(off), func(p []byte, at int64) error {
				require.NotEmpty(t, p)
				kept += int64(len(p))
				_, err := out.WriteAt(p, at)
				return err
			}))
			off += piece
		}
		require.Equal(t, int64(len(b)), kept+filter.Dropped)
		whole, rest := opened(t, &shape, b), opened(t, &shape, out.b)
		for pos := range n {
			sections := shape.Sections()
			if pos == n-1 {
				sections = shape.EndSections(whole.WindowRows())
			}
			layout, want := pageOf(t, whole, sections, pos, 1)
			_, got := pageOf(t, rest, sections, pos, 1)
			if pos < start || pos >= end {
				require.Equal(t, want, got)
				continue
			}
			for i, sec := range layout.Sections() {
				if sec.Kind.PerToken() {
					require.Zero(t, bytes.Trim(layout.Rows(got, i), "\x00"))
				}
			}
		}
	})
}

// TestABeginningThatIsNotUnderstood is refused as early as it can be.
func TestABeginningThatIsNotUnderstood(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 1))
	shape := anyShape()
	b := newServer(rng, shape, someTokens(rng, 30), 5).save(false)
	_, need, err := shape.Begin(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	require.Equal(t, int64(len(b)), need)
	for at := range 12 + 4*30 + 8 {
		changed := bytes.Clone(b)
		changed[at] ^= 0x80
		if at >= 8 && at < 12 || at >= 12+4*30 {
			_, need, err = shape.Begin(bytes.NewReader(changed), int64(len(b)))
			require.True(t, err != nil || need > int64(len(b)), "at %d", at)
			continue
		}
		_, _, err := shape.Begin(bytes.NewReader(changed), int64(len(b)))
		if at < 8 || at%4 == 3 {
			require.ErrorIs(t, err, ErrUnknown, "at %d", at)
		}
	}
}

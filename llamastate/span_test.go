package llamastate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// within is a writer of a range of a file.
type within struct {
	*file
	from, to int64
}

func (w within) WriteAt(p []byte, off int64) (int, error) {
	if off < w.from || off+int64(len(p)) > w.to {
		return 0, fmt.Errorf("bytes %d to %d are not in the span from %d to %d", off, off+int64(len(p)), w.from, w.to)
	}
	return w.file.WriteAt(p, off)
}

// TestAFileSpanBySpan: the rows of a section are in its span, those of a page in the page's part
// of it, and heads and spans make the file.
func TestAFileSpanBySpan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := aShape(rt)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		n, size, window := rapid.IntRange(1, 70).Draw(rt, "tokens"), rapid.IntRange(1, 20).Draw(rt, "page"), 0
		if shape.Has(Window) {
			window = rapid.IntRange(1, 80).Draw(rt, "window")
			n += window
		}
		tokens := someTokens(rng, n)
		saved := newServer(rng, shape, tokens, window)
		b := saved.save(false)
		f, err := shape.Open(bytes.NewReader(b), int64(len(b)))
		require.NoError(t, err)

		out := &file{}
		build, err := shape.Build(out, tokens, nil, window)
		require.NoError(t, err)
		_, err = out.WriteAt(nil, build.Size())
		require.NoError(t, err)
		end := int64(0)
		for _, span := range build.Spans() {
			require.GreaterOrEqual(t, span.Offset, end, "in order")
			end = span.Offset + span.Size
			for start := 0; start < n; start += size {
				upto := min(n, start+size)
				if span.End && upto < n {
					continue
				}
				part := within{out, span.Offset, end}
				if span.Row > 0 {
					part.from, part.to = span.Offset+int64(start)*span.Row, span.Offset+int64(upto)*span.Row
				}
				layout, err := pagefile.NewLayout([]pagefile.Section{span.Section}, upto-start)
				require.NoError(t, err)
				page := make([]byte, layout.Size())
				require.NoError(t, f.ReadRows(layout, start, page))
				require.NoError(t, build.To(part).WriteRows(layout, start, upto-start, page))
			}
		}
		require.LessOrEqual(t, end, build.Size())
		got := restore(t, shape, out.b, window)
		require.Equal(t, tokens, got.tokens)
		requireRows(t, saved, got, n, window)
	})
}

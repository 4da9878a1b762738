package llamastate

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoldenFiles: slots that llama-server b10488 (v2), b10760 (v3) and b11434 (v4) have saved,
// with 1 token and with 40, and those of b11669 that end with checkpoints (v4-checkpoints). The shape of the first accounts for the second; its pages make a
// file that a server with that shape accepts, with the rows that were saved.
// internal/llamae2e writes the files.
func TestGoldenFiles(t *testing.T) {
	goldens := map[string]golden{
		"full":       {[]Kind{Full}, 0, false, 64},
		"transposed": {[]Kind{Full}, 0, true, 64},
		"q8_0":       {[]Kind{Full}, 0, false, 34},
		"rotated":    {[]Kind{Full}, 0, false, 68}, // v4 names the rotation of q8_0 rows
		"latent":     {[]Kind{Full}, 0, false, 96},
		"window":     {[]Kind{Full, Window}, 16, false, 64},
		"hybrid":     {[]Kind{Full, Recurrent}, 0, false, 64},
		"sections":   {[]Kind{Full, Recurrent}, 0, false, 64},
	}
	files, err := filepath.Glob("testdata/*/*-1.bin")
	require.NoError(t, err)
	require.Len(t, files, 3*len(goldens)+3)
	for _, one := range files {
		prefix := strings.TrimSuffix(one, "-1.bin")
		g, ok := goldens[filepath.Base(prefix)]
		require.True(t, ok, one)
		t.Run(prefix, func(t *testing.T) { g.check(t, prefix) })
	}
}

// golden describes a golden file.
type golden struct {
	kinds      []Kind
	window     int
	transposed bool
	row        int64 // of K
}

func (g golden) check(t *testing.T, prefix string) {
	read := func(n string) []byte {
		b, err := os.ReadFile(prefix + "-" + n + ".bin")
		require.NoError(t, err)
		return b
	}
	one, all := read("1"), read("40")
	shape, err := Learn(bytes.NewReader(one), int64(len(one)))
	require.NoError(t, err)
	again, err := Learn(bytes.NewReader(all), int64(len(all)))
	require.NoError(t, err)
	require.True(t, shape.Equal(again), "%+v is not %+v", *shape, *again)
	var kinds []Kind
	for _, c := range shape.Caches {
		kinds = append(kinds, c.Kind)
	}
	require.Equal(t, g.kinds, kinds)
	require.Equal(t, g.transposed, shape.Caches[0].Transposed)
	require.Equal(t, g.row, shape.Caches[0].Tensors[0][0].Row)

	f := opened(t, shape, all)
	require.Len(t, f.Tokens, 40)
	require.Equal(t, g.window, f.WindowRows())
	require.Equal(t, strings.Contains(prefix, "-checkpoints"), f.Checkpoints > 0)
	caches := all[:int64(len(all))-f.Checkpoints]
	out, b := built(t, shape, f.Tokens, g.window)
	var pages [][]byte
	for _, start := range []int{0, 16, 32} {
		sections := shape.Sections()
		if start == 32 {
			sections = shape.EndSections(g.window)
		}
		layout, page := pageOf(t, f, sections, start, min(16, 40-start))
		require.NoError(t, b.WriteRows(layout, start, layout.Tokens(), page))
		pages = append(pages, page)
	}
	got := restore(t, *shape, out.b, g.window)
	require.Equal(t, f.Tokens, got.tokens)
	require.Equal(t, pages[0][:g.row], got.caches[0].rows[0][0][0], "the first row of K")
	if g.window == 0 && shape.Caches[0].Streams == 1 {
		// The rows of a file in the order of positions follow its tokens unchanged.
		require.Equal(t, caches[len(caches)-1000:], out.b[len(out.b)-1000:])
	}
}

package llamastate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// chunkOf is what llama-server keeps of an image whose tokens have positions of a kind.
func chunkOf(id string, positions uint32) []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(nil, chunkVersion)
	b = le.AppendUint64(le.AppendUint32(b, chunkImage), 0)
	b = append(b, 1)
	for _, v := range []uint32{2, 2, positions, 0, 1} {
		b = le.AppendUint32(b, v)
	}
	b = append(le.AppendUint64(b, uint64(len(id))), id...)
	return append(b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0)
}

// TestMedia: a slot with images is read whole, and a file that is built of it is the same.
func TestMedia(t *testing.T) {
	t.Run("one position each", func(t *testing.T) { testMedia(t, onePosition, Shape{Version: 2, Caches: anyShape().Caches[:1]}) })
	for _, version := range []uint32{2, 3, 4} {
		grids := Shape{Version: version, Caches: anyShape().Caches[:1]}
		grids.Caches[0].Ext = true
		t.Run(fmt.Sprint("columns and rows, version ", version), func(t *testing.T) { testMedia(t, gridPositions, grids) })
	}
}

func testMedia(t *testing.T, positions uint32, shape Shape) {
	rng := rand.New(rand.NewPCG(3, 2))
	cat, dog := strings.Repeat("ca", 32), strings.Repeat("d0", 32)
	tokens := []int32{5, 6, -1, -1, -1, -1, 7, -1, -1, -1, -1, -1, -1, -1, -1, 8, 9}
	var media []Medium
	for _, m := range []Medium{{Start: 2, Tokens: 4, ID: cat}, {Start: 7, Tokens: 4, ID: dog}, {Start: 11, Tokens: 4, ID: cat}} {
		read, ok := readChunk(chunkOf(m.ID, positions))
		require.True(t, ok)
		require.Equal(t, m.ID, read.ID)
		require.Equal(t, chunkOf(m.ID, positions), read.whole())
		read.Start, read.Tokens = m.Start, m.Tokens
		media = append(media, read)
	}
	build := func(tokens []int32, media []Medium) (*file, *Builder, error) {
		out := &file{}
		b, err := shape.Build(out, tokens, media, 0)
		if err != nil {
			return nil, nil, err
		}
		layout, err := pagefile.NewLayout(shape.Sections(), len(tokens))
		require.NoError(t, err)
		require.NoError(t, b.WriteRows(layout, 0, len(tokens), randomBytes(rng, layout.Size())))
		return out, b, nil
	}
	out, b, err := build(tokens, media)
	require.NoError(t, err)
	whole := make([]byte, b.Size())
	copy(whole, out.b)
	f := opened(t, &shape, whole)
	require.Equal(t, tokens, f.Tokens)
	require.Equal(t, media, f.Media)
	require.False(t, f.Cut)
	require.True(t, f.End())

	numbers := append([]int32(nil), tokens...)
	for i := range numbers {
		if numbers[i] < 0 {
			numbers[i] = -7 - int32(i)
		}
	}
	_, _, err = build(numbers, media)
	require.NoError(t, err, "any number below 0 is a token of a medium")
	for name, wrong := range map[string][]Medium{
		"none": nil, "less": media[:2], "more": append([]Medium{{Start: 0, Tokens: 1}}, media...), "out of order": {media[1], media[0], media[2]},
	} {
		_, _, err = build(tokens, wrong)
		require.Error(t, err, name)
	}

	_, ok := readChunk(chunkOf(dog, gridPositions+1))
	require.False(t, ok, "tokens have positions of another kind")
	if positions == gridPositions {
		media[0].Rows++
		_, _, err = build(tokens, media)
		require.Error(t, err, "an image of more tokens")
		media[0].Rows--
		flat := Shape{Version: shape.Version, Caches: anyShape().Caches[:1]}
		_, err = flat.Build(&file{}, tokens, media, 0)
		require.Error(t, err, "caches tell no columns")
	}
	f.CutAt(1)
	require.Equal(t, tokens[:7], f.Tokens)
	require.Equal(t, media[:1], f.Media)
	require.False(t, f.End())

	for range 20_000 { // hostile bytes in the head
		hostile := bytes.Clone(whole)
		head := min(len(hostile), 12+4*int(binary.LittleEndian.Uint32(whole[8:])))
		for range 1 + rng.IntN(3) {
			hostile[rng.IntN(head)] ^= byte(1 + rng.IntN(255))
		}
		if f, err := shape.Open(bytes.NewReader(hostile), int64(len(hostile))); err == nil {
			for _, m := range f.Media {
				require.LessOrEqual(t, m.End(), len(f.Tokens))
			}
		}
	}
}

func TestCacheType(t *testing.T) {
	t.Parallel()
	of := func(kind Kind, k, v []int32) Cache {
		c := Cache{Kind: kind}
		for i, types := range [][]int32{k, v} {
			for _, number := range types {
				c.Tensors[i] = append(c.Tensors[i], Tensor{Type: number})
			}
		}
		return c
	}
	for want, caches := range map[string][]Cache{
		"f16":           {of(Full, []int32{1, 1}, []int32{1, 1}), of(Window, []int32{1}, []int32{1})},
		"q8_0":          {of(Full, []int32{8}, nil)}, // K holds V
		"q8_0/f16":      {of(Full, []int32{8, 8}, []int32{1, 1})},
		"bf16":          {of(Full, []int32{30}, []int32{30}), of(Recurrent, []int32{0}, []int32{0})},
		"f16+q4_0/q4_0": {of(Full, []int32{1, 2}, []int32{2, 2})},
		"type-77":       {of(Full, []int32{77}, []int32{77})},
		"":              {of(Recurrent, []int32{0}, []int32{0})},
	} {
		require.Equal(t, want, (&Shape{Caches: caches}).CacheType())
	}
}

// TestSpots: tokens have the positions that llama.cpp gives them (mtmd_image_tokens_get_decoder_pos), and are
// found by them.
func TestSpots(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		var media []Medium
		type place struct{ pos, x, y int32 }
		var want []place
		end := int32(0)
		for range rng.IntN(4) {
			for range rng.IntN(3) {
				want, end = append(want, place{end, end, end}), end+1
			}
			m := Medium{Start: len(want), Columns: 1 + rng.IntN(4), Rows: 1 + rng.IntN(4)}
			for i := range m.Columns * m.Rows {
				want = append(want, place{end, end + int32(i%m.Columns), end + int32(i/m.Columns)})
			}
			m.Tokens, end = len(want)-m.Start, end+int32(max(m.Columns, m.Rows))
			media = append(media, m)
		}
		for range rng.IntN(3) {
			want, end = append(want, place{end, end, end}), end+1
		}
		s := spotsOf(len(want), media)
		require.Equal(t, int(end), s.end)
		found := 0
		for pos := int32(-1); pos <= end; pos++ {
			for x := int32(-1); x <= end; x++ {
				for y := int32(-1); y <= end; y++ {
					if token, ok := s.token(pos, x, y); ok {
						require.Equal(t, want[token], place{pos, x, y})
						found++
					}
				}
			}
		}
		require.Equal(t, len(want), found)
		for i := range want {
			pos, x, y := s.of(i)
			require.Equal(t, want[i], place{pos, x, y})
		}
	}
}

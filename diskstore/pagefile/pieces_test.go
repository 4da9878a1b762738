package pagefile

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPiecesCoverThePage has pieces of many sections, of one section alone, and of those
// that are left.
func TestPiecesCoverThePage(t *testing.T) {
	var sections []Section
	for layer := range uint16(4) {
		sections = append(sections,
			Section{Layer: layer, Kind: KindK, RowBytes: 60_000},
			Section{Layer: layer, Kind: KindV, RowBytes: 65_003})
	}
	sections[4].RowBytes = pieceBytes/testTokens + 13
	p := pageOf(t, sections, testFingerprint(1), prompt(1, testTokens))
	for _, compress := range []bool{false, true} {
		file := encodeFile(t, p, testTokens, compress)
		h, err := ReadHeader(ctx, memBlob(file))
		require.NoError(t, err)
		require.Equal(t, compress, !h.Raw())
		pieces := slices.Collect(h.Pieces(h.All()))
		require.Greater(t, len(pieces), 1)
		at := h.payloadOffset()
		next := 0
		for i, piece := range pieces {
			off, size := h.Span(h.All(), piece)
			require.Equal(t, at, off)
			require.Equal(t, next, piece.first)
			require.Greater(t, piece.end, piece.first)
			if i < len(pieces)-1 {
				require.GreaterOrEqual(t, size, int64(pieceBytes))
			}
			at, next = off+size, piece.end
		}
		require.Equal(t, h.FileBytes-FooterBytes, at)
		require.Len(t, h.Sections, next)

		buf := make([]byte, p.Layout.Size())
		_, err = readFile(t, file, p.Layout, buf)
		require.NoError(t, err)
		require.Equal(t, p.Payload, buf)
	}
}

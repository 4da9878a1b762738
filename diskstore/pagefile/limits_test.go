package pagefile

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// manySections returns n sections of one byte per row.
func manySections(n int) []Section {
	sections := make([]Section, n)
	for i := range sections {
		sections[i] = Section{Group: uint16(i >> 8), Layer: uint16(i & 0xff), RowBytes: 1}
	}
	return sections
}

// headerOn returns the encoded header of a page of the given shape, which may be impossible,
// and the size of its file.
func headerOn(tokens, pageTokens, media int, sections []Section) ([]byte, int64) {
	h := &Header{Fingerprint: testFingerprint(1), PageTokens: pageTokens, Tokens: make([]int32, tokens), Media: make([]Media, media)}
	h.Key = ChainKey(h.Parent, h.Tokens, h.Media)
	for _, s := range sections {
		raw := int64(tokens) * int64(s.RowBytes)
		h.Sections = append(h.Sections, StoredSection{Section: s, Raw: raw, Stored: raw})
	}
	h.Place()
	return h.Encode(), h.FileBytes
}

// TestLimits: a header is damaged, and a layout invalid, beyond the same limits.
func TestLimits(t *testing.T) {
	row := func(n uint32) []Section { return []Section{{RowBytes: n}} }
	for name, tc := range map[string]struct {
		tokens, pageTokens, media int
		sections                  []Section
		ok                        bool
	}{
		"most tokens":        {MaxTokens, MaxTokens, 0, row(1), true},
		"too many tokens":    {MaxTokens + 1, MaxTokens + 1, 0, row(1), false},
		"most page tokens":   {1, MaxTokens, 0, row(1), true},
		"too large a page":   {1, MaxTokens + 1, 0, row(1), false},
		"fewer page tokens":  {2, 1, 0, row(1), false},
		"no token":           {0, 0, 0, row(1), false},
		"no token of one":    {0, 1, 0, row(1), false},
		"most media":         {1, 1, MaxMedia, row(1), true},
		"too many media":     {1, 1, MaxMedia + 1, row(1), false},
		"most sections":      {1, 1, 0, manySections(MaxSections), true},
		"too many sections":  {1, 1, 0, manySections(MaxSections + 1), false},
		"no section":         {1, 1, 0, nil, false},
		"largest row":        {1, 1, 0, row(maxRowBytes), true},
		"too large a row":    {1, 1, 0, row(maxRowBytes + 1), false},
		"no row":             {1, 1, 0, row(0), false},
		"largest layout":     {MaxTokens, MaxTokens, 0, row(MaxLayoutBytes / MaxTokens), true},
		"too large a layout": {MaxTokens, MaxTokens, 0, append(row(MaxLayoutBytes/MaxTokens), Section{Layer: 1, RowBytes: 1}), false},
		"everything":         {MaxTokens, MaxTokens, MaxMedia, manySections(MaxSections), true},
		"a section twice":    {1, 1, 0, []Section{{RowBytes: 16}, {RowBytes: 16}}, false},
		"an unknown kind":    {1, 1, 0, []Section{{RowBytes: 1, Kind: lastKind + 1}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.tokens == tc.pageTokens && tc.media <= MaxMedia {
				_, err := NewLayout(tc.sections, tc.tokens)
				require.Equal(t, !tc.ok, errors.Is(err, ErrInvalidPage), "%v", err)
				require.Equal(t, tc.ok, err == nil)
			}
			region, fileBytes := headerOn(tc.tokens, tc.pageTokens, tc.media, tc.sections)
			h, err := decodeHeader(region, fileBytes)
			if !tc.ok {
				require.ErrorIs(t, err, ErrDamaged)
				return
			}
			require.NoError(t, err)
			require.Equal(t, region, h.Encode())
			if name == "everything" {
				require.EqualValues(t, AlignUp(maxHeaderBytes), len(region))
			}
			_, err = decodeHeader(region, fileBytes+1)
			require.ErrorIs(t, err, ErrDamaged)
		})
	}
}

// TestHeadersAroundTheFirstRead has headers that just fit into the first read of a file, and
// headers that just do not.
func TestHeadersAroundTheFirstRead(t *testing.T) {
	for _, tokens := range []int{964, 965, 966} {
		p := pageOf(t, []Section{{Kind: KindK, RowBytes: 8}, {Kind: KindV, RowBytes: 8}}, testFingerprint(1), prompt(1, tokens))
		size := headerBytes(tokens, 0, 2)
		require.Equal(t, tokens <= 965, size <= firstReadBytes)
		buf := make([]byte, p.Layout.Size())
		_, err := readFile(t, encodeFile(t, p, tokens, false), p.Layout, buf)
		require.NoError(t, err)
		require.Equal(t, p.Payload, buf)
	}
}

// sizedBlob reports another size than its own.
type sizedBlob struct {
	memBlob
	size int64
}

func (b sizedBlob) Size() int64 { return b.size }

// TestSizeThatCannotBe: a source that does not know its size may report -1.
func TestSizeThatCannotBe(t *testing.T) {
	for _, size := range []int64{-1, math.MinInt64, 0} {
		_, err := ReadHeader(ctx, sizedBlob{make(memBlob, PageAlign), size})
		require.ErrorIs(t, err, ErrDamaged)
	}
}

package pagefile

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/testrows"
)

// TestAHeaderCostsNoMoreThanItsFile reads the smallest files that have many tokens, media or sections,
// and smaller files that claim as many. No read takes more memory than twice the file's length.
func TestAHeaderCostsNoMoreThanItsFile(t *testing.T) {
	one := []Section{{RowBytes: 1}}
	for name, tc := range map[string]struct {
		tokens, media int
		sections      []Section
	}{
		"a small page":  {16, 0, one},
		"tokens":        {MaxTokens, 0, one},
		"some tokens":   {2000, 0, one},
		"media":         {1, MaxMedia, one},
		"some media":    {200, 200, one},
		"sections":      {1, 0, manySections(MaxSections)},
		"some sections": {1, 0, manySections(300)},
		"everything":    {MaxTokens, MaxMedia, one},
	} {
		t.Run(name, func(t *testing.T) {
			header, whole := headerOn(tc.tokens, tc.tokens, tc.media, tc.sections)
			for _, size := range []int64{whole, whole - PageAlign, int64(len(header)) + FooterBytes, int64(len(header))} {
				file := make(memBlob, size)
				copy(file, header)
				var err error
				used := testrows.Allocated(func() { _, err = ReadHeader(ctx, file) })
				if size == whole {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, ErrDamaged)
				}
				require.LessOrEqual(t, used, uint64(2*size), "a file of %d bytes", size)
			}
		})
	}
}

// hostilePage returns the file of a page whose header and checksums are right and whose stored
// sections, all of one encoding, are given.
func hostilePage(e Encoding, sections []Section, tokens int, stored [][]byte) []byte {
	h := &Header{Fingerprint: testFingerprint(1), Parent: testFingerprint(1), PageTokens: tokens, Tokens: prompt(1, tokens)}
	h.Key = ChainKey(h.Parent, h.Tokens, nil)
	for i, s := range sections {
		h.Sections = append(h.Sections, StoredSection{
			Section: s, Encoding: e, Raw: int64(tokens) * int64(s.RowBytes),
			Stored: int64(len(stored[i])), CRC: Checksum(stored[i]),
		})
	}
	return fileOf(encoded(h, stored))
}

// zstdFrame returns a frame of n blocks of one repeated byte, 128 KiB each. claim is the content size
// in the frame's header; with a negative claim, the header has a window of 2^windowLog bytes instead.
func zstdFrame(n int, claim int64, windowLog int) []byte {
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd}
	if claim < 0 {
		frame = append(frame, 0, byte(windowLog-10)<<3)
	} else {
		frame = append(frame, 3<<6|1<<5)
		frame = binary.LittleEndian.AppendUint64(frame, uint64(claim))
	}
	const rle, size = 1, 128 << 10
	for i := range n {
		header := uint32(size<<3 | rle<<1)
		if i == n-1 {
			header |= 1
		}
		frame = append(frame, byte(header), byte(header>>8), byte(header>>16), 'x')
	}
	return frame
}

// TestBombs stores sections that decompress to gigabytes, claim to, or need a window of
// gigabytes. Reading them takes at most twice the page's memory.
func TestBombs(t *testing.T) {
	const tokens, row = 256, 2048 // 512 KiB a section, 4 MiB a page
	sections := manySections(8)
	for i := range sections {
		sections[i].RowBytes = row
	}
	// As many sections are decoded at once as there are processors.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	noise := make([]byte, 400<<10)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	good := zstdFrame(4, tokens*row, 0)
	for name, tc := range map[string]struct {
		section []byte
		ok      bool
	}{
		"good":                  {good, true},
		"good, with a window":   {zstdFrame(4, -1, 21), true},
		"8 GiB":                 {zstdFrame(1<<16, -1, 21), false},
		"8 GiB and says so":     {zstdFrame(1<<16, 8<<30, 0), false},
		"says 1 EiB":            {zstdFrame(4, 1<<60, 0), false},
		"says less":             {zstdFrame(1<<16, tokens*row, 0), false},
		"one block too many":    {zstdFrame(5, -1, 21), false},
		"one block too few":     {zstdFrame(3, -1, 21), false},
		"window of 2 GiB":       {zstdFrame(4, -1, 31), false},
		"window of 2 TiB":       {zstdFrame(4, -1, 41), false},
		"two frames":            {append(bytes.Clone(good), good...), false},
		"many frames":           {bytes.Repeat(zstdFrame(1, 128<<10, 0), 20_000), false},
		"many empty frames":     {append(bytes.Repeat([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0}, 20_000), good...), true},
		"skipped gigabytes":     {append([]byte{0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff}, good...), false},
		"cut off":               {good[:len(good)-1], false},
		"noise":                 {noise, false},
		"a dictionary is asked": {append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x23, 1, 2, 3, 4, 0}, good[13:]...), false},
	} {
		t.Run(name, func(t *testing.T) {
			file := hostilePage(EncodingZstd, sections, tokens, slices.Repeat([][]byte{tc.section}, len(sections)))
			l := layoutOf(t, sections, tokens)
			buf := make([]byte, l.Size())
			c := theCodec(t)
			require.NoError(t, c.Decode(EncodingZstd, good, make([]byte, tokens*row))) // makes the decoders
			var err error
			used := testrows.Allocated(func() { _, err = readFile(t, file, l, buf) })
			if tc.ok {
				require.NoError(t, err)
				require.Equal(t, bytes.Repeat([]byte{'x'}, l.Size()), buf)
			} else {
				require.ErrorIs(t, err, ErrDamaged)
			}
			require.LessOrEqual(t, used+uint64(len(buf)), uint64(2*l.Size()))
		})
	}
}

// TestCheckingTakesAStepAtATime checks a large page.
func TestCheckingTakesAStepAtATime(t *testing.T) {
	large := layoutOf(t, []Section{{Kind: KindK, RowBytes: 64 << 10}, {Kind: KindV, RowBytes: 64 << 10}}, 256)
	page := &Page{Parent: testFingerprint(1), Tokens: prompt(1, 256), Layout: large, Payload: make([]byte, large.Size())}
	file := memBlob(encodeFile(t, page, 256, false))
	used := testrows.Allocated(func() {
		_, err := Stream(ctx, file, nil)
		require.NoError(t, err)
	})
	require.LessOrEqual(t, used, uint64(2*StepBytes))
}

// TestCheckingSmallSections: a page may have thousands of sections that are smaller than a block.
func TestCheckingSmallSections(t *testing.T) {
	if testrows.RaceDetector {
		t.Skip("a sync.Pool loses a part of its values under the race detector")
	}
	sections := manySections(2000)
	for i := range sections {
		sections[i].RowBytes = 256
	}
	rows := bytes.Repeat([]byte{0, 0x3c}, 128)
	for e, stored := range map[Encoding][]byte{
		EncodingSplit: {2, 0, 0, 0, 0, 0, 0, 0, 1<<2 | 2, 0, 0, 0, 1<<2 | 2, 0, 0, 0, 0, 0x3c},
		EncodingQ8:    lossyRows(t, EncodingQ8, rows),
		EncodingInt4:  lossyRows(t, EncodingInt4, rows),
	} {
		file := memBlob(hostilePage(e, sections, 1, slices.Repeat([][]byte{stored}, len(sections))))
		c := aChecker(t)
		check := func() {
			_, err := c.Check(ctx, file)
			require.NoError(t, err, e)
		}
		check() // takes the memory of a block
		require.LessOrEqual(t, testrows.Allocated(check), uint64(len(file)), e)
	}
}

// lossyRows encodes a row of f16.
func lossyRows(t testing.TB, e Encoding, row []byte) []byte {
	stored, err := theCodec(t).EncodeLossy(e, row, Section{Kind: KindK, RowBytes: uint32(len(row))})
	require.NoError(t, err)
	return stored
}

// TestShortSectionsClaimMuch: sections of some bytes that claim gigabytes are damage to a Checker,
// which needs memory for one block, and one block of a byte's repetitions is good.
func TestShortSectionsClaimMuch(t *testing.T) {
	const tokens = 1 << 10
	for e, header := range map[Encoding][]byte{
		EncodingSplit: {2, 0, 0, 0, 0, 0, 0, 0},
		EncodingQ8:    {0, 0, 32, 0, 0, 0, 0, 0},
		EncodingQ4:    {0, 0, 32, 0, 0, 0, 0, 0},
		EncodingInt4:  {2, 0, 64, 0, 0, 0, 0, 0},
	} {
		planes := map[Encoding]int{EncodingSplit: 2, EncodingQ8: 4}[e]
		if planes == 0 {
			planes = 3
		}
		block := append(bytes.Repeat([]byte{1<<2 | 2, 0, 0, 0}, planes), make([]byte, planes)...)
		stored := append(bytes.Clone(header), bytes.Repeat(block, 3)...)
		sections := []Section{{Kind: KindK, RowBytes: 1 << 23}, {Kind: KindV, RowBytes: 1 << 23}}
		file := memBlob(hostilePage(e, sections, tokens, [][]byte{stored, stored}))
		var err error
		used := testrows.Allocated(func() { _, err = aChecker(t).Check(ctx, file) })
		require.ErrorIs(t, err, ErrDamaged, e)
		require.LessOrEqual(t, used, uint64(4<<20), e)
	}
}

package pagefile

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// largeSections make a page of several pieces: a piece of many sections, a piece of a single
// section, and a piece of the remaining sections.
func largeSections() []Section {
	var sections []Section
	for layer := range uint16(4) {
		sections = append(sections,
			Section{Layer: layer, Kind: KindK, RowBytes: 60_000},
			Section{Layer: layer, Kind: KindV, RowBytes: 65_003})
	}
	sections[4].RowBytes = pieceBytes/testTokens + 13
	return sections
}

// TestPiecesCoverThePage has a piece of many sections, a piece of a single section, and a
// piece of the remaining sections.
func TestPiecesCoverThePage(t *testing.T) {
	p := pageOf(t, largeSections(), testFingerprint(1), prompt(1, testTokens))
	for _, compress := range []bool{false, true} {
		file := encodeFile(t, p, testTokens, compress)
		h, err := ReadHeader(ctx, memBlob(file))
		require.NoError(t, err)
		require.Equal(t, compress, !h.Raw())
		pieces := h.pieces(h.All())
		require.Greater(t, len(pieces), 1)
		at := h.payloadOffset()
		next := 0
		for i, piece := range pieces {
			off, size := h.span(h.All(), piece)
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

// deepSource counts concurrent reads, and ends none before want reads have begun.
type deepSource struct {
	Source
	want    int32
	running atomic.Int32
	most    atomic.Int32
	enough  chan struct{}
	once    sync.Once
}

func (b *deepSource) ReadAt(ctx context.Context, p []byte, off int64) error {
	n := b.running.Add(1)
	defer b.running.Add(-1)
	for {
		most := b.most.Load()
		if n <= most || b.most.CompareAndSwap(most, n) {
			break
		}
	}
	if n >= b.want {
		b.once.Do(func() { close(b.enough) })
	}
	<-b.enough
	return b.Source.ReadAt(ctx, p, off)
}

func (b *deepSource) ReadsAtOnce() int { return int(b.want) }

// TestPiecesReadAtOnce: pieces of a remote page are read concurrently, pieces of a local page
// one after another.
func TestPiecesReadAtOnce(t *testing.T) {
	p := pageOf(t, largeSections(), testFingerprint(1), prompt(1, testTokens))
	blob := memBlob(encodeFile(t, p, testTokens, false))
	h, err := ReadHeader(ctx, blob)
	require.NoError(t, err)
	require.Equal(t, 1, ReadsAtOnce(blob))
	require.GreaterOrEqual(t, len(h.pieces(h.All())), 3, "and the footer")
	for _, want := range []int32{1, 4} {
		deep := &deepSource{Source: blob, want: want, enough: make(chan struct{})}
		buf := make([]byte, p.Layout.Size())
		require.NoError(t, ReadPayload(ctx, deep, h, h.All(), theCodec(t), buf))
		require.Equal(t, want, deep.most.Load())
		require.Equal(t, p.Payload, buf)
	}
}

// TestTheFirstDamageIsReported: of a page that is damaged in several pieces, each read reports the first one,
// whichever is found first. Two reads that report the same condemn a file.
func TestTheFirstDamageIsReported(t *testing.T) {
	p := pageOf(t, largeSections(), testFingerprint(1), prompt(1, testTokens))
	blob := memBlob(encodeFile(t, p, testTokens, false))
	h, err := ReadHeader(ctx, blob)
	require.NoError(t, err)
	pieces := h.pieces(h.All())
	for _, piece := range pieces[1:] {
		off, _ := h.span(h.All(), piece)
		blob[off] ^= 1
	}
	blob[len(blob)-1] ^= 1
	want := fmt.Sprintf("section %d ", pieces[1].first)
	buf := make([]byte, p.Layout.Size())
	for range 50 {
		for _, atOnce := range []int32{1, int32(len(pieces) + 1)} {
			source := &deepSource{Source: blob, want: atOnce, enough: make(chan struct{})}
			err := ReadPayload(ctx, source, h, h.All(), theCodec(t), buf)
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, want)
		}
	}
}

func TestShortReadsAreNotMistakenForData(t *testing.T) {
	p := pageOf(t, largeSections(), testFingerprint(1), prompt(1, testTokens))
	blob := memBlob(encodeFile(t, p, testTokens, false))
	h, err := ReadHeader(ctx, blob)
	require.NoError(t, err)
	buf := make([]byte, p.Layout.Size())
	for _, piece := range h.pieces(h.All()) {
		off, size := h.span(h.All(), piece)
		require.ErrorIs(t, ReadPayload(ctx, deafBlob{blob, off + size - 1, h.FileBytes}, h, h.All(), theCodec(t), buf), syscall.EIO)
	}
	require.NoError(t, ReadPayload(ctx, blob, h, h.All(), theCodec(t), buf))
}

// imageAt is an image of which the reach is not known.
func imageAt(offset uint32, name byte) Media {
	return Media{Offset: offset, Hash: Reaching([32]byte{name})}
}

// reachedTo is media[k] of tokens, whose batch ends at a position.
func reachedTo(tokens []int32, media []Media, k, end int) Media {
	m := media[k]
	m.Hash = Reached(m.Hash, tokens[m.Offset:end], MediaWithin(media, int(m.Offset), end-int(m.Offset)))
	return m
}

func TestCommonPrefixOfReachingImages(t *testing.T) {
	stored := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	images := []Media{imageAt(2, 1), imageAt(5, 2)}
	known := []Media{reachedTo(stored, images, 0, 8), reachedTo(stored, images, 1, 8)}
	other := func(from int) []int32 {
		text := slices.Clone(stored)
		for i := range text[from:] {
			text[from+i] += 100
		}
		return text
	}
	for name, c := range map[string]struct {
		tokens []int32
		media  []Media
		want   int
	}{
		"the same text":                       {stored, images, 10},
		"the same text, known":                {stored, known, 10},
		"less than the images reached":        {stored[:7], images, 2},
		"less than the images reached, known": {stored[:7], known, 7},
		"as much as the images reached":       {stored[:8], images, 8},
		"other text behind the reach":         {other(8), images, 8},
		"other text within the reach":         {other(7), images, 2},
		"other text between the images":       {other(4), images, 2},
		"another second image":                {stored, []Media{images[0], imageAt(5, 3)}, 2},
		"no second image":                     {stored, images[:1], 2},
		"another reach":                       {stored, []Media{reachedTo(stored, images, 0, 9), reachedTo(stored, images, 1, 9)}, 2},
		"another first image":                 {stored, []Media{imageAt(2, 3), images[1]}, 2},
		"a hash of a page that has none":      {stored, []Media{{Offset: 2, Hash: [32]byte{1}}, images[1]}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, CommonPrefix(stored, known, c.tokens, c.media))
			require.Equal(t, c.want, CommonPrefix(c.tokens, c.media, stored, known))
		})
	}

	// a slot went on with other text than its image's rows attended to
	mixed := other(7)
	require.Equal(t, 2, CommonPrefix(mixed, known, mixed, images))
	far := slices.Clone(known) // a damaged header
	for i := imageBytes; i < reachBytes; i++ {
		far[0].Hash[i] = 0xff
	}
	require.Equal(t, 2, CommonPrefix(stored, far, stored, images))
}

func TestReachesAreThoseOfReached(t *testing.T) {
	tokens := []int32{1, 2, 3, 4, 5}
	media := []Media{imageAt(0, 1), imageAt(3, 2)}
	seen := make(map[[32]byte]bool)
	for n, hash := range Reaches(media[0].Hash, tokens, media) {
		require.Equal(t, Reached(media[0].Hash, tokens[:n], MediaWithin(media, 0, n)), hash)
		require.Equal(t, n, Media{Hash: hash}.Reach())
		require.False(t, seen[hash])
		seen[hash] = true
	}
	require.Len(t, seen, len(tokens))
	require.Equal(t, media, Unreached([]Media{reachedTo(tokens, media, 0, 5), reachedTo(tokens, media, 1, 5)}))
}

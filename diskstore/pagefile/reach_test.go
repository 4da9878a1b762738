package pagefile

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

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

package diskstore

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

func TestAnyOf(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	tokens := prompt(1, testTokens)
	var keys []pagefile.Key
	for i := range 100 { // more than the remote tier looks up at once
		keys = append(keys, storetest.Page(t, s.opt.Fingerprint, 0, tokens, pagefile.Media{Offset: 2, Hash: [32]byte{byte(i)}}).Key())
	}
	stored := storetest.Page(t, s.opt.Fingerprint, 0, tokens, pagefile.Media{Offset: 2, Hash: [32]byte{77}})
	require.Equal(t, keys[77], stored.Key())
	anyOf := func(keys []pagefile.Key) pagefile.Key {
		key, found := s.AnyOf(ctx, keys)
		require.Equal(t, found, !key.IsZero())
		return key
	}

	require.True(t, anyOf(keys).IsZero())
	require.True(t, anyOf(nil).IsZero())
	require.NoError(t, s.Put(ctx, stored))
	require.Equal(t, keys[77], anyOf(keys))
	require.True(t, anyOf(keys[:77]).IsZero())

	infos := listAll(t, s.local)
	require.Len(t, infos, 1)
	require.NoError(t, s.demote(ctx, infos[0]))
	dropPage(t, s.local, infos[0])
	require.Equal(t, keys[77], anyOf(keys), "in the remote tier alone")
	require.Equal(t, keys[77], anyOf(slices.Clone(keys[77:])))

	require.NoError(t, s.Close())
	require.True(t, anyOf(keys).IsZero())
}

// A look-up tells the media of a tail and of a page that is found by its beginning.
func TestLookUpsTellMedia(t *testing.T) {
	for name, ram := range map[string]int64{"from a file": 0, "from memory": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			s := open(t, testOptions(t, withRAM(ram)))
			tokens := prompt(1, testTokens+4)
			image := pagefile.Media{Offset: 3, Hash: pagefile.Reaching([32]byte{1})}
			known := image
			known.Hash = pagefile.Reached(image.Hash, tokens[3:testTokens], pagefile.MediaWithin([]pagefile.Media{image}, 3, testTokens))
			page := storetest.Page(t, s.opt.Fingerprint, 0, tokens[:testTokens], known)
			require.NoError(t, s.Put(ctx, page))
			tail := storetest.Page(t, page.Key(), testTokens, tokens[testTokens:], image)
			require.NoError(t, s.Put(ctx, tail))

			refs := s.Find(ctx, Prompt{Tokens: tokens, Media: []pagefile.Media{image}}).Exact
			require.Len(t, refs, 1, "of a page with this name nobody knows")
			require.True(t, refs[0].Whole())
			require.Equal(t, []pagefile.Media{known}, refs[0].Media)
			refs = s.Find(ctx, Prompt{Parent: page.Key(), Start: testTokens, Tokens: tokens[testTokens:], Media: []pagefile.Media{{Offset: testTokens + 3, Hash: image.Hash}}}).Exact
			require.Len(t, refs, 1)
			require.Equal(t, []pagefile.Media{image}, refs[0].Media)

			other := append(slices.Clone(tokens[:testTokens-1]), 99999)
			refs = s.Find(ctx, Prompt{Tokens: other, Media: []pagefile.Media{image}}).Exact
			require.Equal(t, 3, tokensIn(refs), "up to the image, which attended to other text")
		})
	}
}

package diskstore

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func TestLatest(t *testing.T) {
	o := testOptions(t, withRemote(t))
	s := open(t, o)
	var want []pagefile.Key
	for n := range 3 {
		for _, p := range putChain(t, s, prompt(n, 2*testTokens+3)) {
			if len(p.Tokens) == testTokens {
				want = append(want, p.Key())
			}
		}
	}
	other := o
	other.Fingerprint = testFingerprint(9)
	putChain(t, open(t, other), prompt(0, testTokens))
	found, err := s.Latest(ctx, 100)
	require.NoError(t, err)
	require.Len(t, found, 6, "tails and other fingerprints' pages are left out")
	for _, p := range found {
		require.Contains(t, want, p.Key)
		require.Equal(t, p.Key, pagefile.ChainKey(p.Parent, p.Tokens, nil))
		require.Contains(t, []uint32{0, testTokens}, p.Start)
	}
	found, err = s.Latest(ctx, 2)
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.True(t, slices.ContainsFunc(found, func(p PageTokens) bool { return p.Key == want[4] }), "the last conversation's first page is the latest")
	require.NoError(t, s.Close())
	_, err = s.Latest(ctx, 2)
	require.ErrorIs(t, err, tier.ErrClosed)
}

// Without a limit, a long listing is not sorted for every file.
func TestRecentsWithoutALimit(t *testing.T) {
	r := newRecents(pagefile.Key{}, math.MaxInt64)
	r.most = 128
	for range 200 {
		r.add(tier.Info{Bytes: 1})
	}
	require.Equal(t, 200, len(r.files), "sorted and cut once there are twice as many as wanted")
	require.Equal(t, 128, len(r.order()))
}

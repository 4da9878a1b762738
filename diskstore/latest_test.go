package diskstore

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
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

// TestLatestTexts joins the pages of the latest conversations, also where two begin alike, or where
// an earlier end of one is still stored.
func TestLatestTexts(t *testing.T) {
	o := testOptions(t)
	o.ReadAheadBytes = 1 << 30
	s := open(t, o)
	old, short, long := prompt(1, 2*testTokens), prompt(2, 3), prompt(3, 3*testTokens+5)
	branch := slices.Concat(long[:testTokens], prompt(4, testTokens+2))
	began := time.Now().Add(-5 * time.Hour)
	for i, text := range [][]int32{old, short, long[:testTokens+4], long, branch} {
		s.now = func() time.Time { return began.Add(time.Duration(i) * time.Hour) }
		putChain(t, s, text)
	}
	require.NoError(t, s.Close())
	_, err := s.LatestTexts(ctx, 1)
	require.ErrorIs(t, err, tier.ErrClosed)

	for most, want := range [][][]int32{{}, {branch}, {branch, long}, {branch, long, short}, {branch, long, short, old}, {branch, long, short, old}} {
		s := open(t, o)
		texts, err := s.LatestTexts(ctx, most)
		require.NoError(t, err)
		require.Equal(t, want, texts)
		_, err = s.ReadAhead(ctx)
		require.NoError(t, err)
		texts, err = s.LatestTexts(ctx, most)
		require.NoError(t, err)
		require.Empty(t, texts, "read ahead already")
		require.NoError(t, s.Close())
	}
}

// TestLatestTextsOfTheSameMinute, whose files have the same times.
func TestLatestTextsOfTheSameMinute(t *testing.T) {
	o := testOptions(t)
	o.ReadAheadBytes = 1 << 30
	s := open(t, o)
	left := prompt(1, 4*testTokens+5)
	right := slices.Concat(left[:testTokens+3], prompt(2, 3*testTokens))
	putChain(t, s, left)
	putChain(t, s, right)
	require.NoError(t, s.Close())
	s = open(t, o)
	texts, err := s.LatestTexts(ctx, 2)
	require.NoError(t, err)
	require.ElementsMatch(t, [][]int32{left, right}, texts)
	texts, err = s.LatestTexts(ctx, 1)
	require.NoError(t, err)
	require.Len(t, texts, 1)
	require.Contains(t, [][]int32{left, right}, texts[0])
}

// TestLatestTextsOfCopiedFiles, whose times say nothing of their order.
func TestLatestTextsOfCopiedFiles(t *testing.T) {
	o := testOptions(t)
	o.ReadAheadBytes = 1 << 30
	s := open(t, o)
	text := prompt(1, 5*testTokens+5)
	putChain(t, s, text)
	require.NoError(t, s.Close())
	files := filesIn(t, o.Local.Root, dir.PageExt)
	require.Len(t, files, 6)
	for range 2 {
		slices.Reverse(files)
		for i, path := range files {
			used := time.Now().Add(-time.Duration(i) * time.Minute)
			require.NoError(t, os.Chtimes(path, used, used))
		}
		s = open(t, o)
		texts, err := s.LatestTexts(ctx, 1)
		require.NoError(t, err)
		require.Contains(t, [][]int32{text, text[:5*testTokens]}, texts[0], "the tail may be too old")
		require.NoError(t, s.Close())
	}
}

// TestLatestTextsEndBeforeWhatIsMissing: a page with media, a lost page, another page size.
func TestLatestTextsEndBeforeWhatIsMissing(t *testing.T) {
	o := testOptions(t)
	o.ReadAheadBytes = 1 << 30
	s := open(t, o)
	text := prompt(1, 3*testTokens+5)
	pages := putChain(t, s, text)
	require.NoError(t, s.Close())

	s = open(t, o)
	info, err := s.disk.Stat(ctx, s.pageName(pages[1].Key()))
	require.NoError(t, err)
	_, err = s.disk.Remove(ctx, info)
	require.NoError(t, err)
	texts, err := s.LatestTexts(ctx, 2)
	require.NoError(t, err)
	require.Equal(t, [][]int32{text[:testTokens]}, texts)
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

package diskstore

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

func TestLatestPages(t *testing.T) {
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
	require.NoError(t, s.Close())
	o.LatestPages = 100
	found, err := open(t, o).Recent().Pages(ctx)
	require.NoError(t, err)
	require.Len(t, found, 6, "tails and other fingerprints' pages are left out")
	for _, p := range found {
		require.Contains(t, want, p.Key)
		require.Equal(t, p.Key, pagefile.ChainKey(p.Parent, p.Tokens, nil))
		require.Contains(t, []uint32{0, testTokens}, p.Start)
	}
	o.LatestPages = 2
	s = open(t, o)
	found, err = s.Recent().Pages(ctx)
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.True(t, slices.ContainsFunc(found, func(p PageTokens) bool { return p.Key == want[4] }), "the last conversation's first page is the latest")
	require.NoError(t, s.Close())
	_, err = s.Recent().Pages(ctx)
	require.ErrorIs(t, err, tier.ErrClosed)
}

// openLatest opens a store that reads ahead.
func openLatest(t *testing.T) (Options, *Store) {
	o := testOptions(t)
	o.ReadAheadBytes = 1 << 30
	return o, open(t, o)
}

// requireLatest opens the store again and requires its latest text.
func requireLatest(t *testing.T, o Options, want ...[]int32) {
	t.Helper()
	s := open(t, o)
	text, err := s.Recent().Text(ctx)
	require.NoError(t, err)
	require.Contains(t, want, text)
	require.NoError(t, s.Close())
}

// TestLatestText joins the pages of the latest conversation, also where two begin alike, or where an
// earlier end is still stored.
func TestLatestText(t *testing.T) {
	o, s := openLatest(t)
	require.NoError(t, s.Close())
	requireLatest(t, o, nil)
	long := prompt(3, 3*testTokens+5)
	branch := slices.Concat(long[:testTokens], prompt(4, testTokens+2))
	began := time.Now().Add(-9 * time.Hour)
	for i, text := range [][]int32{prompt(1, 2*testTokens), prompt(2, 3), long[:testTokens+4], long, branch, prompt(5, testTokens)} {
		s := open(t, o)
		s.now = func() time.Time { return began.Add(time.Duration(i) * time.Hour) }
		putChain(t, s, text)
		require.NoError(t, s.Close())
		requireLatest(t, o, text)
	}
	s = open(t, o)
	_, err := s.Recent().ReadAhead(ctx)
	require.NoError(t, err)
	text, err := s.Recent().Text(ctx)
	require.NoError(t, err)
	require.Empty(t, text, "read ahead already")
	require.NoError(t, s.Close())
	_, err = s.Recent().Text(ctx)
	require.ErrorIs(t, err, tier.ErrClosed)
}

// TestLatestTextOfConversationsInTurns: pages that are stored within a minute after one beginning have
// the same recencies, and so has the tail of an earlier end.
func TestLatestTextOfConversationsInTurns(t *testing.T) {
	o, s := openLatest(t)
	system := prompt(1, 2*testTokens)
	one, other := slices.Concat(system, prompt(2, 3*testTokens+2)), slices.Concat(system, prompt(3, 3*testTokens+3))
	began := time.Now().Add(-time.Hour)
	s.now = func() time.Time { return began }
	pages, others := chainOf(t, s, one), chainOf(t, s, other)
	for i := range pages {
		require.NoError(t, s.Put(ctx, pages[i]))
		require.NoError(t, s.Put(ctx, others[i]))
	}
	putChain(t, s, slices.Concat(one[:4*testTokens], one[4*testTokens:4*testTokens+1]))
	s.now = func() time.Time { return began.Add(-time.Hour) }
	putChain(t, s, prompt(5, testTokens))
	require.NoError(t, s.Close())
	requireLatest(t, o, other) // the longest

	s = open(t, o)
	text := newLatestText(s.opt.Fingerprint)
	_, err := s.local.files.AwaitFirst(ctx, s.local.counting...)
	require.NoError(t, err)
	for _, info := range s.local.files.First.Recent() {
		h, err := tier.ReadHeader(ctx, s.local.tier, info.Name)
		require.NoError(t, err)
		text.add(h, info.Used)
	}
	require.Empty(t, text.early, "nothing is looked for in vain")
}

// TestLatestTextAfterAnotherEnd: a prompt goes on otherwise than the tail that is stored, as the tokens of an
// answer are others when they are a prompt's, and is stored within the same minute.
func TestLatestTextAfterAnotherEnd(t *testing.T) {
	for n := range 16 { // other keys come in another order
		o, s := openLatest(t)
		began := time.Now().Add(-time.Hour)
		s.now = func() time.Time { return began }
		text := prompt(n, 2*testTokens)
		putChain(t, s, slices.Concat(text, prompt(100, 5)))
		s.now = func() time.Time { return began.Add(30 * time.Second) }
		want := slices.Concat(text, prompt(200, testTokens+3))
		putChain(t, s, want)
		require.NoError(t, s.Close())
		requireLatest(t, o, want)
	}
}

// TestLatestTextOfCopiedFiles, whose times say nothing of their order.
func TestLatestTextOfCopiedFiles(t *testing.T) {
	o, s := openLatest(t)
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
		requireLatest(t, o, text, text[:5*testTokens]) // the tail may be too old
	}
}

// TestLatestTextEndsWithATail, whatever a forged file has behind it.
func TestLatestTextEndsWithATail(t *testing.T) {
	o, s := openLatest(t)
	text := prompt(1, testTokens+3)
	pages := putChain(t, s, text)
	forged := *pages[1]
	forged.Parent = forged.Key()
	require.NoError(t, s.Put(ctx, &forged))
	require.NoError(t, s.Close())
	requireLatest(t, o, text)
}

// TestLatestTextEndsBeforeALostPage.
func TestLatestTextEndsBeforeALostPage(t *testing.T) {
	o, s := openLatest(t)
	text := prompt(1, 3*testTokens+5)
	pages := putChain(t, s, text)
	info, err := tier.Stat(ctx, s.disk, s.pages.Page(pages[1].Key()))
	require.NoError(t, err)
	_, err = s.disk.Remove(ctx, info)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	requireLatest(t, o, text[:testTokens])
}

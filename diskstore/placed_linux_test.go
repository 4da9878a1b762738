package diskstore

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// descriptors returns the number of open files of the process.
func descriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// TestReadingInPlaceKeepsNoFileOpen counts descriptors after every outcome.
func TestReadingInPlaceKeepsNoFileOpen(t *testing.T) {
	tokens := prompt(1, testTokens+3)
	s, o := openNew(t, withRemote(t))
	putChain(t, s, tokens)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	packed := open(t, testOptions(t, func(o *Options) { o.Compress = true }))
	putChain(t, packed, tokens)
	before := descriptors(t)

	for range 20 {
		_, placed, err := readPlaced(t, s, refs[0], tokens)
		require.NoError(t, err)
		require.Equal(t, before+1, descriptors(t), "one file for one place")
		require.NoError(t, placed.File.Close())
		readRef(t, s, refs[0], tokens)
		requireNotPlaced(t, packed, refs[0], tokens, "compressed")
		_, _, err = readPlaced(t, s, refs[0], prompt(2, testTokens))
		require.ErrorIs(t, err, pagefile.ErrMismatch)
	}
	require.Equal(t, before, descriptors(t))

	moveToRemote(t, o, namesOf(s, tokens)[1:])
	requireNotPlaced(t, s, refs[1], tokens, "remote")
	require.NoError(t, os.Truncate(filePath(o.Local.Root, refs[0].name(s.pages)), 5000))
	_, _, err := readPlaced(t, s, refs[0], tokens)
	require.ErrorIs(t, err, pagefile.ErrDamaged)
	require.NoError(t, s.Flush(ctx))
	// Files of the remote tier are closed in the background.
	require.Eventually(t, func() bool { return descriptors(t) == before }, 5*time.Second, time.Millisecond)
}

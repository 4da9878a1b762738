package diskstore

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Runners of one server divide its budget; runners of another server do not share it.
func TestRAMBudgetIsTheServers(t *testing.T) {
	one := pageBytes(t, testTokens)
	o := testOptions(t, withRAM(8*one))
	first := open(t, o)
	for i := range 10 {
		putChain(t, first, prompt(i, testTokens))
	}
	require.Equal(t, 8, first.Stats().RAM.Pages)

	stranger := o
	stranger.RAM.Server = "another"
	s := open(t, stranger)
	putChain(t, s, prompt(20, testTokens))
	require.True(t, first.ram.tend())
	require.Equal(t, 8, first.Stats().RAM.Pages)

	second := open(t, o)
	for i := range 10 {
		readChain(t, second, prompt(i, testTokens), testTokens)
		require.LessOrEqual(t, second.Stats().RAM.Pages, 4, "a store does not wait for the other runners")
	}
	require.True(t, first.ram.tend())
	require.Equal(t, 4, first.Stats().RAM.Pages)
	readChain(t, first, prompt(9, testTokens), testTokens)
	require.EqualValues(t, 1, first.Stats().RAMHits, "the pages served last have stayed")

	third := open(t, o)
	require.True(t, first.ram.tend())
	require.Equal(t, 2, first.Stats().RAM.Pages) // 8/3
	require.NoError(t, third.Close())
	require.NoError(t, second.Close())
	require.True(t, first.ram.tend())
	require.Equal(t, 8*one, first.ram.Stats().Limit)

	// A runner that was killed has released its lock and left the file.
	left := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir, serverPrefix(o.RAM.Server)+"0123"+dir.LockExt)
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	require.True(t, first.ram.tend())
	require.Equal(t, 8*one, first.ram.Stats().Limit)
	require.NoFileExists(t, left)
	// A new runner is noticed as soon as a page is kept.
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	lock, err := vfs.OS.Lock(left)
	require.NoError(t, err)
	fourth := open(t, o)
	readChain(t, fourth, prompt(0, testTokens), testTokens)
	require.Equal(t, 8*one/3, fourth.ram.Stats().Limit)
	require.NoError(t, lock.Close())
}

func TestRAMNeedsLocks(t *testing.T) {
	inj := vfs.Inject(quickFS)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLock}, Err: syscall.ENOLCK})
	s := open(t, testOptions(t, withFS(inj), withRAM(plenty)))
	tokens := putPrompt(t, s, 1, testTokens)
	readChain(t, s, tokens, testTokens)
	require.Zero(t, s.Stats().RAM.Bytes)
	require.True(t, s.Stats().RAM.Down)
}

package diskstore

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// makeNewer gives all pages below a root a schema that this program does not read.
func makeNewer(t *testing.T, root string) {
	t.Helper()
	for _, path := range filesIn(t, root, dir.PageExt) {
		content := fileOf(t, path)
		le := binary.LittleEndian
		le.PutUint32(content[8:], pagefile.SchemaLossy+1)
		end := le.Uint32(content[132:]) - 4
		le.PutUint32(content[end:], pagefile.Checksum(content[:end]))
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
}

// TestPagesOfANewerProgramAreEvicted: a newer program that has been rolled back has filled the
// local tier. Its pages cannot move down, because this program cannot check them, and make room.
func TestPagesOfANewerProgramAreEvicted(t *testing.T) {
	const pages = 20
	page := physicalPage(t)
	o := testOptions(t, withRemote(t), func(o *Options) { o.Local.BudgetBytes = pages * page })
	newer := o
	newer.Fingerprint = testFingerprint(2)
	s := open(t, newer)
	for seed := range pages - 2 {
		putChain(t, s, prompt(seed, testTokens))
	}
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.Close())
	makeNewer(t, o.Local.Root)
	age(t, o.Local.Root, time.Now().Add(-time.Hour))

	s = open(t, o)
	for seed := range pages {
		require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(100+seed, testTokens))))
	}
	require.NoError(t, s.Flush(ctx))
	require.NotZero(t, s.Stats().Evicted)
	require.LessOrEqual(t, occupied(t, o.Local.Root), o.Local.BudgetBytes)
}

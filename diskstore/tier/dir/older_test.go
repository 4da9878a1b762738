package dir

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestOldTails: tails in the place of earlier versions are listed by parent and by shard, and their
// directory goes with the last one.
func TestOldTails(t *testing.T) {
	tr := New(vfs.OS, t.TempDir(), Options{Create: true})
	old := tiertest.Tail(1)
	old.Parent = pagefile.Key{9, 9}
	tiertest.Upload(t, tr, old, []byte("old"), time.Now())
	tiertest.Upload(t, tr, tiertest.Tail(1), []byte("new"), time.Now())
	infos, err := tr.OldTails(ctx, tiertest.Fingerprint, old.Parent)
	require.NoError(t, err)
	require.Len(t, infos, 1)
	require.Equal(t, old, infos[0].Name)
	for _, name := range []pagefile.Name{old, tiertest.Tail(1)} {
		infos, err := tr.ListShard(ctx, tier.ShardOf(name))
		require.NoError(t, err)
		require.Len(t, infos, 1)
		require.Equal(t, name, infos[0].Name)
	}
	removed, err := tr.Remove(ctx, infos[0])
	require.NoError(t, err)
	require.True(t, removed)
	require.NoDirExists(t, filepath.Dir(tr.Path(old)))
	require.NoError(t, tr.Close())
}

// TestOldBranches: branches of earlier versions are listed a part at a time, and their directories
// go with the last one.
func TestOldBranches(t *testing.T) {
	root := t.TempDir()
	tr := New(vfs.OS, root, Options{Create: true})
	want := make(map[tier.OldBranch]bool)
	for n := range byte(20) {
		b := tier.OldBranch{Fingerprint: tiertest.Fingerprint, Parent: pagefile.Key{n % 3}, Key: pagefile.Key{n}, Leads: [16]byte{n}}
		path := filepath.Join(tr.base, oldBranchPath(b))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		want[b] = true
	}
	for len(want) > 0 {
		some, err := tr.OldBranches(ctx, tiertest.Fingerprint, 3)
		require.NoError(t, err)
		require.NotEmpty(t, some)
		require.LessOrEqual(t, len(some), 3)
		for _, b := range some {
			require.True(t, want[b])
			delete(want, b)
			require.NoError(t, tr.RemoveOldBranch(ctx, b))
			require.NoError(t, tr.RemoveOldBranch(ctx, b))
		}
	}
	none, err := tr.OldBranches(ctx, tiertest.Fingerprint, 3)
	require.NoError(t, err)
	require.Empty(t, none)
	require.NoDirExists(t, filepath.Join(tr.base, tiertest.Fingerprint.String(), oldBranches))
	require.NoError(t, tr.Close())
}

// TestNamesAreShort: eCryptfs has names of 143 bytes.
func TestNamesAreShort(t *testing.T) {
	b := tier.Branch{Class: pagefile.ClassTail, Tokens: pagefile.MaxTokens}
	require.LessOrEqual(t, len(branchName(b)), 143)
	require.LessOrEqual(t, len(filepath.Base(relPath(tiertest.Tail(1)))), 143)
}

// TestFilesInThePlaceOfBranches: what no store made keeps no branch from being listed, and stays.
func TestFilesInThePlaceOfBranches(t *testing.T) {
	for _, place := range []string{prefixesDir, filepath.Join(prefixesDir, "02")} {
		tr := New(nil, t.TempDir(), Options{Create: true})
		file := filepath.Join(tr.base, tiertest.Fingerprint.String(), place)
		require.NoError(t, tr.Claim(ctx))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		found, err := tr.Branches(ctx, tiertest.Fingerprint, []byte{2})
		require.NoError(t, err)
		require.Empty(t, found)
		require.FileExists(t, file)
		require.NoError(t, tr.Close())
	}
}

package dir

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/vfs"
)

var ctx = context.Background()

func TestContract(t *testing.T) {
	tiertest.Contract(t, func(t *testing.T) tier.Tier {
		return New(vfs.OS, filepath.Join(t.TempDir(), "a", "root"), Options{Create: true})
	})
}

func TestStaleTemporaryFilesAreCleaned(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	alive := New(vfs.OS, root, Options{Create: true})
	living, err := alive.Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	defer func() {
		living.Abort()
		require.NoError(t, alive.Close())
	}()
	tmp := filepath.Join(root, VersionDir, TmpDir)
	dead := filepath.Join(tmp, "00dead-1.tmp")
	for _, path := range []string{dead, filepath.Join(tmp, "00dead.lock"), filepath.Join(tmp, "0old-1.tmp"), filepath.Join(tmp, "0new-1.tmp")} {
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	}
	past := time.Now().Add(-2 * OrphanAge)
	require.NoError(t, os.Chtimes(filepath.Join(tmp, "0old-1.tmp"), past, past))

	next := New(vfs.OS, root, Options{Create: true})
	_, err = next.Temp.Claim()
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(tmp, "*"+TmpExt))
	require.NoError(t, err)
	require.Len(t, left, 2, "what is alive and what cannot be told apart from it stays: %v", left)
	require.NoFileExists(t, dead)
	require.NoError(t, next.Close())
	locks, err := filepath.Glob(filepath.Join(tmp, "*"+LockExt))
	require.NoError(t, err)
	require.Len(t, locks, 1)
}

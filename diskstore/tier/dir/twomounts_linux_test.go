package dir

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/mounts"
)

// TestSecondMountOfOneSystemSparesLiveUploads: two containers of one machine each mount the same share
// by FUSE, which keeps locks on each mount. Each container is another machine to the other.
func TestSecondMountOfOneSystemSparesLiveUploads(t *testing.T) {
	source := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(source, "kv"), 0o700))
	one, two := mounts.NewPassthrough(t, source), mounts.NewPassthrough(t, source)
	a := sharedTier(t, vfs.OS, filepath.Join(one.Dir, "kv"))
	beside := sharedTier(t, vfs.OS, filepath.Join(one.Dir, "kv"))
	b := sharedTier(t, vfs.OS, filepath.Join(two.Dir, "kv"))
	name := pagefile.Name{Fingerprint: storetest.Fingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}}
	up, err := a.Create(ctx, name)
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, make([]byte, 4096)))

	_, err = beside.Create(ctx, name)
	require.NoError(t, err, "a process on the same mount")
	_, err = b.Create(ctx, name)
	require.ErrorIs(t, err, tier.ErrNotShared)
	_, err = b.Aside(ctx) // Aside sweeps as well
	require.NoError(t, err)

	_, err = up.Commit(ctx, time.Now())
	require.NoError(t, err)
	_, err = tier.Stat(ctx, b, name)
	require.NoError(t, err)
}

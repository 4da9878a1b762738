package dir

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestPeersMakeNoLockFiles: a process ends while another one counts processes. No lock file
// takes the place of the removed one: its id would count as living for a day where locks do not
// reach all machines.
func TestPeersMakeNoLockFiles(t *testing.T) {
	ctx, root := context.Background(), storetest.PrivateDir(t)
	share := storetest.NewShare(0)
	share.Reach = vfs.ReachAll
	gone := New(share.From("other"), root, Options{Create: true})
	require.NoError(t, gone.Claim(ctx))

	inj := vfs.Inject(share.From("this"))
	tr := New(inj, root, Options{Create: true})
	defer func() { require.NoError(t, tr.Close()) }()
	require.NoError(t, tr.Claim(ctx))
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op == vfs.OpLock && strings.HasSuffix(paths[0], gone.Temp.id+LockExt) && gone.Temp.id != "" {
			require.NoError(t, gone.Close())
		}
	})
	n, err := tr.Peers()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	left, err := os.ReadDir(filepath.Join(root, versionDir, tmpDir))
	require.NoError(t, err)
	require.Len(t, left, 1, "this process's lock file")
}

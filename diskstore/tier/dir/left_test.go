package dir

import (
	"context"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestFilesThatCannotBeRemovedAreBounded: a share refuses removals, for a while. The files that
// stay behind are at most maxLeft, and none of them counts once it is removed.
func TestFilesThatCannotBeRemovedAreBounded(t *testing.T) {
	ctx := context.Background()
	inj := vfs.Inject(storetest.QuickFS)
	tr := New(inj, storetest.PrivateDir(t), Options{Shared: true})
	defer func() { require.NoError(t, tr.Close()) }()
	require.NoError(t, tr.Claim(ctx))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRemove, vfs.OpRename}, Path: regexp.MustCompile(`-\d+\.tmp$`), Err: syscall.EACCES})
	refused := 0
	for n := range maxLeft + 3 {
		up, err := tr.Create(ctx, pagefile.Name{Key: pagefile.Key{byte(n), byte(n >> 8)}})
		if err != nil {
			require.True(t, vfs.IsRefused(err), "%v", err)
			refused++
			continue
		}
		require.NoError(t, up.Write(ctx, []byte("page")))
		_, err = up.Commit(ctx, time.Now())
		require.Error(t, err)
	}
	require.Equal(t, 3, refused)
	require.EqualValues(t, maxLeft*pagefile.PageAlign, tr.Left())
	inj.Reset()
	up, err := tr.Create(ctx, pagefile.Name{Key: pagefile.Key{1}})
	require.NoError(t, err)
	up.Abort()
	require.Zero(t, tr.Left())
}

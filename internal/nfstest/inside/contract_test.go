package inside

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// fresh returns a new, empty directory on the mount.
func fresh(t *testing.T) string {
	mount := os.Getenv("KVTIER_NFS_DIR")
	if mount == "" {
		t.Skip("runs inside a virtual machine, by make test-nfs")
	}
	at, err := os.MkdirTemp(mount, "test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(at) })
	return at
}

// TestContract checks the contract of a tier that other machines use.
func TestContract(t *testing.T) {
	tiertest.Contract(t, func(t *testing.T) tier.Tier {
		return dir.New(nil, filepath.Join(fresh(t), "root"), dir.Options{Create: true, Shared: true})
	})
}

package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDescribeMachine(t *testing.T) {
	m := Describe(t.TempDir())
	require.Equal(t, "linux", m.OS)
	require.Positive(t, m.Cores)
	require.Greater(t, m.MemoryBytes, int64(64<<20))
	require.NotEmpty(t, m.Kernel)
	require.NotEmpty(t, m.Filesystem)
}

func TestProcField(t *testing.T) {
	text := "processor\t: 0\nmodel name\t: Example: 1\nmodel name\t: Example 2\n"
	require.Equal(t, "Example: 1", procField(text, "model name"))
	require.Empty(t, procField(text, "flags"))
}

func TestBusyBetween(t *testing.T) {
	before := "cpu  100 0 50 1000 10 0 0 0 0 0\ncpu0 1 2 3\n"
	require.InDelta(t, 0.25, busyBetween(before, "cpu  120 0 55 1070 15 0 0 0 0 0\n"), 1e-9)
	require.Zero(t, busyBetween(before, before))
	require.Zero(t, busyBetween("", ""))
}

func TestFilesystemOf(t *testing.T) {
	mounts := "overlay / overlay rw 0 0\n/dev/a /data ext4 rw 0 0\n/dev/b /data/pages xfs rw 0 0\n"
	for path, want := range map[string]string{"/": "overlay", "/database": "overlay", "/data": "ext4", "/data/pages/v1": "xfs"} {
		require.Equal(t, want, filesystemOf(mounts, path), path)
	}
}

package memory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAvailable(t *testing.T) {
	n, err := Available()
	require.NoError(t, err)
	require.Positive(t, n)
}

func TestMemAvailable(t *testing.T) {
	n, err := memAvailable("MemTotal:  100 kB\nMemAvailable:   42 kB\n")
	require.NoError(t, err)
	require.Equal(t, uint64(42*1024), n)
	_, err = memAvailable("MemTotal: 100 kB\n")
	require.Error(t, err)
	_, err = memAvailable("MemAvailable: much kB\n")
	require.Error(t, err)
}

func TestGroupDirs(t *testing.T) {
	require.Equal(t, []string{"/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/"}, groupDirs("0::/a/b\n"))
	require.Equal(t, []string{"/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/memory/"}, groupDirs("5:cpu,cpuacct:/y\n4:memory:/x\n"))
	require.Empty(t, groupDirs("nonsense"))
}

func TestGroupLeft(t *testing.T) {
	dir := t.TempDir()
	_, ok := groupLeft(dir)
	require.False(t, ok)

	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("memory.limit_in_bytes", "1000\n")
	write("memory.usage_in_bytes", "1200\n")
	left, ok := groupLeft(dir)
	require.True(t, ok)
	require.Zero(t, left, "over the limit nothing is left")

	write("memory.max", "5000\n")
	write("memory.current", "2000\n")
	left, ok = groupLeft(dir)
	require.True(t, ok)
	require.Equal(t, uint64(3000), left)

	write("memory.max", "max\n")
	require.NoError(t, os.Remove(filepath.Join(dir, "memory.limit_in_bytes")))
	_, ok = groupLeft(dir)
	require.False(t, ok, "no limit")
}

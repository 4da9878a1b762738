package tierenv

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllocation(t *testing.T) {
	require.Equal(t, []any{"local", "/a", "local_budget", "20 GB", "local_tokens", int64(20_000_000)},
		Config{Local: "/a", LocalBytes: 20e9}.Allocation(1000))
	require.Equal(t, []any{"local", "/a", "local_budget", "all but 5% of the disk"},
		Config{Local: "/a"}.Allocation(1000), "a part of the disk is no number of tokens")
	require.Equal(t, []any{"local", "/a", "local_budget", "2 GB", "ram_budget", "1 GB", "remote", "/b", "remote_budget", "500 MB"},
		Config{Local: "/a", LocalBytes: 2e9, RAMBytes: 1e9, Remote: "/b", RemoteBytes: 5e8}.Allocation(0), "the cache has no memory yet")
}

package paging

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/ggml-paged/pager"
	"github.com/kvtier/kvtier/pagedenv"
)

func clearEnvironment(t *testing.T) {
	for _, name := range []string{"OLLAMA_PAGED_ATTN", "OLLAMA_PAGED_CHUNK_SIZE", "OLLAMA_PAGED_HOST_GB", "OLLAMA_PAGED_SPILL_DIR", "OLLAMA_PAGED_SPILL_GB", "OLLAMA_PAGED_SELECT"} {
		t.Setenv(name, "")
	}
}

func TestSettingsAreRefusedByName(t *testing.T) {
	for name, values := range map[string][]string{
		"OLLAMA_PAGED_ATTN":       {"maybe"},
		"OLLAMA_PAGED_CHUNK_SIZE": {"2047", "0", "-16", "8", "131072", "2k", "1e3"},
		"OLLAMA_PAGED_HOST_GB":    {"0", "-1", "NaN", "8GB", "1e30", "1e-10"},
		"OLLAMA_PAGED_SPILL_GB":   {"0", "-0.5", "all", "1e-10"},
		"OLLAMA_PAGED_SPILL_DIR":  {"spill", "./x"},
		"OLLAMA_PAGED_SELECT":     {"-1", "2k", "1e3", "127", "9999999999"},
	} {
		for _, value := range values {
			clearEnvironment(t)
			t.Setenv(name, value)
			_, err := FromEnvironment()
			require.ErrorContains(t, err, name, "%s=%s", name, value)
		}
	}
}

func TestSettings(t *testing.T) {
	clearEnvironment(t)
	require.False(t, Enabled())
	t.Setenv("HOME", "/home/somebody")
	c, err := FromEnvironment()
	require.NoError(t, err)
	require.Equal(t, 2048, c.PageCells)
	require.Equal(t, "/home/somebody/.ollama/kv-spill", c.SpillDir)
	require.Positive(t, c.HostBytes)
	require.LessOrEqual(t, c.HostBytes, uint64(8e9))

	t.Setenv("OLLAMA_PAGED_ATTN", `"1"`)
	t.Setenv("OLLAMA_PAGED_CHUNK_SIZE", "'256'")
	t.Setenv("OLLAMA_PAGED_HOST_GB", "0.5")
	t.Setenv("OLLAMA_PAGED_SPILL_DIR", "/var/spill")
	t.Setenv("OLLAMA_PAGED_SPILL_GB", "100")
	require.True(t, Enabled())
	c, err = FromEnvironment()
	require.NoError(t, err)
	require.Equal(t, Config{PageCells: 256, HostBytes: 5e8, SpillDir: "/var/spill", SpillBytes: 1e11}, c)
}

// Pages are small where they are chosen, and those that were computed with choices are others'.
func TestSelect(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("HOME", "/home/somebody")
	for _, test := range []struct {
		tokens, chunk string
		want          Config
		numerics      string
	}{
		{"", "", Config{PageCells: 2048}, "paged"},
		{"0", "", Config{PageCells: 2048}, "paged"},
		{"128", "", Config{PageCells: 32, Select: pagedenv.Choice{Cells: 128}}, "paged select=128 pages=32"},
		{"40ms", "", Config{PageCells: 32, Select: pagedenv.Choice{Time: 40 * time.Millisecond}}, "paged select=40ms pages=32"},
		{"2048", "256", Config{PageCells: 256, Select: pagedenv.Choice{Cells: 2048}}, "paged select=2048 pages=256"},
	} {
		t.Setenv("OLLAMA_PAGED_SELECT", test.tokens)
		t.Setenv("OLLAMA_PAGED_CHUNK_SIZE", test.chunk)
		c, err := FromEnvironment()
		require.NoError(t, err)
		require.Equal(t, test.want, Config{PageCells: c.PageCells, Select: c.Select})
		require.Equal(t, test.numerics, Numerics())
	}
	t.Setenv("KVP_MMA", "1")
	require.Equal(t, "paged mma select=2048 pages=256", Numerics())
	t.Setenv("OLLAMA_PAGED_CHUNK_SIZE", "1024")
	_, err := FromEnvironment()
	require.ErrorContains(t, err, "OLLAMA_PAGED_SELECT=2048 is less than 4096, four pages of 1024 tokens")
}

func TestSizesOfAFewBytes(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("HOME", "/home/somebody")
	for value, bytes := range map[string]uint64{"1e-9": 1, "2.5e-9": 2} {
		t.Setenv("OLLAMA_PAGED_HOST_GB", value)
		t.Setenv("OLLAMA_PAGED_SPILL_GB", value)
		c, err := FromEnvironment()
		require.NoError(t, err, value)
		require.Equal(t, bytes, c.SpillBytes, value)
		require.Equal(t, bytes, c.HostBytes, value)
	}
}

// Errors about a lack of room name the variables that give more room.
func TestLackOfRoomNamesTheVariables(t *testing.T) {
	layer := pager.Layer{Cells: 1024, KVHeads: 1, KeyDim: 16, ValueDim: 16, KeyType: pager.F16, ValueType: pager.F16}
	open := func(host uint64) *pager.Pager {
		p, err := Open(Config{PageCells: 16, HostBytes: host, SpillDir: t.TempDir(), SpillBytes: 1}, nil, nil)
		switch {
		case errors.Is(err, pager.ErrUnsupported):
			t.Skip("built without cgo")
		case errors.Is(err, syscall.EOPNOTSUPP):
			t.Skip("the directory for temporary files is in memory; set TMPDIR")
		}
		require.NoError(t, err)
		t.Cleanup(p.Close)
		_, err = p.AddLayer(layer)
		require.NoError(t, err)
		return p
	}
	small := open(1)
	require.ErrorContains(t, small.Start(), "OLLAMA_PAGED_HOST_GB")

	p := open(1 << 16)
	require.NoError(t, p.Start())
	err := p.Reserve(0, 64)
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "OLLAMA_PAGED_SPILL_GB")
	require.ErrorContains(t, err, "OLLAMA_PAGED_HOST_GB")
}

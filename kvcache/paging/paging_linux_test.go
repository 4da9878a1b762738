package paging

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func clearEnvironment(t *testing.T) {
	for _, name := range []string{"OLLAMA_PAGED_ATTN", "OLLAMA_PAGED_CHUNK_SIZE", "OLLAMA_PAGED_HOST_GB", "OLLAMA_PAGED_SPILL_DIR", "OLLAMA_PAGED_SPILL_GB"} {
		t.Setenv(name, "")
	}
}

func TestSettingsAreRefusedByName(t *testing.T) {
	for name, values := range map[string][]string{
		"OLLAMA_PAGED_ATTN":       {"maybe"},
		"OLLAMA_PAGED_CHUNK_SIZE": {"2047", "0", "-16", "8", "131072", "2k", "1e3"},
		"OLLAMA_PAGED_HOST_GB":    {"0", "-1", "NaN", "8GB", "1e30"},
		"OLLAMA_PAGED_SPILL_GB":   {"0", "-0.5", "all"},
		"OLLAMA_PAGED_SPILL_DIR":  {"spill", "./x"},
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

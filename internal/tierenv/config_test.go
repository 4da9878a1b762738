package tierenv

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

func TestEnabled(t *testing.T) {
	for value, want := range map[string]bool{"": false, "0": false, "false": false, "1": true, `"1"`: true, " true ": true, "perhaps": true} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": value})
		require.Equal(t, want, Enabled(), "%q", value)
	}
}

func TestConfigDefaults(t *testing.T) {
	home := t.TempDir()
	if unsuited(home) != nil {
		t.Skip("no default directory for pages on this system")
	}
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "HOME": home, "USERPROFILE": home})
	log, _ := tierenvtest.Logger()
	c, err := FromEnvironment(log)
	require.NoError(t, err)
	if holdsPages(FormerRoot) {
		require.Contains(t, []string{FormerRoot, filepath.Join(home, ".ollama", "kv-cache")}, c.Local)
	} else {
		require.Equal(t, filepath.Join(home, ".ollama", "kv-cache"), c.Local)
	}
	require.Positive(t, c.ReadAheadBytes)
	require.LessOrEqual(t, c.ReadAheadBytes, int64(DefaultReadAheadBytes))
	c.Local, c.ReadAheadBytes = "", 0
	require.Equal(t, Config{LocalBytes: 20e9, PageTokens: 256}, c)
}

func TestConfigReadsEverything(t *testing.T) {
	tierenvtest.Set(t, map[string]string{
		"OLLAMA_KV_TIERING":               "1",
		"OLLAMA_KV_TIER_LOCAL":            `"/fast/pages"`,
		"OLLAMA_KV_TIER_LOCAL_GB":         "0.5",
		"OLLAMA_KV_TIER_REMOTE":           " '/nfs/pages' ",
		"OLLAMA_KV_TIER_REMOTE_GB":        "5000",
		"OLLAMA_KV_TIER_WARM_GB":          "0.25",
		"OLLAMA_KV_TIER_WRITE_GB_PER_DAY": "12.5",
		"OLLAMA_KV_TIER_COMPRESS":         "true",
		"OLLAMA_KV_TIER_NAMESPACE":        "team",
		"OLLAMA_KV_TIER_PAGE_TOKENS":      "128",
		"OLLAMA_KV_TIER_REUSE":            "shifted",
		"OLLAMA_KV_TIER_COLD_TYPE":        "q8_0,int4",
		"OLLAMA_KV_TIER_TEST":             "1",
	})
	log, _ := tierenvtest.Logger()
	c, err := FromEnvironment(log)
	require.NoError(t, err)
	require.Equal(t, Config{
		Local: "/fast/pages", LocalBytes: 5e8, Remote: "/nfs/pages", RemoteBytes: 5e12, ReadAheadBytes: 25e7, WriteBytesPerDay: 125e8,
		Compress: true, Namespace: "team", PageTokens: 128, Shifted: true, Test: true,
		Cold: diskstore.ColdTypes{K: encoding.Q8_0, V: encoding.Int4},
	}, c)
}

// A value that cannot be read keeps tiering off where its default could delete or expose
// pages; otherwise the default replaces it with a warning.
func TestConfigBadValues(t *testing.T) {
	for name, off := range map[string]map[string]string{
		"OLLAMA_KV_TIERING":               {"perhaps": "neither"},
		"OLLAMA_KV_TIER_LOCAL_GB":         {"lots": "gigabytes", "-1": "gigabytes", "NaN": "gigabytes", "1e300": "gigabytes"},
		"OLLAMA_KV_TIER_REMOTE_GB":        {"20GB": "gigabytes"},
		"OLLAMA_KV_TIER_WRITE_GB_PER_DAY": {"none": "gigabytes", "-5": "gigabytes"},
		"OLLAMA_KV_TIER_LOCAL":            {"pages": "absolute"},
		"OLLAMA_KV_TIER_REMOTE":           {"nfs/pages": "absolute"},
	} {
		for value, says := range off {
			tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIER_LOCAL": t.TempDir(), name: value})
			log, _ := tierenvtest.Logger()
			_, err := FromEnvironment(log)
			require.ErrorContains(t, err, says, "%s=%s", name, value)
			require.ErrorContains(t, err, value)
		}
	}
	for name, value := range map[string]string{"OLLAMA_KV_TIER_COMPRESS": "zstd", "OLLAMA_KV_TIER_WARM_GB": "some", "OLLAMA_KV_TIER_PAGE_TOKENS": "1", "OLLAMA_KV_TIER_REUSE": "Shifted!", "OLLAMA_KV_TIER_COLD_TYPE": "q5_0"} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIER_LOCAL": t.TempDir(), name: value})
		log, lines := tierenvtest.Logger()
		c, err := FromEnvironment(log)
		require.NoError(t, err)
		require.False(t, c.Compress)
		require.False(t, c.Shifted)
		require.Zero(t, c.Cold)
		require.Equal(t, 256, c.PageTokens)
		require.Positive(t, c.ReadAheadBytes)
		require.Contains(t, lines.String(), name)
	}
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIER_LOCAL": t.TempDir(), "OLLAMA_KV_TIER_COMPRESS": "auto"})
	log, lines := tierenvtest.Logger()
	_, err := FromEnvironment(log)
	require.NoError(t, err)
	require.Contains(t, lines.String(), `value=auto default=false allowed="0 or 1"`)
}

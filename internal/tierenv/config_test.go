package tierenv

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

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
		"OLLAMA_KV_TIER_KEY_FILE":         {"team.key": "absolute"},
		"OLLAMA_KV_TIER_SPLIT":            {"50,50": "cannot be used: it is not three percentages, such as 25,25,50"},
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

// TestAddressesOfNoEngine: a mistyped address keeps tiering off, and its password to itself.
func TestAddressesOfNoEngine(t *testing.T) {
	for _, scheme := range []string{"valkeyx", "VALKEY", "redis+tls", "http"} {
		tierenvtest.Set(t, map[string]string{LocalVariable: t.TempDir(), RemoteVariable: scheme + "://ann:secret@10.0.0.5:6379/1?prefix=secret"})
		log, _ := tierenvtest.Logger()
		_, err := FromEnvironment(log)
		require.ErrorContains(t, err, "is the address of no engine, which begins with s3://, valkey:// or valkeys://")
		require.ErrorContains(t, err, "10.0.0.5:6379/1")
		require.NotContains(t, err.Error(), "secret")
	}
}

// Pages become lossy in a model that can have such pages, if they move down at all. Where they do
// not, one line says why.
func TestColdFor(t *testing.T) {
	asked := diskstore.ColdTypes{K: encoding.Q8_0, V: encoding.Q4_0}
	for name, test := range map[string]struct {
		config   Config
		unsuited string
		says     string // "" if pages become lossy
	}{
		"asked":     {Config{Cold: asked, Remote: "/nfs"}, "", ""},
		"no remote": {Config{Cold: asked}, "", "OLLAMA_KV_TIER_REMOTE"},
		"unsuited":  {Config{Cold: asked}, "its cache is q8_0", "its cache is q8_0"},
	} {
		t.Run(name, func(t *testing.T) {
			log, lines := tierenvtest.Logger()
			if cold := test.config.ColdFor(test.unsuited, log); test.says == "" {
				require.Equal(t, asked, cold)
				require.Empty(t, lines.String())
			} else {
				require.Zero(t, cold)
				require.Contains(t, lines.String(), test.says)
			}
		})
	}
	log, lines := tierenvtest.Logger()
	require.Zero(t, Config{Remote: "/nfs"}.ColdFor("its cache is q8_0", log))
	require.Empty(t, lines.String(), "nobody asked for it")
}

func TestColdText(t *testing.T) {
	for _, text := range []string{"q8_0", "q4_0", "int4", "q8_0,q4_0", "int4,q8_0"} {
		k, v, err := encoding.ParseCold(text)
		require.NoError(t, err)
		require.Equal(t, text, ColdText(diskstore.ColdTypes{K: k, V: v}))
	}
	require.Empty(t, ColdText(diskstore.ColdTypes{}))
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// An id is one element of a path, or tiering stays off.
func TestInstanceHasItsOwnDirectory(t *testing.T) {
	root := t.TempDir()
	for _, id := range []string{"gpu0", "0", "a.b-c_D", strings.Repeat("x", 64)} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": root, "OLLAMA_KV_TIER_REMOTE": "/nfs", "OLLAMA_KV_INSTANCE_ID": id})
		c, err := FromEnvironment(discard())
		require.NoError(t, err)
		require.Equal(t, filepath.Join(root, "instances", id), c.Local)
		require.Equal(t, "/nfs", c.Remote, "servers share it")
	}
	for _, id := range []string{".", "..", "../gpu0", "a/b", `a\b`, ".hidden", "-x", "a b", "ä", "a\nb", strings.Repeat("x", 65)} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": t.TempDir(), "OLLAMA_KV_INSTANCE_ID": id})
		_, err := FromEnvironment(discard())
		require.ErrorContains(t, err, "OLLAMA_KV_INSTANCE_ID", "%q", id)
	}
}

// Nothing is logged about a directory that is not used.
func TestDefaultDirectoryOfAServerThatKeepsNoPages(t *testing.T) {
	home := t.TempDir()
	for variable, value := range map[string]string{
		"OLLAMA_KV_TIERING":       "perhaps",
		"OLLAMA_KV_TIER_LOCAL_GB": "lots",
		"OLLAMA_KV_INSTANCE_ID":   "../gpu0",
	} {
		t.Run(variable, func(t *testing.T) {
			tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "HOME": home, "USERPROFILE": home, LocalVariable: ""})
			t.Setenv(variable, value)
			if _, err := localRoot(); err != nil {
				t.Skip("no default directory for pages on this system")
			}
			log, lines := tierenvtest.Logger()
			_, err := Settle(log, log)
			require.Error(t, err)
			require.Empty(t, lines.String())
			require.Empty(t, os.Getenv(LocalVariable))
		})
	}
}

// A default is chosen once: another process may store the first page of a root before a
// second look, which would choose that root.
func TestDefaultDirectoryIsChosenOnce(t *testing.T) {
	for _, id := range []string{"", "gpu0"} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_INSTANCE_ID": id, LocalVariable: ""})
		own := filepath.Join(t.TempDir(), "own")
		choices := []root{{own, "Ollama's own folder"}, {filepath.Join(t.TempDir(), "former"), "it holds pages"}}
		choose := func() (root, error) {
			first := choices[0]
			choices = choices[1:]
			return first, nil
		}
		log, lines := tierenvtest.Logger()
		c, err := settle(log, log, choose)
		require.NoError(t, err)
		require.Len(t, choices, 1, "number of choices left")
		require.Equal(t, own, os.Getenv(LocalVariable))
		require.Contains(t, lines.String(), "local="+own)
		after, err := Settle(log, log)
		require.NoError(t, err)
		require.Equal(t, c.Local, after.Local, "a runner uses the server's directory")
		require.Equal(t, 1, bytes.Count(lines.Bytes(), []byte("\n")), "one line is logged")
	}
}

// TestPagesAreCompressedOnTheWayToAnEngine unless the variable is set.
func TestPagesAreCompressedOnTheWayToAnEngine(t *testing.T) {
	for _, test := range []struct {
		remote, compress string
		want             bool
	}{
		{"valkey://127.0.0.1:6379", "", true},
		{"valkey://127.0.0.1:6379", "0", false},
		{"valkey://127.0.0.1:6379", "1", false},
		{t.TempDir(), "", false},
	} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIER_LOCAL": t.TempDir(), "OLLAMA_KV_TIER_REMOTE": test.remote, "OLLAMA_KV_TIER_COMPRESS": test.compress})
		log, _ := tierenvtest.Logger()
		c, err := FromEnvironment(log)
		require.NoError(t, err)
		require.Equal(t, test.want, c.StoreOptions().CompressRemote, test)
	}
}

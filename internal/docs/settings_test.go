package docs

import (
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/kvcache/paging"
)

// forTests is a variable that the table leaves out.
const forTests = "OLLAMA_KV_TIER_TEST"

func TestVariables(t *testing.T) {
	code := matches(`\b(OLLAMA_KV_TIER[A-Z_]*|OLLAMA_KV_INSTANCE_ID|OLLAMA_PAGED_[A-Z_]+|OLLAMA_NUM_CTX)\b`, shipped(t))
	require.Contains(t, code, forTests)
	require.Equal(t, code, matches("(?m)^### `(OLLAMA_[A-Z_]+)`", read(t, configuration)), "code, "+configuration)
	table := matches("(?m)^\\| `(OLLAMA_[A-Z_]+)`", section(t, read(t, configuration), "## All variables"))
	require.ElementsMatch(t, code, append(table, forTests), "code, table of "+configuration)
}

// TestDefaults compares the table with the settings of an empty environment.
func TestDefaults(t *testing.T) {
	said := make(map[string]string)
	for _, row := range strings.Split(section(t, read(t, configuration), "## All variables"), "\n") {
		if cells := strings.Split(row, " | "); len(cells) == 3 {
			said[strings.Trim(cells[0], "| `")] = strings.Trim(cells[1], "`")
		}
	}
	for name := range said {
		if strings.HasPrefix(name, "OLLAMA_") {
			t.Setenv(name, "")
			require.NoError(t, os.Unsetenv(name))
		}
	}
	t.Setenv(tierenv.LocalVariable, t.TempDir()) // the default depends on the machine

	require.False(t, tierenv.Enabled())
	config, err := tierenv.FromEnvironment(slog.New(slog.NewTextHandler(io.Discard, nil)))
	require.NoError(t, err)
	const gb = 1e9
	require.Equal(t, "0", said["OLLAMA_KV_TIERING"])
	require.Contains(t, said["OLLAMA_KV_TIER_LOCAL"], "~/"+tierenv.DefaultRoot)
	require.Contains(t, section(t, read(t, configuration), "### `OLLAMA_KV_TIER_LOCAL`"), tierenv.FormerRoot)
	require.Equal(t, strconv.Itoa(int(config.LocalBytes/gb)), said["OLLAMA_KV_TIER_LOCAL_GB"])
	require.Equal(t, strconv.Itoa(int(config.RemoteBytes/gb)), said["OLLAMA_KV_TIER_REMOTE_GB"])
	require.Equal(t, strconv.Itoa(int(config.RAMBytes/gb)), said["OLLAMA_KV_TIER_RAM_GB"])
	require.Equal(t, "at most `"+strconv.Itoa(tierenv.DefaultReadAheadBytes/gb), said["OLLAMA_KV_TIER_WARM_GB"])
	require.Equal(t, strconv.Itoa(config.PageTokens), said["OLLAMA_KV_TIER_PAGE_TOKENS"])
	require.Empty(t, config.Remote)
	require.Equal(t, "none", said["OLLAMA_KV_TIER_REMOTE"])
	require.Empty(t, config.Namespace)
	require.Equal(t, "empty", said["OLLAMA_KV_TIER_NAMESPACE"])
	require.Empty(t, config.Instance)
	require.Equal(t, "none", said["OLLAMA_KV_INSTANCE_ID"])
	require.False(t, config.Compress)
	require.Equal(t, "0", said["OLLAMA_KV_TIER_COMPRESS"])
	require.False(t, config.Test)

	require.False(t, paging.Enabled())
	require.Equal(t, "0", said["OLLAMA_PAGED_ATTN"])
	require.Equal(t, strconv.Itoa(paging.DefaultPageCells), said["OLLAMA_PAGED_CHUNK_SIZE"])
	require.Contains(t, said["OLLAMA_PAGED_HOST_GB"], strconv.Itoa(paging.DefaultHostBytes/gb)+",")
}

func TestRequestOption(t *testing.T) {
	option := matches(`json:"(kv_[a-z_]+),omitempty"`, shipped(t))
	require.Equal(t, option, matches("(?m)^### `(kv_[a-z_]+)`", read(t, configuration)))
	for _, name := range option {
		require.Contains(t, read(t, readme), name)
	}
}

func TestArchitectures(t *testing.T) {
	_, list, found := strings.Cut(read(t, "kvcache/tiering/architectures.go"), "var architectures = ")
	require.True(t, found)
	list, _, _ = strings.Cut(list, "\n}")
	supported := section(t, read(t, models), "## Supported models")
	require.Equal(t, matches(`"([a-z0-9_]+)":`, list), matches("(?m)^\\| `([a-z0-9_]+)`", supported))
	require.Equal(t, matches(`"([a-z0-9_]+)":.*shifts: true`, list), matches("(?m)^\\| `([a-z0-9_]+)`.* near \\|$", supported))
}

func TestVersions(t *testing.T) {
	text := section(t, read(t, models), "## Supported versions")
	require.Contains(t, text, "| "+ollamasrc.DefaultVersion+" | built and tested by CI |")
	require.Contains(t, text, ollamasrc.OldestVersion+" … "+ollamasrc.NewestVersion)
	for _, version := range ollamasrc.ModuleVersions() {
		require.Contains(t, text, version)
	}
	require.Contains(t, read(t, installation), "git clone --branch "+ollamasrc.DefaultVersion+" ")
	require.Contains(t, read(t, "Makefile"), "NEWEST := "+ollamasrc.NewestVersion+"\n")
}

// TestLogLines: the document has exactly the lines that can be logged. A message may go on
// after ; : or , there.
func TestLogLines(t *testing.T) {
	logged := matches(`\.(?:Debug|Info|Warn|Error)\("(kv [^"]*)"`, shipped(t))
	documented := matches("(?m)^\\| `(kv [^`]*)`", section(t, read(t, configuration), "## Log lines"))
	used := make(map[string]bool)
	for _, message := range logged {
		found := false
		for _, line := range documented {
			rest, ok := strings.CutPrefix(strings.TrimSpace(message), line)
			if ok && (rest == "" || strings.ContainsAny(rest[:1], ";:,")) {
				found, used[line] = true, true
			}
		}
		if !found {
			t.Errorf("%s does not say what this log line means: %q", configuration, message)
		}
	}
	for _, line := range documented {
		if !used[line] {
			t.Errorf("%s explains a line that nothing logs: %q", configuration, line)
		}
	}
}

package docs

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/kvcache/paging"
	"github.com/kvtier/kvtier/llamatier/launch"
	"github.com/kvtier/kvtier/pagedenv"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
)

// forTests is a variable that the table leaves out.
const forTests = "OLLAMA_KV_TIER_TEST"

// variables are the names of Ollama's style that are ours.
const variables = `\b(OLLAMA_KV_TIER[A-Z_]*|OLLAMA_KV_INSTANCE_ID|OLLAMA_KV_METRICS_ADDR|OLLAMA_METRICS|OLLAMA_PAGED_[A-Z_]+|OLLAMA_KVCACHED[A-Z_]*|OLLAMA_NUM_CTX)\b`

// TestVariables: the table has every variable, and a section explains none that is unknown.
func TestVariables(t *testing.T) {
	code := matches(variables, shipped(t))
	require.Contains(t, code, forTests)
	require.Subset(t, code, matches("(?m)^### `(OLLAMA_[A-Z_]+)`", read(t, configuration)), "code, sections of "+configuration)
	table := matches("(?m)^\\| `(OLLAMA_[A-Z_]+)`", section(t, read(t, configuration), "## All variables"))
	require.ElementsMatch(t, code, append(table, forTests), "code, table of "+configuration)
}

// Values of the table's last column.
const (
	inBoth    = "both"
	inPatched = "patched"
	inLlama   = "llama-server"
)

// TestProgramsOfVariables: the table says which program a variable counts in. Both read the
// package tierenv; the daemon before llama-server has no use for two of its settings.
func TestProgramsOfVariables(t *testing.T) {
	want := make(map[string]string)
	for _, name := range matches(variables, shipped(t)) {
		want[name] = inPatched
	}
	for _, name := range matches(variables, code(t, "internal/tierenv/", "telemetry/listen/")) {
		want[name] = inBoth
	}
	daemon := code(t, "llamatier/")
	require.Contains(t, code(t, "kvcache/"), "config.Shifted")
	require.NotContains(t, daemon, "config.Shifted")
	want["OLLAMA_KV_TIER_REUSE"] = inPatched
	require.Contains(t, daemon, "tierenv.TenantsFromEnvironment")
	require.NotContains(t, code(t, "kvcache/"), "Tenants")
	want[tierenv.TenantsVariable] = inLlama
	for _, name := range matches(`"(KVTIER_LLAMA_[A-Z]+)"`, daemon) {
		want[name] = inLlama
	}
	for _, own := range []string{forTests, "KVTIER_LLAMA_FILES", "KVTIER_LLAMA_ROLE"} { // of tests, and between processes
		require.Contains(t, want, own)
		delete(want, own)
	}
	require.Equal(t, want, column(t, 3))
}

// column returns a column of the table of all variables, by their names.
func column(t *testing.T, n int) map[string]string {
	cells := make(map[string]string)
	for _, line := range strings.Split(section(t, read(t, configuration), "## All variables"), "\n") {
		if strings.HasPrefix(line, "| `") {
			row := strings.Split(strings.Trim(line, "| "), " | ")
			cells[strings.Trim(row[0], "`")] = strings.Trim(row[n], "`")
		}
	}
	return cells
}

// TestDefaults compares the table with the settings of an empty environment.
func TestDefaults(t *testing.T) {
	said := column(t, 1)
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
	require.Equal(t, strconv.Itoa(pagedenv.DefaultPageCells), said["OLLAMA_PAGED_CHUNK_SIZE"])
	require.Contains(t, said["OLLAMA_PAGED_HOST_GB"], strconv.Itoa(pagedenv.DefaultHostBytes/gb)+",")
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

// Levels of log lines. The document may leave lines of debug level out: they are for reports to us.
const (
	anyLevel   = "Debug|Info|Warn|Error"
	aboveDebug = "Info|Warn|Error"
)

// TestLogLines: the document has every line above debug level that each program can log, and no
// other.
func TestLogLines(t *testing.T) {
	store := code(t, "diskstore/", "internal/tierenv/", "telemetry/listen/", "telemetry/collect/", "telemetry/unstored/", "engine/")
	patched := code(t, "kvcache/") + patched(t)
	daemon := code(t, "llamatier/")
	both := explained(t, "### Of both programs")
	ofPatched, ofDaemon := explained(t, "### Of the patched releases"), explained(t, "### Under llama-server")

	requireExplained := func(messages, lines []string) {
		require.NotEmpty(t, messages)
		for _, message := range messages {
			explains := func(line string) bool { return isLine(message, line) }
			require.True(t, slices.ContainsFunc(lines, explains), "%s does not say what a log line means: %q", configuration, message)
		}
	}
	requireLogged := func(lines, messages []string) {
		for _, line := range lines {
			says := func(message string) bool { return isLine(message, line) }
			require.True(t, slices.ContainsFunc(messages, says), "%s explains a line that no such program logs: %q", configuration, line)
		}
	}
	requireExplained(logged(store+patched, aboveDebug), append(ofPatched, both...))
	requireExplained(logged(store+daemon, aboveDebug), append(ofDaemon, both...))
	requireLogged(both, logged(store+patched+daemon, anyLevel))
	requireLogged(ofPatched, logged(patched, anyLevel))
	requireLogged(ofDaemon, logged(daemon, anyLevel))
}

// logged returns the messages that code logs at some levels, by a logger or as text.
func logged(code, levels string) []string {
	return append(matches(`(?i)\b(?:s?log|Default\(\))\.(?:`+levels+`)\("([^"]*)"`, code), matches(`msg=\\"([^"\\]*)\\"`, code)...)
}

// explained returns the log lines in a section of the configuration.
func explained(t *testing.T, heading string) []string {
	return matches("(?m)^\\| `([^`]*)`", section(t, read(t, configuration), heading))
}

// isLine reports whether a message is the one of a line in the document, which may leave out all
// that follows after ; : or , there.
func isLine(message, line string) bool {
	rest, ok := strings.CutPrefix(strings.TrimSpace(message), line)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], ";:,"))
}

// Documents with tables that the code makes.
const (
	metrics    = "docs/metrics.md"
	underLlama = "docs/llama-server.md"
)

func metricRows(list []telemetry.Metric) string {
	var b strings.Builder
	b.WriteString("| metric | kind | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range list {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, labels, m.Help)
	}
	return b.String()
}

// optionRows are the options of llama-server that change no row, or only with a GPU. Names with
// the same first word or two are one, if all of them are in one group.
func optionRows() string {
	members, groups := make(map[string]int), make(map[string]int)
	for _, g := range launch.Groups {
		here := make(map[string]bool)
		for _, o := range g.Options {
			for _, name := range families(o) {
				members[name]++
				here[name] = true
			}
		}
		for name := range here {
			groups[name]++
		}
	}
	var b strings.Builder
	b.WriteString("| why not | options |\n|---|---|\n")
	for _, g := range launch.Groups {
		if g.Rows == launch.Always {
			continue
		}
		var names []string
		for _, o := range g.Options {
			name := longName(o)
			for _, all := range families(o) {
				if members[all] > 1 && groups[all] == 1 {
					name = all
					break
				}
			}
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Fprintf(&b, "| %s | `%s` |\n", g.Why, strings.Join(slices.Compact(names), "` `"))
	}
	return b.String()
}

// longName is an option's first long flag, or its variable if it has no flag.
func longName(o launch.Option) string {
	for _, flag := range o.Flags {
		if strings.HasPrefix(flag, "--") {
			return flag
		}
	}
	return o.Env
}

// families stand for all names with an option's first word, and for all with its first two.
func families(o launch.Option) (names []string) {
	name, long := strings.CutPrefix(longName(o), "--")
	words := strings.Split(name, "-")
	for n := 1; long && n < min(3, len(words)); n++ {
		names = append(names, "--"+strings.Join(words[:n], "-")+"-…")
	}
	return names
}

// TestTables: the documents have every metric and every option of llama-server as the code has it.
// KVTIER_UPDATE=1 writes the tables, each between marks with its name.
func TestTables(t *testing.T) {
	for _, table := range []struct{ path, name, want string }{
		{metrics, "metrics", metricRows(telemetry.Metrics)},
		{metrics, "extra", metricRows(expose.Extra)},
		{underLlama, "options", optionRows()},
	} {
		text := read(t, table.path)
		begin, end := "<!-- "+table.name+" -->\n", "<!-- /"+table.name+" -->"
		before, rest, found := strings.Cut(text, begin)
		require.True(t, found, begin)
		got, after, found := strings.Cut(rest, end)
		require.True(t, found, end)
		if os.Getenv("KVTIER_UPDATE") != "" {
			require.NoError(t, os.WriteFile(filepath.Join(root, table.path), []byte(before+begin+table.want+end+after), 0o644))
			got = table.want
		}
		require.Equal(t, table.want, got)
	}
}

// TestMetricsOfLlamaServer: the document names every metric that the daemon before a
// llama-server does not have.
func TestMetricsOfLlamaServer(t *testing.T) {
	sources := code(t, "engine/", "llamatier/", "internal/tierenv/", "telemetry/unstored/") +
		read(t, "telemetry/meter.go") + read(t, "telemetry/expose/gather.go")
	absent, _, found := strings.Cut(section(t, read(t, metrics), "## Under llama-server"), "`ollama_kv_prefetched_")
	require.True(t, found)
	named := matches("`(ollama_kv_[a-z_]+…?)`", absent)
	for _, m := range telemetry.Metrics {
		isNamed := slices.ContainsFunc(named, func(name string) bool {
			prefix, open := strings.CutSuffix(name, "…")
			return name == m.Name || open && strings.HasPrefix(m.Name, prefix)
		})
		switch m.Name {
		case "ollama_kv_page_moves_total": // some of its series
		case "ollama_kv_gate_pages_total", "ollama_kv_prompt_tokens_total": // named as those to look at instead
		default:
			require.Equal(t, !strings.Contains(sources, m.Name), isNamed, m.Name)
		}
	}
}

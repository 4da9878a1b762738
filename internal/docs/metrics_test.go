package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
)

const metrics = "docs/metrics.md"

// tables are the tables of metrics in the document, by the mark around each.
func tables() map[string]string {
	return map[string]string{"metrics": metricRows(telemetry.Metrics), "extra": metricRows(expose.Extra)}
}

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

// TestMetrics: the document has every metric as the code has it. KVTIER_UPDATE=1 writes the
// tables.
func TestMetrics(t *testing.T) {
	text := read(t, metrics)
	for name, want := range tables() {
		begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
		before, rest, found := strings.Cut(text, begin)
		require.True(t, found, begin)
		got, after, found := strings.Cut(rest, end)
		require.True(t, found, end)
		if os.Getenv("KVTIER_UPDATE") != "" {
			text = before + begin + want + end + after
			got = want
		}
		require.Equal(t, want, got)
	}
	if os.Getenv("KVTIER_UPDATE") != "" {
		require.NoError(t, os.WriteFile(filepath.Join(root, metrics), []byte(text), 0o644))
	}
}

// TestMetricsOfLlamaServer: the document names every metric that the daemon before a
// llama-server does not have.
func TestMetricsOfLlamaServer(t *testing.T) {
	sources := code(t, "engine/", "llamatier/", "cmd/kvtier-llama-server/", "internal/tierenv/", "telemetry/unstored/") +
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

package promtest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
	"github.com/kvtier/kvtier/telemetry/listen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for a Prometheus that scrapes twice a second.
const patience = 2 * time.Minute

func TestPromtoolChecksMetrics(t *testing.T) {
	golden, err := os.ReadFile(root + "/telemetry/expose/testdata/metrics.txt")
	require.NoError(t, err)
	promtool(t, string(golden), "check", "metrics")

	w := newWorkload()
	state, err := w.read(t.Context())
	require.NoError(t, err)
	text := string(expose.Options{Version: "1", Disks: w.disks()}.Text(state))
	promtool(t, text, "check", "metrics")
	for _, m := range append(append([]telemetry.Metric{}, telemetry.Metrics...), expose.Extra...) {
		require.Contains(t, text, "\n# TYPE "+m.Name+" "+string(m.Kind)+"\n", "the workload lacks %s", m.Name)
	}
}

func TestPromtoolChecksRules(t *testing.T) {
	promtool(t, "", "check", "rules", alertsFile)
	promtool(t, "", "test", "rules", "testdata/alerts_test.yml")
}

// silent are the alerts that no workload of some seconds provokes: they compare with yesterday.
var silent = []string{"KvtierReuseCollapse"}

// TestPrometheus scrapes the metrics of a listener and the metrics of kvtier stat, and runs every query of
// the dashboard and every rule.
func TestPrometheus(t *testing.T) {
	w := newWorkload()
	textfile := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", expose.ContentType)
		_, _ = rw.Write(expose.Options{Disks: w.disks()}.Text(telemetry.State{}))
	}))
	t.Cleanup(textfile.Close)
	metrics := httptest.NewServer(listen.Metrics("1", w.read))
	t.Cleanup(metrics.Close)
	p := startPrometheus(t, map[string]string{"kvtier": metrics.Listener.Addr().String(), "node": textfile.Listener.Addr().String()})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	p.await(ctx, t, w, `sum_over_time(up{job="kvtier"}[30s]) >= 3`)
	p.await(ctx, t, w, "count(up == 1) == 2") // it takes every line of both
	p.requireMetrics(ctx, t, w)

	d := readDashboard(t)
	for _, q := range d.targets() {
		found := p.await(ctx, t, w, variables.Replace(q.Expr))
		for _, s := range found {
			require.NotContains(t, []string{"+Inf", "-Inf"}, s.number(), "%s: %s", q.Panel, q.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if m := labelValues.FindStringSubmatch(v.Query); m != nil {
			found := p.await(ctx, t, w, variables.Replace(m[1]))
			require.NotEmpty(t, found[0].Metric[m[2]], v.Query)
		}
	}
	for _, r := range readRules(t) {
		_, err := p.query(ctx, r.Expr)
		require.NoError(t, err, r.Alert)
		if name := r.Alert; name != "" && !slices.Contains(silent, name) {
			p.await(ctx, t, w, fmt.Sprintf("ALERTS{alertname=%q}", name))
		}
	}
	_, err := p.query(ctx, "sum(")
	require.ErrorContains(t, err, "parse error", "a wrong query is seen")
}

var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

// await runs a query after each scrape until it has numbers.
func (p *prometheus) await(ctx context.Context, t *testing.T, w *workload, expr string) []series {
	t.Helper()
	for {
		found, err := p.query(ctx, expr)
		if err != nil && strings.Contains(err.Error(), "refuses") {
			require.NoError(t, err)
		}
		numbers := 0
		for _, s := range found {
			if s.number() != "NaN" {
				numbers++
			}
		}
		if numbers > 0 {
			return found
		}
		select {
		case <-w.scraped:
		case <-ctx.Done():
			require.FailNow(t, "no data", "%s\nlast: %v %v", expr, found, err)
		}
	}
}

// requireMetrics: each metric is there, and with the right numbers.
func (p *prometheus) requireMetrics(ctx context.Context, t *testing.T, w *workload) {
	t.Helper()
	for _, m := range append(append([]telemetry.Metric{}, telemetry.Metrics...), expose.Extra...) {
		name := m.Name
		if m.Kind == telemetry.Histogram {
			name += "_bucket"
		}
		p.await(ctx, t, w, "count("+name+")")
	}
	for expr, want := range map[string]string{
		`sum(ollama_kv_prompt_tokens_total) / sum(ollama_kv_prompts_total)`:                                      fmt.Sprint(tokensOfAPrompt),
		`sum(ollama_kv_tier_pages{job="kvtier",tier="local"})`:                                                   "10",
		`ollama_kv_tier_up{tier="remote"}`:                                                                       "0",
		`ollama_kv_queue_bytes{model="qwen3:8b",namespace="team",engine="ollama",pid="7"}`:                       "95",
		`sum(ollama_kv_restore_seconds_bucket{le="+Inf"}) - sum(ollama_kv_restore_seconds_count)`:                "0",
		`sum(ollama_kv_prompt_tokens_total{source="local"}) / sum(ollama_kv_prompt_tokens_total{source="slot"})`: "3",
		`count(count by (cause) (ollama_kv_misses_total))`:                                                       fmt.Sprint(len(telemetry.Causes)),
		`ollama_kv_up{job="kvtier"}`:                                                                             "1",
		`ollama_kv_up{job="node"}`:                                                                               "0",
	} {
		require.Equal(t, want, p.await(ctx, t, w, expr)[0].number(), expr)
	}
}

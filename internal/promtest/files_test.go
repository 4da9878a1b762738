package promtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/expose"
)

const (
	root          = "../.."
	dashboardFile = root + "/dashboards/kvtier.json"
	alertsFile    = root + "/dashboards/kvtier-alerts.yml"
)

// target is a query of a panel.
type target struct{ Panel, Expr string }

// dashboard has the fields of Grafana's file that the tests need.
type dashboard struct {
	Panels []struct {
		Type    string
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	require.Greater(t, len(d.Panels), 20)
	return d
}

func (d dashboard) targets() (all []target) {
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, target{p.Title, q.Expr})
		}
	}
	return all
}

// rule is an alert or a record.
type rule struct {
	Alert       string
	Record      string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func readRules(t *testing.T) (all []rule) {
	t.Helper()
	text, err := os.ReadFile(alertsFile)
	require.NoError(t, err)
	var file struct {
		Groups []struct{ Rules []rule }
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.Greater(t, len(all), 8)
	return all
}

// variables are the values that Grafana puts in, as short as the tests' scrapes are.
var variables = strings.NewReplacer("$__rate_interval", "30s", "$__range", "1m", "$job", ".*", "$instance", ".*", "$model", ".*", "$namespace", ".*")

var metricName = regexp.MustCompile(`\bollama_kv_[a-z_]+\b`)

// metricsIn are the metrics that a text names, without the parts of histograms.
func metricsIn(text string) map[string]bool {
	names := make(map[string]bool)
	for _, name := range metricName.FindAllString(text, -1) {
		names[strings.TrimSuffix(name, "_bucket")] = true
	}
	return names
}

// TestMetricsOfTheDashboard: queries and rules name metrics that exist, and each metric that a
// process reports is drawn.
func TestMetricsOfTheDashboard(t *testing.T) {
	exist := make(map[string]bool)
	for _, m := range append(append([]telemetry.Metric{}, telemetry.Metrics...), expose.Extra...) {
		exist[m.Name] = true
	}
	drawn := make(map[string]bool)
	for _, q := range readDashboard(t).targets() {
		for name := range metricsIn(q.Expr) {
			require.True(t, exist[name], "panel %s: %s", q.Panel, name)
			drawn[name] = true
		}
	}
	for _, r := range readRules(t) {
		for name := range metricsIn(r.Expr) {
			require.True(t, exist[name], "rule %s: %s", r.Alert, name)
		}
	}
	for _, m := range telemetry.Metrics {
		if m.Name != "ollama_kv_tier_tails" { // beside the pages
			require.True(t, drawn[m.Name], "no panel has %s", m.Name)
		}
	}
}

// TestAlertsAreActionable: each alert has a severity, and names the command that tells more.
func TestAlertsAreActionable(t *testing.T) {
	tests, err := os.ReadFile("testdata/alerts_test.yml")
	require.NoError(t, err)
	docs, err := os.ReadFile(filepath.Join(root, "docs/metrics.md"))
	require.NoError(t, err)
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		require.Contains(t, []string{"info", "warning", "critical"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.Regexp(t, `[Rr]un: kvtier [a-z]+`, r.Annotations["description"], r.Alert)
		require.Contains(t, string(tests), "alertname: "+r.Alert+"\n", "no unit test of %s", r.Alert)
		require.Contains(t, string(docs), "| `"+r.Alert+"` |", "docs/metrics.md lacks %s", r.Alert)
	}
}

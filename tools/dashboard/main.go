// Command dashboard writes the dashboard of kvtier for Grafana, with Grafana's own builders.
//
//	go -C tools run ./dashboard ../dashboards/kvtier.json
package main

//lint:file-ignore SA1019 every Grafana imports dashboards of the first version, and few the second

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// Heights of panels, in Grafana's grid.
const (
	numberHeight = 4
	panelHeight  = 8
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: dashboard FILE")
	}
	text, err := text()
	if err != nil {
		return err
	}
	return os.WriteFile(args[0], text, 0o644)
}

// text is the dashboard as a file.
func text() ([]byte, error) {
	board, err := build().Build()
	if err != nil {
		return nil, fmt.Errorf("build the dashboard: %w", err)
	}
	text, err := json.MarshalIndent(board, "", "  ")
	return append(text, '\n'), err
}

// source is the variable that names a Prometheus.
var source = common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}

func build() *dashboard.DashboardBuilder {
	board := dashboard.NewDashboardBuilder("kvtier").
		Uid("kvtier").
		Description("The KV cache of Ollama on disk: hits, time saved, tiers, misses and their causes, writing, health. https://github.com/kvtier/kvtier").
		Tags([]string{"kvtier", "ollama"}).
		Refresh("30s").
		Time("now-6h", "now").
		Timezone("browser").
		Tooltip(dashboard.DashboardCursorSyncCrosshair).
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Prometheus").Type("prometheus"))
	for _, v := range []struct{ name, query string }{
		{"job", `label_values(ollama_kv_up, job)`},
		{"instance", `label_values(ollama_kv_up{job=~"$job"}, instance)`},
		{"model", `label_values(ollama_kv_prompts_total{job=~"$job",instance=~"$instance"}, model)`},
		{"namespace", `label_values(ollama_kv_prompts_total{job=~"$job",instance=~"$instance"}, namespace)`},
	} {
		board.WithVariable(dashboard.NewQueryVariableBuilder(v.name).
			Query(dashboard.StringOrMap{String: cog.ToPtr(v.query)}).
			Datasource(source).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
			Sort(dashboard.VariableSortAlphabeticalAsc).
			Multi(true).IncludeAll(true).AllValue(".*").
			Current(dashboard.VariableOption{
				Selected: cog.ToPtr(true),
				Text:     dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}},
				Value:    dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}},
			}))
	}
	id := uint32(0)
	for _, r := range rows {
		id++
		board.WithRow(dashboard.NewRowBuilder(r.title).Id(id))
		for _, p := range r.panels {
			id++
			board.WithPanel(p.builder(id))
		}
	}
	return board
}

// targets are the queries of a panel. instant asks for one value.
func (p panel) targets(instant bool) []cog.Builder[variants.Dataquery] {
	var all []cog.Builder[variants.Dataquery]
	for i, q := range p.queries {
		target := prometheus.NewDataqueryBuilder().
			Datasource(source).
			EditorMode(prometheus.QueryEditorModeCode).
			Expr(q.full()).
			LegendFormat(q.legend).
			RefId(string(rune('A' + i)))
		if instant {
			target.Instant()
		} else {
			target.Range()
		}
		all = append(all, target)
	}
	return all
}

// full is the query with its selectors.
func (q query) full() string {
	for name, text := range selectors {
		q.expr = strings.ReplaceAll(q.expr, name, text)
	}
	return q.expr
}

func (p panel) builder(id uint32) cog.Builder[dashboard.Panel] {
	switch p.kind {
	case number:
		return stat.NewPanelBuilder().Id(id).Title(p.title).Description(p.help).Unit(p.unit).Span(p.width).Height(numberHeight).
			Datasource(source).Targets(p.targets(true)).NoValue("none yet").
			GraphMode(common.BigValueGraphModeNone).ColorMode(common.BigValueColorModeNone).ReduceOptions(last())
	case bars:
		return bargauge.NewPanelBuilder().Id(id).Title(p.title).Description(p.help).Unit(p.unit).Span(p.width).Height(panelHeight).
			Datasource(source).Targets(p.targets(true)).Min(0).Max(1).NoValue("no limit is set").
			Orientation(common.VizOrientationHorizontal).DisplayMode(common.BarGaugeDisplayModeBasic).
			Thresholds(steps(0.8, 0.95)).ReduceOptions(last())
	case states:
		return statetimeline.NewPanelBuilder().Id(id).Title(p.title).Description(p.help).Unit(p.unit).Span(p.width).Height(panelHeight).
			Datasource(source).Targets(p.targets(false)).
			Mappings(upOrDown()).ShowValue(common.VisibilityModeAuto).MergeValues(true)
	}
	graph := timeseries.NewPanelBuilder().Id(id).Title(p.title).Description(p.help).Unit(p.unit).Span(p.width).Height(panelHeight).
		Datasource(source).Targets(p.targets(false)).Min(0).LineWidth(1).ShowPoints(common.VisibilityModeNever).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom))
	if p.kind == stacked {
		graph.FillOpacity(30).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
	}
	return graph
}

func last() cog.Builder[common.ReduceDataOptions] {
	return common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}).Values(false)
}

// steps are green, then orange, then red.
func steps(orange, red float64) cog.Builder[dashboard.ThresholdsConfig] {
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps([]dashboard.Threshold{
		{Color: "green"}, {Value: &orange, Color: "orange"}, {Value: &red, Color: "red"},
	})
}

func upOrDown() []dashboard.ValueMapping {
	return []dashboard.ValueMapping{{ValueMap: &dashboard.ValueMap{Type: "value", Options: map[string]dashboard.ValueMappingResult{
		"0": {Text: cog.ToPtr("down"), Color: cog.ToPtr("red"), Index: cog.ToPtr[int32](0)},
		"1": {Text: cog.ToPtr("up"), Color: cog.ToPtr("green"), Index: cog.ToPtr[int32](1)},
	}}}}
}

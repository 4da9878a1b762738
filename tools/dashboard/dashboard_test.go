// Package dashboard tests dashboards/kvtier.json, which is edited in Grafana.
package dashboard

//lint:file-ignore SA1019 every Grafana imports dashboards of the first version, and few the second

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

const file = "../../dashboards/kvtier.json"

// TestSchema reads the file with Grafana's strict decoder, which refuses unknown fields, and
// checks the values that the schema limits.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var board dashboard.Dashboard
	// The decoder returns an empty list, not nil, where all is well.
	err = board.UnmarshalJSONStrict(text)
	if found, isList := err.(cog.BuildErrors); err != nil && (!isList || len(found) > 0) {
		t.Error(err)
	}
	if err := board.Validate(); err != nil {
		t.Error(err)
	}
}

// TestLayout: ids are there once, panels fill the 24 columns of their line, and each has a title,
// a unit and queries, with legends where there are several.
func TestLayout(t *testing.T) {
	var board struct {
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     struct{ W, X, Y int }
			FieldConfig struct{ Defaults struct{ Unit string } }
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	ids, filled := make(map[int]bool), make(map[int]int) // columns, by line
	for _, p := range board.Panels {
		if p.ID == 0 || ids[p.ID] {
			t.Errorf("panel %q has no id of its own", p.Title)
		}
		ids[p.ID] = true
		if p.GridPos.X != filled[p.GridPos.Y] {
			t.Errorf("panel %q begins at column %d, after %d that are filled", p.Title, p.GridPos.X, filled[p.GridPos.Y])
		}
		filled[p.GridPos.Y] += p.GridPos.W
		if p.Title == "" || p.Type != "row" && (p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0) {
			t.Errorf("panel %d %q has no title, unit or query", p.ID, p.Title)
		}
		for _, q := range p.Targets {
			if len(p.Targets) > 1 && q.LegendFormat == "" {
				t.Errorf("panel %q: a query without a legend", p.Title)
			}
		}
	}
	for line, columns := range filled {
		if columns != 24 {
			t.Errorf("line %d has %d columns", line, columns)
		}
	}
}

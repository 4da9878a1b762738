package main

//lint:file-ignore SA1019 every Grafana imports dashboards of the first version, and few the second

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

const committed = "../../dashboards/kvtier.json"

func TestCommittedDashboard(t *testing.T) {
	want, err := text()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what this program writes; run make dashboard", committed)
	}
}

// TestSchema reads the file back with Grafana's strict decoder, which refuses unknown fields,
// and checks the values that the schema limits.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	var board dashboard.Dashboard
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	var strict dashboard.Dashboard
	// The decoder returns an empty list, not nil, where all is well.
	err = strict.UnmarshalJSONStrict(text)
	if found, isList := err.(cog.BuildErrors); err != nil && (!isList || len(found) > 0) {
		t.Error(err)
	}
	if err := board.Validate(); err != nil {
		t.Error(err)
	}
}

// TestLayout: each row is filled to its 24 columns, and ids, titles and queries are there.
func TestLayout(t *testing.T) {
	for _, r := range rows {
		left := uint32(0)
		seen := make(map[string]bool)
		for _, p := range r.panels {
			if seen[p.title] || p.title == "" || len(p.queries) == 0 || p.unit == "" {
				t.Errorf("panel %q of row %q", p.title, r.title)
			}
			seen[p.title] = true
			left += p.width
			if left > 24 {
				t.Errorf("row %q: panel %q crosses the edge", r.title, p.title)
			}
			left %= 24
			for _, q := range p.queries {
				full := q.full()
				if strings.Contains(full, "{M}") || strings.Contains(full, "{T}") || strings.Contains(full, "{R}") || strings.Contains(full, "{DT}") {
					t.Errorf("%s has a selector that is not replaced", full)
				}
				if len(p.queries) > 1 && q.legend == "" {
					t.Errorf("panel %q: a query without a legend", p.title)
				}
			}
		}
		if left != 0 {
			t.Errorf("row %q: the last line has %d columns", r.title, left)
		}
	}
	board, err := build().Build()
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[uint32]bool)
	for _, p := range board.Panels {
		switch {
		case p.RowPanel != nil:
			if ids[p.RowPanel.Id] {
				t.Errorf("id %d stands twice", p.RowPanel.Id)
			}
			ids[p.RowPanel.Id] = true
		case p.Panel.Id == nil || ids[*p.Panel.Id]:
			t.Errorf("panel %q has no id of its own", *p.Panel.Title)
		default:
			ids[*p.Panel.Id] = true
			for _, target := range p.Panel.Targets {
				if _, ok := target.(prometheus.Dataquery); !ok {
					t.Errorf("panel %q: %T", *p.Panel.Title, target)
				}
			}
		}
	}
}

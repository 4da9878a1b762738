package kvcache

import (
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/telemetry"
)

// Series of Options.Meter, besides those of prompts. The others are in Fill.
const (
	restoredBytes = "ollama_kv_restored_bytes_total"
	givenUp       = "ollama_kv_restores_given_up_total"
)

// moved is the series of pages that went from one place to another.
func moved(from, to string) string {
	return telemetry.Series("ollama_kv_page_moves_total", "from", from, "to", to)
}

// countRead counts a page that came in for a restore.
func countRead(meter *telemetry.Meter, from string) {
	meter.Add(telemetry.Series("ollama_kv_gate_pages_total", "decision", "read"), 1)
	if from != tier.RAM {
		meter.Add(telemetry.Series("ollama_kv_page_faults_total", "tier", from), 1)
	}
}

// countSealed counts a page, a tail or a state that the store has taken.
func countSealed(meter *telemetry.Meter, page *pagefile.Page, pageTokens int) {
	kind := "page"
	switch {
	case slices.ContainsFunc(page.Layout.Sections(), func(s pagefile.Section) bool { return !s.Kind.PerToken() }):
		kind = "state"
	case len(page.Tokens) < pageTokens:
		kind = "tail"
	}
	meter.Add(telemetry.Series("ollama_kv_sealed_pages_total", "kind", kind), 1)
}

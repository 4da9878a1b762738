package show

import (
	"slices"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Name names a model by its weights and by the name that its process knew, which may be empty.
type Name func(weights, own string) string

// Model is a model that was used since the totals began: the totals of all its processes.
type Model struct {
	Model     string `json:"model"`
	Weights   string `json:"weights"`
	Namespace string `json:"namespace,omitempty"`
	Engine    string `json:"engine"`
	Loaded    bool   `json:"loaded"`

	Prompts int64 `json:"prompts"`
	// Tokens of these prompts, by the place that their K/V came from. Restored counts those from
	// memory, disk and share, and those reused at another position.
	Tokens   int64 `json:"tokens"`
	Slot     int64 `json:"slot_tokens"`
	Restored int64 `json:"restored_tokens"`
	Computed int64 `json:"computed_tokens"`
	// Reused is Slot + Restored: the tokens that were not computed.
	Reused      int64    `json:"reused_tokens"`
	ReusedShare *float64 `json:"reused_share"` // Reused ÷ Tokens; null before the first token

	Restores     int64      `json:"restores"`
	SavedSeconds float64    `json:"saved_seconds_estimate"`
	LastUsed     *time.Time `json:"last_used"`
}

// Models lists the models of a state, the last used first.
func Models(s telemetry.State, name Name) []Model {
	models := []Model{}
	for _, of := range s.Models {
		m := Model{
			Model: name(of.Model.Weights, of.Model.Name), Weights: of.Model.Weights, Namespace: of.Model.Namespace, Engine: of.Engine,
			Loaded: slices.ContainsFunc(s.Processes, func(p telemetry.ProcessState) bool {
				return p.Model.Weights == of.Model.Weights && p.Model.Namespace == of.Model.Namespace && p.Process.Engine == of.Engine
			}),
			Prompts: total(of.Totals, "ollama_kv_prompts_total"), Restores: total(of.Totals, "ollama_kv_restores_total"),
			SavedSeconds: max(0, of.Totals["ollama_kv_saved_seconds_total"]), LastUsed: Known(of.LastUsed),
		}
		m.countTokens(of.Totals)
		models = append(models, m)
	}
	return models
}

func (m *Model) countTokens(totals map[string]float64) {
	from := func(source string) int64 {
		return total(totals, telemetry.Series("ollama_kv_prompt_tokens_total", "source", source))
	}
	m.Slot, m.Computed = from(telemetry.PlaceSlot), from(telemetry.PlaceCompute)
	for _, place := range []string{telemetry.PlaceRAM, telemetry.PlaceLocal, telemetry.PlaceRemote, telemetry.PlaceShifted} {
		m.Restored += from(place)
	}
	m.Tokens = m.Slot + m.Restored + m.Computed
	m.Reused = m.Slot + m.Restored
	if m.Tokens > 0 {
		share := float64(m.Reused) / float64(m.Tokens)
		m.ReusedShare = &share
	}
}

// ReusedOf is a number of tokens that were reused of those that were asked, for people.
func ReusedOf(reused, asked int64) string {
	if asked == 0 {
		return "-"
	}
	return Percent(float64(reused)/float64(asked)) + " of " + Count(asked)
}

// Known is a time for JSON, nil for the zero time.
func Known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

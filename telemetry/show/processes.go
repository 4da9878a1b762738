package show

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ollama/ollama/format"

	"github.com/kvtier/kvtier/telemetry"
)

// Process is a process that has a model loaded.
type Process struct {
	Model     string             `json:"model"`
	Weights   string             `json:"weights"`
	Namespace string             `json:"namespace,omitempty"`
	Engine    string             `json:"engine"`
	PID       int                `json:"pid"`
	CacheType string             `json:"cache_type,omitempty"`
	Started   *time.Time         `json:"started"`
	At        time.Time          `json:"at"` // of its latest report
	Slots     []Slot             `json:"slots"`
	Memory    []telemetry.Memory `json:"memory"`
	// Elastic is the memory that holds K and V of all slots, where it grows and shrinks.
	Elastic  []Elastic `json:"elastic,omitempty"`
	Unstored *Unstored `json:"not_stored"` // null while K/V is stored, or nothing had to be
	// Paged is nil where the model is not paged. Unpaged says why, where paged attention is asked for.
	Paged   *Paged             `json:"paged,omitempty"`
	Unpaged *telemetry.Unpaged `json:"unpaged,omitempty"`
}

// Unstored is why the K/V of a model is not stored.
type Unstored struct {
	telemetry.Unstored
	Means  string `json:"means"`
	Remedy string `json:"remedy"`
}

// Says is the cause as a sentence.
func (u *Unstored) Says(now time.Time) string {
	text := "Conversations are not stored: " + u.Means
	if u.Detail != "" {
		text += " (" + u.Detail + ")"
	}
	return text + ", first seen " + Ago(u.Since, now) + "."
}

// Paged is where the pages of a model under paged attention are: those of each layer count.
type Paged struct {
	MemoryPages int64 `json:"memory_pages"`
	SpillBytes  int64 `json:"spill_bytes"` // disk space that the spill has taken
	VideoPages  int64 `json:"video_pages"` // of MemoryPages and of pages on the disk, those with a copy in video memory
}

// Paging is the state of paged attention in a process, for people; empty where it is not asked for.
func (p Process) Paging() string {
	switch {
	case p.Unpaged != nil:
		return fmt.Sprintf("paged attention is off: %s; %s", p.Unpaged.Reason, p.Unpaged.Remedy)
	case p.Paged == nil:
		return ""
	}
	text := fmt.Sprintf("paged attention: %s pages of a layer in memory, %s on the spill disk", Count(p.Paged.MemoryPages), format.HumanBytes(p.Paged.SpillBytes))
	if p.Paged.VideoPages > 0 {
		text += fmt.Sprintf(", %s in video memory", Count(p.Paged.VideoPages))
	}
	return text
}

// Elastic is one pool of elastic memory.
type Elastic struct {
	telemetry.Elastic
	Available int64 `json:"available_bytes"` // to K/V, under the limit
}

// Says is the pool in words.
func (e Elastic) Says() string {
	size := func(n int64) string { return format.HumanBytes2(uint64(max(0, n))) }
	return fmt.Sprintf("elastic memory %s: %s in use, %s kept for reuse, %s available of %s", e.Segment, size(e.Used), size(e.Kept), size(e.Available), size(e.Limit))
}

// Slot is one sequence of the engine. Hot, Warm, Cold and Remote are pages, as in
// telemetry.Slot; those in tiers are nil where the process does not know them.
type Slot struct {
	Slot         int        `json:"slot"`
	Tokens       int        `json:"tokens"`
	Hot          int        `json:"hot_pages"`
	Warm         *int       `json:"warm_pages"`
	Cold         *int       `json:"cold_pages"`
	Remote       *int       `json:"remote_pages"`
	Shifted      bool       `json:"shifted"` // also if Lossy
	Lossy        bool       `json:"lossy"`
	Busy         bool       `json:"busy"`
	LastRestore  *time.Time `json:"last_restore"`
	Restored     int        `json:"restored_tokens"` // by the last restore
	SavedSeconds float64    `json:"saved_seconds_estimate"`
}

// Processes lists the processes of a state by name of the model, and the slots of each by number.
func Processes(s telemetry.State, name Name) []Process {
	list := []Process{}
	for _, of := range s.Processes {
		p := Process{
			Model: name(of.Model.Weights, of.Model.Name), Weights: of.Model.Weights, Namespace: of.Model.Namespace,
			Engine: of.Process.Engine, PID: of.Process.PID, CacheType: of.Model.CacheType,
			Started: Known(of.Started), At: of.At, Slots: []Slot{}, Memory: append([]telemetry.Memory{}, of.Memory...),
			Unpaged: of.Unpaged,
		}
		if u := of.Unstored; u != nil {
			e := u.Cause.Explain()
			p.Unstored = &Unstored{*u, e.Means, e.Remedy}
		}
		for _, e := range of.Elastic {
			p.Elastic = append(p.Elastic, Elastic{e, e.Available()})
		}
		if pages, paged := of.Gauges["ollama_kv_paged_memory_pages"]; paged {
			p.Paged = &Paged{int64(pages), int64(of.Gauges["ollama_kv_paged_spill_bytes"]), int64(of.Gauges["ollama_kv_paged_video_pages"])}
		}
		for _, slot := range of.Slots {
			row := Slot{
				Slot: slot.ID, Tokens: slot.Tokens, Hot: slot.Hot,
				Shifted: slot.Shifted, Lossy: slot.Lossy, Busy: slot.Busy, LastRestore: Known(slot.LastRestore), Restored: slot.Restored,
				SavedSeconds: max(0, slot.Saved.Seconds()),
			}
			if p.Engine != telemetry.EngineLlama { // its daemon does not follow pages after storing them
				row.Warm, row.Cold, row.Remote = &slot.Warm, &slot.Cold, &slot.Remote
			}
			p.Slots = append(p.Slots, row)
		}
		slices.SortFunc(p.Slots, func(a, b Slot) int { return cmp.Compare(a.Slot, b.Slot) })
		slices.SortFunc(p.Memory, func(a, b telemetry.Memory) int { return cmp.Compare(a.Name, b.Name) })
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.PID, b.PID))
	})
	return list
}

// Pages is a number of pages in a tier for people.
func Pages(n *int) string {
	if n == nil {
		return "-"
	}
	return Count(int64(*n))
}

// Rows says whether the rows of a slot are those that computing gives.
func (s Slot) Rows() string {
	switch {
	case s.Lossy:
		return "lossy"
	case s.Shifted:
		return "shifted"
	}
	return "exact"
}

// Now says whether a request runs in a slot.
func (s Slot) Now() string {
	if s.Busy {
		return "busy"
	}
	return "idle"
}

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

package telemetry

import (
	"slices"
	"time"
)

// Bounds of a state.
const (
	ModelsMax       = 64  // totals of further models are added to one without weights
	StatePromptsMax = 256 // latest prompts of all processes
)

// State is the sum of all reports of a directory.
type State struct {
	Version int       `json:"version"`
	Root    string    `json:"root"`
	At      time.Time `json:"at"`
	Since   time.Time `json:"since"` // when the totals began
	// Live is false in a zero State, before a process has reported.
	Live bool `json:"live"`

	Models    []ModelState   `json:"models"`    // that have reported since Since, the last used first
	Processes []ProcessState `json:"processes"` // that run now
	Tiers     []Tier         `json:"tiers"`     // each directory once
	Prompts   []StatePrompt  `json:"prompts"`   // the latest, oldest first

	Hints []string `json:"hints,omitempty"` // for the web page alone: sentences about the installation
}

// ModelState has the totals of all processes that had a model with the same weights, namespace
// and kind of engine. Totals never fall, also over restarts of processes.
type ModelState struct {
	Model    Model              `json:"model"`
	Engine   string             `json:"engine"`
	Totals   map[string]float64 `json:"totals"`
	LastUsed time.Time          `json:"last_used"`
}

// ProcessState is the latest report of a process, without its totals.
type ProcessState struct {
	Process Process            `json:"process"`
	Model   Model              `json:"model"`
	Started time.Time          `json:"started"`
	At      time.Time          `json:"at"` // of the report
	Gauges  map[string]float64 `json:"gauges"`
	Slots   []Slot             `json:"slots"`
	Memory  []Memory           `json:"memory"`
	Elastic []Elastic          `json:"elastic,omitempty"`
	Busters []Buster           `json:"busters,omitempty"`

	Unstored *Unstored `json:"unstored,omitempty"` // nil while K/V is stored, or nothing had to be
	Unpaged  *Unpaged  `json:"unpaged,omitempty"`
}

// Elastic is the KV memory of one pool of a process, in bytes. Processes tell it in segments, as kvcached does, and
// not in reports.
type Elastic struct {
	Segment string `json:"segment"`
	Used    int64  `json:"used_bytes"`
	Kept    int64  `json:"kept_bytes"`  // not in use, and kept for reuse
	Limit   int64  `json:"limit_bytes"` // of both
}

// Available is how much Used can grow under the limit.
func (e Elastic) Available() int64 { return max(0, e.Limit-e.Used) }

// StatePrompt is a prompt, and who evaluated it.
type StatePrompt struct {
	Prompt
	Process   Process `json:"process"`
	Weights   string  `json:"weights"`
	Namespace string  `json:"namespace,omitempty"`
}

// WithWords returns a state with the Words of namespaces that keep accepts alone, and none of a private
// prompt; nil accepts none. s stays as it is.
func (s State) WithWords(keep func(namespace string) bool) State {
	s.Prompts, s.Processes = slices.Clone(s.Prompts), slices.Clone(s.Processes)
	for i, p := range s.Prompts {
		if p.Miss != nil && p.Miss.Words != nil && (p.Private || keep == nil || !keep(p.Namespace)) {
			miss := *p.Miss
			miss.Words = nil
			s.Prompts[i].Miss = &miss
		}
	}
	for i, p := range s.Processes {
		if keep != nil && keep(p.Model.Namespace) {
			continue
		}
		s.Processes[i].Busters = slices.Clone(p.Busters)
		for j := range p.Busters {
			s.Processes[i].Busters[j].Words = nil
		}
	}
	return s
}

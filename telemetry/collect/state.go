package collect

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// account is the content of the files of one process.
type account struct {
	named
	runs    bool
	prompts *report // nil where they are not known
}

// stateOf is the state of the totals and of the processes that are not in them, with all Words.
func stateOf(root string, t *totals, all []account, now time.Time) telemetry.State {
	s := telemetry.State{Version: telemetry.Version, Root: root, At: now, Since: earlier(t.Since, now), Live: true,
		Processes: []telemetry.ProcessState{}, Prompts: []telemetry.StatePrompt{}}
	slices.SortFunc(all, func(x, y account) int { return inOrder(x.named, y.named) })
	var running []account
	for _, a := range all {
		t.add(a.report)
		if a.runs {
			running = append(running, a)
		}
	}
	slices.SortFunc(running, func(x, y account) int {
		if d := x.Started.Compare(y.Started); d != 0 {
			return d
		}
		return x.Process.PID - y.Process.PID
	})
	for _, a := range running {
		s.Processes = append(s.Processes, a.state())
	}
	s.Models = t.Models
	for i := range s.Models {
		s.Models[i].LastUsed = earlier(s.Models[i].LastUsed, now)
	}
	slices.SortStableFunc(s.Models, func(x, y telemetry.ModelState) int { return y.LastUsed.Compare(x.LastUsed) })
	s.Tiers = tiersOf(t.Tiers, running)
	nameModels(&s, t.Names)
	return s
}

// state is the state of a process that runs.
func (a account) state() telemetry.ProcessState {
	r := a.report
	s := telemetry.ProcessState{
		Process: r.Process, Model: r.Model, Started: r.Started, At: r.At, Gauges: r.Gauges,
		Slots: append([]telemetry.Slot{}, r.Slots...), Memory: append([]telemetry.Memory{}, r.Memory...),
		Unstored: r.Unstored, Unpaged: r.Unpaged,
	}
	if s.Gauges == nil {
		s.Gauges = map[string]float64{}
	}
	if a.prompts != nil && len(a.prompts.Busters) > 0 {
		s.Busters = a.prompts.Busters
	}
	return s
}

// promptsOf adds the prompts of processes to a state, the latest ones of all.
func promptsOf(s *telemetry.State, all []*report) {
	for _, r := range all {
		for _, prompt := range r.Prompts {
			s.Prompts = append(s.Prompts, telemetry.StatePrompt{
				Prompt: prompt, Process: r.Process, Weights: r.Model.Weights, Namespace: r.Model.Namespace,
			})
		}
	}
	slices.SortStableFunc(s.Prompts, func(x, y telemetry.StatePrompt) int { return x.At.Compare(y.At) })
	s.Prompts = s.Prompts[max(0, len(s.Prompts)-telemetry.StatePromptsMax):]
}

// tiersOf returns each directory once, and the RAM tiers of all processes as one. Files set aside
// and failures are those of the processes that run.
func tiersOf(kept []noted, running []account) []telemetry.Tier {
	all := []telemetry.Tier{}
	ram := telemetry.Tier{Name: telemetry.PlaceRAM}
	hasRAM := false
	for _, n := range kept {
		all = append(all, n.Tier)
	}
	for _, a := range running {
		for _, t := range a.Tiers {
			if t.Name == telemetry.PlaceRAM {
				hasRAM = true
				ram.Pages, ram.Tails = ram.Pages+t.Pages, ram.Tails+t.Tails
				ram.Bytes, ram.Booked, ram.Budget = ram.Bytes+t.Bytes, ram.Booked+t.Booked, ram.Budget+t.Budget
				ram.Down = ram.Down || t.Down
				continue
			}
			for i := range all {
				if all[i].Name == t.Name && all[i].Root == t.Root {
					all[i].Quarantined += t.Quarantined
					all[i].Down = all[i].Down || t.Down
				}
			}
		}
	}
	if hasRAM {
		all = append(all, ram)
	}
	order := []string{telemetry.PlaceRAM, telemetry.PlaceLocal, telemetry.PlaceRemote}
	slices.SortStableFunc(all, func(x, y telemetry.Tier) int {
		if d := slices.Index(order, x.Name) - slices.Index(order, y.Name); d != 0 {
			return d
		}
		return strings.Compare(x.Root, y.Root)
	})
	return all
}

// earlier keeps times before now: the clock may have gone back.
func earlier(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

// nameModels fills in names that a process does not know, from others with the same weights, or
// those that the collector knows.
func nameModels(s *telemetry.State, known map[string]string) {
	names := make(map[string]string)
	for _, m := range s.Models {
		if m.Model.Weights != "" && names[m.Model.Weights] == "" {
			names[m.Model.Weights] = m.Model.Name
		}
	}
	for weights, name := range names {
		if name == "" {
			names[weights] = known[weights]
		}
	}
	for i := range s.Models {
		fillName(&s.Models[i].Model, names)
	}
	for i := range s.Processes {
		fillName(&s.Processes[i].Model, names)
	}
}

func fillName(m *telemetry.Model, names map[string]string) {
	if m.Name == "" {
		m.Name = names[m.Weights]
	}
}

// keepWords removes all Words, except those of a namespace if there is one.
func keepWords(s *telemetry.State, namespace *string) {
	keep := func(of string) bool { return namespace != nil && *namespace == of }
	for _, p := range s.Prompts {
		if p.Miss != nil && (p.Private || !keep(p.Namespace)) {
			p.Miss.Words = nil
		}
	}
	for _, p := range s.Processes {
		for j := range p.Busters {
			if !keep(p.Model.Namespace) {
				p.Busters[j].Words = nil
			}
		}
	}
}

// encode encodes without the escapes that only HTML needs.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

package collect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// state is the sum of totals and processes, with all Words. It adds to the totals.
func (t *totals) state(root string, entries []entry) telemetry.State {
	s := telemetry.State{Version: telemetry.Version, Root: root, At: time.Now(), Since: t.Since, Live: true,
		Processes: []telemetry.ProcessState{}, Prompts: []telemetry.StatePrompt{}}
	var running []entry
	for _, e := range entries {
		if e.report != nil {
			t.add(e.report)
		}
		if e.runs {
			running = append(running, e)
			s.Processes = append(s.Processes, e.state())
		}
	}
	slices.SortStableFunc(s.Processes, func(x, y telemetry.ProcessState) int {
		return cmp.Or(x.Started.Compare(y.Started), cmp.Compare(x.Process.PID, y.Process.PID))
	})
	s.Models = t.Models
	slices.SortStableFunc(s.Models, func(x, y telemetry.ModelState) int { return y.LastUsed.Compare(x.LastUsed) })
	s.Tiers = tiersOf(t.Tiers, running)
	nameModels(&s)
	addPrompts(&s, entries)
	return s
}

// state is the state of a process that runs.
func (e entry) state() telemetry.ProcessState {
	r := e.report
	s := telemetry.ProcessState{
		Process: r.Process, Model: r.Model, Started: r.Started, At: r.At, Gauges: r.Gauges,
		Slots: append([]telemetry.Slot{}, r.Slots...), Memory: append([]telemetry.Memory{}, r.Memory...),
		Unstored: r.Unstored, Unpaged: r.Unpaged,
	}
	if s.Gauges == nil {
		s.Gauges = map[string]float64{}
	}
	if e.prompts != nil {
		s.Busters = e.prompts.Busters
	}
	return s
}

// addPrompts adds the prompts of processes, the latest ones of all, to a state.
func addPrompts(s *telemetry.State, entries []entry) {
	for _, e := range entries {
		r := e.prompts
		if r == nil {
			continue
		}
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
func tiersOf(kept []noted, running []entry) []telemetry.Tier {
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
		return cmp.Or(slices.Index(order, x.Name)-slices.Index(order, y.Name), strings.Compare(x.Root, y.Root))
	})
	return all
}

// upTo replaces a time after now by another one: the clock was wrong, or has gone back.
func upTo(now, t, other time.Time) time.Time {
	if t.After(now) {
		return other
	}
	return t
}

// nameModels fills in names that a process does not know, from others with the same weights.
func nameModels(s *telemetry.State) {
	names := make(map[string]string)
	for _, m := range s.Models {
		if m.Model.Weights != "" {
			names[m.Model.Weights] = cmp.Or(names[m.Model.Weights], m.Model.Name)
		}
	}
	for i := range s.Models {
		m := &s.Models[i].Model
		m.Name = cmp.Or(m.Name, names[m.Weights])
	}
	for i := range s.Processes {
		m := &s.Processes[i].Model
		m.Name = cmp.Or(m.Name, names[m.Weights])
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

// tellSilent says why processes that run report no more, where their directory takes no files: that
// is also why nothing is stored there.
func tellSilent(s *telemetry.State, dir string) {
	why := sync.OnceValue(func() telemetry.Obstacle { return takesNoFiles(dir) })
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Unstored != nil || s.At.Sub(p.At) < telemetry.SilentAfter {
			continue
		}
		if cause := why(); cause != "" {
			p.Unstored = &telemetry.Unstored{Cause: cause, Since: p.At}
		}
	}
}

package collect

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// directoriesMax bounds the tiers of a state. Those that were not reported for the longest time
// are left out.
const directoriesMax = 32

// noted is a tier in a directory, as its latest report has it.
type noted struct {
	telemetry.Tier
	at time.Time
}

// noteTiersLocked keeps the tiers of a report that outlive its process.
func (b *books) noteTiersLocked(r *telemetry.Report) {
	for _, t := range r.Tiers {
		if t.Name == telemetry.PlaceRAM {
			continue
		}
		b.tiers = slices.DeleteFunc(b.tiers, func(n noted) bool { return n.Name == t.Name && n.Root == t.Root })
		if len(b.tiers) == directoriesMax {
			b.tiers = slices.Delete(b.tiers, 0, 1)
		}
		t.Quarantined, t.Down = 0, false // of the process, see tiersLocked
		b.tiers = append(b.tiers, noted{t, b.now()})
	}
}

// tiersLocked returns each directory once, and the RAM tiers of all processes as one. Files set
// aside and failures are those of the processes that run.
func (b *books) tiersLocked(live []*process) []telemetry.Tier {
	all := []telemetry.Tier{}
	ram := telemetry.Tier{Name: telemetry.PlaceRAM}
	hasRAM := false
	for _, n := range b.tiers {
		all = append(all, n.Tier)
	}
	for _, p := range live {
		for _, t := range p.report.Tiers {
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
		return bytes.Compare([]byte(x.Root), []byte(y.Root))
	})
	return all
}

// stateOf is the state of a process that runs.
func stateOf(id telemetry.Process, started time.Time, r *telemetry.Report) telemetry.ProcessState {
	return telemetry.ProcessState{
		Process: id, Model: r.Model, Started: started, At: r.At,
		Gauges: notNil(r.Gauges), Slots: append([]telemetry.Slot{}, r.Slots...),
		Memory: append([]telemetry.Memory{}, r.Memory...), Busters: slices.Clone(r.Busters),
		Unstored: r.Unstored, Unpaged: r.Unpaged,
	}
}

func notNil(m map[string]float64) map[string]float64 {
	if m == nil {
		return map[string]float64{}
	}
	return m
}

// state returns the state with all Words. Maps and lists of reports are shared, and never
// change.
func (b *books) state(root string, name func(weights string) string) telemetry.State {
	b.mu.Lock()
	now := b.now()
	s := telemetry.State{Version: telemetry.Version, Root: root, At: now, Since: earlier(b.since, now), Live: true,
		Models: b.modelsLocked(now), Processes: []telemetry.ProcessState{}}
	var live []*process
	for _, p := range b.processes {
		if p.live {
			live = append(live, p)
		}
	}
	slices.SortFunc(live, func(x, y *process) int {
		if d := x.started.Compare(y.started); d != 0 {
			return d
		}
		return x.id.PID - y.id.PID
	})
	for _, p := range live {
		s.Processes = append(s.Processes, stateOf(p.id, p.started, p.report))
	}
	s.Tiers = b.tiersLocked(live)
	s.Prompts = append([]telemetry.StatePrompt{}, b.prompts...)
	b.mu.Unlock()
	slices.SortStableFunc(s.Prompts, func(x, y telemetry.StatePrompt) int { return x.At.Compare(y.At) })
	nameModels(&s, name)
	return s
}

func (b *books) modelsLocked(now time.Time) []telemetry.ModelState {
	all := []telemetry.ModelState{}
	for _, m := range b.models {
		totals := make(map[string]float64, len(m.series))
		for i, series := range m.series {
			totals[series] = m.totals[i]
		}
		all = append(all, telemetry.ModelState{Model: m.info, Engine: m.key.engine, Totals: totals, LastUsed: earlier(m.lastUsed, now)})
	}
	slices.SortStableFunc(all, func(x, y telemetry.ModelState) int { return y.LastUsed.Compare(x.LastUsed) })
	return all
}

// earlier keeps times before now: the clock may have gone back.
func earlier(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

// nameModels fills in names that a process does not know, from others with the same weights.
func nameModels(s *telemetry.State, name func(weights string) string) {
	names := make(map[string]string)
	for _, m := range s.Models {
		if m.Model.Weights != "" && names[m.Model.Weights] == "" {
			names[m.Model.Weights] = m.Model.Name
		}
	}
	for weights, known := range names {
		if known == "" {
			known = name(weights)
		}
		if isText(known, telemetry.NameBytesMax) {
			names[weights] = known
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
	for i, p := range s.Prompts {
		if p.Miss == nil || p.Miss.Words == nil || keep(p.Namespace) && !p.Private {
			continue
		}
		miss := *p.Miss // reports are shared
		miss.Words = nil
		s.Prompts[i].Miss = &miss
	}
	for i, p := range s.Processes {
		if keep(p.Model.Namespace) {
			continue
		}
		busters := slices.Clone(p.Busters)
		for j := range busters {
			busters[j].Words = nil
		}
		s.Processes[i].Busters = busters
	}
}

// encodeState encodes a state. A state that is too large, which the bounds of books prevent, is
// encoded without the parts that may be left out.
func encodeState(s telemetry.State) ([]byte, error) {
	data, err := encode(s)
	if err != nil || len(data) <= telemetry.StateBytesMax {
		return data, err
	}
	s.Prompts, s.Tiers, s.Processes = []telemetry.StatePrompt{}, []telemetry.Tier{}, []telemetry.ProcessState{}
	return encode(s)
}

// encode encodes without the escapes that only HTML needs.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

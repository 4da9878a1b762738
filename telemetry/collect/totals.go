package collect

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

const (
	// totalsVersion is that of totals.json.
	totalsVersion = 2
	// totalsBytesMax is more than the bounds of the content allow.
	totalsBytesMax = 16 << 20
	// directoriesMax bounds the tiers of a state. Those that were not reported for the longest time
	// are left out.
	directoriesMax = 32
)

// totals is the content of totals.json: sums over processes that have ended. It has no prompts, and
// nothing of tokens.
type totals struct {
	Version int       `json:"version"`
	Since   time.Time `json:"since"`
	// Folded are the latest processes whose files are in the sums, and may be there still. They count here.
	Folded []string               `json:"folded"`
	Models []telemetry.ModelState `json:"models"`
	Tiers  []noted                `json:"tiers"`
}

// noted is a tier in a directory, as its latest report has it.
type noted struct {
	telemetry.Tier
	At time.Time `json:"at"`
}

// modelKey says which reports are added up.
type modelKey struct{ weights, namespace, engine string }

func keyOf(m telemetry.ModelState) modelKey {
	return modelKey{m.Model.Weights, m.Model.Namespace, m.Engine}
}

type report struct {
	telemetry.Report
	LastUsed time.Time `json:"last_used"` // when a total grew
}

// model returns the model of a report. Reports of more models than ModelsMax are added to one
// without weights. A model is never dropped, since its totals would fall.
func (t *totals) model(r *report) *telemetry.ModelState {
	find := func(key modelKey) int {
		return slices.IndexFunc(t.Models, func(m telemetry.ModelState) bool { return keyOf(m) == key })
	}
	i := find(modelKey{r.Model.Weights, r.Model.Namespace, r.Process.Engine})
	full := i < 0 && len(t.Models) >= telemetry.ModelsMax-1
	if full {
		i = find(modelKey{})
	}
	if i < 0 {
		i = len(t.Models)
		m := telemetry.ModelState{Model: r.Model, Engine: r.Process.Engine, Totals: map[string]float64{}}
		if full {
			m.Model, m.Engine = telemetry.Model{}, ""
		}
		t.Models = append(t.Models, m)
	}
	m := &t.Models[i]
	if keyOf(*m) != (modelKey{}) && !r.LastUsed.Before(m.LastUsed) {
		name := m.Model.Name
		if m.Model = r.Model; m.Model.Name == "" {
			m.Model.Name = name
		}
	}
	if r.LastUsed.After(m.LastUsed) {
		m.LastUsed = r.LastUsed
	}
	return m
}

func (t *totals) add(r *report) {
	m := t.model(r)
	for series, value := range r.Totals {
		if sum, there := m.Totals[series]; there || len(m.Totals) < telemetry.SeriesMax {
			m.Totals[series] = min(sum+value, sumMax)
		}
	}
	t.noteTiers(r)
}

// leaveOut leaves out the reports of processes that are in the totals: somebody was killed before the
// files were removed, or they were added since they were read.
func (t *totals) leaveOut(entries []entry) {
	for i, e := range entries {
		if slices.Contains(t.Folded, e.name) {
			entries[i] = entry{name: e.name, ended: true, past: e.past}
		}
	}
}

// fold adds the processes that have ended, and reports whether the totals have changed. A process that
// runs gets a place for its model, so that it is the same one later. names are all that have files.
func (t *totals) fold(entries []entry, names []string) (changed bool) {
	there := make(map[string]bool)
	for _, name := range names {
		there[name] = true
	}
	surplus := len(t.Folded) - foldedMax
	t.Folded = slices.DeleteFunc(t.Folded, func(name string) bool {
		surplus--
		return surplus >= 0 && !there[name]
	})
	models := len(t.Models)
	for _, e := range entries {
		switch {
		case e.report == nil:
		case e.ended:
			t.add(e.report)
			t.Folded, changed = append(t.Folded, e.name), true
		default:
			t.model(e.report)
		}
	}
	return changed || len(t.Models) != models
}

// noteTiers keeps the tiers of a report that outlive its process.
func (t *totals) noteTiers(r *report) {
	for _, tier := range r.Tiers {
		if tier.Name == telemetry.PlaceRAM {
			continue
		}
		same := func(n noted) bool { return n.Name == tier.Name && n.Root == tier.Root }
		if i := slices.IndexFunc(t.Tiers, same); i >= 0 && t.Tiers[i].At.After(r.At) {
			continue
		}
		t.Tiers = slices.DeleteFunc(t.Tiers, same)
		if len(t.Tiers) == directoriesMax {
			t.Tiers = slices.Delete(t.Tiers, 0, 1)
		}
		tier.Quarantined, tier.Down = 0, false // of the process, see tiersOf
		t.Tiers = append(t.Tiers, noted{tier, r.At})
	}
}

// decodeTotals decodes and checks totals.json. Series that only another build knows are kept: their
// totals must not fall.
func decodeTotals(data []byte) (*totals, error) {
	t := new(totals)
	if err := decode(data, totalsTokensMax, t); err != nil {
		return nil, err
	}
	if t.Version != totalsVersion {
		return nil, fmt.Errorf("%w: it has version %d, and this program reads version %d", errContent, t.Version, totalsVersion)
	}
	keys := make(map[modelKey]bool)
	for i := range t.Models {
		m := &t.Models[i]
		if keys[keyOf(*m)] {
			return nil, fmt.Errorf("%w: a model is in it twice", errContent)
		}
		keys[keyOf(*m)] = true
		for series, total := range m.Totals {
			if total < 0 {
				return nil, fmt.Errorf("%w: %s is %g", errContent, series, total)
			}
		}
		if m.Totals == nil {
			m.Totals = map[string]float64{}
		}
	}
	if len(t.Models) > telemetry.ModelsMax || len(t.Models) == telemetry.ModelsMax && !keys[modelKey{}] || len(t.Tiers) > directoriesMax {
		return nil, fmt.Errorf("%w: it has too many models or tiers", errContent)
	}
	return t, nil
}

// readTotals reads totals.json. Without one, fresh totals begin now.
func (p *place) readTotals() (t *totals, fresh bool, err error) {
	now := time.Now()
	data, err := p.read(totalsName, totalsBytesMax)
	if errors.Is(err, fs.ErrNotExist) {
		return &totals{Version: totalsVersion, Since: now, Folded: []string{}, Models: []telemetry.ModelState{}, Tiers: []noted{}}, true, nil
	}
	if err == nil {
		t, err = decodeTotals(data)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", p.path(totalsName), err)
	}
	t.Since = upTo(now, t.Since, now) // nothing is known of a later time below, and each report is newer
	for i := range t.Models {
		t.Models[i].LastUsed = upTo(now, t.Models[i].LastUsed, t.Since)
	}
	for i := range t.Tiers {
		t.Tiers[i].At = upTo(now, t.Tiers[i].At, t.Since)
	}
	return t, false, nil
}

// readReport reads a file of a process. Its times are not later than now: the newest report of a
// model or a tier counts.
func (p *place) readReport(name string) (*report, error) {
	data, err := p.read(name, telemetry.ReportBytesMax)
	if err != nil {
		return nil, err
	}
	r, err := decodeReport(data)
	if err == nil {
		now := time.Now()
		r.At, r.LastUsed = upTo(now, r.At, now), upTo(now, r.LastUsed, now)
	}
	return r, err
}

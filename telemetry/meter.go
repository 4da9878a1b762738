package telemetry

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Meter counts the work of a process. The zero Meter is ready, and a nil Meter counts nothing. All
// methods may be called from several goroutines; none of them blocks.
type Meter struct {
	mu      sync.Mutex
	totals  map[string]float64
	prompts []Prompt
	seq     uint64
}

// Add adds to a counter. A negative n is a defect, and adds nothing.
func (m *Meter) Add(series string, n float64) {
	if m == nil || !(n > 0) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addLocked(series, n)
}

func (m *Meter) addLocked(series string, n float64) {
	if m.totals == nil {
		m.totals = make(map[string]float64)
	}
	m.totals[series] += n
}

// observeLocked adds a value to a histogram without labels.
func (m *Meter) observeLocked(name string, value float64) {
	metric, _ := Find(name)
	for _, bound := range metric.Bounds {
		if value <= bound {
			m.addLocked(Series(name+"_bucket", "le", FormatBound(bound)), 1)
		}
	}
	m.addLocked(Series(name+"_bucket", "le", "+Inf"), 1)
	m.addLocked(name+"_sum", value)
	m.addLocked(name+"_count", 1)
}

// FormatBound is a bucket's bound as the value of the label le.
func FormatBound(bound float64) string { return strconv.FormatFloat(bound, 'g', -1, 64) }

// Prompt counts a prompt that was evaluated, and keeps the latest PromptsMax.
func (m *Meter) Prompt(p Prompt) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	p.Seq = m.seq
	if len(m.prompts) == PromptsMax {
		m.prompts = append(m.prompts[:0], m.prompts[1:]...)
	}
	m.prompts = append(m.prompts, p)
	m.addLocked("ollama_kv_prompts_total", 1)
	for source, tokens := range map[string]int{
		PlaceSlot: p.Slot, PlaceRAM: p.RAM, PlaceLocal: p.Local, PlaceRemote: p.Remote, PlaceShifted: p.Shifted, PlaceCompute: p.Computed,
	} {
		m.addLocked(Series("ollama_kv_prompt_tokens_total", "source", source), float64(tokens))
	}
	m.addLocked("ollama_kv_lossy_tokens_total", float64(p.Lossy))
	if restored := p.RAM + p.Local + p.Remote + p.Shifted; restored > 0 {
		m.addLocked("ollama_kv_restores_total", 1)
		m.addLocked("ollama_kv_saved_seconds_total", max(0, p.Saved.Seconds()))
		m.observeLocked("ollama_kv_restore_seconds", p.Restore.Seconds())
		m.observeLocked("ollama_kv_restored_tokens", float64(restored))
	}
	if p.Took > 0 {
		m.observeLocked("ollama_kv_prompt_seconds", p.Took.Seconds())
	}
	if p.Miss != nil {
		m.addLocked(Series("ollama_kv_misses_total", "cause", string(p.Miss.Cause)), 1)
		m.addLocked(Series("ollama_kv_missed_tokens_total", "cause", string(p.Miss.Cause)), float64(p.Computed))
	}
}

// Read returns copies of the totals and of the latest prompts.
func (m *Meter) Read() (totals map[string]float64, prompts []Prompt) {
	if m == nil {
		return map[string]float64{}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	totals = make(map[string]float64, len(m.totals))
	maps.Copy(totals, m.totals)
	return totals, slices.Clone(m.prompts)
}

// Source makes a process's reports. Fill adds the rest: gauges, tiers, slots, memory, and totals that others
// keep. Fill may be called from several goroutines and must return soon.
type Source struct {
	Process Process
	Started time.Time
	Model   Model
	Meter   *Meter
	Fill    func(*Report)
}

// Report makes a report.
func (s *Source) Report() Report {
	r := Report{Version: Version, Process: s.Process, Started: s.Started, At: time.Now(), Model: s.Model, Gauges: map[string]float64{}}
	r.Totals, r.Prompts = s.Meter.Read()
	if s.Fill != nil {
		s.Fill(&r)
	}
	attached.Lock()
	fills := attached.fills // only ever appended to
	attached.Unlock()
	for _, fill := range fills {
		fill(&r)
	}
	return r
}

var attached struct {
	sync.Mutex
	fills []func(*Report)
}

// Attach has fill called for every report that a Source of this process makes, after
// [Source.Fill] and under the same rules: for a part of the process that its Source does not
// know, as the pager of paged attention. There is no way back.
func Attach(fill func(*Report)) {
	attached.Lock()
	defer attached.Unlock()
	attached.fills = append(attached.fills, fill)
}

package expose

import (
	"cmp"
	"math"
	"strconv"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// weightsDigits is the number of digits of a digest that stand for a model without a name.
const weightsDigits = 12

// otherModels is the label of a model without weights: package collect adds the totals of models
// past its bound up in one.
const otherModels = "other"

// series is one series, or all of a histogram.
type series struct {
	labels  []label
	value   float64
	buckets map[string]float64 // of a histogram, by le
	sum     float64
	count   float64
}

// gathered are the series of each family by their rendered labels.
type gathered map[string]map[string]*series

func (g gathered) at(name string, labels []label) *series {
	if g[name] == nil {
		g[name] = make(map[string]*series)
	}
	key := render(labels)
	if g[name][key] == nil {
		g[name][key] = &series{labels: labels}
	}
	return g[name][key]
}

// add adds to a series of [Extra], or to a gauge of a tier.
func (g gathered) add(name string, value float64, labels ...label) { g.at(name, labels).value += value }

func (g gathered) latest(name string, at time.Time, labels ...label) {
	if !at.IsZero() {
		s := g.at(name, labels)
		s.value = max(s.value, float64(at.UnixMilli())/1000)
	}
}

// report adds a value that a process reported under a key. Several reports under the same labels add up.
func (g gathered) report(key string, value float64, labels []label) {
	m, p, own, le, ok := identify(key)
	if !ok || math.IsNaN(value) || math.IsInf(value, 0) || (value < 0 && m.Kind != telemetry.Gauge) {
		return
	}
	s := g.at(m.Name, append(own[:len(own):len(own)], labels...))
	switch p {
	case whole:
		s.value += value
	case sum:
		s.sum += value
	case count:
		s.count += value
	case bucket:
		if s.buckets == nil {
			s.buckets = make(map[string]float64)
		}
		s.buckets[le] += value
	}
}

func number(holds bool) float64 { return map[bool]float64{true: 1}[holds] }

func gather(state telemetry.State, opt Options) gathered {
	g := make(gathered)
	g.add("ollama_kv_up", number(state.Live))
	if opt.Version != "" {
		g.add("ollama_kv_collector_info", 1, label{"version", opt.Version})
	}
	g.latest("ollama_kv_totals_since_timestamp_seconds", state.Since)
	for _, m := range state.Models {
		g.model(m)
	}
	for _, p := range state.Processes {
		g.process(p)
	}
	for _, t := range state.Tiers {
		g.tier(t)
	}
	for _, d := range opt.Disks {
		g.disk(d)
	}
	return g
}

func (g gathered) model(m telemetry.ModelState) {
	labels := modelLabels(m.Model, m.Engine)
	for key, value := range m.Totals {
		if metric, _, _, _, ok := identify(key); ok && metric.Kind != telemetry.Gauge {
			g.report(key, value, labels)
		}
	}
	g.latest("ollama_kv_model_last_used_timestamp_seconds", m.LastUsed, labels...)
	if m.Model.Weights != "" {
		g.at("ollama_kv_model_info", append(labels[:len(labels):len(labels)],
			label{"weights", m.Model.Weights}, label{"architecture", m.Model.Architecture},
			label{"cache_type", m.Model.CacheType}, label{"page_tokens", strconv.Itoa(m.Model.PageTokens)})).value = 1
	}
}

func modelLabels(m telemetry.Model, engine string) []label {
	name := cmp.Or(m.Name, m.Weights[:min(len(m.Weights), weightsDigits)], otherModels)
	return []label{{"model", name}, {"namespace", m.Namespace}, {"engine", engine}}
}

func (g gathered) process(p telemetry.ProcessState) {
	labels := append(modelLabels(p.Model, p.Process.Engine), label{"pid", strconv.Itoa(p.Process.PID)})
	for key, value := range p.Gauges {
		if metric, _, _, _, ok := identify(key); ok && metric.Kind == telemetry.Gauge && !ofState(metric.Name) {
			g.report(key, value, labels)
		}
	}
	for _, m := range p.Memory {
		g.report(telemetry.Series("ollama_kv_memory_bytes", "purpose", m.Name), float64(m.Bytes), labels)
	}
	for _, e := range p.Elastic {
		state := func(name string, bytes int64) {
			g.report(telemetry.Series("ollama_kv_elastic_bytes", "segment", e.Segment, "state", name), float64(bytes), labels)
		}
		state("used", e.Used)
		state("kept", e.Kept)
		state("available", e.Available())
	}
	g.latest("ollama_kv_process_start_time_seconds", p.Started, labels...)
	g.latest("ollama_kv_report_timestamp_seconds", p.At, labels...)
	with := func(name, value string) []label { return append(labels[:len(labels):len(labels)], label{name, value}) }
	for _, s := range p.Slots {
		busy := number(s.Busy)
		g.add("ollama_kv_slots", busy, with("state", "busy")...)
		g.add("ollama_kv_slots", 1-busy, with("state", "idle")...)
		g.add("ollama_kv_slot_tokens", float64(s.Tokens), labels...)
		bytes := float64(s.Bytes)
		if p.Process.Engine == telemetry.EngineLlama {
			bytes = float64(s.Tokens) * float64(p.Model.TokenBytes) // its daemon does not see rows
		}
		g.add("ollama_kv_slot_bytes", bytes, labels...)
		g.add("ollama_kv_slot_pages", float64(s.Hot), with("tier", telemetry.PlaceSlot)...)
		if p.Process.Engine == telemetry.EngineLlama {
			continue // its daemon does not know the pages of a slot in tiers
		}
		g.add("ollama_kv_slot_pages", float64(s.Warm), with("tier", telemetry.PlaceRAM)...)
		g.add("ollama_kv_slot_pages", float64(s.Cold), with("tier", telemetry.PlaceLocal)...)
		g.add("ollama_kv_slot_pages", float64(s.Remote), with("tier", telemetry.PlaceRemote)...)
	}
	if p.Model.TokenBytes == 0 {
		delete(g["ollama_kv_slot_bytes"], render(labels)) // unknown, not 0
	}
}

// ofState reports whether a gauge is made of another field of the state, which is counted once
// for each directory or allocation.
func ofState(name string) bool {
	m, _ := telemetry.Find(name)
	return name == "ollama_kv_memory_bytes" || name == "ollama_kv_elastic_bytes" || (len(m.Labels) == 1 && m.Labels[0] == "tier")
}

func (g gathered) tier(t telemetry.Tier) {
	labels := []label{{"tier", t.Name}, {"root", t.Root}}
	up := number(!t.Down)
	if t.Booked > 0 {
		g.add("ollama_kv_tier_booked_bytes", float64(t.Booked), labels...)
	}
	g.add("ollama_kv_tier_pages", float64(t.Pages), labels...)
	g.add("ollama_kv_tier_tails", float64(t.Tails), labels...)
	g.add("ollama_kv_tier_bytes", float64(t.Bytes), labels...)
	g.add("ollama_kv_tier_budget_bytes", float64(t.Budget), labels...)
	g.add("ollama_kv_tier_written_today_bytes", float64(t.WrittenToday), labels...)
	g.add("ollama_kv_tier_write_cap_bytes", float64(t.WriteCap), labels...)
	// Memory of several processes is several tiers without a root: one that is down shows.
	if s, seen := g["ollama_kv_tier_up"][render(labels)]; seen {
		s.value = min(s.value, up)
	} else {
		g.add("ollama_kv_tier_up", up, labels...)
	}
}

func (g gathered) disk(d Disk) {
	labels := []label{{"tier", d.Tier}, {"root", d.Root}}
	g.at("ollama_kv_tier_pages", labels).value = float64(d.Pages)
	g.at("ollama_kv_tier_tails", labels).value = float64(d.Tails)
	g.at("ollama_kv_tier_bytes", labels).value = float64(d.PageBytes)
	g.at("ollama_kv_tier_written_today_bytes", labels).value = float64(d.WrittenToday)
	if d.Booked != nil {
		g.at("ollama_kv_tier_booked_bytes", labels).value = float64(*d.Booked)
	}
	if d.Budget != nil {
		g.at("ollama_kv_tier_budget_bytes", labels).value = float64(*d.Budget)
	}
	g.add("ollama_kv_tier_quarantined_files", float64(d.QuarantinedFiles), labels...)
	g.add("ollama_kv_tier_quarantined_bytes", float64(d.QuarantinedBytes), labels...)
	g.add("ollama_kv_tier_temporary_files", float64(d.TemporaryFiles), labels...)
	g.add("ollama_kv_tier_temporary_bytes", float64(d.TemporaryBytes), labels...)
	if d.Bytes > 0 {
		g.add("ollama_kv_tier_disk_bytes", float64(d.Bytes), labels...)
		g.add("ollama_kv_tier_disk_free_bytes", float64(d.FreeBytes), labels...)
	}
}

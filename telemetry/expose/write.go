package expose

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/kvtier/kvtier/telemetry"
)

// ContentType is the type of the text in HTTP.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Options are facts that a state lacks.
type Options struct {
	Version string // of the program that writes; empty leaves ollama_kv_collector_info out
	Disks   []Disk // directories that were counted on disk
}

// Disk has the figures of a count on disk. Its figures replace those of the
// [telemetry.Tier] with the same name and root.
type Disk struct {
	Tier      string `json:"tier"`
	Root      string `json:"root"`
	Budget    *int64 `json:"budget"` // null where it is not known
	Pages     int    `json:"pages"`
	Tails     int    `json:"tails"`
	PageBytes int64  `json:"page_bytes"`

	TemporaryFiles   int    `json:"temp_files"`
	TemporaryBytes   int64  `json:"temp_bytes"`
	QuarantinedFiles int    `json:"quarantined_files"`
	QuarantinedBytes int64  `json:"quarantined_bytes"`
	Booked           *int64 `json:"booked_bytes"` // bytes under the budget; null before the first count
	WrittenToday     int64  `json:"-"`

	Bytes     int64 `json:"disk_bytes"` // of the filesystem; 0 where it is not known
	FreeBytes int64 `json:"disk_free_bytes"`
}

// Extra are the families that are made here, of a state or of a count on disk, and that no process reports.
var Extra = []telemetry.Metric{
	{Name: "ollama_kv_up", Kind: telemetry.Gauge, Help: "1, or 0 before a process has reported."},
	{Name: "ollama_kv_collector_info", Kind: telemetry.Gauge, Help: "Always 1, with the version of the program that writes these lines.", Labels: []string{"version"}},
	{Name: "ollama_kv_totals_since_timestamp_seconds", Kind: telemetry.Gauge, Help: "When the totals began."},
	{Name: "ollama_kv_model_info", Kind: telemetry.Gauge, Help: "Always 1, with properties of a model that has been used.", Labels: []string{"weights", "architecture", "cache_type", "page_tokens"}},
	{Name: "ollama_kv_model_last_used_timestamp_seconds", Kind: telemetry.Gauge, Help: "When a model was last used."},
	{Name: "ollama_kv_process_start_time_seconds", Kind: telemetry.Gauge, Help: "When a process that runs now was started."},
	{Name: "ollama_kv_report_timestamp_seconds", Kind: telemetry.Gauge, Help: "When a process last reported."},
	{Name: "ollama_kv_slots", Kind: telemetry.Gauge, Help: "Slots of a process, by state: busy or idle.", Labels: []string{"state"}},
	{Name: "ollama_kv_slot_tokens", Kind: telemetry.Gauge, Help: "Tokens in the slots of a process."},
	{Name: "ollama_kv_slot_bytes", Kind: telemetry.Gauge, Help: "Bytes of K/V of these tokens that are on the accelerator or in memory."},
	{Name: "ollama_kv_slot_pages", Kind: telemetry.Gauge, Help: "Pages of the text in the slots, by the places that hold them. A page may be in several.", Labels: []string{"tier"}},

	{Name: "ollama_kv_tier_quarantined_files", Kind: telemetry.Gauge, Help: "Damaged files that were set aside in a directory. Only kvtier stat counts them.", Labels: []string{"tier"}},
	{Name: "ollama_kv_tier_quarantined_bytes", Kind: telemetry.Gauge, Help: "Bytes of these files.", Labels: []string{"tier"}},
	{Name: "ollama_kv_tier_temporary_files", Kind: telemetry.Gauge, Help: "Files in a directory that are being written, or that a crash has left. Only kvtier stat counts them.", Labels: []string{"tier"}},
	{Name: "ollama_kv_tier_temporary_bytes", Kind: telemetry.Gauge, Help: "Bytes of these files.", Labels: []string{"tier"}},
	{Name: "ollama_kv_tier_disk_bytes", Kind: telemetry.Gauge, Help: "Size of the filesystem of a directory. Only kvtier stat asks for it.", Labels: []string{"tier"}},
	{Name: "ollama_kv_tier_disk_free_bytes", Kind: telemetry.Gauge, Help: "Free bytes of this filesystem.", Labels: []string{"tier"}},
}

var known = func() map[string]telemetry.Metric {
	all := make(map[string]telemetry.Metric, len(telemetry.Metrics)+len(Extra))
	for _, m := range slices.Concat(telemetry.Metrics, Extra) {
		all[m.Name] = m
	}
	return all
}()

// Text has all metrics of a state and those of the options.
func (opt Options) Text(state telemetry.State) []byte {
	g := gather(state, opt)
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if len(g[name]) > 0 {
			writeFamily(&text, known[name], g[name])
		}
	}
	return text.Bytes()
}

func writeFamily(text *bytes.Buffer, m telemetry.Metric, all map[string]*series) {
	fmt.Fprintf(text, "# HELP %s %s\n# TYPE %s %s\n", m.Name, helpEscapes.Replace(m.Help), m.Name, m.Kind)
	for _, labels := range slices.Sorted(maps.Keys(all)) {
		if s := all[labels]; m.Kind == telemetry.Histogram {
			s.writeHistogram(text, m)
		} else {
			writeSample(text, m.Name+labels, s.value)
		}
	}
}

// writeHistogram writes every bucket. Prometheus needs buckets that do not fall, and a count that
// is the last one; a bucket that nothing reported has the count of the one before.
func (s *series) writeHistogram(text *bytes.Buffer, m telemetry.Metric) {
	reached := 0.0
	for _, bound := range m.Bounds {
		le := telemetry.FormatBound(bound)
		reached = max(reached, s.buckets[le])
		writeSample(text, m.Name+"_bucket"+render(append(s.labels[:len(s.labels):len(s.labels)], label{"le", le})), reached)
	}
	total := max(reached, s.buckets["+Inf"], s.count)
	writeSample(text, m.Name+"_bucket"+render(append(s.labels[:len(s.labels):len(s.labels)], label{"le", "+Inf"})), total)
	writeSample(text, m.Name+"_sum"+render(s.labels), s.sum)
	writeSample(text, m.Name+"_count"+render(s.labels), total)
}

func writeSample(text *bytes.Buffer, series string, value float64) {
	fmt.Fprintf(text, "%s %s\n", series, strconv.FormatFloat(value, 'g', -1, 64))
}

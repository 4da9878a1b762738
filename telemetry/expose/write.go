package expose

import (
	"bytes"
	"fmt"
	"io"
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

// Write writes all metrics of a state and those of the options.
func (opt Options) Write(w io.Writer, state telemetry.State) error {
	g := gather(state, opt)
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if len(g[name]) > 0 {
			writeFamily(&text, known[name], g[name])
		}
	}
	if _, err := w.Write(text.Bytes()); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return nil
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
	text.WriteString(series)
	text.WriteByte(' ')
	text.WriteString(strconv.FormatFloat(value, 'g', -1, 64))
	text.WriteByte('\n')
}

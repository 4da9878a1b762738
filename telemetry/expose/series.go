package expose

import (
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/kvtier/kvtier/telemetry"
)

// valueBytesMax is the length of the value of a label in a process's key. The values are words
// of the program, such as local; a longer one is no such word.
const valueBytesMax = 64

type label struct{ name, value string }

// labelForm is the first label of a key, and those behind it.
var labelForm = regexp.MustCompile(`(?s)^([a-z_]+)="((?:[^"\\]|\\[\\"n])*)"(?:,(.+))?$`)

// parse splits a key as [telemetry.Series] makes it into the name and the labels.
func parse(key string) (name string, labels []label, ok bool) {
	name, rest, braces := strings.Cut(key, "{")
	if !braces {
		return name, nil, true
	}
	rest, ok = strings.CutSuffix(rest, "}")
	for more := ok; more; more = rest != "" {
		m := labelForm.FindStringSubmatch(rest)
		if m == nil {
			return name, nil, false
		}
		labels, rest = append(labels, label{m[1], valueUnescapes.Replace(m[2])}), m[3]
	}
	return name, labels, ok
}

// part is the part of a histogram that a series is.
type part int

const (
	whole part = iota // a counter or a gauge
	bucket
	sum
	count
)

// identify finds the metric of a process's key. For a bucket, le is the value of that label,
// which labels then lacks.
func identify(key string) (m telemetry.Metric, p part, labels []label, le string, ok bool) {
	name, labels, ok := parse(key)
	if !ok {
		return m, p, nil, "", false
	}
	m, p, ok = find(name)
	if !ok {
		return m, p, nil, "", false
	}
	if p == bucket {
		at := slices.IndexFunc(labels, func(l label) bool { return l.name == "le" })
		if at < 0 {
			return m, p, nil, "", false
		}
		le = labels[at].value
		labels = slices.Delete(labels, at, at+1)
	}
	return m, p, labels, le, hasLabels(m, labels)
}

// find looks a name up among the metrics that a process may report.
func find(name string) (telemetry.Metric, part, bool) {
	if m, ok := telemetry.Find(name); ok {
		return m, whole, m.Kind != telemetry.Histogram
	}
	for suffix, p := range map[string]part{"_bucket": bucket, "_sum": sum, "_count": count} {
		if base, cut := strings.CutSuffix(name, suffix); cut {
			if m, ok := telemetry.Find(base); ok {
				return m, p, m.Kind == telemetry.Histogram
			}
		}
	}
	return telemetry.Metric{}, whole, false
}

// hasLabels reports whether labels are those of a metric, each once, with printable values.
func hasLabels(m telemetry.Metric, labels []label) bool {
	if len(labels) != len(m.Labels) {
		return false
	}
	for _, name := range m.Labels {
		at := slices.IndexFunc(labels, func(l label) bool { return l.name == name })
		if at < 0 || !printable(labels[at].value) {
			return false
		}
	}
	return true
}

func printable(value string) bool {
	return len(value) <= valueBytesMax && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
}

// render writes labels sorted by name. A label without a value is none, as in Prometheus.
// Characters that are not printed are replaced: a terminal would show their escapes, and parsers
// refuse a file for a backslash before any other character than n, a quote or a backslash.
func render(labels []label) string {
	labels = slices.DeleteFunc(slices.Clone(labels), func(l label) bool { return l.value == "" })
	if len(labels) == 0 {
		return ""
	}
	slices.SortFunc(labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	var text strings.Builder
	for i, l := range labels {
		text.WriteByte("{,"[min(i, 1)])
		text.WriteString(l.name + `="` + valueEscapes.Replace(strings.Map(shown, strings.ToValidUTF8(l.value, "\uFFFD"))) + `"`)
	}
	text.WriteByte('}')
	return text.String()
}

// shown is the character in the place of another one.
func shown(r rune) rune {
	if r == '\n' || unicode.IsPrint(r) {
		return r
	}
	return '\uFFFD'
}

var (
	valueEscapes   = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	valueUnescapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")
	helpEscapes    = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
)

package collect

import (
	"slices"
	"strings"
	"unicode"

	"github.com/kvtier/kvtier/telemetry"
)

// valueBytesMax bounds the value of a label.
const valueBytesMax = 128

// family is what the series of one name must look like.
type family struct {
	kind   telemetry.Kind
	labels []string // in alphabetical order
	bounds []string // values of the label le; nil where there is none
}

// families are all names of series, with those that a histogram consists of.
var families = func() map[string]family {
	all := make(map[string]family)
	for _, m := range telemetry.Metrics {
		labels := slices.Sorted(slices.Values(m.Labels))
		if m.Kind != telemetry.Histogram {
			all[m.Name] = family{kind: m.Kind, labels: labels}
			continue
		}
		bounds := []string{"+Inf"}
		for _, bound := range m.Bounds {
			bounds = append(bounds, telemetry.FormatBound(bound))
		}
		withBound := slices.Sorted(slices.Values(append([]string{"le"}, labels...)))
		all[m.Name+"_bucket"] = family{kind: telemetry.Counter, labels: withBound, bounds: bounds}
		all[m.Name+"_sum"] = family{kind: telemetry.Counter, labels: labels}
		all[m.Name+"_count"] = family{kind: telemetry.Counter, labels: labels}
	}
	return all
}()

// isSeries reports whether a key is a series of a kind that this build knows, as
// [telemetry.Series] writes it. Parts of histograms are counters.
func isSeries(key string, kind telemetry.Kind) bool {
	name, rest, labelled := strings.Cut(key, "{")
	f, ok := families[name]
	if !ok || f.kind != kind || len(key) > telemetry.NameBytesMax {
		return false
	}
	if !labelled {
		return len(f.labels) == 0
	}
	var names, pairs []string
	for {
		label, value, after, ok := cutLabel(rest)
		if !ok || label == "le" && !slices.Contains(f.bounds, value) {
			return false
		}
		names, pairs, rest = append(names, label), append(pairs, label, value), after
		if rest == "}" {
			break
		}
		if rest, ok = strings.CutPrefix(rest, ","); !ok {
			return false
		}
	}
	return slices.Equal(names, f.labels) && telemetry.Series(name, pairs...) == key
}

// cutLabel cuts label="value" from the beginning of a text.
func cutLabel(text string) (label, value, after string, ok bool) {
	label, text, ok = strings.Cut(text, `="`)
	if !ok {
		return "", "", "", false
	}
	var b strings.Builder
	for i := 0; i < len(text) && b.Len() <= valueBytesMax; i++ {
		switch c := text[i]; {
		case c == '"':
			return label, b.String(), text[i+1:], isText(b.String(), valueBytesMax)
		case c != '\\':
			b.WriteByte(c)
		case i+1 < len(text):
			i++
			b.WriteByte(text[i]) // telemetry.Series writes \n for a newline, which no value may have
		}
	}
	return "", "", "", false
}

// isText reports whether a string is short enough and has no control characters.
func isText(s string, bytesMax int) bool {
	return len(s) <= bytesMax && strings.IndexFunc(s, unicode.IsControl) < 0
}

package collect

import (
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

const (
	// seriesBytesMax bounds the names of a model's series as JSON. With it, a state with the
	// totals of ModelsMax models is within StateBytesMax.
	seriesBytesMax = 32 << 10
	// sumMax bounds a sum: JSON has no infinity.
	sumMax = 1e300
)

// modelKey says which reports are added up.
type modelKey struct{ weights, namespace, engine string }

// model has the totals of all processes with one key. A model is never dropped, since its
// totals would fall.
type model struct {
	key      modelKey
	info     telemetry.Model
	lastUsed time.Time

	series []string
	bytes  int // of series
	index  map[string]int
	totals []float64
}

func newModel(key modelKey) *model {
	return &model{
		key: key, info: telemetry.Model{Weights: key.weights, Namespace: key.namespace},
		index: make(map[string]int),
	}
}

// place returns the place of a series in the model's totals, false if the model has too many.
func (m *model) place(series string) (int, bool) {
	if i, ok := m.index[series]; ok {
		return i, true
	}
	if len(m.series) == telemetry.SeriesMax || m.bytes+sizeOf(series) > seriesBytesMax {
		return 0, false
	}
	i := len(m.series)
	m.series, m.totals, m.bytes = append(m.series, series), append(m.totals, 0), m.bytes+sizeOf(series)
	m.index[series] = i
	return i, true
}

// modelLocked returns the model of a report. Reports of more models than ModelsMax are added to
// one without weights.
func (b *books) modelLocked(r *telemetry.Report) *model {
	key := modelKey{r.Model.Weights, r.Model.Namespace, r.Process.Engine}
	if b.byKey[key] == nil && len(b.models) >= telemetry.ModelsMax-1 {
		key = modelKey{}
	}
	m := b.byKey[key]
	if m == nil {
		m = newModel(key)
		b.models, b.byKey[key] = append(b.models, m), m
	}
	if key != (modelKey{}) {
		name := m.info.Name
		m.info = r.Model
		if m.info.Name == "" {
			m.info.Name = name
		}
	}
	return m
}

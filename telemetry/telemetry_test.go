package telemetry

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every cause and obstacle has an explanation, and a document has the same table.
func TestReasons(t *testing.T) {
	requireTable(t, "../docs/kvtier.md", Causes)
	requireTable(t, "../docs/operations.md", Obstacles)
	require.Equal(t, CauseShift, CauseShift.Explain().Cause)
	require.NotEmpty(t, Obstacle("of tomorrow").Explain().Remedy)
	require.False(t, Obstacle("of tomorrow").Known())
}

func requireTable[C ~string](t *testing.T, path string, all []Reason[C]) {
	t.Helper()
	doc, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, r := range all {
		require.NotEmpty(t, r.Means, r.Cause)
		require.True(t, strings.HasSuffix(r.Remedy, "."), r.Cause)
		row := fmt.Sprintf("\n| `%s` | %s | %s |\n", r.Cause, r.Means, r.Remedy)
		require.True(t, strings.Contains(string(doc), row), "%s lacks the row%s", path, row)
	}
}

func TestSeriesEscapesAndSorts(t *testing.T) {
	require.Equal(t, "a", Series("a"))
	require.Equal(t, `a{from="x",to="y"}`, Series("a", "to", "y", "from", "x"))
	require.Equal(t, `a{b="\\ \" \n"}`, Series("a", "b", "\\ \" \n"))
	odd := []string{"b"}
	require.Panics(t, func() { Series("a", odd...) })
}

// Names follow Prometheus's rules: a counter ends in _total, units are whole and last.
func TestMetricNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range Metrics {
		require.Regexp(t, regexp.MustCompile(`^ollama_kv_[a-z_]+$`), m.Name)
		require.False(t, seen[m.Name], m.Name)
		seen[m.Name] = true
		require.Equal(t, m.Kind == Counter, strings.HasSuffix(m.Name, "_total"), m.Name)
		require.Equal(t, m.Kind == Histogram, len(m.Bounds) > 0, m.Name)
		require.True(t, strings.HasSuffix(m.Help, "."), m.Help)
	}
}

// The tokens of a prompt, by source, are all of its tokens.
func TestPromptCounts(t *testing.T) {
	var m Meter
	p := Prompt{
		At: time.Now(), Tokens: 21, Slot: 1, RAM: 2, Local: 3, Remote: 4, Shifted: 5, Computed: 6, Lossy: 7,
		Restore: 20 * time.Millisecond, Took: 3 * time.Second, Saved: 2 * time.Second,
		Miss: &Miss{Cause: CauseEvicted, At: 15},
	}
	m.Prompt(p)
	m.Prompt(Prompt{Tokens: 7, Computed: 7, Miss: &Miss{Cause: CauseNeverSeen}})
	totals, prompts := m.Read()
	sum := 0.0
	for series, n := range totals {
		if strings.HasPrefix(series, "ollama_kv_prompt_tokens_total") {
			sum += n
		}
	}
	require.Equal(t, 28.0, sum)
	require.Equal(t, 2.0, totals["ollama_kv_prompts_total"])
	require.Equal(t, 1.0, totals["ollama_kv_restores_total"])
	require.Equal(t, 7.0, totals["ollama_kv_lossy_tokens_total"])
	require.Equal(t, 2.0, totals["ollama_kv_saved_seconds_total"])
	require.Equal(t, 6.0, totals[`ollama_kv_missed_tokens_total{cause="evicted"}`])
	require.Equal(t, 0.0, totals[`ollama_kv_restore_seconds_bucket{le="0.01"}`])
	require.Equal(t, 1.0, totals[`ollama_kv_restore_seconds_bucket{le="0.025"}`])
	require.Equal(t, 1.0, totals[`ollama_kv_restore_seconds_bucket{le="+Inf"}`])
	require.Equal(t, 1.0, totals["ollama_kv_prompt_seconds_count"])
	require.Equal(t, []uint64{1, 2}, []uint64{prompts[0].Seq, prompts[1].Seq})
}

func TestOnlyTheLatestPromptsAreKept(t *testing.T) {
	var m Meter
	for range 3 * PromptsMax {
		m.Prompt(Prompt{})
	}
	_, prompts := m.Read()
	require.Len(t, prompts, PromptsMax)
	require.Equal(t, uint64(2*PromptsMax+1), prompts[0].Seq)
}

func TestNoMeter(t *testing.T) {
	var m *Meter
	m.Add("x", 1)
	m.Prompt(Prompt{})
	totals, prompts := m.Read()
	require.Empty(t, totals)
	require.Empty(t, prompts)
}

func TestTotalsNeverFall(t *testing.T) {
	var m Meter
	m.Add("x", 1)
	m.Add("x", -5)
	totals, _ := m.Read()
	require.Equal(t, map[string]float64{"x": 1}, totals)
}

// A report of the greatest size is within ReportBytesMax.
func TestReportIsBounded(t *testing.T) {
	source := Source{Meter: new(Meter), Fill: func(r *Report) {
		long := strings.Repeat("x", 64)
		for range SlotsMax {
			r.Slots = append(r.Slots, Slot{ID: 1 << 30, Tokens: 1 << 30, LastRestore: time.Now(), Saved: time.Hour})
		}
		for i := range SeriesMax {
			r.Gauges[Series(long, "n", FormatBound(float64(i)))] = 1e300 / 3
		}
	}}
	for range PromptsMax {
		words := &Words{Was: make([]int32, WordsMax), Is: make([]int32, WordsMax)}
		source.Meter.Prompt(Prompt{At: time.Now(), Miss: &Miss{Cause: CauseDiffers, Words: words}})
	}
	data, err := json.Marshal(source.Report())
	require.NoError(t, err)
	require.Less(t, len(data), ReportBytesMax)
}

// Attached functions add to the reports of every source.
func TestAttach(t *testing.T) {
	before := attached.fills
	defer func() { attached.fills = before }()
	Attach(func(r *Report) { r.Gauges["y"] = r.Gauges["x"] + 1 })
	first := Source{Fill: func(r *Report) { r.Gauges["x"] = 1 }}
	require.Equal(t, map[string]float64{"x": 1, "y": 2}, first.Report().Gauges, "after the source's own")
	require.Equal(t, map[string]float64{"y": 1}, (&Source{}).Report().Gauges)
}

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/measure"
)

// plotted is [sample] with a second prompt length.
func plotted() *Report {
	r := sample()
	at := func(seconds float64) measure.Series { return measure.Series{Median: seconds} }
	uncached := at(0.03)
	short := Point{Tokens: 1024, Stock: at(2.1), Restored: at(0.019), RestoredUncached: &uncached, Speedup: 110}
	r.TTFT.Points = append([]Point{short}, r.TTFT.Points...)
	r.Machine.Virtual, r.Settings.Model = true, "a <small> model"
	return r
}

func TestDraw(t *testing.T) {
	drawn, err := plotted().draw()
	require.NoError(t, err)
	for _, want := range []string{
		"stock Ollama", "kvtier, restored", "page cache empty", "300× faster", "30.0 s", "100 ms", "8,192", ">100 ms<", ">10 s<",
		"Ollama 0.16.1 on a 2-core Example 1 virtual machine.", "a &lt;small&gt; model", ` 480.0,106.0 "/>`, `points="111.0,238.0 480.0,`,
	} {
		require.Contains(t, string(drawn), want)
	}
}

// TestCommittedPicture: the picture in the documents is drawn from the report there.
func TestCommittedPicture(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	report, err := load(filepath.Join(docs, "bench", "cpu.json"))
	require.NoError(t, err)
	drawn := filepath.Join(t.TempDir(), "ttft.svg")
	require.NoError(t, report.plot(drawn))
	want, err := os.ReadFile(filepath.Join(docs, "ttft.svg"))
	require.NoError(t, err)
	got, err := os.ReadFile(drawn)
	require.NoError(t, err)
	require.Equal(t, string(got), string(want), "run make plot")
}

func TestRefusesToDraw(t *testing.T) {
	for want, change := range map[string]func(*Report){
		"measured with -quick":                  func(r *Report) { r.Settings.Quick = true },
		"no two prompt lengths":                 func(r *Report) { r.TTFT.Points = r.TTFT.Points[:1] },
		"measure ttft":                          func(r *Report) { r.TTFT = nil },
		"the times for 1024 tokens are not pos": func(r *Report) { r.TTFT.Points[0].Restored = measure.Series{} },
	} {
		r := plotted()
		change(r)
		_, err := r.draw()
		require.ErrorContains(t, err, want)
	}
}

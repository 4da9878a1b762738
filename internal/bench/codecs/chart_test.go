package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func chartReport() *Report {
	return &Report{Engine: "0.16.1", Numbers: 6_300_000, Results: []Result{
		{Encoding: "raw", Lossless: true, Ratio: 1, Bound: 1.2, Decode: 9},
		{Encoding: "zstd", Lossless: true, Ratio: 1.15, Bound: 1.2, Decode: 0.9},
		{Encoding: "split", Lossless: true, Ratio: 1.2, Bound: 1.2, Decode: 2},
		{Encoding: "q8_0", Ratio: 1.98, Bound: 1.2, Decode: 3, Quality: Quality{KL: 0.00012, Top1: 0.996}},
	}}
}

func TestChart(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, chartReport().WriteChart(&out, "a<b.gguf"))
	decoder := xml.NewDecoder(bytes.NewReader(out.Bytes()))
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
	for _, want := range []string{"a&lt;b.gguf, 6.3 million numbers", "zstd  1.15×", "q8_0  1.98×", "KL 0.00012, top-1 99.6 %", "order-0 bound, 1.20×"} {
		require.Contains(t, out.String(), want)
	}
}

// TestLabelsDoNotOverlap: labels of encodings that are close together move apart.
func TestLabelsDoNotOverlap(t *testing.T) {
	points := []point{{LabelY: 400}, {LabelY: 401}, {LabelX: 50, LabelY: 100}, {LabelX: 9, LabelY: 402}}
	spread(points)
	far := []point{{LabelY: 300}, {LabelX: 2 * labelWidth, LabelY: 301}}
	spread(far)
	require.Equal(t, 301.0, far[1].LabelY, "it has room")
	slices.SortFunc(points, func(a, b point) int { return int(a.LabelY - b.LabelY) })
	for i := 1; i < len(points); i++ {
		require.GreaterOrEqual(t, points[i].LabelY-points[i-1].LabelY, float64(labelHeight))
	}
	require.LessOrEqual(t, points[3].LabelY, float64(yEnd))
}

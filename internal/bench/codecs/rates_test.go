package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

func TestSizesAndSpeeds(t *testing.T) {
	r := testRun(t, 2)
	require.NoError(t, r.measureRates(context.Background()))
	require.NoError(t, r.measureFiles(context.Background()))
	got := results(r)
	require.Len(t, got, len(lossless)+len(lossy))

	require.Equal(t, 1.0, got["raw"].Ratio)
	for name, ratio := range map[string]float64{"split": 1.1, "q8_0": 1.88, "q8_0,q4_0": 2.4, "q4_0": 3.5, "int4": 3.5} {
		require.Greater(t, got[name].Ratio, ratio, name)
	}
	for name, res := range got {
		require.Equal(t, name == "raw" || name == "zstd" || name == "split", res.Lossless, name)
		require.Equal(t, name != "raw", res.Encode > 0, name)
		require.Positive(t, res.Decode, name)
		require.Positive(t, res.RestoreCached, name)
	}
}

// TestALossOfALosslessEncodingIsFound: rows that differ end the measurement.
func TestALossOfALosslessEncodingIsFound(t *testing.T) {
	r := testRun(t, 1)
	of := r.codecs[2]
	require.Equal(t, "split", of.name)
	r.codecs = []codec{{name: "broken", encode: func(rows []byte, s pagefile.Section) (encoding.ID, []byte) {
		other := append([]byte(nil), rows...)
		other[0] ^= 1
		return of.encode(other, s)
	}}}
	require.ErrorContains(t, r.measureRates(context.Background()), "in broken: layer 0 K differs from the rows")
	r.codecs[0].lossy = true
	require.NoError(t, r.measureRates(context.Background()))
}

func TestMeasuringIsCancelled(t *testing.T) {
	r := testRun(t, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, r.measureRates(ctx), context.Canceled)
}

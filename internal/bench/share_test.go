package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/share"
)

// TestShareCountsTimesOfRequestsThatAllSidesCompleted, and the others as completed or failed.
func TestShareCountsTimesOfRequestsThatAllSidesCompleted(t *testing.T) {
	c := share.Config{Slots: 8, Budget: 1000, Prefill: 1000, Decode: 50}
	requests := []share.Request{{At: time.Second}, {At: 2 * time.Second}}
	one := share.Outcome{First: 2 * time.Second, Done: 4 * time.Second}
	other := share.Outcome{First: 3 * time.Second, Done: 12 * time.Second}
	m := ShareMix{Servers: 2, Hot: 1, Small: 10, Large: 800}
	m.add(c, requests,
		share.Side{Outcomes: []share.Outcome{one, {Failed: true}}, Most: 500, End: 10 * time.Second},
		share.Side{Outcomes: []share.Outcome{one, other}, Most: 900, End: 12 * time.Second, GaveWay: 1})
	require.Equal(t, 1, m.Split.Failed)
	require.Equal(t, 2, m.Balance.Completed)
	require.Equal(t, ShareQuantiles{3, 3, 3}, m.Balance.Latency)
	require.InDelta(t, 2.0/12/(1.0/10), m.Throughput.Median, 1e-9)

	var out bytes.Buffer
	(&Share{Config: c, Mixes: []ShareMix{m}}).print(&out)
	require.Regexp(t, `2, 10–800, 100 % +2 +1 → 0 +1\.67 +3\.0, 3\.0, 3\.0 → 3\.0, 3\.0, 3\.0 s +1\.0, 1\.0, 1\.0 → 1\.0, 1\.0, 1\.0 s +0 → 1 +90\.0 %`, out.String())
}

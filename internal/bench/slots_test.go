package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/measure"
)

func TestQuantile(t *testing.T) {
	values := []float64{3, 1, 2, 4}
	require.Equal(t, 1.0, measure.Quantile(values, 0))
	require.Equal(t, 2.0, measure.Quantile(values, 0.5))
	require.Equal(t, 4.0, measure.Quantile(values, 0.99))
	require.Equal(t, []float64{3, 1, 2, 4}, values, "the order is kept")
}

// A gap counts where it overlaps a window, and no gap spans two answers.
func TestGaps(t *testing.T) {
	start := time.Unix(100, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	d := &decoder{}
	for _, ms := range []int{0, 10, 20, 120} {
		d.token(at(ms))
	}
	d.token(time.Time{})
	d.token(at(150))
	d.token(at(155))
	all := d.gaps(func(span) bool { return true })
	require.Equal(t, []float64{0.01, 0.01, 0.1, 0.005}, all)
	require.Equal(t, []float64{0.1}, d.gaps(span{at(50), at(60)}.overlaps), "a stall longer than the window")
	require.Equal(t, []float64{0.01}, d.gaps(span{at(10), at(20)}.overlaps), "its ends do not count")
	require.Equal(t, 6, d.count()-1)

	windows := span{at(0), at(100)}.windows(30 * time.Millisecond)
	require.Equal(t, []span{{at(0), at(30)}, {at(60), at(90)}}, windows)
	require.Empty(t, span{at(0), at(10)}.windows(30*time.Millisecond))
}

// The number of tokens in the slots does not matter: a stall counts the same in the first
// restore as in the last.
func TestGapsAreOverWhatWasUsual(t *testing.T) {
	start := time.Unix(100, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	var idle, restoring gaps
	for usual := 10; usual <= 100; usual += 90 {
		d := &decoder{}
		for i := range 9 {
			d.token(at(i * usual))
		}
		d.token(at(10 * usual)) // twice as long
		turn := slotsTurn{span{at(0), at(8 * usual)}, span{at(8*usual + 1), at(9 * usual)}}
		turn.measure(&decoders{each: []*decoder{d}}, &idle, &restoring)
	}
	require.InDeltaSlice(t, []float64{2, 2}, restoring.relative, 1e-9)
	require.InDeltaSlice(t, []float64{0.02, 0.2}, restoring.seconds, 1e-9)
	require.InDelta(t, 1, idle.sum().P99Relative, 1e-9)
	require.Equal(t, 2, restoring.sum().Count)
}

func TestRestoredAt(t *testing.T) {
	at, err := restoredAt(`[GIN] 2026/11/20
time=2026-11-20T23:20:40.123Z level=INFO source=tiering.go:88 msg="kv tier: restored" slot=0 tokens=7936
`)
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 11, 20, 23, 20, 40, 123e6, time.UTC), at.UTC())
	_, err = restoredAt("nothing")
	require.ErrorContains(t, err, "does not say")
}

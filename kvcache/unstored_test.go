package kvcache

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// TestRowsThatAreNotStoredAreTold: after the first prompt whose rows do not reach the store, one
// line has the cause.
func TestRowsThatAreNotStoredAreTold(t *testing.T) {
	for cause, test := range map[telemetry.Obstacle]struct {
		options Options
		fault   func(*fakeRunner, *memStore)
	}{
		telemetry.ObstacleLayout: {Options{}, func(r *fakeRunner, _ *memStore) { r.tiered.caches.layers++ }},
		telemetry.ObstacleCopy: {Options{}, func(r *fakeRunner, _ *memStore) {
			r.cache.onRead = func() error { return errors.New("no such row") }
		}},
		telemetry.ObstacleSlow: {Options{QueuedBytes: 16 << 10}, func(_ *fakeRunner, store *memStore) { store.hold = make(chan struct{}) }},
	} {
		t.Run(string(cause), func(t *testing.T) {
			var lines strings.Builder
			test.options.Logger = slog.New(slog.NewTextHandler(&lines, nil))
			r, store := newStored(t, newFakeRunner, 1, 256, test.options)
			test.fault(r, store)
			for i := range 5 {
				r.run(r.slots[0], tokenRange(100+i, 200), nil, true)
			}
			var report telemetry.Report
			r.tiered.opts.Unstored.Fill(&report)
			require.NotNil(t, report.Unstored)
			require.Equal(t, cause, report.Unstored.Cause)
			require.Equal(t, 1, strings.Count(lines.String(), "level=WARN"), lines.String())
			require.Contains(t, lines.String(), "cause="+string(cause)+" ")
			if store.hold != nil {
				close(store.hold)
			}
		})
	}
}

// Requests that are not stored on purpose are no reason for a line.
func TestPrivateRowsAreNotTold(t *testing.T) {
	var lines strings.Builder
	r := newFakeRunner(t, newMemStore(t), 1, 256, Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	r.tiered.caches.layers++
	r.run(r.slots[0], tokenRange(1, 100), nil, false)
	require.Empty(t, lines.String())
}

package tiering

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ollama/ollama/ml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/rates"
)

// A directory's speed is kept by its path, a model's by its fingerprint and placement.
func TestRatesAreRemembered(t *testing.T) {
	log, lines := tierenvtest.Logger()
	config := tierenv.Config{Local: t.TempDir(), Remote: "/nfs/pages"}
	slow := rates.Chain{Pages: []rates.Page{{Tokens: 1000, Bytes: 1 << 20, Tier: tier.Remote}}}
	mine := config.OpenRates(pagefile.Key{1}, "CPU 33", log)
	mine.Computed(1000, 500, time.Second)
	mine.Watch(slow, 1).Arrived(time.Minute)
	require.NoError(t, mine.Close())

	again := config.OpenRates(pagefile.Key{1}, "CPU 33", log)
	require.Zero(t, again.Plan(slow))
	config.Remote = "/another"
	require.Equal(t, 1, config.OpenRates(pagefile.Key{1}, "CPU 33", log).Plan(slow))
	require.Empty(t, lines.String())

	require.NoError(t, os.WriteFile(filepath.Join(config.Local, "rates.json"), []byte("?"), 0o600))
	require.Equal(t, 1, config.OpenRates(pagefile.Key{1}, "CPU 33", log).Plan(slow))
}

// split is a model of 32 layers and an output, of which the first are on the CPU.
func split(onCPU int, gpus ...string) ml.BackendMemory {
	const layers = 33
	m := ml.BackendMemory{InputWeights: 7, CPU: ml.DeviceMemory{Name: "CPU", Weights: make([]uint64, layers)}}
	for _, id := range append(gpus, "idle") {
		m.GPUs = append(m.GPUs, ml.DeviceMemory{
			DeviceID: ml.DeviceID{ID: id, Library: "CUDA"}, Name: fmt.Sprint("CUDA", len(m.GPUs)), Weights: make([]uint64, layers),
		})
	}
	for i := range layers {
		on := m.CPU.Weights
		if i >= onCPU {
			on = m.GPUs[i%len(gpus)].Weights
		}
		on[i] = 1000
	}
	return m
}

// A model's split over devices follows free memory. The model's pages are found with any
// split, and compute rates are kept for each split.
func TestSplitIsInTheRatesAndNotInTheFingerprint(t *testing.T) {
	log, _ := tierenvtest.Logger()
	config := tierenv.Config{Local: t.TempDir(), Remote: "/nfs/pages", PageTokens: 256}
	model := testModelAt(t)
	// a second to read: faster than an unknown machine is assumed to compute, and slower
	// than this one computes
	chain := rates.Chain{Pages: []rates.Page{{Tokens: 1000, Bytes: 1 << 20, Tier: tier.Remote}}}
	tier := config.OpenRates(pagefile.Key{1}, "", log)
	tier.Watch(chain, 1).Arrived(time.Second)
	require.NoError(t, tier.Close())

	keys, placements := make(map[pagefile.Key]bool), make(map[string]bool)
	for _, placement := range []string{
		PlacementOf(split(33), 8, 512), PlacementOf(split(33), 4, 512), PlacementOf(split(33), 8, 1024),
		PlacementOf(split(20, "a"), 8, 512), PlacementOf(split(10, "a"), 8, 512), PlacementOf(split(0, "a"), 8, 512),
		PlacementOf(split(0, "a", "b"), 8, 512), PlacementOf(split(0, strings.Repeat("long", 1000)), 8, 512),
	} {
		model.Placement = placement
		identity, err := identityOf(model, config, digests.Open(""))
		require.NoError(t, err)
		key := tierenv.Fingerprint(identity)
		keys[key] = true

		known := config.OpenRates(key, placement, log)
		require.False(t, placements[placement])
		placements[placement] = true
		require.Equal(t, 1, known.Plan(chain), "no rates of %s are known", placement)
		known.Computed(1000, 500, time.Millisecond)
		require.NoError(t, known.Close())
		require.Zero(t, config.OpenRates(key, placement, log).Plan(chain), placement)
	}
	require.Len(t, keys, 1)
	swapped := split(20, "a", "b")
	slices.Reverse(swapped.GPUs)
	require.Equal(t, PlacementOf(split(20, "a", "b"), 8, 512), PlacementOf(swapped, 8, 512), "devices are listed in any order")
}

package tiering

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ollama/ollama/ml"
)

// PlacementOf names the causes of a model's compute costs besides its fingerprint: the number of layers
// on each device, and the CPU's threads and batch size. Which layers are on a device makes no
// difference; the input's weights are always on the CPU. The split follows the memory that is free when
// a model is loaded, and is no part of the fingerprint: the same pages are found with any split.
func PlacementOf(memory ml.BackendMemory, threads, batch int) string {
	parts := []string{fmt.Sprintf("CPU %d, %d threads", layersOn(memory.CPU), threads)}
	for _, gpu := range memory.GPUs {
		if n := layersOn(gpu); n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s %d", gpu.Library, gpu.ID, n))
		}
	}
	slices.Sort(parts[1:])
	return strings.Join(append(parts, fmt.Sprintf("batch %d", batch)), "; ")
}

// layersOn counts the layers that a device computes; the output counts as one layer.
func layersOn(device ml.DeviceMemory) int {
	n := 0
	for _, bytes := range device.Weights {
		if bytes > 0 {
			n++
		}
	}
	return n
}

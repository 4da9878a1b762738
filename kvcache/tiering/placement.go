package tiering

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ollama/ollama/ml"
)

// PlacementOf names what computing a token of a model costs follows from besides its
// fingerprint: how many layers are on which device, and with how many threads and how large
// batches the CPU computes. Which layers those are makes no difference, nor where the
// weights of the input are, which is the CPU always.
//
// The split follows the memory that is free when a model is loaded. So it is no part of the
// fingerprint: the same pages are found whatever it is.
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

// layersOn counts the layers of a model, and its output as one, that a device computes.
func layersOn(device ml.DeviceMemory) int {
	n := 0
	for _, bytes := range device.Weights {
		if bytes > 0 {
			n++
		}
	}
	return n
}

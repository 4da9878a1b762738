package torture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

type logprob = api.Logprob

// hybrid is the setup of a model with recurrent layers.
func hybrid(on subject) (setup, float64) { return setup{model: on.hybrid}, on.hybridBound }

// windowed is that of a model with layers of a window, and the bound of its log probabilities.
func windowed(on subject) (setup, float64) { return setup{model: on.windowed}, on.windowBound }

// streams has slots restored through files that do not exist, where FUSE works.
func streams(t testing.TB) []string {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Log("FUSE cannot be used: files in memory instead of streams")
		return nil
	}
	require.NoError(t, device.Close())
	return []string{"KVTIER_LLAMA_FILES=parts"}
}

// adapterOf writes a LoRA of rank 1 that changes K and V of all layers.
func adapterOf(t testing.TB, shape testmodel.Shape, seed uint64) string {
	shape = shape.WithDefaults()
	rng := rand.New(rand.NewPCG(seed, 1))
	var tensors []*ggml.Tensor
	for layer := range shape.Layers {
		for _, of := range []string{"attn_k", "attn_v"} {
			name := fmt.Sprintf("blk.%d.%s.weight", layer, of)
			tensors = append(tensors,
				randomTensor(rng, name+".lora_a", uint64(shape.Embed), 1),
				randomTensor(rng, name+".lora_b", 1, uint64(shape.KVHeads*shape.HeadDim)))
		}
	}
	path := filepath.Join(t.TempDir(), "adapter.gguf")
	require.NoError(t, testmodel.WriteFile(path, ggml.KV{
		"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float32(1),
	}, tensors))
	return path
}

// randomTensor is a matrix of f32 of a LoRA, the inner dimension first.
func randomTensor(rng *rand.Rand, name string, shape ...uint64) *ggml.Tensor {
	weights := make([]byte, 0, 4*shape[0]*shape[1])
	for range shape[0] * shape[1] {
		weights = binary.LittleEndian.AppendUint32(weights, math.Float32bits(float32(rng.NormFloat64())/4))
	}
	return &ggml.Tensor{Name: name, Kind: uint32(ggml.TensorTypeF32), Shape: shape, WriterTo: bytes.NewReader(weights)}
}

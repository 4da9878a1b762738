package testmodel

import (
	"fmt"
	"math"
)

// biasDeviation is the standard deviation of biases, which are added to queries, keys and
// values of variance 1 or more.
const biasDeviation = 0.2

// qwen2 runs on the llama.cpp runner unless OLLAMA_NEW_ENGINE=1 asks for the native engine.
// Queries, keys and values have biases.
func qwen2(s Shape) layout {
	l := transformer(s, math.Sqrt(attentionSharpness))
	for i := range s.Layers {
		for _, projection := range []struct {
			name  string
			width int
		}{
			{"attn_q", s.Heads * s.HeadDim}, {"attn_k", s.KVHeads * s.HeadDim}, {"attn_v", s.KVHeads * s.HeadDim},
		} {
			l.matrices = append(l.matrices, matrix{
				name: fmt.Sprintf("blk.%d.%s.bias", i, projection.name), in: projection.width, f32: true, scale: biasDeviation,
			})
		}
	}
	return l
}

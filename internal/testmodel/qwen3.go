package testmodel

import (
	"fmt"
	"math"
)

// qwen3 is the architecture Ollama always runs on its native engine. It
// normalizes each head's query and key, so the sharpness of attention sits in
// those two norms instead of in the projections.
func qwen3(s Shape) layout {
	l := transformer(s, 1)
	gain := float32(math.Sqrt(attentionSharpness))
	for i := range s.Layers {
		l.matrices = append(l.matrices,
			matrix{name: fmt.Sprintf("blk.%d.attn_q_norm.weight", i), in: s.HeadDim, norm: gain},
			matrix{name: fmt.Sprintf("blk.%d.attn_k_norm.weight", i), in: s.HeadDim, norm: gain},
		)
	}
	return l
}

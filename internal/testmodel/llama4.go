package testmodel

import "math"

// llama4Step is the period of layers that attend to all positions, without rotary positions.
// The other layers have rotary positions and attend to their own chunk, which Ollama keeps
// in a separate cache.
const llama4Step = 4

// llama4 attends in chunks of Shape.Window tokens: a token attends only to its own chunk.
// Every other layer is a mixture of experts: each token uses one expert beside the shared
// one. The model is text only: the engine's source fixes the tokens around an image, from
// 200,080 on.
func llama4(s Shape) layout {
	l := base(s)
	mixtureMetadata(s, l)
	l.metadata["expert_used_count"] = uint32(1)
	l.metadata["interleave_moe_layer_step"] = uint32(2)
	l.metadata["attention.head_dim"] = uint32(s.HeadDim)
	l.metadata["attention.chunk_size"] = uint32(s.Window)
	l.metadata["no_rope_interval"] = uint32(llama4Step)
	// Normalized queries and keys would leave attention blunt.
	l.metadata["use_qk_norm"] = false
	// Queries of layers without chunks grow a little after each chunk.
	l.metadata["attention.floor_scale"] = float32(s.Window)
	for i := range s.Layers {
		l.matrices = append(l.matrices, attentionBlock(s, i, math.Sqrt(attentionSharpness))...)
		if i%2 == 0 {
			l.matrices = append(l.matrices, feedForward(s, i)...)
			continue
		}
		l.matrices = append(l.matrices, expertBlock(s, i, gatedRMS)...)
		l.matrices = append(l.matrices, sharedExpert(s, i)...)
	}
	leaveRoute(s, l)
	return l
}

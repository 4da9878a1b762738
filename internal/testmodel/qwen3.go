package testmodel

// qwen3 always runs on Ollama's native engine. Each head's query and key are normalized, so
// the sharpness of attention is in these norms instead of the projections.
func qwen3(s Shape) layout {
	l := transformer(s, 1)
	for i := range s.Layers {
		l.matrices = append(l.matrices, headNorms(s, i)...)
	}
	return l
}

// qwen3moe is qwen3 with a mixture of experts in each layer.
func qwen3moe(s Shape) layout {
	l := base(s)
	mixtureMetadata(s, l)
	for i := range s.Layers {
		l.matrices = append(l.matrices, attentionBlock(s, i, 1)...)
		l.matrices = append(l.matrices, headNorms(s, i)...)
		l.matrices = append(l.matrices, expertBlock(s, i, gatedRMS)...)
	}
	leaveRoute(s, l)
	return l
}

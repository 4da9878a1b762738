package testmodel

// qwen3 is the architecture Ollama always runs on its native engine. It
// normalizes each head's query and key, so the sharpness of attention sits in
// those two norms instead of in the projections.
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

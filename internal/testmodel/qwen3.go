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

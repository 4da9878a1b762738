package testmodel

import "math"

// llama runs on the llama.cpp runner unless OLLAMA_NEW_ENGINE=1 asks for the native engine.
// Queries and keys have no norms: the sharpness of attention is in the projections.
func llama(s Shape) layout {
	l := transformer(s, math.Sqrt(attentionSharpness))
	l.metadata["vocab_size"] = uint32(s.Vocab)
	return l
}

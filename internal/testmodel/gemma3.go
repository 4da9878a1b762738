package testmodel

import "math"

const gemmaLocalRopeBase = 1e4 // of layers with a sliding window

// gemma3Size has one layer of seven that sees everything.
var gemma3Size = Shape{Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}

// gemma3 is text only and always runs on the native engine. Layers 5, 11, 17 and
// so on see everything, the others a sliding window, which Ollama keeps in a
// cache of its own. Ollama takes 34, 48 or 62 layers for one of Google's models
// and corrects their rotary and attention scales, here as there.
func gemma3(s Shape) layout {
	l := transformer(s, 1)
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	l.metadata["rope.local.freq_base"] = float32(gemmaLocalRopeBase)
	scaleEmbedding(s, l)
	for i := range s.Layers {
		l.matrices = append(l.matrices, headNorms(s, i)...)
		l.matrices = append(l.matrices, postNorms(s, i)...)
	}
	return l
}

// scaleEmbedding makes up for models that multiply embeddings with √embed.
func scaleEmbedding(s Shape, l layout) {
	l.change(embeddingTensor, func(m *matrix) {
		m.scale, m.firstColumn = perInput(s), constantColumn(float32(biasValue/math.Sqrt(float64(s.Embed))))
	})
}

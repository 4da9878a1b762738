package testmodel

import "math"

const gemmaLocalRopeBase = 1e4 // rotary base of layers with a sliding window

// gemma3Size has one layer of seven without a window.
var gemma3Size = Shape{Layers: 7, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}

// gemma3 is text only and always runs on the native engine. Layers 5, 11, 17 and so on
// attend to all positions, the others to a sliding window, which Ollama keeps in a separate
// cache. Ollama takes a model of 34, 48 or 62 layers for one of Google's models and corrects
// its rotary and attention scales, also for a model of this package.
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

// scaleEmbedding compensates for models that multiply embeddings with √embed.
func scaleEmbedding(s Shape, l layout) {
	l.change(embeddingTensor, func(m *matrix) {
		m.scale, m.firstColumn = perInput(s), constantColumn(float32(biasValue/math.Sqrt(float64(s.Embed))))
	})
}

package testmodel

import "math"

const gemmaLocalRopeBase = 1e4 // of layers with a sliding window

// gemma3 is text only and always runs on the native engine. Layers 5, 11, 17 and
// so on see everything, the others a sliding window, which Ollama keeps in a
// cache of its own. Ollama takes 34, 48 or 62 layers for one of Google's models
// and corrects their rotary and attention scales, here as there.
func gemma3(s Shape) layout {
	l := transformer(s, 1)
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	l.metadata["rope.local.freq_base"] = float32(gemmaLocalRopeBase)
	for i := range l.matrices {
		// the model multiplies embeddings with √embed
		if m := &l.matrices[i]; m.name == embeddingTensor {
			m.scale, m.firstColumn = perInput(s), constantColumn(float32(biasValue/math.Sqrt(float64(s.Embed))))
		}
	}
	for i := range s.Layers {
		l.matrices = append(l.matrices, headNorms(s, i)...)
		// What is added to the residual stream is normalized first, so how much
		// each layer contributes is in these norms.
		l.matrices = append(l.matrices,
			matrix{name: block(i, "post_attention_norm"), in: s.Embed, norm: float32(layerGain(s, attentionVariance))},
			matrix{name: block(i, "post_ffw_norm"), in: s.Embed, norm: float32(layerGain(s, ffnVariance))},
		)
	}
	return l
}

package testmodel

import (
	"fmt"
	"math"
)

// gptossExpertRMS is of g·σ(1.702·g)·(u+1) for g and u of variance 1.
const gptossExpertRMS = 0.9

// Sinks take part in a softmax as one more score, beside n positions whose
// weights add up to e^(ln n + attentionSharpness²/2): e^7.3 for a window of 64.
const (
	sinkMean      = 6.5
	sinkDeviation = 1.5
)

// gptoss always runs on the native engine. Its attention has a sink per head and
// its even layers a sliding window; Ollama keeps the last 4,096 tokens of these in
// a cache of their own. Its feed-forward layers are a mixture of experts, f16
// here where OpenAI's models have MXFP4. It has no norms of queries and keys, so
// the sharpness of attention is in the projections.
func gptoss(s Shape) layout {
	l := base(s)
	l.metadata["attention.sliding_window"] = uint32(s.Window)
	mixtureMetadata(s, l)
	for i := range s.Layers {
		l.matrices = append(l.matrices, attentionBlock(s, i, math.Sqrt(attentionSharpness))...)
		l.matrices = append(l.matrices, matrix{name: fmt.Sprintf("blk.%d.attn_sinks", i), in: s.Heads, norm: sinkMean, scale: sinkDeviation})
		l.matrices = append(l.matrices, expertBlock(s, i, gptossExpertRMS)...)
	}
	leaveRoute(s, l)
	return l
}

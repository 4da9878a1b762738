package testmodel

import (
	"fmt"
	"maps"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

// Hybrid models have layers without K/V, which keep a state of constant size for a whole sequence that each
// token changes. Here every other layer is of this kind, from the first on.

func isRecurrent(layer int) bool { return layer%2 == 0 }

// alternate has one part in even layers, which are the recurrent ones of hybrids, and another one in the others.
func alternate(even, odd part) part {
	return func(s Shape, i int) []matrix {
		if isRecurrent(i) {
			return even(s, i)
		}
		return odd(s, i)
	}
}

// hybridKVHeads is the number of key/value heads of each layer, 0 in recurrent layers.
func hybridKVHeads(s Shape) []uint32 {
	return eachLayer(s, func(i int) uint32 {
		if isRecurrent(i) {
			return 0
		}
		return uint32(s.KVHeads)
	})
}

// convTaps is the number of tokens that a short convolution reads: its state holds the
// inputs of the last convTaps - 1 tokens.
const convTaps = 3

// lfm2 has short convolutions in every other layer.
func lfm2(s Shape) layout {
	l := stack(s, alternate(shortConvolution, normedAttention), feedForward)
	l.metadata["vocab_size"] = uint32(s.Vocab)
	l.metadata["attention.head_count_kv"] = hybridKVHeads(s)
	l.metadata["shortconv.l_cache"] = uint32(convTaps)
	return l
}

// shortConvolution multiplies two of its three projections, convolves the products of the
// last three tokens, and multiplies the result with the third projection.
func shortConvolution(s Shape, i int) []matrix {
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "shortconv.in_proj"), in: s.Embed, out: 3 * s.Embed, scale: perInput(s)},
		{name: block(i, "shortconv.conv"), in: convTaps, out: s.Embed, f32: true, scale: 1 / math.Sqrt(convTaps)},
		{name: block(i, "shortconv.out_proj"), in: s.Embed, out: s.Embed, scale: layerGain(s, attentionVariance) * perInput(s), zero: 1},
	}
}

// The linear attention of qwen3next: a state of linearDim × linearDim numbers for each of linearHeads heads,
// and before it a convolution over linearTaps tokens. Two heads share queries and keys.
const (
	linearDim      = 32
	linearHeads    = 4
	linearKeyHeads = 2
	linearTaps     = 4

	linearInner   = linearHeads * linearDim
	linearChannel = linearInner + 2*linearKeyHeads*linearDim
)

// A state decays by e^(-softplus(a + decayMean ± decayDeviation)) with each token, with a of
// variance 1: by half in ten to a few hundred tokens.
const (
	decayMean      = -4.5
	decayDeviation = 0.7
)

const siluRMS = 0.6 // RMS of silu(x) for x of variance 1

// qwen3next has gated linear attention, a recurrent state, in every other layer. The other
// layers attend to all positions, with a gate at their output.
func qwen3next(s Shape) layout {
	return linearModel(s, "ssm_ba")
}

// linearModel has the named projections that decide how much of a state stays and how much is added.
func linearModel(s Shape, projections ...string) layout {
	recurrent := func(s Shape, i int) []matrix {
		matrices := linearAttention(s, i)
		for _, name := range projections {
			matrices = append(matrices, matrix{name: block(i, name), in: s.Embed, out: 2 * linearHeads / len(projections), scale: perInput(s)})
		}
		return matrices
	}
	l := stack(s, alternate(recurrent, gatedAttention), feedForwardAfter)
	l.metadata["attention.head_count_kv"] = hybridKVHeads(s)
	l.metadata["rope.dimension_count"] = uint32(max(2, s.HeadDim/4&^1)) // only a part of a head is rotated
	l.recurrence(linearInner, linearDim, linearKeyHeads, linearHeads, linearTaps)
	return l
}

// recurrence notes the sizes of recurrent layers.
func (l *layout) recurrence(inner, state, groups, heads, taps uint32) {
	maps.Copy(l.metadata, ggml.KV{
		"ssm.inner_size": inner, "ssm.state_size": state, "ssm.group_count": groups, "ssm.time_step_rank": heads, "ssm.conv_kernel": taps,
	})
}

// feedForwardAfter is feedForward with the norm's other name.
func feedForwardAfter(s Shape, i int) []matrix {
	matrices := feedForward(s, i)
	change(matrices, block(i, "ffn_norm"), func(m *matrix) { m.name = block(i, "post_attention_norm") })
	return matrices
}

func linearAttention(s Shape, i int) []matrix {
	gain := layerGain(s, attentionVariance) / siluRMS / math.Sqrt(linearInner)
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "attn_qkv"), in: s.Embed, out: linearChannel, scale: perInput(s)},
		{name: block(i, "attn_gate"), in: s.Embed, out: linearInner, scale: perInput(s)},
		{name: block(i, "ssm_conv1d"), in: linearTaps, out: linearChannel, f32: true, scale: 1 / math.Sqrt(linearTaps)},
		{name: fmt.Sprintf("blk.%d.ssm_dt", i), in: linearHeads, norm: decayMean, scale: decayDeviation},
		{name: fmt.Sprintf("blk.%d.ssm_a", i), in: linearHeads, norm: -1},
		{name: block(i, "ssm_norm"), in: linearDim, norm: 1},
		{name: block(i, "ssm_out"), in: linearInner, out: s.Embed, scale: gain, zero: 1},
	}
}

// gatedAttention projects a gate together with each head's query.
func gatedAttention(s Shape, i int) []matrix {
	const gateRMS = 0.54 // RMS of σ(x) for x of variance 1
	matrices := normedAttention(s, i)
	change(matrices, block(i, "attn_q"), func(m *matrix) { m.out *= 2 })
	change(matrices, block(i, "attn_output"), func(m *matrix) { m.scale /= gateRMS })
	return matrices
}

// qwen35 is qwen3next with other names, and another order of heads, which random weights do not show. Rotary
// positions are in sections, all equal for text. The model is text only: the file could name an image's
// tokens, but this package writes no small tower of that kind.
func qwen35(s Shape) layout {
	l := linearModel(s, "ssm_beta", "ssm_alpha")
	rotary := l.metadata["rope.dimension_count"].(uint32)
	section := int32(rotary / 8)
	l.metadata["rope.dimension_sections"] = []int32{int32(rotary/2) - 2*section, section, section, 0}
	l.metadata["rope.mrope_interleaved"] = true
	return l
}

// nemotronHSize has two recurrent, two attention and four feed-forward layers.
var nemotronHSize = Shape{Layers: 8, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64}

const (
	nemotronHPeriod = 4 // layers: recurrent, feed-forward, attention, feed-forward

	// The state of a recurrent layer is scanState × scanDim numbers for each of scanHeads
	// heads. Two heads share the projections that read and write the state.
	scanState  = 32
	scanDim    = 32
	scanHeads  = 4
	scanGroups = 2
	scanTaps   = 4

	scanInner   = scanHeads * scanDim
	scanChannel = scanInner + 2*scanGroups*scanState

	squaredReluRMS = 1.22 // RMS of max(0, x)² for x of variance 1
)

// nemotronH has layers that are either attention, a recurrent state or a feed-forward part.
// Attention has no positions.
func nemotronH(s Shape) layout {
	l := base(s)
	part := s
	part.Layers = max(1, s.Layers/2) // layers of other architectures with the same effect on the residual stream
	var kvHeads, ffn []uint32
	for i := range s.Layers {
		heads, width := 0, 0
		switch i % nemotronHPeriod {
		case 0:
			l.add(scan(part, i)...)
		case 2:
			heads = s.KVHeads
			l.add(sharpAttention(part, i)...)
		default:
			width = s.FFN
			l.add(squaredFeedForward(part, i)...)
		}
		kvHeads, ffn = append(kvHeads, uint32(heads)), append(ffn, uint32(width))
	}
	l.metadata["attention.head_count_kv"] = kvHeads
	l.metadata["feed_forward_length"] = ffn
	l.recurrence(scanInner, scanState, scanGroups, scanHeads, scanTaps)
	return l
}

// scan is recurrent layer i, a selective scan as in Mamba 2.
func scan(s Shape, i int) []matrix {
	gain := layerGain(s, attentionVariance) / math.Sqrt(scanInner)
	bare := func(tensor string) string { return fmt.Sprintf("blk.%d.%s", i, tensor) }
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ssm_in"), in: s.Embed, out: scanInner + scanChannel + scanHeads, scale: perInput(s)},
		{name: block(i, "ssm_conv1d"), in: scanTaps, out: scanChannel, f32: true, scale: 1 / math.Sqrt(scanTaps)},
		{name: bare("ssm_conv1d.bias"), in: scanChannel, f32: true, scale: biasDeviation},
		{name: bare("ssm_dt.bias"), in: scanHeads, norm: decayMean, scale: decayDeviation},
		{name: bare("ssm_a"), in: 1, out: scanHeads, norm: -1},
		{name: bare("ssm_d"), in: 1, out: scanHeads, norm: scanSkip},
		{name: block(i, "ssm_norm"), in: scanInner / scanGroups, out: scanGroups, norm: 1},
		{name: block(i, "ssm_out"), in: scanInner, out: s.Embed, scale: gain, zero: 1},
	}
}

// scanSkip is the share of a scan's input that bypasses the state. A much larger share would
// drown the state's memory of earlier tokens.
const scanSkip = 0.1

// squaredFeedForward is layer i if it is a feed-forward part.
func squaredFeedForward(s Shape, i int) []matrix {
	gain := layerGain(s, ffnVariance) / squaredReluRMS / math.Sqrt(float64(s.FFN))
	return []matrix{
		{name: block(i, "attn_norm"), in: s.Embed, norm: 1, zero: 1},
		{name: block(i, "ffn_up"), in: s.Embed, out: s.FFN, scale: perInput(s)},
		{name: block(i, "ffn_down"), in: s.FFN, out: s.Embed, scale: gain, zero: 1},
	}
}

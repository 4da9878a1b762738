package testmodel

import (
	"fmt"
	"math"
)

// The linear attention of qwen3next: a state of linearDim × linearDim numbers for each of
// linearHeads heads, and before it a convolution over linearTaps tokens. Two heads share
// queries and keys.
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
// layers attend to all positions, with a gate at their output. The model always runs on the
// native engine, one request at a time.
func qwen3next(s Shape) layout {
	l := linearModel(s)
	for i := range s.Layers {
		if isRecurrent(i) {
			l.matrices = append(l.matrices, matrix{name: block(i, "ssm_ba"), in: s.Embed, out: 2 * linearHeads, scale: perInput(s)})
		}
	}
	return l
}

// linearModel is qwen3next without the projections that decide how much of a state stays and
// how much is added.
func linearModel(s Shape) layout {
	l := base(s)
	l.metadata["attention.head_count_kv"] = hybridKVHeads(s)
	l.metadata["rope.dimension_count"] = uint32(max(2, s.HeadDim/4&^1)) // only a part of a head is rotated
	l.metadata["ssm.inner_size"] = uint32(linearInner)
	l.metadata["ssm.state_size"] = uint32(linearDim)
	l.metadata["ssm.group_count"] = uint32(linearKeyHeads)
	l.metadata["ssm.time_step_rank"] = uint32(linearHeads)
	l.metadata["ssm.conv_kernel"] = uint32(linearTaps)
	for i := range s.Layers {
		if isRecurrent(i) {
			l.matrices = append(l.matrices, linearAttention(s, i)...)
		} else {
			l.matrices = append(l.matrices, gatedAttention(s, i)...)
		}
		l.matrices = append(l.matrices, feedForwardAfter(s, i)...)
	}
	return l
}

// feedForwardAfter is feedForward with the norm's other name.
func feedForwardAfter(s Shape, i int) []matrix {
	matrices := feedForward(s, i)
	for j := range matrices {
		if matrices[j].name == block(i, "ffn_norm") {
			matrices[j].name = block(i, "post_attention_norm")
		}
	}
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
	matrices := append(attentionBlock(s, i, 1), headNorms(s, i)...)
	for j := range matrices {
		switch m := &matrices[j]; m.name {
		case block(i, "attn_q"):
			m.out *= 2
		case block(i, "attn_output"):
			m.scale /= gateRMS
		}
	}
	return matrices
}

// qwen35 is qwen3next with other names, and another order of heads, which random weights do
// not show. Rotary positions are in sections, all equal for text. The model is text only:
// the file could name an image's tokens, but this package writes no small tower of that
// kind.
func qwen35(s Shape) layout {
	l := linearModel(s)
	rotary := l.metadata["rope.dimension_count"].(uint32)
	section := int32(rotary / 8)
	l.metadata["rope.dimension_sections"] = []int32{int32(rotary/2) - 2*section, section, section, 0}
	l.metadata["rope.mrope_interleaved"] = true
	for i := range s.Layers {
		if isRecurrent(i) {
			l.matrices = append(l.matrices,
				matrix{name: block(i, "ssm_beta"), in: s.Embed, out: linearHeads, scale: perInput(s)},
				matrix{name: block(i, "ssm_alpha"), in: s.Embed, out: linearHeads, scale: perInput(s)},
			)
		}
	}
	return l
}

package testmodel

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ollama/ollama/fs/ggml"
)

// Files for llama.cpp differ from files for Ollama's engine in names of keys and tensors, in keys that
// llama.cpp requires, and in sizes that its source fixes. Layers hold the same kinds of caches.

// rename gives tensors whose name ends in from the ending to.
func (l *layout) rename(from, to string) {
	for i := range l.matrices {
		if name, ok := strings.CutSuffix(l.matrices[i].name, from); ok {
			l.matrices[i].name = name + to
		}
	}
}

// lfm2ForLlamaCpp names the last norm after the embedding.
func lfm2ForLlamaCpp(_ Shape, l *layout) { l.rename("output_norm.weight", "token_embd_norm.weight") }

// nemotronHForLlamaCpp adds the epsilon of a norm that only draft layers have.
func nemotronHForLlamaCpp(_ Shape, l *layout) {
	l.metadata["attention.layer_norm_epsilon"] = float32(rmsEpsilon)
}

// linearForLlamaCpp: the number of K/V heads is that of layers with attention, and these are
// every second layer.
func linearForLlamaCpp(s Shape, l *layout) {
	l.metadata["attention.head_count_kv"] = uint32(s.KVHeads)
	l.metadata["full_attention_interval"] = uint32(2)
	delete(l.metadata, "rope.mrope_interleaved")
	l.rename("ssm_dt", "ssm_dt.bias")
}

// qwen35ForLlamaCpp may add a layer that drafts. It reads the embedding of the token before, and leaves
// out the hidden state beside, so that some of its drafts are right: the other layers add to that embedding.
func qwen35ForLlamaCpp(s Shape, l *layout) {
	linearForLlamaCpp(s, l)
	if !s.Drafts {
		return
	}
	i := s.Layers
	l.metadata["block_count"] = uint32(i + 1)
	l.metadata["nextn_predict_layers"] = uint32(1)
	l.add(append(gatedAttention(s, i), feedForwardAfter(s, i)...)...)
	l.add(
		matrix{name: block(i, "nextn.eh_proj"), in: 2 * s.Embed, out: s.Embed, identity: true},
		matrix{name: block(i, "nextn.enorm"), in: s.Embed, norm: 1},
		matrix{name: block(i, "nextn.hnorm"), in: s.Embed, norm: 1},
	)
}

// qwen3nextForLlamaCpp: llama.cpp wants a mixture of experts in every layer, beside an expert
// for all tokens that has a gate.
func qwen3nextForLlamaCpp(s Shape, l *layout) {
	linearForLlamaCpp(s, l)
	l.metadata["expert_shared_feed_forward_length"] = uint32(s.FFN)
	l.matrices = slices.DeleteFunc(l.matrices, func(m matrix) bool { return strings.Contains(m.name, ".ffn_") })
	for i := range s.Layers {
		l.add(without(gatedExperts(s, i), i, "ffn_norm")...) // it is the norm after attention
		l.add(sharedExpert(s, i)...)
		l.add(matrix{name: block(i, "ffn_gate_inp_shexp"), in: s.Embed, f32: true, scale: perInput(s)})
	}
	l.mix(s)
}

// gptossForLlamaCpp adds biases to attention's output, routers and experts.
func gptossForLlamaCpp(s Shape, l *layout) {
	l.rename("ffn_norm.weight", "post_attention_norm.weight")
	l.rename("attn_sinks", "attn_sinks.weight")
	for i := range s.Layers {
		bias := func(tensor string, width, experts int, scale float64) {
			l.add(matrix{name: fmt.Sprintf("blk.%d.%s.bias", i, tensor), in: width, out: experts, f32: true, scale: scale})
		}
		bias("attn_output", s.Embed, 0, 0) // the dimensions that routers read stay as they are
		bias("ffn_gate_inp", experts, 0, 0)
		bias("ffn_gate_exps", s.FFN, experts, biasDeviation)
		bias("ffn_up_exps", s.FFN, experts, biasDeviation)
		bias("ffn_down_exps", s.Embed, experts, 0)
	}
}

// latentForLlamaCpp: a row of the cache is the latent vector and the rotary part. Queries are not compressed.
func latentForLlamaCpp(s Shape, l *layout) {
	maps.Copy(l.metadata, ggml.KV{
		"attention.q_lora_rank":      uint32(0),
		"attention.key_length":       uint32(latentRank(s) + latentRope(s)),
		"attention.value_length":     uint32(latentRank(s)),
		"attention.key_length_mla":   uint32(s.HeadDim),
		"attention.value_length_mla": uint32(s.HeadDim),
		"expert_shared_count":        uint32(1),
	})
}

// gemma4ForLlamaCpp: the number of K/V heads is listed by layer, and layers without a window
// divide their frequencies by factors.
func gemma4ForLlamaCpp(s Shape, l *layout) {
	l.metadata["attention.head_count_kv"] = eachLayer(s, func(i int) uint32 {
		if gemma3nIsLocal(s, i) {
			return uint32(s.KVHeads)
		}
		return gemma4GlobalKVHeads
	})
	l.metadata["rope.dimension_count_swa"] = uint32(gemma4LocalDim(s))
	l.metadata["tokenizer.ggml.model"] = "gemma4"
	l.metadata["tokenizer.ggml.pre"] = "gemma4"
	l.add(matrix{name: "rope_freqs.weight", in: s.HeadDim / 2, norm: 1})
}

// gemma3nForLlamaCpp has the sizes that llama.cpp fixes, and K/V in all layers: those from 20 on have none.
func gemma3nForLlamaCpp(s Shape, l *layout) {
	const altup, width, rank = 4, 256, 64
	sizes := map[string]matrix{ // by the end of a tensor's name; a size of 0 stays
		"altup_proj.weight":           {experts: altup - 1},
		"altup_unembd_proj.weight":    {experts: altup - 1},
		".altup_router.weight":        {out: altup},
		".altup_predict_coef.weight":  {in: altup, out: altup * altup},
		".altup_correct_coef.weight":  {in: altup, out: altup},
		".laurel_l.weight":            {out: rank},
		".laurel_r.weight":            {in: rank},
		".inp_gate.weight":            {out: width},
		".proj.weight":                {in: width},
		"per_layer_token_embd.weight": {in: s.Layers * width},
		"per_layer_model_proj.weight": {out: s.Layers * width},
		"per_layer_proj_norm.weight":  {in: width},
	}
	for i := range l.matrices {
		m := &l.matrices[i]
		for end, size := range sizes {
			if strings.HasSuffix(m.name, end) {
				m.in, m.out, m.experts = cmp.Or(size.in, m.in), cmp.Or(size.out, m.out), cmp.Or(size.experts, m.experts)
			}
		}
	}
	for i := range s.Layers {
		l.add(matrix{name: block(i, "altup_correct_scale"), in: s.Embed, norm: 1})
		if i < s.Layers-gemma3nShared {
			continue
		}
		l.add(matrix{name: block(i, "attn_k_norm"), in: s.HeadDim, norm: headGain(s.HeadDim)})
		l.add(without(plainAttention(s, i), i, "attn_norm", "attn_q", "attn_output")...)
	}
}

// Models that draft for another one in llama.cpp, which is as large by default. They read its hidden states, its
// embedding, and its output where they have none, so they run beside it alone. With random weights their drafts
// are wrong.

// gemma4AssistantSize is that of gemma4's last two layers, but for the width of the residual stream.
var gemma4AssistantSize = Shape{Layers: 2, Embed: gemma3nSize.Embed / 2, Heads: gemma3nSize.Heads, KVHeads: gemma3nSize.KVHeads, HeadDim: gemma3nSize.HeadDim}

// gemma4Assistant drafts for gemma4. Its layers have no K/V, and read that of gemma4's last two.
func gemma4Assistant(s Shape) layout {
	l := stack(s, gemma4Attention, feedForward, postNorms, func(_ Shape, i int) []matrix {
		return []matrix{{name: block(i, "layer_output_scale"), in: 1, norm: 1}}
	})
	for i := range s.Layers {
		l.matrices = without(l.matrices, i, "attn_k", "attn_k_norm", "attn_v")
	}
	l.lack(outputTensor)
	l.add(
		matrix{name: "nextn.pre_projection.weight", in: 2 * gemma3nSize.Embed, out: s.Embed, identity: true},
		matrix{name: "nextn.post_projection.weight", in: s.Embed, out: gemma3nSize.Embed, scale: perInput(s)},
	)
	maps.Copy(l.metadata, newVocabulary(s.Vocab).spacedMerges())
	maps.Copy(l.metadata, gemma4Windows(s))
	maps.Copy(l.metadata, ggml.KV{"embedding_length_out": uint32(gemma3nSize.Embed), "nextn_predict_layers": uint32(s.Layers)})
	gemma4ForLlamaCpp(s, &l)
	return l
}

// draft reads the inputs of another model's layers into the residual stream.
func (l *layout) draft(s Shape) {
	read := []int32{1, 2, 3}
	l.lack(embeddingTensor, outputTensor)
	l.add(matrix{name: "fc.weight", in: len(read) * s.Embed, out: s.Embed, identity: true})
	l.metadata["target_layers"] = read
}

// lack leaves tensors out.
func (l *layout) lack(names ...string) {
	l.matrices = slices.DeleteFunc(l.matrices, func(m matrix) bool { return slices.Contains(names, m.name) })
}

// eagle3 drafts a token after the other.
func eagle3(s Shape) layout {
	l := stack(s, plainAttention, feedForward)
	for _, tensor := range []string{"attn_q", "attn_k", "attn_v"} {
		change(l.matrices, block(0, tensor), func(m *matrix) { m.in *= 2 }) // of the embedding, too
	}
	l.draft(s)
	l.add(matrix{name: block(0, "attn_norm_2"), in: s.Embed, norm: 1})
	l.metadata["target_hidden_size"] = uint32(s.Embed)
	return l
}

// dflash drafts all tokens at once, in the places of masks.
func dflash(s Shape) layout {
	l := stack(s, normedAttention, feedForward)
	l.draft(s)
	l.add(matrix{name: "enc.output_norm.weight", in: s.Embed, norm: 1})
	l.metadata["block_size"] = uint32(8)
	l.metadata["tokenizer.ggml.mask_token_id"] = uint32(0)
	return l
}

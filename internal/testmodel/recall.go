package testmodel

import (
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

// Recall describes a model with one exact ability: after a prompt that ends in a word which
// occurred once before, at any distance, the model continues with the tokens that followed
// the word there. The weights are set by hand, as an induction circuit. So an answer is
// right or wrong, while answers of a random model can only be compared; see "The recall
// model" in the package comment.
//
// RecallPrompts makes prompts.
type Recall struct {
	Layers int // 2 if 0: the first looks back by one token, each further layer looks up
	Heads  int // query heads, 4 if 0; an even number, because there are two key/value heads
}

const (
	recallContextMax = 1 << 20 // positions that codes can distinguish, see positionPairs
	recallKVHeads    = 2       // each carries half of a value code
	recallHeadDim    = valueCodeLen / recallKVHeads
	recallFFN        = 32 // weights are 0; some backends need a multiple of 32
	recallVocab      = 1 << (2*keyCodeBits + 1)
)

// WriteRecall writes the model as a GGUF file, as Write does.
func WriteRecall(path string, r Recall) error {
	setDefault(&r.Layers, 2)
	setDefault(&r.Heads, 4)
	s := Shape{
		Arch: "qwen3", Layers: r.Layers, Embed: recallEmbed, Heads: r.Heads, KVHeads: recallKVHeads,
		HeadDim: recallHeadDim, FFN: recallFFN, Vocab: recallVocab, Context: defaultContext,
	}
	l := qwen3(s)
	l.metadata["rope.freq_base"] = float32(recallRopeBase)
	metadata := fileMetadata(s, "kvtier test model, recall", l.metadata)
	return WriteFile(path, metadata, recallTensors(r))
}

// recallTensors is the circuit as tensors of the qwen3 architecture.
func recallTensors(r Recall) []*ggml.Tensor {
	c := newCodebook()
	tensors := []*ggml.Tensor{
		recallEmbedding(c).tensor(),
		uniformNorm("output_norm.weight", recallEmbed, 1),
		recallOutput(c).tensor(),
	}
	for i := range r.Layers {
		l := lookUp(r)
		if i == 0 {
			l = lookBack(r)
		}
		gain := float32(math.Sqrt(l.peak / math.Sqrt(recallHeadDim)))
		tensors = append(tensors,
			uniformNorm(block(i, "attn_norm"), recallEmbed, 1),
			uniformNorm(block(i, "attn_q_norm"), recallHeadDim, gain),
			uniformNorm(block(i, "attn_k_norm"), recallHeadDim, gain),
			l.query.named(block(i, "attn_q")).tensor(),
			l.key.named(block(i, "attn_k")).tensor(),
			l.value.named(block(i, "attn_v")).tensor(),
			l.output.named(block(i, "attn_output")).tensor(),
			uniformNorm(block(i, "ffn_norm"), recallEmbed, 1),
			newHandSet(recallEmbed, recallFFN).named(block(i, "ffn_gate")).tensor(),
			newHandSet(recallEmbed, recallFFN).named(block(i, "ffn_up")).tensor(),
			newHandSet(recallFFN, recallEmbed).named(block(i, "ffn_down")).tensor(),
		)
	}
	return tensors
}

func uniformNorm(name string, width int, weight float32) *ggml.Tensor {
	return matrix{name: name, in: width, norm: weight}.tensor(0)
}

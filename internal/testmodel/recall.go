package testmodel

import (
	"fmt"
	"math"

	"github.com/ollama/ollama/fs/ggml"
)

// Recall describes a model with one exact ability: after a prompt that ends in a word which
// occurred once before, at any distance, the model continues with the tokens that followed
// the word there. The weights are set by hand, as an induction circuit. So an answer is
// right or wrong, while answers of a random model can only be compared; see "The recall
// model" in the package comment.
//
// A zero field takes the default in its comment. RecallPrompts makes prompts.
type Recall struct {
	Layers  int   // 2: the first looks back by one token, each further layer looks up
	Heads   int   // query heads, 4; an even number, because there are two key/value heads
	Context int   // trained context length, 131072: the most num_ctx can ask for
	Seed    int64 // assigns codes to tokens; 0 is a seed like any other
}

const (
	defaultRecallLayers = 2
	defaultRecallHeads  = 4

	recallLayersMin  = 2
	recallContextMax = 1 << 20 // positions that codes can distinguish, see positionPairs
	recallKVHeads    = 2       // each carries half of a value code
	recallHeadDim    = valueCodeLen / recallKVHeads
	recallFFN        = 32 // weights are 0; some backends need a multiple of 32
	recallVocab      = 1 << (2*keyCodeBits + 1)
)

// WithDefaults returns r with every zero field filled in.
func (r Recall) WithDefaults() Recall {
	setDefault(&r.Layers, defaultRecallLayers)
	setDefault(&r.Heads, defaultRecallHeads)
	setDefault(&r.Context, defaultContext)
	return r
}

// Validate returns an error with the first reason why r cannot be written or run. Defaults
// must be filled in.
func (r Recall) Validate() error {
	for _, dimension := range []struct {
		name            string
		value, min, max int
	}{
		{"layers", r.Layers, recallLayersMin, layersMax},
		{"heads", r.Heads, recallKVHeads, headsMax},
		{"context", r.Context, 1, recallContextMax},
	} {
		if dimension.value < dimension.min || dimension.value > dimension.max {
			return fmt.Errorf("recall model: %s is %d, must be from %d to %d",
				dimension.name, dimension.value, dimension.min, dimension.max)
		}
	}
	if r.Heads%recallKVHeads != 0 {
		return fmt.Errorf("recall model: %d heads cannot share %d kv-heads evenly; choose an even number", r.Heads, recallKVHeads)
	}
	return nil
}

// Shape is the shape of the file, with defaults filled in. Write would write it with random
// weights.
func (r Recall) Shape() Shape {
	r = r.WithDefaults()
	return Shape{
		Arch: "qwen3", Layers: r.Layers, Embed: recallEmbed, Heads: r.Heads, KVHeads: recallKVHeads,
		HeadDim: recallHeadDim, FFN: recallFFN, Vocab: recallVocab, Context: r.Context, Seed: r.Seed,
	}
}

// WriteRecall writes the model as a GGUF file, as Write does.
func WriteRecall(path string, r Recall) error {
	r = r.WithDefaults()
	if err := r.Validate(); err != nil {
		return err
	}
	s := r.Shape()
	l := qwen3(s)
	l.metadata["rope.freq_base"] = float32(recallRopeBase)
	metadata := fileMetadata(s, fmt.Sprintf("kvtier test model, recall, seed %d", r.Seed), l.metadata)
	return WriteFile(path, metadata, recallTensors(r))
}

// recallTensors is the circuit as tensors of the qwen3 architecture.
func recallTensors(r Recall) []*ggml.Tensor {
	c := newCodebook(r.Seed)
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
		block := func(tensor string) string { return fmt.Sprintf("blk.%d.%s.weight", i, tensor) }
		gain := float32(math.Sqrt(l.peak / math.Sqrt(recallHeadDim)))
		tensors = append(tensors,
			uniformNorm(block("attn_norm"), recallEmbed, 1),
			uniformNorm(block("attn_q_norm"), recallHeadDim, gain),
			uniformNorm(block("attn_k_norm"), recallHeadDim, gain),
			l.query.named(block("attn_q")).tensor(),
			l.key.named(block("attn_k")).tensor(),
			l.value.named(block("attn_v")).tensor(),
			l.output.named(block("attn_output")).tensor(),
			uniformNorm(block("ffn_norm"), recallEmbed, 1),
			newHandSet(recallEmbed, recallFFN).named(block("ffn_gate")).tensor(),
			newHandSet(recallEmbed, recallFFN).named(block("ffn_up")).tensor(),
			newHandSet(recallFFN, recallEmbed).named(block("ffn_down")).tensor(),
		)
	}
	return tensors
}

func uniformNorm(name string, width int, weight float32) *ggml.Tensor {
	return matrix{name: name, in: width, norm: weight}.tensor(0)
}

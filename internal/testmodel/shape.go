package testmodel

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Shape describes the model to write. A zero field takes a default: the architecture's own,
// which small models have, or else the default in the field's comment.
type Shape struct {
	Arch    string // "qwen3"; see Architectures
	Layers  int    // 8
	Embed   int    // width of the residual stream, 512
	Heads   int    // query heads, 8
	KVHeads int    // key/value heads, 4 or, if Heads is not divisible by the default, Heads
	HeadDim int    // width of one head, 64; quantized caches need a multiple of 32
	FFN     int    // width of the feed-forward layer, 3 × Embed; of an expert, Embed
	Vocab   int    // tokens, 2048; unused tokens fill up after the merges
	Context int    // trained context length, 131072: the most num_ctx can ask for
	Window  int    // tokens of a sliding window or a chunk, 64 in architectures with either
	Seed    int64  // chooses the weights; 0 is a seed like any other
	Pooling int    // as in ggml: 3 makes the last token's vector an embedding; 0: a model of text

	Drafts bool // a layer behind the others drafts tokens, in qwen35 for llama.cpp
	Infill bool // the last unused tokens are those of texts with a gap, for llama.cpp

	LlamaCpp bool // write keys and tensors as llama.cpp wants them, where Ollama's engine differs
}

const (
	defaultArch    = "qwen3"
	defaultVocab   = 2048
	defaultContext = 131072
	defaultWindow  = 64

	ffnPerEmbed = 3
)

const f16Bytes = 2

// WithDefaults returns s with every zero field filled in.
func (s Shape) WithDefaults() Shape {
	setDefault(&s.Arch, defaultArch)
	arch := architectures[s.Arch]
	setDefault(&s.Layers, arch.size.Layers)
	setDefault(&s.Embed, arch.size.Embed)
	setDefault(&s.Heads, arch.size.Heads)
	if kvHeads := arch.size.KVHeads; kvHeads > 0 && s.Heads%kvHeads == 0 {
		setDefault(&s.KVHeads, kvHeads)
	}
	setDefault(&s.KVHeads, s.Heads)
	if arch.headsFill {
		setDefault(&s.HeadDim, s.Embed/s.Heads)
	}
	setDefault(&s.HeadDim, arch.size.HeadDim)
	setDefault(&s.FFN, cmp.Or(arch.ffnPerEmbed, ffnPerEmbed)*s.Embed)
	if s.Infill {
		setDefault(&s.Vocab, defaultVocab+len(infillNames))
	}
	setDefault(&s.Vocab, defaultVocab)
	setDefault(&s.Context, defaultContext)
	setDefault(&s.Window, arch.window)
	return s
}

func setDefault[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }

// validate returns an error with the first reason why s cannot be written or run. Defaults must be filled in.
func (s Shape) validate() error {
	arch, ok := architectures[s.Arch]
	switch {
	case !ok:
		return fmt.Errorf("model shape: architecture %q is not one of %s", s.Arch, strings.Join(Architectures(), ", "))
	case s.Layers < arch.layersMin:
		return fmt.Errorf("model shape: layers is %d, must be %d or more", s.Layers, arch.layersMin)
	case s.Vocab < vocabMin:
		return fmt.Errorf("model shape: vocab is %d, must be %d or more", s.Vocab, vocabMin)
	case s.Drafts && !(s.Arch == "qwen35" && s.LlamaCpp):
		return fmt.Errorf("model shape: %s has no layer that drafts here; only qwen35 for llama.cpp has", s.Arch)
	case arch.window == 0 && s.Window != 0:
		return fmt.Errorf("model shape: window is %d, but no layer of %s has a sliding window or chunks; leave it out", s.Window, s.Arch)
	case s.Heads%s.KVHeads != 0:
		return fmt.Errorf("model shape: %d heads cannot share %d kv-heads evenly; choose kv-heads that divide heads", s.Heads, s.KVHeads)
	case arch.headsFill && s.Heads*s.HeadDim != s.Embed:
		return fmt.Errorf("model shape: %d heads of %d are not an embed of %d, as %s wants it; leave head-dim out and choose heads that divide embed",
			s.Heads, s.HeadDim, s.Embed, s.Arch)
	}
	return nil
}

// Parameters is the number of weights the file will hold.
func (s Shape) Parameters() (n int64) {
	s = s.WithDefaults()
	for _, m := range architectures[s.Arch].of(s).matrices {
		n += int64(m.elements())
	}
	return n
}

// KVBytesPerToken is the size of one token in an f16 KV cache in bytes, keys and values of
// all layers together. Layers with a sliding window drop the token later. The fixed memory
// of recurrent layers and images does not count.
func (s Shape) KVBytesPerToken() (n int64) {
	s = s.WithDefaults()
	for _, m := range architectures[s.Arch].layout(s).matrices {
		n += int64(m.kv)
	}
	return f16Bytes * n
}

// Architectures lists the values Shape.Arch can take, sorted, without those that run in llama.cpp alone.
func Architectures() []string {
	all := slices.Sorted(maps.Keys(architectures))
	return slices.DeleteFunc(all, func(name string) bool { return architectures[name].llamaCppOnly })
}

// Since is the first release of Ollama that has the architecture, such as "v0.20.0", or
// empty if all supported releases have it.
func Since(arch string) string { return architectures[arch].since }

package tiering

import (
	"fmt"

	"github.com/ollama/ollama/fs"

	"github.com/kvtier/kvtier/kvcache"
)

// architecture holds facts about a model's code, read from its source in every supported
// release, that are needed before its K/V may be kept. Other models may keep positions or
// recurrent state outside the cache: a restored cache alone would then give wrong output.
type architecture struct {
	// layers returns the number of layers that have K/V or state of their own; nil means all.
	layers func(fs.Config) int
	// media: rows follow from tokens and from images before them or in their own span, except
	// as reaches says. No row before an image depends on the image.
	media bool
	// reaches: rows of an image attend to all of their batch, also to the text behind the image
	// (the model names them in CausalOptions.Except).
	reaches bool
	// backwards: an image also changes rows of earlier tokens in the same batch.
	backwards bool
	// shifts: the model's shift function rotates K to another position and leaves parts
	// alone that do not depend on positions. Some models' functions do not.
	shifts bool
}

var architectures = map[string]architecture{
	"deepseek2":   {shifts: true},
	"gemma3":      {media: true, reaches: true, shifts: true},
	"gemma3n":     {layers: withoutShared, shifts: true},
	"gemma4":      {layers: withoutShared, media: true, reaches: true, shifts: true},
	"glm4moelite": {shifts: true},
	"lfm2":        {},
	"gptoss":      {shifts: true},
	"gpt-oss":     {shifts: true},
	"llama":       {shifts: true},
	"llama4":      {},
	"mistral3":    {media: true, shifts: true},
	"mllama":      {layers: withoutCross, backwards: true, shifts: true},
	"nemotron_h":  {layers: withoutFeedForward},
	"olmo3":       {shifts: true},
	"qwen2":       {shifts: true},
	"qwen3":       {shifts: true},
	"qwen35":      {},
	"qwen3moe":    {shifts: true},
	"qwen3next":   {},
}

// withoutShared leaves out the layers that attend to another layer's K/V.
func withoutShared(c fs.Config) int {
	return int(c.Uint("block_count")) - int(c.Uint("attention.shared_kv_layers"))
}

// withoutCross leaves out the layers that attend to an image.
func withoutCross(c fs.Config) int {
	return int(c.Uint("block_count")) - len(c.Ints("attention.cross_attention_layers"))
}

// withoutFeedForward leaves out the layers that look at one token alone.
func withoutFeedForward(c fs.Config) int {
	layers := int(c.Uint("block_count"))
	if each, ok := c.(interface{ FFNLength() []uint64 }); ok {
		for _, n := range each.FFNLength() {
			if n > 0 {
				layers--
			}
		}
	}
	return layers
}

// layersOf is the number of a model's layers that have K/V or state of their own.
func (a architecture) layersOf(c fs.Config) int {
	if a.layers == nil {
		return int(c.Uint("block_count"))
	}
	return a.layers(c)
}

// reach is the number of tokens to which rows of an image may attend, with batches of so many
// tokens; 0 where they attend to none behind their own span.
func (a architecture) reach(batch int) int {
	if !a.reaches {
		return 0
	}
	return max(1, batch)
}

// pageTokensMin is the smallest page that is worth a file.
const pageTokensMin = 16

// pageTokensFor is the page size in tokens: the configured one, or the largest power of two that every
// cache holds, so that each has all rows of a page when the page becomes full.
func pageTokensFor(caches []kvcache.Rows, configured int) (int, error) {
	shortest := configured
	for _, c := range caches {
		_, memory := c.RowWindow()
		shortest = min(shortest, int(memory))
	}
	if shortest == configured {
		return configured, nil
	}
	size := 1
	for size*2 <= shortest {
		size *= 2
	}
	if size < pageTokensMin {
		return 0, fmt.Errorf("a window keeps %d positions, and a page must hold %d at least", shortest, pageTokensMin)
	}
	return size, nil
}

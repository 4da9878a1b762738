package sizing

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// architectures are those whose layers this package knows, from their source in Ollama. The
// function changes layers that keep all positions, as [plainLayers] made them.
var architectures = map[string]func(h *Header, s *Shape){
	"deepseek2":   latent,
	"gemma2":      windowed(everySecond, 0),
	"gemma3":      windowed(func(i int64) bool { return (i+1)%6 != 0 }, 0),
	"gemma3n":     gemmaShared,
	"gemma4":      gemma4,
	"glm4moelite": latent,
	"gpt-oss":     windowed(everySecond, gptossKeeps),
	"gptoss":      windowed(everySecond, gptossKeeps),
	"lfm2":        convolutions,
	"llama":       nil,
	"llama4":      nil, // its chunks keep all positions
	"mistral3":    nil,
	"mllama":      crossed,
	"nemotron_h":  scans,
	"olmo3":       windowed(func(i int64) bool { return (i+1)%4 != 0 }, 0),
	"qwen2":       nil,
	"qwen3":       nil,
	"qwen35":      linear,
	"qwen3moe":    nil,
	"qwen3next":   linear,
}

func everySecond(i int64) bool { return i%2 == 0 }

// gptossKeeps is the number of positions that Ollama keeps of gptoss's windows.
const gptossKeeps = 4096

// architectureBytesMax bounds a name that is printed.
const architectureBytesMax = 64

// ShapeOf works the shape out from the head of a model's file.
func ShapeOf(h *Header) (*Shape, error) {
	s := &Shape{Architecture: h.Architecture(), Context: h.Number("context_length")}
	switch n := len(s.Architecture); {
	case n == 0:
		return nil, errors.New("the file names no architecture")
	case n > architectureBytesMax:
		return nil, fmt.Errorf("the file names an architecture of %d bytes", n)
	}
	if n := h.Number("block_count"); n < 1 || n > layersMax {
		return nil, fmt.Errorf("the file says that the model has %d layers", n)
	}
	s.Layers = plainLayers(h)
	switch change, known := architectures[s.Architecture]; {
	case change != nil:
		change(h, s)
	case !known: // every layer counts as one that attends to all positions, as most do
		unknown(h, s)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, nil
}

func unknown(h *Header, s *Shape) {
	s.Unsure = append(s.Unsure, fmt.Sprintf("The architecture %q is not known here: every layer with K/V heads counts as one that keeps all positions.", s.Architecture))
	if n := h.Number("attention.sliding_window"); n > 0 {
		s.Unsure = append(s.Unsure, fmt.Sprintf("The file names a window of %d tokens, but not here known layers that have it: the K/V may need less memory than these figures say.", n))
	}
	for _, name := range []string{"ssm.state_size", "ssm.conv_kernel", "wkv.head_size", "shortconv.l_cache"} {
		if h.Number(name) > 0 {
			s.Unsure = append(s.Unsure, "The file names recurrent layers ("+name+"): the size of their state is not known here, and layers may count as attention that have none.")
			break
		}
	}
	if h.Number("attention.kv_lora_rank") > 0 {
		s.Unsure = append(s.Unsure, "The file names latent attention: the K/V needs much less memory than these figures say.")
	}
}

func plainLayers(h *Header) []Layer {
	layers := make([]Layer, h.Number("block_count"))
	heads := perLayer(h, "attention.head_count", len(layers))
	kvHeads := heads
	if len(h.Numbers("attention.head_count_kv")) > 0 {
		kvHeads = perLayer(h, "attention.head_count_kv", len(layers))
	}
	dimension := int64(0)
	if i := slices.IndexFunc(heads, func(n int64) bool { return n > 0 }); i >= 0 {
		dimension = h.Number("embedding_length") / heads[i]
	}
	k, v := cmp.Or(max(0, h.Number("attention.key_length")), dimension), cmp.Or(max(0, h.Number("attention.value_length")), dimension)
	for i := range layers {
		layers[i].K, layers[i].V = product(kvHeads[i], k), product(kvHeads[i], v)
	}
	return layers
}

// perLayer is a list with one number for each layer, where the file may have one for all of them.
func perLayer(h *Header, name string, layers int) []int64 {
	given := h.Numbers(name)
	if len(given) == 1 {
		return slices.Repeat(given, layers)
	}
	list := make([]int64, layers)
	copy(list, given)
	return list
}

// product is a·b, or -1 where that cannot be a size; check refuses it.
func product(a, b int64) int64 {
	if a < 0 || b < 0 || a > elementsMax || b > elementsMax || a*b > stateMax {
		return -1
	}
	return a * b
}

// windowed gives a window to the layers that the file's pattern names, or else to those that
// has accepts. Where keeps is not 0, the cache keeps that many positions.
func windowed(has func(layer int64) bool, keeps int64) func(*Header, *Shape) {
	return func(h *Header, s *Shape) {
		window := h.Number("attention.sliding_window")
		if window <= 0 {
			s.Unsure = append(s.Unsure, "The file names no window: every layer counts as one that keeps all positions.")
			return
		}
		pattern := h.Flags("attention.sliding_window_pattern")
		for i := range s.Layers {
			local := has(int64(i))
			if i < len(pattern) {
				local = pattern[i]
			}
			if local {
				s.Layers[i].Window, s.Layers[i].Keeps = window, max(window, keeps)
			}
		}
	}
}

// gemmaShared: the last layers read the K/V of earlier ones.
func gemmaShared(h *Header, s *Shape) {
	windowed(func(i int64) bool { return (i+1)%5 != 0 }, 0)(h, s)
	dropShared(h, s)
}

func dropShared(h *Header, s *Shape) {
	shared := h.Number("attention.shared_kv_layers")
	for i := range s.Layers {
		if int64(i) >= int64(len(s.Layers))-shared {
			s.Layers[i] = Layer{}
		}
	}
}

// gemma4: heads of layers with a window have a size of their own, and the others may have
// another number of K/V heads.
func gemma4(h *Header, s *Shape) {
	windowed(func(i int64) bool { return (i+1)%6 != 0 }, 0)(h, s)
	kvHeads := perLayer(h, "attention.head_count_kv", len(s.Layers))
	for i, l := range s.Layers {
		k, v := h.Number("attention.key_length"), h.Number("attention.value_length")
		heads := kvHeads[i]
		if l.Keeps > 0 {
			k, v = cmp.Or(max(0, h.Number("attention.key_length_swa")), k), cmp.Or(max(0, h.Number("attention.value_length_swa")), v)
		} else {
			heads = cmp.Or(max(0, h.Number("attention.global_head_count_kv")), heads)
		}
		s.Layers[i].K, s.Layers[i].V = product(heads, k), product(heads, v)
	}
	dropShared(h, s)
}

// latent: all heads share one key, of a rotary and a latent part; the value is the latent part.
func latent(h *Header, s *Shape) {
	rank, rope := h.Number("attention.kv_lora_rank"), h.Number("rope.dimension_count")
	if rank <= 0 {
		s.Unsure = append(s.Unsure, "The file names no rank of its latent attention: K/V counts as that of common attention, which needs more.")
		return
	}
	for i := range s.Layers {
		s.Layers[i].K, s.Layers[i].V = rank+max(0, rope), rank
	}
	s.Unsure = append(s.Unsure, "llama-server keeps no V of latent attention: there a token needs little more than half of this.")
}

// crossed: some layers attend to an image, and keep no text.
func crossed(h *Header, s *Shape) {
	for _, i := range h.Numbers("attention.cross_attention_layers") {
		if i >= 0 && i < int64(len(s.Layers)) {
			s.Layers[i] = Layer{}
		}
	}
	s.Unsure = append(s.Unsure, "The memory of an encoded image is not counted.")
}

// convolutions: layers without K/V heads keep the inputs of the last tokens.
func convolutions(h *Header, s *Shape) {
	recurrent(s, func(int) int64 {
		return product(product(max(0, h.Number("shortconv.l_cache")-1), h.Number("embedding_length")), f32Bytes)
	})
}

// linear: layers without K/V heads have a convolution and a state. A file for llama.cpp says
// only how far apart the layers with K/V are.
func linear(h *Header, s *Shape) {
	if every := h.Number("full_attention_interval"); every > 0 && len(h.Numbers("attention.head_count_kv")) == 1 {
		for i := range s.Layers {
			if (int64(i)+1)%every != 0 {
				s.Layers[i] = Layer{}
			}
		}
	}
	inner, heads := h.Number("ssm.inner_size"), h.Number("ssm.time_step_rank")
	state := product(inner, h.Number("ssm.state_size"))
	if heads > 0 {
		state = product(inner, inner/heads)
	}
	recurrent(s, func(int) int64 { return product(f32Bytes, convolution(h)+state) })
}

// scans: a layer is attention, a state, or a feed-forward part that keeps nothing.
func scans(h *Header, s *Shape) {
	forward := perLayer(h, "feed_forward_length", len(s.Layers))
	state := product(h.Number("ssm.inner_size"), h.Number("ssm.state_size"))
	recurrent(s, func(i int) int64 {
		if forward[i] > 0 {
			return 0
		}
		return product(f32Bytes, convolution(h)+state)
	})
}

// convolution is the number of elements that the convolution before a state keeps.
func convolution(h *Header) int64 {
	inner, groups := h.Number("ssm.inner_size"), product(h.Number("ssm.group_count"), h.Number("ssm.state_size"))
	return product(max(0, h.Number("ssm.conv_kernel")-1), inner+2*groups)
}

// recurrent gives a state to the layers without K/V.
func recurrent(s *Shape, state func(layer int) int64) {
	for i := range s.Layers {
		if s.Layers[i].K+s.Layers[i].V == 0 {
			s.Layers[i].State = state(i)
		}
	}
}

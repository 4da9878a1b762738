package sizing

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// head writes the head of a GGUF file and reads it again.
func head(t *testing.T, kv ggml.KV) *Header {
	t.Helper()
	h, err := readFile(testmodel.Head(t, kv))
	require.NoError(t, err)
	return h
}

// model is a head with the sizes of a model with attention in every layer.
func model(arch string, layers, kvHeads, dimension uint32, more ggml.KV) ggml.KV {
	kv := ggml.KV{
		"general.architecture": arch, "block_count": layers, "context_length": uint32(131072), "embedding_length": 32 * dimension,
		"attention.head_count": uint32(32), "attention.head_count_kv": kvHeads,
		"attention.key_length": dimension, "attention.value_length": dimension,
		"tokenizer.ggml.tokens": []string{"a", "b"}, "tokenizer.ggml.scores": []float32{1, 2},
	}
	for key, value := range more {
		if kv[key] = value; value == nil {
			delete(kv, key)
		}
	}
	return kv
}

func shapeOf(t *testing.T, kv ggml.KV) *Shape {
	t.Helper()
	s, err := ShapeOf(head(t, kv))
	require.NoError(t, err)
	return s
}

// The table of docs/operations.md, with sizes from the formula there.
func TestBytesOfToken(t *testing.T) {
	for _, m := range []struct {
		layers, kvHeads, dimension uint32
		f16, q8                    int64
	}{
		{28, 4, 128, 57_344, 30_464},
		{48, 4, 128, 98_304, 52_224},
		{28, 8, 128, 114_688, 60_928},
		{32, 8, 128, 131_072, 69_632},
		{36, 8, 128, 147_456, 78_336},
		{40, 8, 128, 163_840, 87_040},
		{64, 8, 128, 262_144, 139_264},
		{80, 8, 128, 327_680, 174_080},
	} {
		s := shapeOf(t, model("llama", m.layers, m.kvHeads, m.dimension, nil))
		require.Empty(t, s.Unsure)
		require.Equal(t, m.f16, s.RowBytes("f16"))
		require.Equal(t, m.q8, s.RowBytes("q8_0"))
		elements := int64(m.layers*m.kvHeads*m.dimension) * 2
		require.Equal(t, elements*18/32, s.RowBytes("q4_0"))
		require.Equal(t, m.f16, s.FullBytes("f16"))
		require.EqualValues(t, 131072*4*m.f16, s.CellBytes(131072, 4, "f16"))
		require.EqualValues(t, 1000*m.f16, s.StoredBytes(1000, "f16"))
		require.EqualValues(t, 1000*m.f16, s.RestoreBytes(1000, "f16"))
	}
}

// Without lengths of keys and values, heads divide the embedding; without K/V heads, every head
// has K/V.
func TestDefaultsOfHeads(t *testing.T) {
	without := ggml.KV{"attention.key_length": nil, "attention.value_length": nil}
	require.EqualValues(t, 131_072, shapeOf(t, model("qwen2", 32, 8, 128, without)).RowBytes("f16"))
	without["attention.head_count_kv"] = nil
	require.EqualValues(t, 4*131_072, shapeOf(t, model("qwen2", 32, 8, 128, without)).RowBytes("f16"))
}

// K/V of every architecture of the test models, which know their own size.
func TestTokensOfArchitectures(t *testing.T) {
	for _, arch := range testmodel.Architectures() {
		if strings.HasSuffix(arch, "-vision") { // the same K/V, and a large vocabulary
			continue
		}
		path := filepath.Join(t.TempDir(), "m.gguf")
		small := testmodel.Shape{Arch: arch, Vocab: 600, Embed: 64, Heads: 4, KVHeads: 1, HeadDim: 16, FFN: 32}
		require.NoError(t, testmodel.Write(path, small), arch)
		s, _, err := ReadShape(path)
		require.NoError(t, err, arch)
		require.Equal(t, small.KVBytesPerToken(), s.RowBytes("f16"), arch)
	}
}

// gemma3 4B: 34 layers, of which every sixth keeps everything, and the others 1,024 positions.
func TestWindows(t *testing.T) {
	s := shapeOf(t, model("gemma3", 34, 4, 256, ggml.KV{"attention.sliding_window": uint32(1024)}))
	full, window, state := s.Kinds()
	require.Equal(t, []int{5, 29, 0}, []int{full, window, state})
	const row = 4 * 256 * 2 * 2
	require.EqualValues(t, 34*row, s.RowBytes("f16"))
	require.EqualValues(t, 5*row, s.FullBytes("f16"))
	require.EqualValues(t, 5*row*100_000+29*row*1024, s.RestoreBytes(100_000, "f16"))
	require.EqualValues(t, 34*row*500, s.RestoreBytes(500, "f16"))
	require.EqualValues(t, 34*row*100_000, s.StoredBytes(100_000, "f16"))
	require.EqualValues(t, 5*row*100_000+29*row*(1024+512), s.CellBytes(100_000, 1, "f16"))
	require.EqualValues(t, 4*5*row*100_000+29*row*(4*1025+512), s.CellBytes(100_000, 4, "f16"))
	require.EqualValues(t, 34*row*1000, s.CellBytes(1000, 1, "f16"), "a context that is no longer than the window")

	s = shapeOf(t, model("gptoss", 24, 8, 64, ggml.KV{"attention.sliding_window": uint32(128)}))
	full, window, _ = s.Kinds()
	require.Equal(t, []int{12, 12}, []int{full, window})
	const gptossRow = 8 * 64 * 2 * 2
	require.EqualValues(t, 12*gptossRow*(100_000+4096), s.RestoreBytes(100_000, "f16"))

	pattern := ggml.KV{"attention.sliding_window": uint32(64), "attention.sliding_window_pattern": []bool{false, false, true, false}}
	_, window, _ = shapeOf(t, model("olmo3", 4, 8, 64, pattern)).Kinds()
	require.Equal(t, 1, window)
}

func TestStates(t *testing.T) {
	kv := model("qwen3next", 4, 2, 256, ggml.KV{
		"attention.head_count_kv": []uint32{0, 0, 0, 2}, "ssm.inner_size": uint32(4096), "ssm.state_size": uint32(128),
		"ssm.group_count": uint32(16), "ssm.time_step_rank": uint32(32), "ssm.conv_kernel": uint32(4),
	})
	s := shapeOf(t, kv)
	full, window, state := s.Kinds()
	require.Equal(t, []int{1, 0, 3}, []int{full, window, state})
	const each = 4 * (3*(4096+2*16*128) + 32*128*128)
	require.EqualValues(t, 3*each, s.StateBytes())
	require.EqualValues(t, 4096*(2*256*2*2)+3*(3*each), s.StoredBytes(4096, "f16"))
	require.EqualValues(t, 4096*(2*256*2*2)+3*each, s.RestoreBytes(4096, "f16"))

	kv["attention.head_count_kv"], kv["full_attention_interval"] = uint32(2), uint32(4) // as in files for llama.cpp
	require.Equal(t, s.Layers, shapeOf(t, kv).Layers)
}

// Sentences say which figures are uncertain.
func TestUnknownArchitectures(t *testing.T) {
	s := shapeOf(t, model("brandnew", 2, 8, 64, ggml.KV{
		"attention.sliding_window": uint32(512), "ssm.state_size": uint32(16), "attention.kv_lora_rank": uint32(64),
	}))
	for i, says := range []string{`"brandnew" is not known`, "a window of 512 tokens", "recurrent layers", "latent attention"} {
		require.Contains(t, s.Unsure[i], says)
	}
	require.EqualValues(t, 2*8*64*2*2, s.RowBytes("f16"))
}

func TestImpossibleShapes(t *testing.T) {
	for says, kv := range map[string]ggml.KV{
		"architecture of 65 bytes": model(strings.Repeat("x", 65), 2, 8, 64, nil),
		"has 0 layers":             model("llama", 0, 8, 64, nil),
		"has 4294967295 layers":    model("llama", math.MaxUint32, 8, 64, nil),
		"rows of":                  model("llama", 2, math.MaxUint32, 64, nil),
		"does not say how large":   {"general.architecture": "llama", "block_count": uint32(2)},
		"all of its layers are re": model("qwen3next", 2, 0, 64, ggml.KV{"ssm.inner_size": uint32(64), "ssm.state_size": uint32(64), "ssm.conv_kernel": uint32(4)}),
		"bytes of K/V":             model("llama", 4096, 4096, 4096, nil),
	} {
		_, err := ShapeOf(head(t, kv))
		require.ErrorContains(t, err, says)
	}
	h, err := ReadHeader(bytes.NewReader(hostile(0, 0)), 24)
	require.NoError(t, err)
	_, err = ShapeOf(h)
	require.ErrorContains(t, err, "names no architecture")
	negative := model("llama", 2, 8, 64, ggml.KV{"attention.head_count_kv": []int32{-4, 4}})
	_, err = ShapeOf(head(t, negative))
	require.Error(t, err)
}

// hostile is a head with one value whose bytes are given.
func hostile(tensors, keys uint64, value ...any) []byte {
	var b bytes.Buffer
	b.WriteString("GGUF")
	for _, v := range append([]any{uint32(3), tensors, keys}, value...) {
		_ = binary.Write(&b, binary.LittleEndian, v) // a Buffer does not fail
	}
	return b.Bytes()
}

// A file that lies about lengths is refused, and costs no memory.
func TestHostileHeads(t *testing.T) {
	key := []byte("k")
	list := hostile(0, 0, uint64(1), key, typeArray, typeUint8, uint64(elementsKeptMax), make([]byte, elementsKeptMax))[len(hostile(0, 0)):]
	for name, data := range map[string][]byte{
		"empty":            nil,
		"no magic":         []byte("no model at all"),
		"version":          append([]byte("GGUF"), 9, 0, 0, 0),
		"cut":              hostile(1, 1)[:10],
		"keys":             hostile(0, math.MaxUint64),
		"tensors":          hostile(math.MaxUint64, 0),
		"missing keys":     hostile(0, 3),
		"long key":         hostile(0, 1, uint64(math.MaxUint64)),
		"longer than file": hostile(0, 1, uint64(1<<40)),
		"long text":        hostile(0, 1, uint64(1), key, typeString, uint64(1<<62)),
		"long array":       hostile(0, 1, uint64(1), key, typeArray, typeUint64, uint64(1<<62)),
		"array":            hostile(0, 1, uint64(1), key, typeArray, typeUint8, uint64(1<<28)),
		"texts":            hostile(0, 1, uint64(1), key, typeArray, typeString, uint64(1<<62), uint64(math.MaxUint64)),
		"array of arrays":  hostile(0, 1, uint64(1), key, typeArray, typeArray, uint64(1)),
		"type":             hostile(0, 1, uint64(1), key, uint32(99)),
		"dimensions":       hostile(1, 0, uint64(1), key, uint32(math.MaxUint32)),
		"missing tensor":   hostile(1, 0),
		"many texts":       hostile(0, 1, uint64(1), key, typeArray, typeString, uint64(5<<20), make([]byte, 8*5<<20)),
		"many elements":    hostile(0, 1, uint64(1), key, typeArray, typeUint8, uint64(5<<20), make([]byte, 5<<20)),
		"many numbers":     append(hostile(0, 1<<10), bytes.Repeat(list, 1<<10)...),
	} {
		_, err := ReadHeader(bytes.NewReader(data), int64(len(data)))
		require.ErrorIs(t, err, ErrNotGGUF, name)
	}
	// Texts without bytes cost nothing either, however many the file promises.
	data := hostile(0, 1, uint64(1), key, typeArray, typeString, uint64(1<<62))
	_, err := ReadHeader(io.MultiReader(bytes.NewReader(data), zeros{}), math.MaxInt64)
	require.ErrorIs(t, err, ErrNotGGUF)
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Reading any bytes ends, with a shape or an error.
func FuzzReadHeader(f *testing.F) {
	f.Add(hostile(1, 1, uint64(1), []byte("k"), typeUint32, uint32(7)))
	f.Add(hostile(0, 2, uint64(20), []byte("general.architecture"), typeString, uint64(5), []byte("llama")))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ReadHeader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		if s, err := ShapeOf(h); err == nil {
			require.Positive(t, s.RowBytes("f16"))
			require.GreaterOrEqual(t, s.CellBytes(CellsMax, 1, "f16"), int64(0))
			require.GreaterOrEqual(t, s.StoredBytes(CellsMax, "f16"), int64(0))
		}
	})
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]int64{
		"8G": 8e9, "8GB": 8e9, "8 gb": 8e9, "8GiB": 8 << 30, "200GB": 200e9, "1.5T": 15e11, "0": 0, "512MiB": 512 << 20,
		" 7.5g ": 75e8, "131072": 131072,
	} {
		got, err := ParseBytes(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "G", "-8G", "+8G", "8X", "8GBB", "1e", "1e9", "NaN", "Inf", "0x10", "1,5G", "8.0.1G", "9999999P", strings.Repeat("9", 400)} {
		_, err := ParseBytes(text)
		require.ErrorContains(t, err, "is not a size", text)
	}
	for text, want := range map[string]int64{"2M": 2_000_000, "500k": 500_000, "131072": 131_072, "1.5B": 1_500_000_000} {
		got, err := ParseTokens(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	_, err := ParseTokens("2MiB")
	require.ErrorContains(t, err, "is not a number of tokens")
}

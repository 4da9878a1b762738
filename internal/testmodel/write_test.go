package testmodel

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/parser"
	"github.com/ollama/ollama/template"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// small is a shape that is quick to write.
func small(arch string) Shape {
	s := Shape{Arch: arch, Layers: 2, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 32, Vocab: 600, Context: 4096, Seed: 7}
	of := architectures[arch]
	s.Layers = max(s.Layers, of.layersMin)
	if of.headsFill {
		s.Embed = s.Heads * s.HeadDim
	}
	if of.size.KVHeads == 1 {
		s.KVHeads = 1
	}
	return s
}

func write(t *testing.T, s Shape) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, Write(path, s))
	return path
}

func decode(t *testing.T, path string) *ggml.GGML {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	model, err := ggml.Decode(f, -1)
	require.NoError(t, err)
	return model
}

// readF16 returns a tensor's weights, row by row, one expert after the other.
func readF16(t *testing.T, path, name string) [][]float32 {
	t.Helper()
	return readRows(t, path, name, math.MaxInt)
}

// readRows returns the first `most` rows of readF16's result.
func readRows(t *testing.T, path, name string, most int) [][]float32 {
	t.Helper()
	tensors := decode(t, path).Tensors()
	items := tensors.Items(name)
	require.Len(t, items, 1, name)
	tensor := items[0]
	require.EqualValues(t, ggml.TensorTypeF16, tensor.Kind)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw = raw[tensors.Offset+tensor.Offset:]
	in := int(tensor.Shape[0])
	rows := make([][]float32, min(most, int(tensor.Elements()/tensor.Shape[0])))
	for r := range rows {
		rows[r] = make([]float32, in)
		for c := range in {
			at := (r*in + c) * f16Bytes
			rows[r][c] = float16.Frombits(uint16(raw[at]) | uint16(raw[at+1])<<8).Float32()
		}
	}
	return rows
}

// everyShape is a small shape of each architecture, for Ollama's engine and for llama.cpp.
func everyShape() map[string]Shape {
	shapes := make(map[string]Shape)
	for arch, a := range architectures {
		s := small(arch)
		if !a.llamaCppOnly {
			shapes[arch] = s
		}
		s.LlamaCpp = true
		shapes[arch+" for llama.cpp"] = s
	}
	return shapes
}

func TestWrittenFileDecodes(t *testing.T) {
	for name, s := range everyShape() {
		t.Run(name, func(t *testing.T) {
			s := s.WithDefaults()
			path := write(t, s)
			model := decode(t, path)
			kv := model.KV()
			require.Equal(t, architectures[s.Arch].inFile(s), kv.Architecture())
			require.EqualValues(t, s.Layers, kv.BlockCount())
			require.EqualValues(t, s.Embed, kv.EmbeddingLength())
			require.EqualValues(t, s.Heads, kv.HeadCountMax())
			require.EqualValues(t, s.KVHeads, kv.HeadCountKVMax())
			require.EqualValues(t, keyLength(s), kv.EmbeddingHeadCountK())
			require.EqualValues(t, s.HeadDim, kv.EmbeddingHeadCountV())
			require.EqualValues(t, s.Context, kv.ContextLength())
			require.Equal(t, ggml.FileTypeF16, kv.FileType())
			require.EqualValues(t, s.Parameters(), kv.ParameterCount())
			require.Equal(t, keyLength(s) == s.HeadDim, model.SupportsFlashAttention(), "as Ollama's engine has it")

			last := model.Tensors().Items()[0]
			for _, tensor := range model.Tensors().Items() {
				if tensor.Offset > last.Offset {
					last = tensor
				}
			}
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.EqualValues(t, model.Tensors().Offset+last.Offset+last.Size(), info.Size())
		})
	}
}

// keyLength is the width of a key that the file names: for llama.cpp that of the cache.
func keyLength(s Shape) int {
	if s.LlamaCpp && (s.Arch == "deepseek2" || s.Arch == "glm4moelite") {
		return latentRank(s) + latentRope(s)
	}
	return s.HeadDim
}

func TestSameSeedSameBytes(t *testing.T) {
	read := func(s Shape) []byte {
		all, err := os.ReadFile(write(t, s))
		require.NoError(t, err)
		return all
	}
	s := small("qwen3")
	first := read(s)
	require.Equal(t, first, read(s))
	s.Seed++
	require.NotEqual(t, first, read(s))
}

func TestWeightsAreFiniteAndScaled(t *testing.T) {
	s := small("qwen3")
	path := write(t, s)
	for name, want := range map[string]float64{
		"token_embd.weight":        1,
		"output.weight":            1 / math.Sqrt(float64(s.Embed)),
		"blk.1.attn_k.weight":      1 / math.Sqrt(float64(s.Embed)),
		"blk.1.attn_output.weight": math.Sqrt(attentionVariance/float64(s.Layers*s.Heads*s.HeadDim)) / attentionMixRMS,
		"blk.0.ffn_down.weight":    math.Sqrt(ffnVariance/float64(s.Layers*s.WithDefaults().FFN)) / gatedRMS,
		"blk.0.ffn_gate.weight":    1 / math.Sqrt(float64(s.Embed)),
	} {
		var sum, squares, n float64
		for _, row := range readF16(t, path, name)[1:] {
			for _, w := range row[1:] {
				sum, squares, n = sum+float64(w), squares+float64(w)*float64(w), n+1
			}
		}
		require.InEpsilon(t, want, math.Sqrt(squares/n), 0.05, name)
		require.InDelta(t, 0, sum/n, 0.1*want, name)
	}
}

// residualWriters are suffixes of the names of tensors whose output is added to the residual
// stream, directly or through a norm.
var residualWriters = []string{
	"attn_output.weight", "cross_attn_o_proj.weight", "ffn_down.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight",
	"laurel_r.weight", "proj.weight", "shortconv.out_proj.weight", "ssm_out.weight",
}

// TestConstantDimension: no layer changes the dimension that keeps the model from ending its
// answer.
func TestConstantDimension(t *testing.T) {
	for name, s := range everyShape() {
		if slices.Contains([]string{"dflash", "eagle3", "gemma4-assistant"}, s.Arch) {
			continue // these end no answers
		}
		path := write(t, s)
		for _, row := range readRows(t, path, embeddingTensor, s.Vocab) {
			require.InEpsilon(t, biasValue, embeddingGain(s)*float64(row[biasDim]), 1e-3)
		}
		writers := 0
		for _, tensor := range decode(t, path).Tensors().Items("blk.") {
			layer := strings.SplitN(tensor.Name, ".", 3)
			if !slices.Contains(residualWriters, layer[2]) {
				continue
			}
			writers++
			rows := readF16(t, path, tensor.Name)
			for row := biasDim; row < len(rows); row += s.Embed {
				for _, w := range rows[row] {
					require.Zero(t, w, "%s of %s", tensor.Name, name)
				}
			}
		}
		require.GreaterOrEqual(t, writers, s.Layers, name)
		v := newVocabulary(s.Vocab)
		rmsPerConstant := residualRMS(s) / biasValue
		if s.Arch == "gemma3n" {
			rmsPerConstant = gemma3nRMSPerConstant(s)
		}
		for token, row := range readF16(t, path, "output.weight") {
			logit := float64(row[biasDim]) / rmsPerConstant
			if v.printable[token] {
				require.Zero(t, logit)
			} else {
				require.InDelta(t, suppressedLogit, logit, 0.1)
			}
		}
	}
}

// embeddingGain is the factor by which a model multiplies embeddings.
func embeddingGain(s Shape) float64 {
	if strings.HasPrefix(s.Arch, "gemma") {
		return math.Sqrt(float64(s.Embed))
	}
	return 1
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "taken")
	require.NoError(t, os.MkdirAll(filepath.Join(target, "inside"), 0o700))
	err := Write(target, small("qwen3"))
	require.ErrorContains(t, err, target)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	require.ErrorIs(t, Write(filepath.Join(dir, "absent", "m.gguf"), small("qwen3")), os.ErrNotExist)
}

func TestDefaults(t *testing.T) {
	s := Shape{}.WithDefaults()
	require.Equal(t, Shape{Arch: "qwen3", Layers: 8, Embed: 512, Heads: 8, KVHeads: 4, HeadDim: 64, FFN: 1536, Vocab: 2048, Context: 131072}, s)
	require.EqualValues(t, 2*2*8*4*64, s.KVBytesPerToken())
	require.Equal(t, 64, Shape{Arch: "gemma3"}.WithDefaults().Window)
	require.Equal(t, 256, Shape{Arch: "gptoss"}.WithDefaults().FFN, "an expert is narrow")
	require.Equal(t, 32, Shape{Arch: "olmo3", Embed: 128}.WithDefaults().HeadDim, "the heads make up embed")
	require.Equal(t, 1, Shape{Arch: "deepseek2", Heads: 3}.WithDefaults().KVHeads)
	require.Equal(t, 3, Shape{Heads: 3}.WithDefaults().KVHeads, "4 does not divide 3")
}

func TestValidation(t *testing.T) {
	for _, test := range []struct {
		shape Shape
		want  string
	}{
		{Shape{Arch: "gpt9"}, `architecture "gpt9" is not one of deepseek2, gemma3, gemma3-vision, `},
		{Shape{Heads: 6, KVHeads: 4}, "6 heads cannot share 4 kv-heads"},
		{Shape{Vocab: 258}, "vocab is 258, must be 259"},
		{Shape{Window: 64}, "no layer of qwen3 has a sliding window"},
		{Shape{Arch: "lfm2", Layers: 1}, "layers is 1, must be 2"},
		{Shape{Arch: "olmo3", HeadDim: 32}, "4 heads of 32 are not an embed of 256"},
	} {
		require.ErrorContains(t, Write(filepath.Join(t.TempDir(), "m.gguf"), test.shape), test.want)
	}
}

// TestModelfile: the templates of the Modelfile and of the file are those that Ollama knows.
func TestModelfile(t *testing.T) {
	gguf := write(t, small("qwen3"))
	parsed, err := parser.ParseFile(strings.NewReader(Modelfile(gguf)))
	require.NoError(t, err)
	request, err := parsed.CreateRequest("")
	require.NoError(t, err)
	require.Contains(t, request.Files, gguf)
	require.Equal(t, []string{ImStart, ImEnd}, request.Parameters["stop"])

	chat, err := template.Parse(request.Template)
	require.NoError(t, err)
	var prompt bytes.Buffer
	require.NoError(t, chat.Execute(&prompt, template.Values{Messages: []api.Message{
		{Role: "system", Content: "Be brief."}, {Role: "user", Content: "Hello"},
	}}))
	require.Equal(t, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n", prompt.String())
	named, err := template.Named(decode(t, gguf).KV().ChatTemplate())
	require.NoError(t, err)
	require.Equal(t, "chatml", named.Name)
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// shiftingArchitectures are the models whose text can be reused at another position with
// OLLAMA_KV_TIER_REUSE. llama4 is not among them: it has layers without positions, whose
// keys its shift function rotates nevertheless.
var shiftingArchitectures = []string{
	"deepseek2", "gemma3", "gemma3n", "gemma4", "glm4moelite", "gptoss", "llama", "mistral3", "mllama", "olmo3",
	"qwen2", "qwen3", "qwen3moe",
}

var shiftedLine = regexp.MustCompile(`msg="kv tier: restored" slot=\d+ tokens=\d+ shifted=(\d+)`)

// shifted sums the tokens that were reused at another position since mark.
func (s *server) shifted(mark int) (n int) {
	for _, line := range shiftedLine.FindAllStringSubmatch(s.Logs()[mark:], -1) {
		tokens, _ := strconv.Atoi(line[1])
		n += tokens
	}
	return n
}

// A chat whose oldest messages are left out: the text kept before them, the text left out, the
// text kept after them, and the next question.
const keptBefore, leftOut, keptAfter, asks = 40, 150, 200, 20

// shiftedApart bounds the distance of log probabilities that comes from rounding K again
// after its rotation.
var shiftedApart = map[string]float64{"f16": differ, "q8_0": 10 * differ}

// parts are the texts of such a chat, which give the same tokens at any position.
func (m loadedModel) parts() (before, out, after, question string) {
	return m.prompt(keptBefore, 1), " " + m.prompt(leftOut, 2), " " + m.prompt(keptAfter, 3), " " + m.prompt(asks, 4)
}

// TestShiftedTextOfEveryArchitecture: where only one layer attends to other tokens, K and V
// follow from a token and its position alone. Text reused at another position must then give
// the result of computing the text there, up to rounding, for each choice of the layer. A
// shift function that rotates too much, too little or in the wrong direction fails.
func TestShiftedTextOfEveryArchitecture(t *testing.T) {
	for cache, archs := range map[string][]string{"f16": shiftingArchitectures, "q8_0": {"gemma3", "qwen3"}} {
		t.Run(cache, func(t *testing.T) {
			env := []string{
				"OLLAMA_NEW_ENGINE=1", "OLLAMA_MAX_LOADED_MODELS=1", "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_NUM_PARALLEL=1",
				"OLLAMA_KV_CACHE_TYPE=" + cache,
			}
			tiered := modelServer{start(t, append(env, "OLLAMA_KV_TIER_REUSE=shifted", "OLLAMA_KV_TIER_PAGE_TOKENS=64")...)}
			plain := modelServer{startOptions(t, "", ollamatest.Options{Env: env})}
			for _, arch := range archs {
				layers := testmodel.Shape{Arch: arch}.WithDefaults().Layers
				for _, layer := range []int{0, layers - 1} {
					t.Run(fmt.Sprintf("%s, layer %d", arch, layer), func(t *testing.T) {
						a, b := plain.loadListening(t, arch, layer), tiered.loadListening(t, arch, layer)
						requireMovedAsComputed(t, a, b, shiftedApart[cache])
					})
				}
			}
		})
	}
}

// requireMovedAsComputed compares a computed chat without its oldest messages with the same
// chat after kill -9, reused.
func requireMovedAsComputed(t *testing.T, plain, tiered loadedModel, apart float64) {
	t.Helper()
	before, out, after, question := plain.parts()
	want := plain.turn(before+after+question, archAnswer)
	tiered.turn(before+out+after, 1)
	tiered.crash()
	mark := tiered.LogMark()
	got := tiered.turn(before+after+question, archAnswer)
	require.GreaterOrEqual(t, tiered.shifted(mark), keptAfter-64)
	requireClose(t, want, got, apart)
}

// loadListening loads a model in which only one layer's attention adds to the residual
// stream.
func (s modelServer) loadListening(t *testing.T, arch string, layer int) loadedModel {
	t.Helper()
	return s.loadChanged(t, arch, func(gguf string) { silence(t, gguf, layer) })
}

// silence makes attention add zero in all layers of a file except one.
func silence(t *testing.T, path string, listens int) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	f, err := ggml.Decode(file, -1)
	require.NoError(t, err)
	silenced := 0
	for _, tensor := range f.Tensors().Items() {
		if !strings.HasSuffix(tensor.Name, ".attn_output.weight") || strings.HasPrefix(tensor.Name, fmt.Sprintf("blk.%d.", listens)) {
			continue
		}
		_, err := file.WriteAt(make([]byte, tensor.Size()), int64(f.Tensors().Offset+tensor.Offset))
		require.NoError(t, err)
		silenced++
	}
	require.Positive(t, silenced)
}

// loaded is the server's default model.
func (s *server) loaded() loadedModel {
	return loadedModel{server: s, shape: shape}
}

// Text reused at another position gives nearly the same result as computed text. Rows that
// follow from such text are never stored, and a server with exact reuse computes all of the
// text.
func TestShiftedTextIsNeverStored(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	env := []string{"OLLAMA_KV_TIER_PAGE_TOKENS=64"}
	s := startIn(t, root, append(env, "OLLAMA_KV_TIER_REUSE=shifted")...)
	before, out, after, question := s.loaded().parts()
	s.ask(before+out+after, 1)
	s.crash()
	stored := s.pages()
	mark := s.LogMark()
	got := s.ask(before+after+question, 33)
	require.GreaterOrEqual(t, s.shifted(mark), keptAfter-64)
	require.GreaterOrEqual(t, got.restored, keptBefore+s.shifted(mark), "a part of the first page, and then the run")

	// the slot goes on with these rows, and its next turn finds the history again
	mark = s.LogMark()
	s.ask(before+after+question+" "+prompt(t, 30, 5), 1)
	require.Zero(t, s.shifted(mark))
	s.unload()
	require.Subset(t, stored, s.fullPages(), "no stored page follows from shifted text")

	exact := startIn(t, root, env...)
	cold := startOptions(t, "", ollamatest.Options{Env: []string{"OLLAMA_NUM_PARALLEL=1"}})
	want := cold.ask(before+after+question, 33)
	answer := exact.ask(before+after+question, 33)
	require.Equal(t, keptBefore+1, answer.restored, "the text before the one left out, which is exact")
	requireSame(t, want, answer, "a server without OLLAMA_KV_TIER_REUSE")
}

// K is rotated between batches of other slots, and does not change their results.
func TestShiftedTextBesideBusySlots(t *testing.T) {
	s := start(t, "OLLAMA_KV_TIER_PAGE_TOKENS=64", "OLLAMA_KV_TIER_REUSE=shifted", "OLLAMA_NUM_PARALLEL=3")
	before, out, after, question := s.loaded().parts()
	s.ask(before+out+after, 1)
	busy := prompt(t, 90, 7)
	want := s.ask(busy, 120)
	s.crash()
	mark := s.LogMark()
	var group errgroup.Group
	answers := make([]answer, 2)
	for i := range answers {
		group.Go(func() error { answers[i] = s.ask(busy, 120); return nil })
	}
	for i := range 4 {
		s.ask(before+after+question+" "+prompt(t, 5+i, int64(i)), 4)
		s.ask(prompt(t, 200, int64(20+i)), 1) // another chat takes the slot
	}
	require.NoError(t, group.Wait())
	require.Positive(t, s.shifted(mark))
	for _, got := range answers {
		requireClose(t, want, got, soakBound) // batches differ from those of a single slot
	}
}

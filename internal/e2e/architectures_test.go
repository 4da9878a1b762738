package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// restoredArchitectures are the models whose restored conversations give the same bits as
// conversations that were never evicted.
var restoredArchitectures = []string{
	"deepseek2", "gemma3", "gemma3n", "gemma4", "glm4moelite", "gptoss", "lfm2", "llama", "llama4", "mistral3", "mllama",
	"nemotron_h", "olmo3",
	"qwen2", "qwen3", "qwen35", "qwen3moe", "qwen3next",
}

// archLengths are lengths of first turns below, at and well past a window or chunk of 64
// tokens.
var archLengths = []int{40, 64, 300}

const (
	archNext   = 30 // tokens that the second turn adds
	archAnswer = 8
)

// TestEveryArchitectureRestores runs a conversation of two turns with each model, once in
// one process without tiering, and once with a kill -9 between the turns. Both compute the
// second turn in the same batches, so that every bit must be the same. (Only a model that
// forgets is compared with a conversation computed at once, up to rounding: upstream's own
// second turn is wrong.)
func TestEveryArchitectureRestores(t *testing.T) {
	kinds := []struct {
		cache string
		slots int
	}{{"f16", 1}, {"q8_0", 4}, {"f16", 4}, {"q8_0", 1}}
	plays := matrix(t, len(restoredArchitectures), len(kinds))
	for k, kind := range kinds {
		t.Run(fmt.Sprintf("%s, %d slots", kind.cache, kind.slots), func(t *testing.T) {
			plain, tiered := besideStock(t, "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE="+kind.cache, fmt.Sprint("OLLAMA_NUM_PARALLEL=", kind.slots))
			for i, arch := range restoredArchitectures {
				if !plays(i, k) {
					continue
				}
				t.Run(arch, func(t *testing.T) {
					a, b := plain.load(t, arch), tiered.load(t, arch)
					for _, n := range archLengths {
						requireSecondTurnSame(t, a, b, n)
					}
				})
			}
		})
	}
}

// TestAModelOfWindowsRestores: a file may give every layer a window. Then pages that end
// before the windows are not read.
func TestAModelOfWindowsRestores(t *testing.T) {
	windows := func(gguf string) {
		require.NoError(t, testmodel.Write(gguf, testmodel.Shape{Arch: "gemma3", Layers: 4, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Window: 64, Seed: 1}))
	}
	plain, tiered := besideStock(t)
	a, b := plain.loadChanged(t, "gemma3", windows), tiered.loadChanged(t, "gemma3", windows)
	for _, n := range archLengths {
		requireSecondTurnSame(t, a, b, n)
	}
}

// requireSecondTurnSame compares the second turn of a conversation that begins with n tokens.
func requireSecondTurnSame(t *testing.T, plain, tiered loadedModel, n int) {
	t.Helper()
	whole := plain.prompt(n+archNext, int64(n))
	first := plain.prompt(n, int64(n))
	require.Equal(t, first, whole[:len(first)], "a longer prompt begins like a shorter one")
	plain.unload()
	if !plain.forgets {
		plain.turn(first, 1)
	}
	want := plain.turn(whole, archAnswer)

	tiered.turn(first, 1)
	tiered.crash()
	got := tiered.turn(whole, archAnswer)
	require.Equal(t, n, got.restored, "of the first turn's tokens")
	if plain.forgets {
		requireClose(t, want, got, soakBound)
	} else {
		requireSame(t, want, got, fmt.Sprintf("second turn after %d tokens and kill -9", n))
	}
	tiered.unload()
}

// TestEveryArchitectureShifts: a conversation that outgrows its context is exact up to the
// shift, and its earlier pages give the same bits as those of a conversation that was never
// shifted.
func TestEveryArchitectureShifts(t *testing.T) {
	const n, ctx, answer = 300, 512, 260
	small := func(r *ollamatest.Request) { r.Options["num_ctx"] = ctx }
	plain, tiered := besideStock(t)
	for _, arch := range restoredArchitectures {
		t.Run(arch, func(t *testing.T) {
			a, b := plain.load(t, arch), tiered.load(t, arch)
			whole := a.prompt(n+archNext, 1)
			first := a.prompt(n, 1)
			if !a.forgets {
				a.turnWith(first, 1, small)
			}
			want := a.turnWith(whole, archAnswer, small)

			shifted := b.turnWith(first, answer, small)
			require.Len(t, shifted.Logprobs, answer, "the answer went on past the context")
			b.crash()
			got := b.turnWith(whole, archAnswer, small)
			require.Equal(t, n, got.restored)
			if a.forgets {
				requireClose(t, want, got, soakBound)
			} else {
				requireSame(t, want, got, "after a shift and kill -9")
			}
		})
	}
}

// turn asks this model, and not the server's default model.
func (m loadedModel) turn(prompt string, tokens int, images ...[]byte) answer {
	m.t.Helper()
	return m.server.ask(prompt, tokens, m.withImages(images))
}

func (m loadedModel) turnWith(prompt string, tokens int, change func(*ollamatest.Request)) answer {
	m.t.Helper()
	return m.server.ask(prompt, tokens, m.withImages(nil), change)
}

// TestModelsThatStayOff: a model that cannot be restored exactly runs as in Ollama, with a
// log line.
func TestModelsThatStayOff(t *testing.T) {
	s := modelServer{start(t, "OLLAMA_NEW_ENGINE=1", "OLLAMA_MAX_LOADED_MODELS=1")}
	for _, arch := range testmodel.Architectures() {
		if slices.Contains(restoredArchitectures, arch) || strings.HasSuffix(arch, "-vision") { // the vision models are the same models
			continue
		}
		t.Run(arch, func(t *testing.T) {
			m := s.load(t, arch)
			mark := m.LogMark()
			m.turn(m.prompt(100, 1), 1)
			m.unload()
			require.Zero(t, m.turn(m.prompt(100, 1), 1).restored)
			require.Contains(t, m.Logs()[mark:], `msg="kv tier: off for this model"`)
		})
	}
}

// windowed are models in which the order of a window's cells, and so the low bits, depends on the
// slot's former content.
var windowed = []string{"gemma3", "gemma3n", "gemma4", "olmo3"}

// TestEveryArchitectureParts: after kill -9 a chat leaves a stored one in the middle of a page.
// Every token up to there comes back, and the answer has the bits of a slot that held them. A
// model with recurrent state, which is stored at few positions, computes the prompt.
func TestEveryArchitectureParts(t *testing.T) {
	const shared, own = 300, 60
	plain, tiered := besideStock(t, "OLLAMA_FLASH_ATTENTION=1")
	for _, arch := range restoredArchitectures {
		t.Run(arch, func(t *testing.T) {
			a, b := plain.load(t, arch), tiered.load(t, arch)
			history := a.prompt(shared, 1)
			other := history + " " + a.prompt(own, 3)
			if !a.forgets {
				a.turn(history, 1)
			}
			want := a.turn(other, archAnswer)

			b.turn(history+" "+a.prompt(2*pageTokens, 2), 1)
			b.crash()
			got := b.turn(other, archAnswer)
			withState := slices.Contains(recurrent, arch)
			if withState || slices.Contains(windowed, arch) {
				requireClose(t, want, got, soakBound) // a small page of other rows is 0.3 apart with gemma3
			} else {
				requireSame(t, want, got, "after another chat that begins alike")
			}
			if !withState {
				require.GreaterOrEqual(t, got.restored, shared)
			}
		})
	}
}

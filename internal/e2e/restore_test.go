package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// TestRestoredLogitsAreBitIdentical shows the main promise: a conversation from disk
// gives the same log probabilities, to the last bit, as a slot that was never evicted.
func TestRestoredLogitsAreBitIdentical(t *testing.T) {
	kinds := []struct{ name, flash, cache string }{
		{"flash f16", "1", "f16"},
		{"flash q8_0", "1", "q8_0"},
		{"flash q4_0", "1", "q4_0"},
		{"no flash f16", "0", "f16"}, // V is kept transposed
	}
	numbers := []int{1, 4}
	plays := matrix(t, len(kinds), len(numbers))
	for k, kind := range kinds {
		for n, slots := range numbers {
			if !plays(k, n) {
				continue
			}
			t.Run(fmt.Sprintf("%s, %d slots", kind.name, slots), func(t *testing.T) {
				s := start(t, "OLLAMA_FLASH_ATTENTION="+kind.flash, "OLLAMA_KV_CACHE_TYPE="+kind.cache, fmt.Sprint("OLLAMA_NUM_PARALLEL=", slots))
				const n = 2*pageTokens + 133
				text := prompt(t, n, 1)

				cold := s.ask(text, 40)
				require.Zero(t, cold.restored)
				// one token is computed again over rows that were never evicted
				held := s.ask(text, 40)
				require.Zero(t, held.restored)

				s.ask(prompt(t, n+77, 2), 8) // another chat takes the slot
				s.requireRestored(text, n, held, "after another chat took the slot")

				s.unload()
				s.requireRestored(text, n, held, "after the model was unloaded")

				s.crash()
				s.requireRestored(text, n, held, "after kill -9 of server and runner")
			})
		}
	}
}

// TestRestoreIntoAnotherSlot restores a conversation into another slot and other cells.
// Every conversation fills its context exactly. So cells are taken in blocks of a context,
// and attention reads a window of the same alignment on both sides, which decides low bits
// without flash attention. (When an answer ends for another reason, a race in upstream
// decides whether its last token has a cell.)
func TestRestoreIntoAnotherSlot(t *testing.T) {
	const ctx, filler, long = 1024, 1000, 728
	full := func(r *ollamatest.Request) {
		r.Options["num_ctx"], r.Shift = ctx, new(bool) // ends with the context
	}
	for _, kind := range []struct{ flash, cache string }{{"1", "f16"}, {"1", "q8_0"}, {"1", "q4_0"}, {"0", "f16"}} {
		t.Run("flash "+kind.flash+" "+kind.cache, func(t *testing.T) {
			s := start(t, "OLLAMA_FLASH_ATTENTION="+kind.flash, "OLLAMA_KV_CACHE_TYPE="+kind.cache,
				"OLLAMA_NUM_PARALLEL=4", "OLLAMA_MULTIUSER_CACHE=1") // the least recently used slot is taken
			text := prompt(t, long, 50)
			s.ask(prompt(t, filler, 51), ctx, full) // slot 0
			s.ask(text, 1, full)                    // slot 1
			held := s.ask(text, ctx, full)          // slot 1, which holds no answer to fork from
			for seed := range int64(4) {
				s.ask(prompt(t, filler, 60+seed), ctx, full) // slots 2, 3, 0, and 1: over all of its cells
			}

			mark := s.LogMark()
			got := s.ask(text, ctx, full)
			require.Contains(t, s.Logs()[mark:], "slot=2 tokens=727")
			requireSame(t, head(t, held, 256), head(t, got, 256), "in another slot")
		})
	}
}

// head returns the first tokens of an answer. A race in upstream decides whether the last
// token before the end of the context is sent.
func head(t *testing.T, a answer, tokens int) answer {
	t.Helper()
	require.Greater(t, len(a.Logprobs), tokens)
	a.Logprobs, a.Text = a.Logprobs[:tokens], ""
	return a
}

// TestFirstTokenOfAFullContext: a prompt that fills its context is shifted while its batch is
// computed. With tiering on the shift waits for the batch's outputs. Stock Ollama shifts in the
// memory where they are, and its first token is arbitrary now and then.
func TestFirstTokenOfAFullContext(t *testing.T) {
	const ctx, prompts = 512, 24
	full := func(r *ollamatest.Request) { r.Options["num_ctx"] = ctx }
	plain, tiered := startOptions(t, "", ollamatest.Options{Env: []string{"OLLAMA_NEW_ENGINE=1"}}), start(t, "OLLAMA_NEW_ENGINE=1")
	for seed := range int64(prompts) {
		text := prompt(t, ctx, seed)
		want, got := plain.ask(text, 1), tiered.ask(text, 2, full)
		require.Equal(t, ctx, got.PromptEvalCount)
		got.Logprobs = got.Logprobs[:1]
		requireClose(t, want, got, soakBound)
	}
}

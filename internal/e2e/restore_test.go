package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRestoredLogitsAreBitIdentical shows the main promise: what comes back from the disk
// gives the same log probabilities, to the last bit, as a slot that was never evicted.
func TestRestoredLogitsAreBitIdentical(t *testing.T) {
	kinds := []struct{ name, flash, cache string }{
		{"flash f16", "1", "f16"},
		{"flash q8_0", "1", "q8_0"},
		{"flash q4_0", "1", "q4_0"},
		{"no flash f16", "0", "f16"}, // V is kept transposed
	}
	for _, kind := range kinds {
		for _, slots := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d slots", kind.name, slots), func(t *testing.T) {
				s := start(t, "OLLAMA_FLASH_ATTENTION="+kind.flash, "OLLAMA_KV_CACHE_TYPE="+kind.cache, fmt.Sprint("OLLAMA_NUM_PARALLEL=", slots))
				const n = 2*pageTokens + 133
				text := prompt(t, n, 1)

				cold := s.ask(text, 40)
				require.Zero(t, cold.restored)
				// one token is computed again over rows that never left
				held := s.ask(text, 40)
				require.Zero(t, held.restored)

				s.ask(prompt(t, n+77, 2), 8) // another chat takes the slot
				got := s.ask(text, 40)
				require.Equal(t, n-1, got.restored)
				requireSame(t, held, got, "after another chat took the slot")

				s.unload()
				got = s.ask(text, 40)
				require.Equal(t, n-1, got.restored)
				requireSame(t, held, got, "after the model was unloaded")

				s.crash()
				got = s.ask(text, 40)
				require.Equal(t, n-1, got.restored)
				requireSame(t, held, got, "after kill -9 of server and runner")
			})
		}
	}
}

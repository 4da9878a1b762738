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

// TestRestoreIntoAnotherSlot lets a conversation come back into a slot, and cells, that are
// not the ones it left. Flash attention skips cells that are masked, so that bits depend only
// on the order of the others. Without it they also depend on where a sequence's first cell
// stands, which upstream leaves to a race: whether a finished sequence's last token was given
// a cell. That result is compared within rounding.
func TestRestoreIntoAnotherSlot(t *testing.T) {
	const short, long, answer = 216, 728, 40
	for _, kind := range []struct{ flash, cache string }{{"1", "f16"}, {"1", "q8_0"}, {"1", "q4_0"}, {"0", "f16"}} {
		t.Run("flash "+kind.flash+" "+kind.cache, func(t *testing.T) {
			s := start(t, "OLLAMA_FLASH_ATTENTION="+kind.flash, "OLLAMA_KV_CACHE_TYPE="+kind.cache,
				"OLLAMA_NUM_PARALLEL=4", "OLLAMA_MULTIUSER_CACHE=1") // the least recently used slot is taken
			text := prompt(t, long, 50)
			s.ask(prompt(t, short, 51), answer) // slot 0
			s.ask(text, 1)                      // slot 1
			held := s.ask(text, answer)         // slot 1, which holds no answer to fork from
			s.ask(prompt(t, long, 52), answer)  // slot 2
			s.ask(prompt(t, long, 53), answer)  // slot 3
			s.ask(prompt(t, short, 54), answer) // slot 0 again
			s.ask(prompt(t, long, 55), answer)  // slot 1 again, over the conversation's cells

			mark := s.LogMark()
			got := s.ask(text, answer)
			require.Contains(t, s.Logs()[mark:], "slot=2 tokens=727")
			if kind.flash == "1" {
				requireSame(t, held, got, "in another slot")
			} else {
				requireClose(t, held, got, 0.01)
			}
		})
	}
}

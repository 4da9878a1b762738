package llamae2e

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/soak"
)

// TestDraftsNearTheRestoredEnd asks prompts that end up to as many tokens before and behind the end of the
// restored ones as are drafted at once. For drafts, llama-server keeps states of a recurrent layer at that many
// positions before the last one, and a restore does not write them.
func TestDraftsNearTheRestoredEnd(t *testing.T) {
	const end, answered = 600, 12
	for _, setup := range soakSetups {
		if !slices.Contains([]string{"drafts for windows", "drafts for a hybrid", "draft layers"}, setup.name) {
			continue
		}
		t.Run(setup.name, func(t *testing.T) {
			o := setup.options(t)
			stock, text := start(t, o), someTokens(1, end+2*soakDrafted)
			want := make(map[int]said)
			for past := -soakDrafted; past <= soakDrafted; past++ {
				want[past] = ask(stock, text[:end+past], answered)
			}
			stock.Kill()

			o = setup.drafting(t, o)
			stored := filepath.Join(t.TempDir(), "pages")
			begin := func() (s *server, cached func(past, n int) int) {
				s = start(t, o)
				return s, func(past, n int) int {
					got := s.complete(text[:end+past], n)
					require.NoError(t, soak.Follows(want[past].logprobs[:n], got.Content, setup.bound, 0), "%d tokens past the end", past)
					return got.Timings.Cached
				}
			}
			o.Root = stored
			s, cached := begin()
			require.Zero(t, cached(0, 1))
			all, err := s.Processes()
			require.NoError(t, err)
			s.Kill()
			gone(t, all) // the daemon's folder, too
			for past := -soakDrafted; past <= soakDrafted; past++ {
				for _, n := range []int{answered, 1} {
					if past <= 0 && n == 1 {
						continue
					}
					o.Root = filepath.Join(t.TempDir(), "pages")
					require.NoError(t, os.CopyFS(o.Root, os.DirFS(stored)))
					s, cached := begin()
					if held := cached(past, n); past > 0 {
						require.Equal(t, end, held)
					}
					cached(-past, answered) // in the slot that was restored
					s.killAll()             // nothing is stored
				}
			}
		})
	}
}

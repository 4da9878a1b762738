package evict

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/internal/bench/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lru simulates a store that evicts the least recently used pages, of those used at the same time the last of a
// chain first.
func (t *tree) lru(room int) int {
	used := make([]int, len(t.nodes))
	return t.slowly(room, func(prompt, a, b int) bool {
		for _, n := range t.prompts[prompt] {
			used[n] = prompt
		}
		return used[a] < used[b] || used[a] == used[b] && a > b
	})
}

func someRequests(t *testing.T, n int) []trace.Request {
	t.Helper()
	requests, _, err := open("home")
	require.NoError(t, err)
	requests = requests[:n]
	for i := range requests { // apart by more than recency.TouchEvery
		requests[i].At = 120 * float64(i)
	}
	return requests
}

func given(t *testing.T, requests []trace.Request, pages int, use bool) int {
	t.Helper()
	served := 0
	n, err := replay(t.Context(), requests, pages, use, func() { served++ })
	require.NoError(t, err)
	require.Equal(t, len(requests), served)
	return n
}

// TestTheStoreIsLRU: the product keeps the most recently used pages, as many as between its budget and what a
// collection leaves of that, a sixteenth less, and some bytes of files that are no pages. Of two such stores the
// larger one has all pages of the smaller one.
func TestTheStoreIsLRU(t *testing.T) {
	requests := someRequests(t, 120)
	tree := newTree(requests)
	for _, pages := range []int{64, 200} {
		n := given(t, requests, pages, false)
		require.LessOrEqual(t, n, tree.lru(pages))
		require.GreaterOrEqual(t, n, tree.lru(pages-pages/16-8))
		require.Less(t, tree.lru(pages), tree.future(pages))
	}
	require.Equal(t, tree.future(len(tree.nodes)), given(t, requests, 2*len(tree.nodes), false))
}

func TestAReplayIsTheSameAgain(t *testing.T) {
	requests := someRequests(t, 80)
	for _, use := range []bool{false, true} {
		require.Equal(t, given(t, requests, 60, use), given(t, requests, 60, use))
	}
}

// TestALongPrompt has more blocks than the store has room for.
func TestALongPrompt(t *testing.T) {
	blocks := make([]int32, 100)
	requests := []trace.Request{{Blocks: blocks}, {At: 300, Blocks: blocks}}
	n := given(t, requests, 40, false)
	require.Positive(t, n)
	require.LessOrEqual(t, n, 40)
}

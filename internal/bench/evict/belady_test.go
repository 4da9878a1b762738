package evict

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/trace"
)

// randomRequests are prompts that begin like each other.
func randomRequests(rng *rand.Rand, n, branches, length int) (requests []trace.Request) {
	for range n {
		var blocks []int32
		for range 1 + rng.IntN(length) {
			blocks = append(blocks, int32(rng.IntN(branches)))
		}
		requests = append(requests, trace.Request{At: 120 * float64(len(requests)), Tokens: len(blocks) * trace.BlockTokens, Blocks: blocks})
	}
	return requests
}

func TestTree(t *testing.T) {
	tree := newTree([]trace.Request{{Blocks: []int32{1, 2}}, {Blocks: []int32{2}}, {Blocks: []int32{1, 2, 2}}})
	require.Equal(t, 6, tree.blocks)
	require.Equal(t, []node{{-1, []int{0, 2}}, {0, []int{0, 2}}, {-1, []int{1}}, {1, []int{2}}}, tree.nodes)
	require.Equal(t, [][]int{{0, 1}, {2}, {0, 1, 3}}, tree.prompts)
	require.Equal(t, 2, tree.future(4))
	require.Equal(t, 2, tree.future(2), "the page of the second prompt never comes back")
	require.Equal(t, 1, tree.future(1))
}

// slowly serves prompts as the rule says it: of all stored pages that no stored one continues, the one leaves
// for which first(page, other) is true for all others.
func (t *tree) slowly(room int, first func(prompt, a, b int) bool) (given int) {
	stored := make(map[int]bool)
	for i, prompt := range t.prompts {
		for _, n := range prompt {
			if stored[n] {
				given++
			}
			stored[n] = true
		}
		for len(stored) > room {
			parents, victim := make(map[int]bool), -1
			for n := range stored {
				parents[t.nodes[n].parent] = true
			}
			for n := range stored {
				if !parents[n] && (victim < 0 || first(i, n, victim)) {
					victim = n
				}
			}
			delete(stored, victim)
		}
	}
	return given
}

// nextAfter is the first use of a page after a prompt.
func (t *tree) nextAfter(prompt, n int) int {
	for _, use := range t.nodes[n].uses {
		if use > prompt {
			return use
		}
	}
	return never
}

// best is the most pages that any choice of evictions gives back.
func (t *tree) best(room int) (given int) {
	type set = uint32
	byState := map[set]int{0: 0}
	for _, prompt := range t.prompts {
		next := make(map[set]int)
		for state, given := range byState {
			for _, n := range prompt {
				if state&(1<<n) != 0 {
					given++
				}
				state |= 1 << n
			}
			t.subsets(state, room, func(kept set) { next[kept] = max(next[kept], given) })
		}
		byState = next
	}
	for _, n := range byState {
		given = max(given, n)
	}
	return given
}

// subsets visits the largest sets of pages that a store with some room can keep of others.
func (t *tree) subsets(state uint32, room int, visit func(uint32)) {
	seen := make(map[uint32]bool)
	var visitFrom func(state uint32, pages int)
	visitFrom = func(state uint32, pages int) {
		if seen[state] {
			return
		}
		if seen[state] = true; pages <= room {
			visit(state)
			return
		}
		var parents uint32
		for n := range t.nodes {
			if parent := t.nodes[n].parent; parent >= 0 && state&(1<<n) != 0 {
				parents |= 1 << parent
			}
		}
		for n := range t.nodes {
			if bit := uint32(1) << n; state&bit != 0 && parents&bit == 0 {
				visitFrom(state&^bit, pages-1)
			}
		}
	}
	pages := 0
	for n := range t.nodes {
		pages += int(state >> n & 1)
	}
	visitFrom(state, pages)
}

// TestFutureIsBelady compares with the rule in its plainest form, and with the best of all choices of evictions.
func TestFutureIsBelady(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		tree := newTree(randomRequests(rng, 12, 2, 3))
		for _, room := range []int{1, 2, 3, 5, 8} {
			given := tree.future(room)
			require.Equal(t, tree.best(room), given)
			slow := tree.slowly(room, func(prompt, a, b int) bool {
				nextA, nextB := tree.nextAfter(prompt, a), tree.nextAfter(prompt, b)
				return nextA > nextB || nextA == nextB && a > b
			})
			require.Equal(t, slow, given)
		}
	}
}

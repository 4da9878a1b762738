package runs

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// store adds the full pages of a conversation to an index.
func store(x *Index, tokens []int32) []Page {
	var pages []Page
	parent := pagefile.Key{1}
	for at := 0; at+x.size <= len(tokens); at += x.size {
		p := Page{Parent: parent, Start: at, Tokens: slices.Clone(tokens[at : at+x.size])}
		p.Key = pagefile.ChainKey(parent, p.Tokens, nil)
		x.Add(p)
		pages = append(pages, p)
		parent = p.Key
	}
	return pages
}

func count(from, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(from + i)
	}
	return tokens
}

func TestRunOfAConversationThatLostItsBeginning(t *testing.T) {
	x := New(8, 100)
	pages := store(x, count(0, 50))
	for from := 1; from <= 50-8; from++ {
		whole := (48-from)/8 > 0 && from <= 40 // a full page lies after from
		runs := x.Find(count(from, 60-from), 0)
		if !whole {
			require.Empty(t, runs, "from %d", from)
			continue
		}
		require.Len(t, runs, 1, "from %d", from)
		require.Equal(t, from, runs[0].Position())
		require.Equal(t, pages[from/8].Key, runs[0].Page.Key)
		require.Equal(t, 48-from, runs[0].Tokens)
		require.Empty(t, x.Find(count(from, 60-from), from), "the wanted position itself is no other position")
	}
	require.Empty(t, x.Find(append([]int32{99}, count(9, 30)...), 0), "the first token is another")
	require.Empty(t, x.Find(count(16, 7), 0), "no whole page")
}

func TestTwinsAreNotAllLookedAt(t *testing.T) {
	x := New(4, 1000)
	store(x, make([]int32, 400))
	runs := x.Find(make([]int32, 12), 1000)
	require.LessOrEqual(t, len(runs), 4*maxTwins)
	require.Equal(t, 12, runs[0].Tokens)
}

func TestTheOldestPageIsForgotten(t *testing.T) {
	x := New(8, 4)
	old, kept := store(x, count(0, 16)), store(x, count(100, 16))
	x.Add(old[0]) // used again
	store(x, count(200, 8))
	require.Equal(t, 4, x.Len())
	require.Empty(t, x.Find(count(8, 8), 0))
	require.Len(t, x.Find(count(0, 8), 50), 1)
	x.Remove(kept[0].Key)
	x.Remove(kept[0].Key)
	require.Empty(t, x.Find(count(100, 8), 0))
	require.Len(t, x.Find(count(108, 8), 0), 1)
	require.Len(t, x.byHash, x.Len())
	require.Len(t, x.pages, x.Len())
	x.Add(Page{Tokens: count(0, 7)})
	require.Equal(t, 3, x.Len(), "a page of another length")
}

// TestFindAgainstComparison compares with looking at every position of every conversation.
func TestFindAgainstComparison(t *testing.T) {
	const size = 4
	rapid.Check(t, func(rt *rapid.T) {
		x := New(size, 1000)
		x.twins = 1000
		token := rapid.Int32Range(0, 2) // few, so that everything repeats
		var stored [][]int32
		for range rapid.IntRange(1, 3).Draw(rt, "conversations") {
			tokens := rapid.SliceOfN(token, 0, 30).Draw(rt, "tokens")
			stored = append(stored, tokens)
			store(x, tokens)
		}
		prompt := rapid.SliceOfN(token, 0, 24).Draw(rt, "prompt")
		position := rapid.IntRange(0, 30).Draw(rt, "position")
		runs := x.Find(prompt, position)
		for _, r := range runs {
			rest := r.Page.Tokens[r.From:]
			require.Equal(rt, rest[:min(len(rest), len(prompt))], prompt[:min(len(rest), len(prompt))])
			require.NotEqual(rt, position, r.Position())
			require.GreaterOrEqual(rt, r.Tokens, size)
			require.LessOrEqual(rt, r.Tokens, len(prompt))
		}
		best := 0
		for _, tokens := range stored {
			tokens = tokens[:len(tokens)/size*size]
			for at := range tokens {
				end := at + pagefile.Shared(tokens[at:], prompt)
				first, last := (at+size-1)/size*size, end/size*size
				if last-first >= size && at != position {
					best = max(best, last-at)
				}
			}
		}
		if best == 0 {
			require.Empty(rt, runs)
			return
		}
		require.NotEmpty(rt, runs)
		require.Equal(rt, best, runs[0].Tokens)
	})
}

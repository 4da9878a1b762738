package reuse

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAges(t *testing.T) {
	for idle, want := range map[time.Duration]int{
		-time.Hour: 0, 0: 0, time.Second: 0, 2*time.Second - 1: 0, 2 * time.Second: 1, 4*time.Second - 1: 1, 4 * time.Second: 2,
		time.Hour: 11, 24 * time.Hour: 16, math.MaxInt64: ages - 1,
	} {
		require.Equal(t, want, ageOf(idle), idle)
	}
}

// Without any use all pages are worth the same, so that the last use decides.
func TestNothingIsKnown(t *testing.T) {
	var c Counts
	var idle Idle
	for range 1000 {
		c.Store()
		idle.Add(0, time.Hour)
	}
	require.Zero(t, *c.Worths(&idle, true))
	require.Zero(t, *Counts{}.Worths(new(Idle), true))
}

// A page is never worth less than one that was used less often and is idle for at least as long, whatever was
// counted. Of pages whose uses are not told apart none is worth less than one that is idle for longer.
func TestWorthsAreInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Counts
		var idle Idle
		number := rapid.Int64Range(0, most)
		if rapid.Bool().Draw(t, "small") {
			number = rapid.Int64Range(0, 100_000)
		}
		for range rapid.IntRange(0, 100).Draw(t, "n") {
			u, a := rapid.IntRange(0, MostUses).Draw(t, "uses"), rapid.IntRange(0, ages-1).Draw(t, "age")
			n := rapid.SampledFrom([]*int64{&c.Began[u], &c.Again[u][a], &idle.pages[u][a]}).Draw(t, "of")
			*n = number.Draw(t, "number")
		}
		require.True(t, c.Valid())
		known := rapid.Bool().Draw(t, "known")
		w := c.Worths(&idle, known)
		for u := range w.worth {
			for a, worth := range w.worth[u] {
				require.False(t, math.IsNaN(worth) || math.IsInf(worth, 0) || worth < 0, "%d %d: %v", u, a, worth)
				for older := a; older < ages && u > 0; older++ {
					require.GreaterOrEqual(t, worth, w.worth[u-1][older])
				}
				if a > 0 && (u == MostUses || !known) {
					require.LessOrEqual(t, worth, w.worth[u][a-1])
				}
			}
		}
	})
}

// Where no prompt goes on within a minute and many do soon after, new pages leave before those that have waited
// for half a minute.
func TestWorthRises(t *testing.T) {
	var c Counts
	for range 10_000 {
		c.Store()
	}
	for range 3_000 {
		c.Use(0, 100*time.Second)
	}
	var idle Idle
	for seconds := range 120 {
		idle.Add(0, time.Duration(seconds)*time.Second)
	}
	w := c.Worths(&idle, true)
	require.Greater(t, w.Of(0, 40*time.Second), w.Of(0, 10*time.Second))
	require.Greater(t, w.Of(0, 70*time.Second), w.Of(0, 40*time.Second))
	require.Greater(t, w.Of(0, 10*time.Second), w.Of(0, 10*time.Minute))
	require.GreaterOrEqual(t, w.Of(1, 10*time.Second), w.Of(0, 70*time.Second), "another prompt may have continued it")
	w = c.Worths(&idle, false)
	require.Equal(t, w.Of(0, 70*time.Second), w.Of(0, 10*time.Second))
}

// Where each prompt comes twice and never again, new pages stay before those that came twice.
func TestPromptsThatComeTwice(t *testing.T) {
	var c Counts
	var idle Idle
	for range 1000 {
		c.Store()
		c.Use(0, 5*time.Minute)
	}
	for seconds := range 300 {
		idle.Add(0, time.Duration(seconds)*time.Second)
		idle.Add(1, time.Duration(seconds)*time.Second)
	}
	w := c.Worths(&idle, true)
	require.GreaterOrEqual(t, w.Of(0, 10*time.Second), w.Of(1, 100*time.Second))
	require.Equal(t, w.Of(0, 290*time.Second), w.Of(1, 100*time.Second), "a page that came twice may be before one that did not")
}

// Pages of a script that are never used again are worth less than those of chats that go on after an hour,
// even while the script's are younger.
func TestScriptsBesideChats(t *testing.T) {
	var c Counts
	var idle Idle
	for range 10_000 { // of the script
		c.Store()
	}
	for range 1000 { // of chats, whose second use comes soon, and the others an hour apart
		c.Store()
		c.Use(0, 10*time.Second)
		for uses := 1; uses < 4; uses++ {
			c.Use(uses, time.Hour)
		}
	}
	w := c.Worths(&idle, true)
	require.Greater(t, w.Of(1, 40*time.Minute), w.Of(0, time.Minute))
	require.Greater(t, w.Of(0, time.Second), w.Of(0, time.Minute), "a page may be a chat's")
	require.Greater(t, w.Of(0, time.Second), w.Of(1, 3*time.Hour), "a chat that has ended")
}

// index is the best of all times for which a page can be kept.
func TestIndex(t *testing.T) {
	share := []float64{0, 0.5, 0, 1}
	best := 0.0
	for end := 1; end <= len(share); end++ { // classes 3 to 6: 8, 16, 32 and 64 s
		left, used, seconds := 1.0, 0.0, 0.0
		for i := range end {
			width := []float64{8, 16, 32, 64}[i]
			used += left * share[i]
			seconds += left*(1-share[i])*width + left*share[i]*width/2
			left -= left * share[i]
		}
		best = max(best, used/seconds)
	}
	require.InDelta(t, best, index(share, 3), 1e-12)
	require.InDelta(t, 0.5/(8+16*0.75), index(share, 3), 1e-12)
	require.Zero(t, index([]float64{0, 0}, 0))
}

func TestCountsFade(t *testing.T) {
	var c Counts
	for range memoryLeast {
		c.Store()
	}
	c.Use(0, time.Hour)
	before := c
	c.Fade(memoryLeast)
	require.Equal(t, before, c, "a large tier")
	c.Fade(100)
	require.EqualValues(t, memoryLeast/2, c.Began[0])
	require.Zero(t, c.Pages())

	var forged Counts
	forged.Again[0][3] = most
	forged.Fade(100)
	require.EqualValues(t, most/2, forged.Again[0][3])
}

func TestSums(t *testing.T) {
	var a, b Counts
	a.Store()
	a.Use(0, time.Minute)
	b.Return(3, time.Hour, RoomFor(1.5))
	b.Return(4, time.Hour, RoomFor(3))
	require.Equal(t, MostUses, b.Return(MostUses, time.Hour, RoomFor(100)))
	require.Equal(t, [Rooms]int64{1, 1, 1}, b.Left)
	sum := a.Plus(b)
	require.EqualValues(t, 4, sum.Pages())
	require.Equal(t, a, sum.Minus(b))
	require.Equal(t, Counts{}, a.Minus(sum))
	require.False(t, Counts{}.Some())
	require.True(t, a.Some())

	b.Left[0] = -1
	require.False(t, b.Valid())
	b.Left[0] = math.MaxInt64
	require.False(t, b.Valid())
	b.Left[0] = most
	require.EqualValues(t, most, b.Plus(b).Left[0])
}

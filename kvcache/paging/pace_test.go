package paging

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/pagedenv"
)

func paced(d time.Duration) *Pace {
	return Config{PageCells: 32, Select: pagedenv.Choice{Time: d}}.Pace()
}

func TestPaceOfANumber(t *testing.T) {
	require.Nil(t, Config{PageCells: 32}.Pace())
	p := Config{PageCells: 32, Select: pagedenv.Choice{Cells: 500}}.Pace()
	for range 100 {
		p.Seen(100000)
		p.Took(time.Minute)
	}
	require.Equal(t, 500, p.Cells())
}

// attended is what a token attends to: all where a choice would be of three quarters or more.
func attended(p *Pace, context int) int {
	if 4*p.Cells() >= 3*context {
		return context
	}
	return p.Cells()
}

// On a machine whose tokens take a time for themselves, and one for each cell, the number is found that takes
// the given time, whatever it was, also where some tokens wait for something else.
func TestPaceFindsTheTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		own, each := time.Duration(r.IntN(20e6)), time.Duration(100+r.IntN(40000))
		target := own + time.Duration(5e6+r.IntN(100e6))
		p := paced(target)
		context := 4096 + r.IntN(200000)
		token := func() time.Duration { return own + each*time.Duration(attended(p, context)) }
		late := 0 // tokens that are too slow once the number is found
		for i := range 2000 {
			p.Seen(context)
			d := token() * time.Duration(97+r.IntN(6)) / 100
			if i > 200 && token() > target*106/100 {
				late++
			}
			switch i % 5 {
			case 0:
				d += 10 * target
			case 1:
				d /= 4
			}
			p.Took(d)
			require.Zero(t, p.Cells()%32)
			require.GreaterOrEqual(t, p.Cells(), 4*32)
			require.Less(t, p.Cells(), max(2*context, firstCells)+32)
		}
		if own+each*6*32 > target {
			continue // it cannot be met
		}
		require.Less(t, late, 150, "own %v, each %v, context %d, target %v", own, each, context, target)
		if all := own + each*time.Duration(context); all < target*3/4 {
			require.Equal(t, context, attended(p, context), "all is in time")
		} else if most := own + each*time.Duration(3*context/4); target < most {
			require.InDelta(t, 0.94, float64(token())/float64(target), 0.15)
		} else {
			require.GreaterOrEqual(t, attended(p, context), 3*context/4*85/100)
		}
	}
}

// All is attended to where that is hardly in time, and choosing takes a time of its own: the number stays where
// a choice is in time. Where all is much slower than told by a choice, as behind memory, that is tried ever less.
func TestPaceBesideAll(t *testing.T) {
	for _, c := range []struct{ all, choosing, each float64 }{{1.05, 0, 1.05 / 32768}, {1.05, 0.2, 0.9 / 32768}, {3, 0, 0.7 / 32768}} {
		p := paced(time.Second)
		const context = 32768
		p.cells.Store(28576)
		late, lateLast := 0, 0
		for i := range 20000 {
			p.Seen(context)
			share := c.choosing + c.each*float64(p.Cells())
			if attended(p, context) == context {
				share = c.all
			}
			if share > 1 {
				late++
				if i >= 10000 {
					lateLast++
				}
			}
			p.Took(time.Duration(share * float64(time.Second)))
		}
		require.Less(t, late, 200, "%+v", c)
		require.Less(t, lateLast, 50, "%+v", c)
		require.Greater(t, p.Cells(), context/2, "%+v", c)
	}
}

// What is attended to as a whole tells nothing of a choice: a short quick answer leaves the number as it is.
func TestPaceOfShortAnswers(t *testing.T) {
	p := paced(40 * time.Millisecond)
	for range 200 {
		p.Seen(100000)
		p.Took(time.Duration(p.Cells()) * 3 * time.Microsecond)
	}
	found := p.Cells()
	require.Greater(t, found, 10000)
	for seen := range 200 {
		p.Seen(60 + seen)
		p.Took(10 * time.Millisecond)
	}
	require.Equal(t, found, p.Cells())
	for range 200 { // nor where the machine is busy, and there is too little to choose from
		p.Seen(100)
		p.Took(time.Second)
	}
	require.Equal(t, found, p.Cells())
}

// The engine has the same rule for what is no choice.
func TestPaceKnowsTheRule(t *testing.T) {
	source, err := os.ReadFile("../../ggml-paged/src/select/choose.cpp")
	require.NoError(t, err)
	require.Contains(t, string(source), fmt.Sprintf("CHOICE_MOST = %d;", chosenMost))
	require.Regexp(t, fmt.Sprintf(`CHOICE_OF\s+= %d;`, chosenOf), string(source))
}

// What cannot be met is as quick as can be. A long context after short ones begins with what these had, and has
// less once some tokens were too slow.
func TestPaceAtItsEnds(t *testing.T) {
	p := paced(time.Millisecond)
	for range 100 {
		p.Seen(100000)
		p.Took(time.Second)
	}
	require.Equal(t, 4*32, p.Cells())

	p = paced(time.Second)
	for range 100 {
		p.Seen(3000)
		p.Took(time.Millisecond)
	}
	learned := p.Cells()
	require.Equal(t, 3000, attended(p, 3000))
	require.LessOrEqual(t, learned, 2*3000)
	p.Seen(100000)
	for range 2 * paceTokens {
		p.Took(20 * time.Second)
		require.LessOrEqual(t, p.Cells(), learned)
	}
	require.Less(t, p.Cells(), learned)
}

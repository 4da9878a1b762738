package paging

import (
	"math/rand/v2"
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

// On a machine whose tokens take a time for themselves, and one for each cell, the number is found that takes
// the given time, whatever it was, also where some tokens wait for something else.
func TestPaceFindsTheTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		own, each := time.Duration(r.IntN(20e6)), time.Duration(100+r.IntN(40000))
		target := own + time.Duration(5e6+r.IntN(100e6))
		p := paced(target)
		context := 4096 + r.IntN(200000)
		token := func() time.Duration { return own + each*time.Duration(min(p.Cells(), context)) }
		for i := range 2000 {
			p.Seen(context)
			d := token() * time.Duration(97+r.IntN(6)) / 100
			switch i % 5 {
			case 0:
				d += 10 * target
			case 1:
				d /= 4
			}
			p.Took(d)
			require.Zero(t, p.Cells()%32)
			require.GreaterOrEqual(t, p.Cells(), 4*32)
			require.Less(t, p.Cells(), max(context, firstCells)+32)
		}
		switch {
		case p.Cells() >= context: // all of it, in time
			require.Less(t, token(), target*106/100)
		case own+each*6*32 < target:
			require.InDelta(t, 0.94, float64(token())/float64(target), 0.15)
		}
	}
}

// What cannot be met is as quick as can be. A long context after short ones begins with no more than twice what
// they had, and has less once some tokens were too slow.
func TestPaceAtItsEnds(t *testing.T) {
	p := paced(time.Millisecond)
	for range 100 {
		p.Seen(100000)
		p.Took(time.Second)
	}
	require.Equal(t, 4*32, p.Cells())
	p.Seen(10)
	for range 100 {
		p.Took(time.Microsecond)
	}
	require.Equal(t, 4*32, p.Cells())

	p = paced(time.Second)
	for range 100 {
		p.Seen(3000)
		p.Took(time.Millisecond)
	}
	require.Equal(t, 3008, p.Cells())
	p.Seen(100000)
	require.Equal(t, 3008, p.Cells())
	for range 2 * paceTokens {
		p.Took(20 * time.Second)
		require.LessOrEqual(t, p.Cells(), 2*3008)
	}
	require.Less(t, p.Cells(), 3008)
}

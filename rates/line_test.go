package rates

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLineIsFitted(t *testing.T) {
	l := newComputeLine()
	require.False(t, l.known())
	for x := 256.0; x < 20000; x += 512 {
		l.add(sample{x, 0.001 + 1e-7*x})
	}
	for _, x := range []float64{0, 1000, 20000, 100000} {
		require.InEpsilon(t, 0.001+1e-7*x, l.at(x), 1e-6)
	}
}

// A machine is busy now and then: such delays do not change the cost of a token.
func TestLineIgnoresOutliers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l := newComputeLine()
	for range 4 {
		for x := 256.0; x < 8192; x += 512 {
			y := (0.001 + 1e-7*x) * (1 + 0.1*random.Float64())
			if random.IntN(6) == 0 {
				y *= 10
			}
			l.add(sample{x, y})
		}
	}
	for _, x := range []float64{256, 4096, 8192, 16384} {
		require.InEpsilon(t, 1.05*(0.001+1e-7*x), l.at(x), 0.15, "at %v", x)
	}
}

func TestLineFollowsWhatIsRecent(t *testing.T) {
	compute, read := newComputeLine(), newReadLine()
	for range 4 {
		for x := 256.0; x < 8192; x += 512 {
			compute.add(sample{x, 0.001 + 1e-7*x})
		}
		read.add(sample{32 << 20, 0.1})
	}
	for range 2 {
		for x := 256.0; x < 8192; x += 512 {
			compute.add(sample{x, 0.003 + 3e-7*x})
		}
		read.add(sample{32 << 20, 1})
	}
	require.InEpsilon(t, 0.003+3e-7*4096, compute.at(4096), 0.1)
	require.InEpsilon(t, 1, read.at(32<<20), 0.01)
}

// Many short prompts do not push out the observations of a long one.
func TestLineKeepsWhatLongPromptsTaught(t *testing.T) {
	l := newComputeLine()
	for x := 256.0; x < 16384; x += 512 {
		l.add(sample{x, 0.001 + 1e-6*x})
	}
	for range 1000 {
		l.add(sample{100, 0.0011})
	}
	require.InEpsilon(t, 0.001+1e-6*16384, l.at(16384), 0.2)
	require.Less(t, len(l.samples), 100)
}

func TestLineOfOneSize(t *testing.T) {
	compute, read := newComputeLine(), newReadLine()
	compute.add(sample{256, 0.001})
	require.Equal(t, 0.001, compute.at(8192), "tokens cost the same at all positions until more is known")
	read.add(sample{1 << 20, 0.01})
	read.add(sample{1<<20 + 4096, 0.01})
	require.InEpsilon(t, 0.001, read.at(1<<20/10), 0.01, "a tenth of a page is read in a tenth of the time")
}

// Small files take time to read, too.
func TestLineOfTwoSizes(t *testing.T) {
	l := newReadLine()
	for range 3 {
		l.add(sample{32 << 20, 0.005 + 0.32})
		l.add(sample{1 << 20, 0.005 + 0.01})
	}
	require.InEpsilon(t, 0.005+0.16, l.at(16<<20), 0.01)
}

func TestLineTakesNothingImpossible(t *testing.T) {
	l := newReadLine()
	for _, s := range []sample{{-1, 1}, {1, 0}, {1, -1}, {sampleMax * 2, 1}, {1, costMax * 2}} {
		l.add(s)
	}
	require.False(t, l.known())
	// slopes and constants are never negative, with any observations
	l.add(sample{1000, 5})
	l.add(sample{100000, 1})
	for _, x := range []float64{0, 1, 1e6, 1e12} {
		require.GreaterOrEqual(t, l.at(x), 0.0)
	}
}

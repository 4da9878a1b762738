package team

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/rates"
)

// TestGrid bounds the time of a prompt by that of the better of reading and computing all of its pages, in
// every cell. An engine that was not measured costs at most waiting in vain as long as the prompt takes to
// compute, and a model that was not measured that it is ten times as quick, or as slow, as assumed.
func TestGrid(t *testing.T) {
	for _, pages := range []int{1, 4, 16, 64} {
		for _, c := range Grid() {
			better := c.Better(pages)
			require.LessOrEqual(t, c.Prompt(c.Warm(), pages)/better, 1.1, "%d pages, warm: %+v", pages, c)
			require.LessOrEqual(t, c.Prompt(c.Known(), pages)/better, 2.001, "%d pages, engine not measured: %+v", pages, c)
			require.LessOrEqual(t, c.Prompt(rates.New(), pages)/better, 12.0, "%d pages, nothing measured: %+v", pages, c)
		}
	}
}

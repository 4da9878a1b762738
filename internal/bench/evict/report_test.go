package evict

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/bench/trace"
	"github.com/kvtier/kvtier/internal/progress"
)

func quick(ctx context.Context, name string) (*Report, error) {
	steps := progress.New(io.Discard, show.StepNames)
	defer steps.Close()
	return Measure(ctx, show.Steps{Display: steps}, name, true)
}

func TestPrint(t *testing.T) {
	r := &Report{Trace: "some.jsonl", Requests: 6015, Blocks: 153002, Distinct: 100131, Rows: []Row{
		{Percent: 2, LRU: 0.0537, Use: 0.101, Future: 0.25}, {Percent: 40, LRU: 1, Use: 0, Future: 1},
	}}
	var text strings.Builder
	r.Print(&text)
	require.Equal(t, `
some.jsonl: 6,015 requests, 153,002 blocks, 100,131 distinct
2%  lru 0.054  use 0.101  future 0.250
40%  lru 1.000  use 0.000  future 1.000
`, text.String())
}

func TestMeasure(t *testing.T) {
	r, err := quick(t.Context(), "")
	require.NoError(t, err)
	require.Contains(t, r.Trace, agentsAbout)
	require.Equal(t, quickRequests, r.Requests)
	require.Len(t, r.Rows, 1)
	require.Equal(t, quickSize, r.Rows[0].Percent)
	require.Positive(t, r.Rows[0].LRU)
	require.Positive(t, r.Rows[0].Use)
	require.LessOrEqual(t, max(r.Rows[0].LRU, r.Rows[0].Use), r.Rows[0].Future)

	data, err := json.Marshal(r)
	require.NoError(t, err)
	var again Report
	require.NoError(t, json.Unmarshal(data, &again))
	require.Equal(t, *r, again)
}

func TestMeasureAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "two.jsonl")
	line := `{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}` + "\n"
	require.NoError(t, os.WriteFile(path, []byte(line+line), 0o600))
	r, err := quick(t.Context(), path)
	require.NoError(t, err)
	require.Equal(t, "two.jsonl", r.Trace)
	require.Equal(t, []int{2, 4, 2}, []int{r.Requests, r.Blocks, r.Distinct})
	require.Equal(t, 0.25, r.Rows[0].Future, "room for one page")

	_, err = quick(t.Context(), path+".gz")
	require.ErrorIs(t, err, os.ErrNotExist)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = quick(stopped, path)
	require.ErrorIs(t, err, context.Canceled)
}

// TestMade: made traces are the same each time, in order, and each prompt's blocks hold its tokens.
func TestMade(t *testing.T) {
	for name, trace := range made {
		requests, heading, err := open(name)
		require.NoError(t, err)
		require.Contains(t, heading, trace.about)
		again, _, _ := open(name)
		require.Equal(t, requests, again)
		require.Greater(t, len(requests), 2*quickRequests)
		before := 0.0
		for _, r := range requests {
			require.GreaterOrEqual(t, r.At, before)
			before = r.At
			requireFull(t, r)
		}
	}
}

func requireFull(t *testing.T, r trace.Request) {
	t.Helper()
	require.Greater(t, r.Tokens, (len(r.Blocks)-1)*trace.BlockTokens)
	require.LessOrEqual(t, r.Tokens, len(r.Blocks)*trace.BlockTokens)
}

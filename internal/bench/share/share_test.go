package share

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic"
	"github.com/kvtier/kvtier/elastic/balance"
	"github.com/kvtier/kvtier/elastic/segment"
)

// quick is a load of minutes that both speeds of the benchmark have.
func quick(servers int, prefill, load float64) Config {
	return Config{Servers: servers, Prefill: prefill, Bursts: 6, Load: load}
}

// both plays the requests of a seed with a split and with a policy.
func both(t *testing.T, c Config, m Mix, seed uint64, policy Policy) (requests []Request, split, moved Side, err error) {
	t.Helper()
	requests = Requests(c, m, seed)
	split, err = simulate(t.Context(), c, requests, nil)
	if errors.Is(err, elastic.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	moved, err = simulate(t.Context(), c, requests, policy)
	return requests, split, moved, err
}

// compare returns an error where a policy serves fewer requests than a split, or not all of them.
func compare(t *testing.T, c Config, m Mix, seed uint64, policy Policy) error {
	t.Helper()
	requests, split, moved, err := both(t, c, m, seed, policy)
	if err != nil {
		return err
	}
	for i, o := range moved.Outcomes {
		if !o.Failed {
			require.Less(t, requests[i].At, o.First)
			require.LessOrEqual(t, o.First, o.Done)
		}
	}
	switch {
	case moved.Completed() < split.Completed():
		return fmt.Errorf("%d requests were completed, and %d with a split", moved.Completed(), split.Completed())
	case moved.Failed() > 0:
		return fmt.Errorf("%d of %d requests failed", moved.Failed(), len(moved.Outcomes))
	}
	return nil
}

// TestBalanceServesAllThatASplitServesAndMore: no request fails, at any mix, and the servers never hold
// more than the budget.
func TestBalanceServesAllThatASplitServesAndMore(t *testing.T) {
	seed := uint64(0)
	for _, servers := range []int{2, 3} {
		for _, large := range []int{2048, 24576} {
			for _, hot := range []float64{0.5, 0.7, 0.9, 1} {
				seed++
				name := fmt.Sprintf("%d servers, prompts up to %d, %v, seed %d", servers, large, hot, seed)
				m := Mix{Hot: hot, Small: large / 16, Large: large}
				require.NoError(t, compare(t, quick(servers, 1000, 0.5), m, seed, Balance), name)
				require.NoError(t, compare(t, quick(servers, 8000, 0.2), m, seed, Balance), name)
			}
		}
	}
}

// TestPromptsOfAQuarterOfTheBudgetAreServedInOverload: none of them fails under more load than the servers
// can bear for long.
func TestPromptsOfAQuarterOfTheBudgetAreServedInOverload(t *testing.T) {
	for _, hot := range []float64{0.5, 0.7, 0.9, 1} {
		for seed := range uint64(2) {
			for _, c := range []Config{quick(2, 1000, 0.5), quick(2, 8000, 0.7)} {
				require.NoError(t, compare(t, c, Mix{Hot: hot, Small: 1024, Large: 8192}, seed, Balance), "%v, seed %d", hot, seed)
			}
		}
	}
}

var large = Mix{Hot: 1, Small: 1536, Large: 24576}

// TestLimitsThatNeverMoveAreFound: requests fail where a policy leaves limits as they are.
func TestLimitsThatNeverMoveAreFound(t *testing.T) {
	never := func(time.Duration, int64, func(segment.Segment) bool) error { return nil }
	require.ErrorContains(t, compare(t, quick(2, 8000, 0.2), large, 1, never), "failed")
}

// TestLimitsAboveTheBudgetAreFound: the servers hold too much where limits add up to more, and where a
// limit rises before another server has given its memory back.
func TestLimitsAboveTheBudgetAreFound(t *testing.T) {
	all := func(budget int64, segments []segment.Segment) []int64 {
		shares := make([]int64, len(segments))
		for i := range shares {
			shares[i] = budget
		}
		return shares
	}
	early := func(budget int64, segments []segment.Segment) []int64 { return balance.Share(budget, segments, 0) }
	for name, shares := range map[string]func(int64, []segment.Segment) []int64{"all": all, "early": early} {
		policy := func(_ time.Duration, budget int64, ours func(segment.Segment) bool) error {
			segments, err := segment.List()
			segments = slices.DeleteFunc(segments, func(s segment.Segment) bool { return !ours(s) })
			for i, share := range shares(budget, segments) {
				err = errors.Join(err, segment.SetLimit(segments[i].Name, share))
			}
			return err
		}
		m := Mix{Hot: 0.5, Small: large.Small, Large: large.Large}
		require.ErrorIs(t, compare(t, quick(2, 8000, 0.7), m, 1, policy), ErrOverBudget, name)
	}
}

// TestRequestsAreThoseOfTheirSeed: the same every time, in order, and within the mix.
func TestRequestsAreThoseOfTheirSeed(t *testing.T) {
	c := quick(3, 1000, 0.5)
	all := Requests(c, large, 7)
	require.Equal(t, all, Requests(c, large, 7))
	require.NotEqual(t, all, Requests(c, large, 8))
	goesOn := 0
	for i, q := range all {
		require.Equal(t, int(q.At/burstEvery)%c.Servers, q.Server, "a hot server has all")
		require.True(t, large.Small <= q.Prompt && q.Prompt <= large.Large)
		if i > 0 {
			require.GreaterOrEqual(t, q.At, all[i-1].At)
		}
		if q.Conversation != i {
			goesOn++
		}
	}
	require.Positive(t, goesOn)
}

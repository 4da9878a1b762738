package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/balance"
	"github.com/kvtier/kvtier/elastic/segment"
)

// TestTwoServersShareMemory: two servers have bursts in turn, with prompts that half of the memory does
// not hold. A balancer moves the limits, every request is answered, and together they never hold more than
// the budget. The death of a runner changes nothing for the other.
func TestTwoServersShareMemory(t *testing.T) {
	const budget = 12 * elasticBlock
	var servers []limited
	var names []string
	for range 2 {
		s := startLimited(t, 4, "OLLAMA_KV_TIERING=0", "OLLAMA_KVCACHED_LIMIT_MB=2") // five blocks
		s.ask(prompt(t, 10, 260), 1)
		segmentName, _, _ := strings.Cut(s.segment().Name, "_")
		servers, names = append(servers, s), append(names, segmentName+"_")
	}
	ours := func(s segment.Segment) bool {
		return strings.HasPrefix(s.Name, names[0]) || strings.HasPrefix(s.Name, names[1])
	}
	alone, err := servers[0].Generate(servers[0].context(), servers[0].request(1900, 261, 4))
	require.ErrorContains(t, err, "no room", "half of the memory does not hold it: %v", alone)

	ctx, stop := context.WithCancel(t.Context())
	var balancing, watching sync.WaitGroup
	b := balance.Balancer{Budget: budget, Of: ours, Changed: func(c balance.Change, err error) {
		if err != nil {
			t.Log(err) // of a runner that was killed in between
		}
	}}
	balancing.Add(1)
	go func() {
		defer balancing.Done()
		_ = b.Run(ctx)
	}()
	defer balancing.Wait()
	defer stop()

	most := int64(0)
	watching.Add(1)
	go func() {
		defer watching.Done()
		for ctx.Err() == nil {
			held := int64(0)
			all, _ := segment.List()
			for _, s := range all {
				if ours(s) && s.State == segment.Live {
					held += s.Used + s.Kept
				}
			}
			most = max(most, held)
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()

	burst := func(s limited, seed int64) {
		errs := make(chan error, 4)
		for i := range int64(4) {
			request := s.request(1900-int(i)*300, seed+i, 20)
			go func() {
				result, err := s.Generate(s.context(), request)
				if err == nil && result.EvalCount != 20 {
					err = fmt.Errorf("%d tokens were answered", result.EvalCount)
				}
				errs <- err
			}()
		}
		for range 4 {
			require.NoError(t, <-errs)
		}
	}
	for round := range int64(3) {
		for i, s := range servers {
			burst(s, 300+100*round+10*int64(i))
		}
	}
	require.NoError(t, servers[0].KillRunner())
	burst(servers[1], 700)
	burst(servers[0], 800)
	stop()
	watching.Wait()
	require.LessOrEqual(t, most, int64(budget))
	for _, s := range servers {
		require.NotContains(t, s.Logs(), "takes more than the limit")
	}
}

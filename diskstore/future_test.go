package diskstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestClockThatWasAheadBlocksNoPut fills a budget while the clock is ahead. After the clock
// was corrected, a Put evicts other pages and not the pages that it continues.
func TestClockThatWasAheadBlocksNoPut(t *testing.T) {
	page := physicalPage(t)
	for _, ahead := range []time.Duration{30 * time.Second, time.Hour, 365 * 24 * time.Hour} {
		for _, stands := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/stands %v", ahead, stands), func(t *testing.T) {
				s := open(t, testOptions(t, func(o *Options) { o.Local.BudgetBytes = 10 * page }))
				start := time.Now()
				s.now = func() time.Time { return time.Now().Add(ahead) }
				for seed := range 8 {
					putChain(t, s, prompt(seed, testTokens))
				}
				tokens := prompt(50, 6*testTokens)
				putChain(t, s, tokens[:2*testTokens])
				require.NoError(t, s.Flush(ctx))

				s.now = time.Now
				if stands { // a coarse clock shows the same time for two operations
					s.now = func() time.Time { return start }
				}
				putChain(t, s, tokens)
				for seed := range 6 {
					putChain(t, s, prompt(100+seed, testTokens))
					require.Len(t, s.Find(ctx, Prompt{Tokens: prompt(100+seed, testTokens)}).Exact, 1)
				}
				require.NoError(t, s.Flush(ctx))
				require.Zero(t, s.Stats().PutErrors)
				require.GreaterOrEqual(t, s.Stats().Local.Pages, 9, "no more than needed has gone")
				requireOrdered(t, s)
			})
		}
	}
}

// TestContinuedChainFromTheFutureStays: pages that a Put continues are not evicted for it,
// even though they were stored while the clock was ahead.
func TestContinuedChainFromTheFutureStays(t *testing.T) {
	page := physicalPage(t)
	s := open(t, testOptions(t, func(o *Options) { o.Local.BudgetBytes = 8 * page }))
	s.now = func() time.Time { return time.Now().Add(24 * time.Hour) }
	tokens := prompt(1, 8*testTokens)
	putChain(t, s, tokens[:4*testTokens])
	putChain(t, s, prompt(2, 4*testTokens))
	require.NoError(t, s.Flush(ctx))
	s.now = time.Now
	putChain(t, s, tokens)
	require.NoError(t, s.Flush(ctx))
	readChain(t, s, tokens, len(tokens))
	require.Empty(t, s.Find(ctx, Prompt{Tokens: prompt(2, 4*testTokens)}).Exact)
	requireOrdered(t, s)
}

// TestHostThatIsAheadPinsNothing: the pages of a host that is ahead are evicted like others
// once they are the least recently used.
func TestHostThatIsAheadPinsNothing(t *testing.T) {
	page := physicalPage(t)
	o := testOptions(t, func(o *Options) { o.Local.BudgetBytes = 10 * page })
	ahead, right := open(t, o), open(t, o)
	var passed time.Duration
	right.now = func() time.Time { return time.Now().Add(passed) }
	ahead.now = func() time.Time { return right.now().Add(100 * 24 * time.Hour) }
	putChain(t, ahead, prompt(1, 5*testTokens))
	trunk := prompt(2, 2*testTokens)
	putChain(t, right, trunk)
	touch(ahead, ahead.Find(ctx, Prompt{Tokens: trunk}).Exact[1])
	branch := append(append([]int32{}, trunk...), prompt(3, 2*testTokens)...)
	putChain(t, right, branch) // continues a chain that is from the future by now
	for hour := range 4 {
		passed += time.Hour
		putChain(t, right, branch)
		putChain(t, right, prompt(10+hour, 2*testTokens))
		require.NoError(t, right.Flush(ctx))
		requireOrdered(t, right)
		if hour > 0 { // files from the future were found, and count as used at that moment
			readChain(t, right, branch, len(branch))
		}
	}
	require.Empty(t, right.Find(ctx, Prompt{Tokens: prompt(1, 5*testTokens)}).Exact)
	require.Zero(t, right.Stats().PutErrors)
}

// TestPagesFromTheFutureMoveOnce: reading a chain that was used while the clock was ahead does
// not set its times again and again, even if files were evicted meanwhile.
func TestPagesFromTheFutureMoveOnce(t *testing.T) {
	page := physicalPage(t)
	s, _, inj := openInjected(t, func(o *Options) { o.Local.BudgetBytes = 6 * page })
	s.now = func() time.Time { return time.Now().Add(24 * time.Hour) }
	for seed := range 9 {
		putChain(t, s, prompt(seed, testTokens))
	}
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.local.book.Record(ctx))
	require.NotZero(t, s.Stats().Evicted)
	now := time.Now()
	s.now = func() time.Time { return now }
	tokens := putPrompt(t, s, 20, 4*testTokens)
	require.NoError(t, s.Flush(ctx))
	now = now.Add(2 * time.Hour)
	readChain(t, s, tokens, len(tokens))
	inj.Reset()
	for range 5 {
		now = now.Add(time.Second)
		readChain(t, s, tokens, len(tokens))
	}
	require.Zero(t, inj.Count(vfs.OpChtimes))
}

// TestHealedTimesAreSeenByOthers: a process that knows a chain's time from before another host
// moved it back does not store a more recent page.
func TestHealedTimesAreSeenByOthers(t *testing.T) {
	page := physicalPage(t)
	o := testOptions(t, func(o *Options) { o.Local.BudgetBytes = 8 * page })
	ahead, right := open(t, o), open(t, o)
	now := time.Now()
	ahead.now = func() time.Time { return now.Add(2 * time.Hour) }
	tokens := prompt(1, 5*testTokens)
	putChain(t, ahead, tokens[:4*testTokens])
	// The Put needs room, and finds the others ahead. The claims of two stores are a large
	// part of this budget, so that a page may be refused.
	parent := o.Fingerprint
	put := func(s *Store, p *pagefile.Page) bool {
		err := s.Put(ctx, p)
		if !errors.Is(err, tier.ErrNoSpace) {
			require.NoError(t, err)
		}
		return err == nil
	}
	for at, stored := 0, true; at < 6 && stored; at++ {
		p := pageOf(t, parent, at*testTokens, prompt(2, 6*testTokens)[at*testTokens:(at+1)*testTokens])
		stored, parent = put(right, p), p.Key()
	}
	require.NoError(t, right.Flush(ctx))
	if n := len(right.Find(ctx, Prompt{Tokens: tokens}).Exact); n > 0 {
		parent := right.Find(ctx, Prompt{Tokens: tokens}).Exact[n-1].Key
		put(ahead, pageOf(t, parent, n*testTokens, tokens[n*testTokens:(n+1)*testTokens]))
	}
	requireOrdered(t, ahead)
}

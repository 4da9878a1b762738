package diskstore

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// parted returns tokens that share n tokens with others and differ from there on.
func parted(tokens []int32, n, length, seed int) []int32 {
	other := slices.Clone(tokens[:n])
	for i := n; i < length; i++ {
		other = append(other, int32(-1-i-1000*seed))
	}
	return other
}

// branchesOf lists a tier's branches of the store's fingerprint.
func branchesOf(t testing.TB, s *Store, tr tier.Tier) (all []tier.Branch) {
	t.Helper()
	for first := range 256 {
		some, err := tr.Branches(ctx, s.opt.Fingerprint, []byte{byte(first)})
		require.NoError(t, err)
		some = slices.DeleteFunc(some, func(b tier.Branch) bool { return b.Longer })
		all = append(all, some...)
	}
	return all
}

// TestSharedPartOfAPage: of a prompt that leaves a stored sequence anywhere, every token up to
// there is found, also by the next process.
func TestSharedPartOfAPage(t *testing.T) {
	s, o := openNew(t)
	stored := prompt(1, 3*testTokens)
	putChain(t, s, stored)
	for range 2 {
		for n := range len(stored) + 1 {
			readChain(t, s, parted(stored, n, len(stored)+2, 1), n)
			readChain(t, s, stored[:n], n)
		}
		s = reopen(t, s, o)
	}
	require.Zero(t, s.Stats().Damaged+s.Stats().Mismatched+s.Stats().TierErrors)
}

// TestSharedPartIsNotWhole: rows past the shared part belong to another sequence.
func TestSharedPartIsNotWhole(t *testing.T) {
	s := open(t, testOptions(t))
	stored := prompt(1, 2*testTokens)
	putChain(t, s, stored)
	refs := s.Find(ctx, Prompt{Tokens: parted(stored, testTokens+3, 2*testTokens, 1)}).Exact
	require.Len(t, refs, 2)
	require.True(t, refs[0].Whole())
	require.False(t, refs[1].Whole())
	require.False(t, refs[1].Tail)
	require.Equal(t, []int{3, testTokens}, []int{refs[1].Tokens, refs[1].Stored})
	require.EqualValues(t, testTokens, refs[1].Start)
}

// TestTheLongestSharedPart: of many pages after one parent, the one that shares most is found
// with few reads.
func TestTheLongestSharedPart(t *testing.T) {
	s, _, inj := openInjected(t)
	stored := prompt(1, testTokens)
	putChain(t, s, stored)
	for seed := range 100 {
		putChain(t, s, parted(stored, seed%(testTokens-1), testTokens, seed))
	}
	before := inj.Count(vfs.OpOpen)
	readChain(t, s, parted(stored, testTokens-1, testTokens, 200), testTokens-1)
	require.LessOrEqual(t, inj.Count(vfs.OpOpen)-before, branchTries+1)
}

// TestATailThatSharesMore: the page or tail that shares most with a prompt ends a chain, and of
// equal ones the tail, which is shorter.
func TestATailThatSharesMore(t *testing.T) {
	s := open(t, testOptions(t))
	stored := prompt(1, testTokens)
	putChain(t, s, stored)
	putChain(t, s, stored[:5])
	last := func(n int) Ref {
		refs := s.Find(ctx, Prompt{Tokens: parted(stored, n, testTokens, 1)}).Exact
		require.Equal(t, n, tokensIn(refs))
		return refs[len(refs)-1]
	}
	require.True(t, last(4).Tail)
	require.True(t, last(5).Tail)
	require.False(t, last(6).Tail)
}

// TestBranchesFollowPages: demotion, promotion and another Put bring the branch along.
func TestBranchesFollowPages(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	stored := prompt(1, testTokens)
	other := parted(stored, 3, testTokens, 1)
	p := putChain(t, s, stored)[0]
	name := s.pages.Page(p.Key())
	info := mustStat(t, s.disk, name)
	require.NoError(t, s.demote(ctx, info))
	require.Len(t, branchesOf(t, s, s.guard), 1)
	require.NoError(t, s.guard.RemoveBranch(ctx, branchesOf(t, s, s.guard)[0]))
	require.NoError(t, s.demote(ctx, info), "there already")
	require.Len(t, branchesOf(t, s, s.guard), 1)

	evictPage(t, s, info)
	require.NoError(t, s.disk.RemoveBranch(ctx, branchesOf(t, s, s.disk)[0]))
	readChain(t, s, other, 3)
	require.NoError(t, s.Flush(ctx))
	require.Len(t, branchesOf(t, s, s.disk), 1, "the page was promoted")

	require.NoError(t, s.disk.RemoveBranch(ctx, branchesOf(t, s, s.disk)[0]))
	require.NoError(t, s.Put(ctx, p))
	require.Len(t, branchesOf(t, s, s.disk), 1, "a page stored before branches were")
}

// TestABranchWithoutItsPage: a look-up that meets one goes on with others, and removes it.
func TestABranchWithoutItsPage(t *testing.T) {
	s := open(t, testOptions(t))
	stored := prompt(1, testTokens)
	putChain(t, s, stored)
	second := parted(stored, 4, testTokens, 1)
	putChain(t, s, second)
	evictPage(t, s, mustStat(t, s.disk, s.pages.Page(s.Find(ctx, Prompt{Tokens: second}).Exact[0].Key)))
	require.Len(t, branchesOf(t, s, s.disk), 2)
	readChain(t, s, parted(second, 6, testTokens, 2), 4)
	require.NoError(t, s.Flush(ctx))
	require.Len(t, branchesOf(t, s, s.disk), 1)
}

// TestBranchesAreSwept: a store that evicts for ever does not keep branches for ever.
func TestBranchesAreSwept(t *testing.T) {
	statesOneByOne(t)
	const pages = 16
	s := openFor(t, pages)
	for seed := range 40 * pages {
		putChain(t, s, prompt(seed, testTokens))
		require.NoError(t, s.Flush(ctx))
	}
	require.Greater(t, s.Stats().Evicted, uint64(30*pages))
	require.Less(t, len(branchesOf(t, s, s.disk)), 3*pages)
}

// TestRemovedPagesLeaveNoBranches: GC by age removes the branches of the pages that it removes.
func TestRemovedPagesLeaveNoBranches(t *testing.T) {
	s, o := openNew(t)
	past := time.Now().Add(-48 * time.Hour)
	const pages, old = 30, 29
	for seed := range pages {
		p := putChain(t, s, prompt(seed, testTokens))[0]
		if seed < old {
			require.NoError(t, s.disk.Touch(ctx, s.pages.Page(p.Key()), past))
		}
	}
	report := gcWith(t, openRoot(t, o), GCOptions{OlderThan: 24 * time.Hour})
	require.Equal(t, old, report.Local.Pages)
	require.Len(t, branchesOf(t, s, s.disk), pages-old)
}

// gated is a tier in which a page appears after it was found missing.
type gated struct {
	tier.Disk
	missing atomic.Bool
}

func (g *gated) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	if g.missing.Swap(false) {
		return make([]tier.Info, len(names)), nil
	}
	return g.Disk.Find(ctx, names, leading)
}

// TestAPageThatComesBackKeepsItsBranch: another process stores the page again meanwhile.
func TestAPageThatComesBackKeepsItsBranch(t *testing.T) {
	s := open(t, testOptions(t))
	putChain(t, s, prompt(1, testTokens))
	g := &gated{Disk: s.disk}
	g.missing.Store(true)
	branch.NewSweep(g, func(error) {}).Prune(ctx, branchesOf(t, s, s.disk)[0])
	require.False(t, g.missing.Load())
	require.Len(t, branchesOf(t, s, s.disk), 1)
}

// TestSweepsOfSeveralModels: a sweep of a model with few branches does not send those of
// another back to where they began.
func TestSweepsOfSeveralModels(t *testing.T) {
	s := open(t, testOptions(t))
	stored := prompt(1, testTokens)
	for seed := range 20 {
		putChain(t, s, parted(stored, 3, testTokens, seed))
	}
	living := len(branchesOf(t, s, s.disk))
	gone := tier.Branch{Fingerprint: s.opt.Fingerprint, Prefix: s.opt.Fingerprint, Class: pagefile.ClassPage, Tokens: 1}
	for i := range gone.Key {
		gone.Key[i] = 0xff // after the living ones
	}
	require.NoError(t, s.disk.AddBranch(ctx, gone, false))
	for range 2 * living {
		for _, fingerprint := range []pagefile.Key{s.opt.Fingerprint, {9}} {
			s.local.branches.Removed(pagefile.Name{Fingerprint: fingerprint})
		}
		s.local.branches.Run(ctx)
	}
	require.Equal(t, living, len(branchesOf(t, s, s.disk)))
}

// TestASweepIsPutOff: branches of pages whose removal took all of the time are removed later.
func TestASweepIsPutOff(t *testing.T) {
	s := open(t, testOptions(t))
	p := putChain(t, s, prompt(1, testTokens))[0]
	evictPage(t, s, mustStat(t, s.disk, s.pages.Page(p.Key())))
	over, cancel := context.WithCancel(ctx)
	cancel()
	s.local.branches.Run(over)
	require.Len(t, branchesOf(t, s, s.disk), 1)
	s.local.branches.Run(ctx)
	require.Empty(t, branchesOf(t, s, s.disk))
}

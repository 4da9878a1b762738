package diskstore

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// chat returns the tokens of a chat behind shared tokens, which differ from the first one of other
// chats on.
func chat(shared []int32, n, seed int) []int32 {
	return parted(shared, len(shared), len(shared)+n, seed)
}

// TestShortChatsAreAllFound: forty chats shorter than a page are stored and found again, those that
// begin a sequence and those behind one page, by the next process, below, and after they moved up again.
func TestShortChatsAreAllFound(t *testing.T) {
	const chats = 40
	for _, shared := range [][]int32{nil, prompt(1, testTokens), prompt(1, testTokens+2)} {
		s, o := openNew(t, withRemote(t))
		for seed := range chats {
			putChain(t, s, chat(shared, 3, seed))
		}
		require.Equal(t, chats, s.Stats().Local.Tails)
		require.Zero(t, s.Stats().Evicted)
		for range 2 {
			for seed := range chats {
				stored := chat(shared, 3, seed)
				readChain(t, s, append(stored, 5, 6), len(stored))
				parent, start := s.opt.Fingerprint, len(shared)/testTokens*testTokens
				if start > 0 {
					parent = pageKeyOf(shared)
				}
				tails := tailsWithin(s, Prompt{Parent: parent, Start: start, Tokens: append(stored[start:], 5, 6)})
				require.Len(t, tails, 1)
				require.Equal(t, len(stored)-start, tails[0].Tokens)
			}
			s = reopen(t, s, o)
		}
		for _, info := range listAll(t, s.local) {
			if info.Class == pagefile.ClassTail {
				evictPage(t, s, info)
			}
		}
		require.Equal(t, chats, s.Stats().Remote.Tails)
		for seed := range chats {
			readChain(t, s, chat(shared, 3, seed), len(shared)+3)
			require.NoError(t, s.Flush(ctx)) // the tail moves up again
		}
		require.Equal(t, chats, s.Stats().Local.Tails)
		requireExact(t, s)
	}
}

// TestOneShotChatsEvictNothing: they need little room, and a conversation of before them stays.
func TestOneShotChatsEvictNothing(t *testing.T) {
	statesOneByOne(t)
	s := open(t, testOptions(t, func(o *Options) { o.Local.BudgetBytes = 1 << 30 }))
	yesterday := prompt(1, 2*testTokens+3)
	putChain(t, s, yesterday)
	n := 2000
	if longRun() {
		n = 10_000
	}
	for seed := range n {
		putChain(t, s, chat(nil, 1+seed%(testTokens-1), seed))
	}
	readChain(t, s, append(yesterday, 5), len(yesterday))
	require.Zero(t, s.Stats().Evicted)
	for seed := range n {
		stored := chat(nil, 1+seed%(testTokens-1), seed)
		require.Equal(t, len(stored), tokensIn(s.Find(ctx, Prompt{Tokens: append(stored, 5)}).Exact), seed)
	}
}

// TestEvictedTailsAreRemembered: a tail that had to make room is counted and explained, as a page.
func TestEvictedTailsAreRemembered(t *testing.T) {
	s := openFor(t, 8)
	first := putChain(t, s, chat(nil, 3, 0))[0]
	for seed := range 20 {
		putChain(t, s, chat(nil, 3, 1+seed))
		require.NoError(t, s.Flush(ctx))
	}
	require.Positive(t, s.Stats().Evicted)
	require.Empty(t, s.Find(ctx, Prompt{Tokens: chat(nil, 3, 0)}).Exact)
	gone, ok := s.Gone(ctx, first.Key())
	require.True(t, ok)
	require.Equal(t, TombstoneRoom, gone.Reason)
}

// counting counts the names of each listing.
type counting struct {
	vfs.FS
	longest, lists, names atomic.Int64
}

func (c *counting) ReadDir(path string) ([]fs.DirEntry, error) {
	entries, err := c.FS.ReadDir(path)
	c.lists.Add(1)
	c.names.Add(int64(len(entries)))
	c.longest.Store(max(c.longest.Load(), int64(len(entries))))
	return entries, err
}

// TestALookUpListsFewNames: no listing of a look-up has more than 256 names, and a look-up makes
// a bounded number of them, for any number of children.
func TestALookUpListsFewNames(t *testing.T) {
	statesOneByOne(t)
	for _, shared := range []int{0, 40, 250} {
		t.Run(fmt.Sprint(shared), func(t *testing.T) {
			s, o := openNew(t, func(o *Options) { o.PageTokens = 256 })
			addChildren(t, s, shared, 1500)
			counts := &counting{FS: quickFS}
			o.FS = counts
			s = open(t, o)
			for seed := range 20 {
				counts.longest.Store(0)
				counts.lists.Store(0)
				s.Find(ctx, Prompt{Tokens: childText(shared, 255, seed)})
				tailsWithin(s, Prompt{Tokens: childText(shared, 255, seed)})
				require.LessOrEqual(t, counts.longest.Load(), int64(256))
				require.LessOrEqual(t, counts.lists.Load(), int64(64), "32 prefixes, twice")
				require.NoError(t, s.Flush(ctx))
			}
		})
	}
}

// childText returns n tokens, the first shared ones of which are the same for all seeds.
func childText(shared, n, seed int) []int32 {
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i)
		if i >= shared {
			tokens[i] = 1000 + rng.Int32N(30000)
		}
	}
	return tokens
}

// addChildren adds the branches of n pages of 256 tokens that begin a sequence, without the pages.
// After 1,000 the prefixes that all share are full, and a branch is added where Add would add it.
func addChildren(t testing.TB, s *Store, shared, n int) {
	t.Helper()
	for seed := range n {
		h := &pagefile.Header{Fingerprint: s.opt.Fingerprint, Parent: s.opt.Fingerprint, PageTokens: 256, Tokens: childText(shared, 256, seed)}
		h.Key = pagefile.ChainKey(h.Parent, h.Tokens, nil)
		if seed < 1000 {
			_, err := branch.Add(ctx, s.disk, h, false)
			require.NoError(t, err)
			continue
		}
		b := branch.Of(h)
		b.Prefix = pagefile.ChainKey(h.Parent, h.Tokens[:shared/8*8+8], nil)
		require.NoError(t, s.disk.AddBranch(ctx, b, false))
	}
}

// childrenStore returns a store with n pages behind one parent, the first prompts of which are real:
// the others have branches alone. KVTIER_CHILDREN names a directory that keeps the files, so that
// one machine makes them, and others that mount the directory look them up.
func childrenStore(b *testing.B, shared, n, prompts int) *Store {
	o := testOptions(b, func(o *Options) { o.PageTokens = 256 })
	made := ""
	if kept := os.Getenv("KVTIER_CHILDREN"); kept != "" {
		o.Local.Root = filepath.Join(kept, fmt.Sprintf("%d-%d", shared, n))
		made = o.Local.Root + ".made"
		if _, err := os.Stat(made); err == nil {
			return open(b, o)
		}
		require.NoError(b, os.MkdirAll(o.Local.Root, 0o700))
	}
	s := open(b, o)
	addChildren(b, s, shared, n)
	for seed := range prompts {
		require.NoError(b, s.Put(ctx, storetest.Chain(b, s.opt.Fingerprint, 256, childText(shared, 256, seed))[0]))
	}
	if made != "" {
		require.NoError(b, os.WriteFile(made, nil, 0o600))
	}
	return s
}

// BenchmarkLookUpAmongChildren looks up prompts that begin like one of many pages behind one parent.
func BenchmarkLookUpAmongChildren(b *testing.B) {
	const prompts = 64
	for _, shared := range []int{0, 200} {
		for _, n := range []int{1e3, 1e5, 1e6} {
			b.Run(fmt.Sprintf("shared=%d/children=%d", shared, n), func(b *testing.B) {
				if n > 1e3 && !longRun() {
					b.Skip("minutes: KVTIER_LONG=1")
				}
				s := childrenStore(b, shared, n, prompts)
				b.ResetTimer()
				for i := range b.N {
					if found := tokensIn(s.Find(ctx, Prompt{Tokens: append(childText(shared, 240, i%prompts), -1)}).Exact); found != 240 {
						b.Fatalf("found %d tokens", found)
					}
				}
			})
		}
	}
}

// TestAHostThatDiedBeforeTheBranch: a tail without a branch is found after its next Put.
func TestAHostThatDiedBeforeTheBranch(t *testing.T) {
	s := open(t, testOptions(t))
	stored := []int32{5, 6}
	putChain(t, s, stored)
	for _, b := range branchesOf(t, s, s.disk) {
		require.NoError(t, s.disk.RemoveBranch(ctx, b))
	}
	require.Empty(t, s.Find(ctx, Prompt{Tokens: stored}).Exact)
	putChain(t, s, stored)
	readChain(t, s, stored, 2)
}

// TestABranchThatCannotBeMade: a tail that no look-up would find is no stored tail.
func TestABranchThatCannotBeMade(t *testing.T) {
	bad := &noBranches{}
	s := open(t, testOptions(t))
	bad.Disk = s.disk
	s.local.tier = bad
	tail, page := chainOf(t, s, []int32{5, 6})[0], chainOf(t, s, prompt(1, testTokens))[0]
	require.ErrorIs(t, s.Put(ctx, tail), fs.ErrPermission)
	require.NoError(t, s.Put(ctx, page), "its name finds it")
	s.local.tier = s.disk
	require.NoError(t, s.Put(ctx, tail))
	readChain(t, s, []int32{5, 6}, 2)
}

// noBranches is a tier in which no branch can be made.
type noBranches struct{ tier.Disk }

func (n *noBranches) AddBranch(context.Context, tier.Branch, bool) error { return fs.ErrPermission }

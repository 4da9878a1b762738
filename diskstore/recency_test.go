package diskstore

import (
	"fmt"
	"os"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// touch makes a page and the pages before it recently used, as reading does.
func touch(s *Store, ref Ref) {
	lv := s.local
	if ref.Tier == tier.Remote && s.remote != nil {
		lv = s.remote
	}
	s.reader.touch(ctx, lv, ref, time.Unix(0, ref.used))
}

// requireOrdered checks that every file of the local tier is less recent than the page that it
// continues, so that evictions in the order of times never orphan a page.
func requireOrdered(t require.TestingT, s *Store) {
	used := make(map[pagefile.Key]time.Time)
	var infos []tier.Info
	require.NoError(t, s.local.files.List(ctx, func(info tier.Info) {
		infos = append(infos, info)
		if info.Class == pagefile.ClassPage {
			used[info.Key] = info.Used
		}
	}))
	for _, info := range infos {
		parent := info.Parent
		if info.Class == pagefile.ClassPage {
			parent = s.chains.LinkIn(ctx, s.disk, info.Name).Parent
		}
		if at, ok := used[parent]; ok && !info.Used.Before(at) {
			require.Fail(t, "a page is not more recent than one that continues it", "%v, %v", at, info.Used)
		}
	}
}

// TestRecencyOrdersByItself stores, finds, reads and touches pages of a tree in two stores on
// one root, whose clocks differ, and moves both clocks forward.
func TestRecencyOrdersByItself(t *testing.T) {
	statesOneByOne(t)
	rapid.Check(t, func(rt *rapid.T) {
		o := testOptions(t, func(o *Options) { o.PageTokens = 2 })
		began := time.Now()
		var passed atomic.Int64 // a duration; background work reads it too
		var stores []*Store
		for i := range 2 {
			s, err := Open(ctx, o)
			require.NoError(rt, err)
			require.NoError(rt, s.Flush(ctx))
			s.now = func() time.Time { return began.Add(time.Duration(passed.Load()) + time.Duration(i)*time.Second/2) }
			stores = append(stores, s)
		}
		defer func() {
			for _, s := range stores {
				require.NoError(rt, s.Close())
			}
		}()
		someStore := rapid.Map(rapid.IntRange(0, 1), func(i int) *Store { return stores[i] })
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) { putChain(t, someStore.Draw(rt, "store"), someTokens.Draw(rt, "tokens")) },
			"read": func(rt *rapid.T) {
				s, tokens := someStore.Draw(rt, "store"), someTokens.Draw(rt, "tokens")
				refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
				for _, i := range rapid.Permutation(refs).Draw(rt, "refs") {
					if rapid.Bool().Draw(rt, "read") {
						readRef(t, s, i, tokens)
					}
				}
			},
			"touch": func(rt *rapid.T) {
				s := someStore.Draw(rt, "store")
				if refs := s.Find(ctx, Prompt{Tokens: someTokens.Draw(rt, "tokens")}).Exact; len(refs) > 0 {
					passed.Add(int64(time.Duration(rapid.IntRange(0, 2).Draw(rt, "minutes")) * time.Minute))
					touch(s, rapid.SampledFrom(refs).Draw(rt, "ref"))
				}
			},
			"time passes": func(rt *rapid.T) {
				passed.Add(int64(time.Duration(rapid.IntRange(1, 90).Draw(rt, "seconds")) * time.Second))
			},
			"": func(rt *rapid.T) { requireOrdered(rt, stores[0]) },
		})
	})
}

func TestClockThatGoesBackKeepsTheOrder(t *testing.T) {
	s := open(t, testOptions(t))
	now := time.Now()
	s.now = func() time.Time { return now }
	tokens := prompt(1, 5*testTokens+3)
	putChain(t, s, tokens[:3*testTokens])
	now = now.Add(-24 * time.Hour)
	putChain(t, s, tokens)
	readChain(t, s, tokens, len(tokens))
	requireOrdered(t, s)
	now = now.Add(time.Hour)
	touch(s, s.Find(ctx, Prompt{Tokens: tokens}).Exact[4])
	requireOrdered(t, s)
}

// TestCollectionReadsNoPages: times alone give the order, also for chains that this process
// has never read.
func TestCollectionReadsNoPages(t *testing.T) {
	page := physicalPage(t)
	inj := vfs.Inject(quickFS)
	o := testOptions(t, withFS(inj))
	first := open(t, o)
	for seed := range 4 {
		putChain(t, first, prompt(seed, 4*testTokens))
	}
	require.NoError(t, first.Close())
	inj.Reset()
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpOpen}, Path: regexp.MustCompile(`\.kvp$`), Err: syscall.EIO})
	o.Local.BudgetBytes = 7 * page
	s := open(t, o)
	require.LessOrEqual(t, s.Stats().Local.Bytes, o.Local.BudgetBytes)
	inj.Reset()
	left := s.Stats().Local.Pages
	require.GreaterOrEqual(t, left, 5)
	found := 0
	for seed := range 4 {
		found += len(s.Find(ctx, Prompt{Tokens: prompt(seed, 4*testTokens)}).Exact)
	}
	require.Equal(t, left, found, "the remaining pages can be found: they begin at 0")
	readChain(t, s, prompt(3, 4*testTokens), 4*testTokens)
}

// TestTouchMovesWhatComesBefore: pages before a touched page move first, at most once a
// minute.
func TestTouchMovesWhatComesBefore(t *testing.T) {
	s, o, inj := openInjected(t)
	now := time.Now()
	s.now = func() time.Time { return now }
	tokens := putPrompt(t, s, 1, 6*testTokens)
	inj.Reset()
	putChain(t, s, prompt(1, 9*testTokens))
	require.Equal(t, 2*3, inj.Count(vfs.OpChtimes), "two for each new page: pages share their chain's time")
	now = now.Add(recency.TouchEvery)
	inj.Reset()
	touch(s, s.Find(ctx, Prompt{Tokens: tokens}).Exact[3])
	require.Equal(t, 4, inj.Count(vfs.OpChtimes))
	touch(s, s.Find(ctx, Prompt{Tokens: tokens}).Exact[3])
	touch(s, s.Find(ctx, Prompt{Tokens: tokens}).Exact[1])
	require.Equal(t, 4, inj.Count(vfs.OpChtimes))
	requireOrdered(t, s)

	// The same in a process that has never read the chain.
	fresh := open(t, o)
	now = now.Add(2 * recency.TouchEvery)
	fresh.now = s.now
	require.NoError(t, fresh.Put(ctx, pageOf(t, s.Find(ctx, Prompt{Tokens: prompt(1, 9*testTokens)}).Exact[8].Key, 9*testTokens, prompt(7, testTokens))))
	requireOrdered(t, fresh)
	for _, ref := range s.Find(ctx, Prompt{Tokens: prompt(1, 9*testTokens)}).Exact {
		require.Equal(t, now.UnixNano(), recency.Used(time.Unix(0, ref.used), ref.Start).UnixNano())
	}
}

func TestPromotionAndDemotionKeepTheOrder(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	now := time.Now().Add(-time.Hour)
	s.now = func() time.Time { return now }
	tokens := putPrompt(t, s, 1, 6*testTokens+2)
	for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact[3:] {
		info := mustStat(t, s.disk, ref.name(s.pages))
		evictPage(t, s, info)
	}
	now = now.Add(10 * time.Minute)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	for _, ref := range refs[3:] { // a slot has the pages before
		readRef(t, s, ref, tokens)
	}
	require.NoError(t, s.Flush(ctx))
	requireOrdered(t, s)
	require.Equal(t, tier.Local, s.Find(ctx, Prompt{Tokens: tokens}).Exact[6].Tier)

	// A demotion keeps the page's recency even if the remote tier has an older copy.
	info := mustStat(t, s.disk, refs[5].name(s.pages))
	evictPage(t, s, info)
	there := mustStat(t, s.guard, info.Name)
	require.Equal(t, info.Used, there.Used)
}

func TestEvictionLeavesWhatWasUsedMeanwhile(t *testing.T) {
	s, o := openNew(t)
	putChain(t, s, prompt(1, 2*testTokens))
	infos := listAll(t, s.local)
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(filePath(o.Local.Root, infos[0].Name), past, past))
	freed, _ := s.local.room.EvictAll(ctx, infos, 1<<40, 1<<40)
	require.Equal(t, infos[1].Physical, freed)
	require.NoFileExists(t, filePath(o.Local.Root, infos[1].Name))
	require.FileExists(t, filePath(o.Local.Root, infos[0].Name))
}

// TestConversationLargerThanTheBudget: the first pages of the conversation stay, because a
// page never replaces the pages that it continues.
func TestConversationLargerThanTheBudget(t *testing.T) {
	page := physicalPage(t)
	s := open(t, testOptions(t, func(o *Options) { o.Local.BudgetBytes = 4 * page }))
	tokens, parent := prompt(1, 8*testTokens), s.opt.Fingerprint
	for at := 0; at < len(tokens); at += testTokens {
		p := pageOf(t, parent, at, tokens[at:at+testTokens])
		err := s.Put(ctx, p)
		if at < 4*testTokens {
			require.NoError(t, err, fmt.Sprint(at))
		} else {
			require.ErrorIs(t, err, tier.ErrNoSpace, fmt.Sprint(at))
		}
		parent = p.Key()
	}
	require.NoError(t, s.Flush(ctx))
	require.Zero(t, s.Stats().Evicted)
	readChain(t, s, tokens, 4*testTokens)
	putChain(t, s, prompt(2, testTokens)) // another conversation does get room
	readChain(t, s, prompt(2, testTokens), testTokens)
}

// TestNothingIsStoredWithoutTimes: without file times the order of a conversation's pages
// would be unknown. Put returns an error and leaves no file.
func TestNothingIsStoredWithoutTimes(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpChtimes}, Err: syscall.EPERM})
	err := s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(1, testTokens)))
	require.ErrorIs(t, err, syscall.EPERM)
	require.ErrorContains(t, err, o.Local.Root)
	require.Empty(t, filesIn(t, o.Local.Root, dir.PageExt))
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, occupied(t, o.Local.Root), recorded(t, o.Local.Root))
}

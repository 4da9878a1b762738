package diskstore

import (
	"errors"
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

// requireOrdered checks that every page of the local tier is less recent than the page that it
// continues, and was not used more often, so that evictions never orphan a page.
func requireOrdered(t require.TestingT, s *Store) {
	used := make(map[pagefile.Key]time.Time)
	var infos []tier.Info
	require.NoError(t, s.local.files.List(ctx, func(info tier.Info) {
		if info.Class == pagefile.ClassPage {
			infos = append(infos, info)
			used[info.Key] = info.Used
		}
	}))
	for _, info := range infos {
		parent := s.chains.LinkIn(ctx, s.disk, info.Name).Parent
		if at, ok := used[parent]; ok && !info.Used.Before(at) {
			require.Fail(t, "a page is not more recent than one that continues it", "%v, %v", at, info.Used)
		} else if ok && recency.Uses(info.Used) > recency.Uses(at) {
			require.Fail(t, "a page was used less often than one that continues it", "%v, %v", at, info.Used)
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
			s := start(rt, o)
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
	o, inj := injected(t)
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
	touch(s, Ref{Key: pagefile.Key{1}}) // no such page
	require.Equal(t, 4, inj.Count(vfs.OpChtimes))
	requireOrdered(t, s)

	// The same in a process that has never read the chain.
	fresh := open(t, o)
	now = now.Add(2 * recency.TouchEvery)
	fresh.now = s.now
	require.NoError(t, fresh.Put(ctx, pageOf(t, s.Find(ctx, Prompt{Tokens: prompt(1, 9*testTokens)}).Exact[8].Key, 9*testTokens, prompt(7, testTokens))))
	requireOrdered(t, fresh)
	for _, ref := range s.Find(ctx, Prompt{Tokens: prompt(1, 9*testTokens)}).Exact {
		require.Equal(t, now.Truncate(recency.Step).UnixNano(), recency.Used(time.Unix(0, ref.used), ref.Start).UnixNano())
	}
}

func TestPromotionAndDemotionKeepTheOrder(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	now := time.Now().Add(-time.Hour)
	s.now = func() time.Time { return now }
	tokens := putPrompt(t, s, 1, 6*testTokens+2)
	for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact[3:] {
		evictPage(t, s, mustStat(t, s.disk, ref.name(s.pages)))
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
	s := openFor(t, 4)
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

// TestClockThatWasAheadBlocksNoPut fills a budget while the clock is ahead. After the clock
// was corrected, a Put evicts other pages and not the pages that it continues.
func TestClockThatWasAheadBlocksNoPut(t *testing.T) {
	for _, ahead := range []time.Duration{30 * time.Second, time.Hour, 365 * 24 * time.Hour} {
		for _, stands := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/stands %v", ahead, stands), func(t *testing.T) {
				s := open(t, testOptions(t, withPages(t, 10)))
				start := time.Now()
				s.now = func() time.Time { return time.Now().Add(ahead) }
				putPages(t, s, 0, 8)
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
	s := openFor(t, 8)
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
	o := testOptions(t, withPages(t, 10))
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
	s, _, inj := openInjected(t, withPages(t, 6))
	s.now = func() time.Time { return time.Now().Add(24 * time.Hour) }
	putPages(t, s, 0, 9)
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

// A machine that sleeps after it has listed files from the future leaves those alone that are from the past when it
// wakes up: as files of the present they would stay, and newer ones leave.
func TestFuturesThatHavePassed(t *testing.T) {
	s, _ := openNew(t)
	keys := []pagefile.Key{putChain(t, s, prompt(1, testTokens))[0].Key(), putChain(t, s, prompt(2, testTokens))[0].Key()}
	began, passed := time.Now(), time.Duration(0)
	ahead := []time.Time{recency.Of(began.Add(7*time.Minute), 0), recency.Of(began.Add(3*time.Hour), 0)}
	f := recency.NewFutures(ctx, s.disk, func() time.Time { return began.Add(passed) }, func(err error) { require.NoError(t, err) })
	for i, key := range keys {
		require.NoError(t, s.disk.Touch(ctx, s.pages.Page(key), ahead[i]))
		f.Add(mustStat(t, s.disk, s.pages.Page(key)))
	}
	passed = time.Hour
	require.True(t, f.Believe(ctx), "one is from the future still")
	require.True(t, mustStat(t, s.disk, s.pages.Page(keys[0])).Used.Equal(ahead[0]))
	require.WithinDuration(t, began.Add(passed), mustStat(t, s.disk, s.pages.Page(keys[1])).Used, time.Second)
	require.True(t, f.Newest.After(ahead[0]))
}

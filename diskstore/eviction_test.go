package diskstore

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// virtual gives a store a clock that stands still until it is moved.
func virtual(o *Options) (pass func(time.Duration)) {
	began := time.Now().Add(-1000 * time.Hour) // files from the future count as old
	var passed atomic.Int64
	o.Now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
	return func(d time.Duration) { passed.Add(int64(d)) }
}

// chatsAndScript lets some chats go on each hour, with 60 prompts of a script in between that never come again,
// and returns the number of the chats' pages that were given back after the first day. The store is closed and
// opened again each few hours.
func chatsAndScript(t *testing.T, eviction Eviction) (given int) {
	const chats, chatPages, script, days = 4, 6, 60, 2
	o := testOptions(t, withPages(t, 70), withFS(vfs.NewDurableMem(1<<40)), func(o *Options) { o.Eviction, o.Local.Root = eviction, "/pages" })
	pass := virtual(&o)
	s, seed := start(t, o), 1000
	for hour := range days * 24 {
		for chat := range chats {
			tokens := prompt(chat, chatPages*testTokens)
			refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
			for _, ref := range refs {
				readRef(t, s, ref, tokens)
			}
			if hour >= 24 {
				given += len(refs)
			}
			putChain(t, s, tokens)
			require.NoError(t, s.Flush(ctx))
		}
		for range script {
			pass(time.Minute)
			putPages(t, s, seed, seed+1)
			seed++
		}
		require.NoError(t, s.Flush(ctx))
		if hour%5 == 4 {
			require.NoError(t, s.Close())
			s = start(t, o)
			require.NoError(t, s.Flush(ctx))
		}
	}
	requireOrdered(t, s)
	require.NoError(t, s.Close())
	return given
}

// What a script leaves behind goes before chats that are used less often than the script runs.
func TestChatsOutliveAScript(t *testing.T) {
	const all = 24 * 4 * 6
	require.Less(t, chatsAndScript(t, EvictLRU), all/2)
	require.Equal(t, all, chatsAndScript(t, EvictByUse))
}

// twice lets a prompt come each minute, and once again some minutes later, and returns the number of pages given back.
func twice(t *testing.T, eviction Eviction) (given int) {
	const prompts, later, pages = 60, 5, 4
	o := testOptions(t, withPages(t, 52), withFS(vfs.NewDurableMem(1<<40)), func(o *Options) { o.Eviction, o.Local.Root = eviction, "/pages" })
	pass := virtual(&o)
	s := start(t, o)
	for minute := range prompts + later {
		if first := minute - later; first >= 0 {
			tokens := prompt(first, pages*testTokens)
			refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
			for _, ref := range refs {
				readRef(t, s, ref, tokens)
			}
			given += len(refs)
		}
		pass(30 * time.Second)
		if minute < prompts {
			putChain(t, s, prompt(minute, pages*testTokens))
			require.NoError(t, s.Flush(ctx))
		}
		pass(30 * time.Second)
	}
	require.NoError(t, s.Close())
	return given
}

// Pages that came twice, as all did that never came again, keep no room from those that came once.
func TestPagesThatCameTwice(t *testing.T) {
	require.Equal(t, 60*4, twice(t, EvictLRU))
	require.Equal(t, 60*4, twice(t, EvictByUse))
}

func usesOf(t *testing.T, s *Store, key pagefile.Key) int {
	t.Helper()
	info, err := tier.Stat(ctx, s.disk, s.pages.Page(key))
	require.NoError(t, err)
	return recency.Uses(info.Used)
}

func usesIn(t *testing.T, s *Store) (began, again int64) {
	t.Helper()
	require.NoError(t, s.Flush(ctx))
	l, err := s.local.book.Read(ctx)
	require.NoError(t, err)
	for _, n := range l.Uses().Began {
		began += n
	}
	return began, l.Uses().Pages()
}

// A page keeps its number of uses across restarts, and while it is gone.
func TestUsesComeBack(t *testing.T) {
	o := testOptions(t)
	pass := virtual(&o)
	s := open(t, o)
	tokens := prompt(1, 2*testTokens)
	pages := putChain(t, s, tokens)
	last := pages[1].Key()
	require.Zero(t, usesOf(t, s, last))
	for uses := 1; uses <= 2; uses++ {
		pass(time.Hour)
		s = reopen(t, s, o)
		readChain(t, s, tokens, len(tokens))
		readChain(t, s, tokens, len(tokens)) // within a minute
		require.Equal(t, uses, usesOf(t, s, last))
	}
	for _, p := range []*pagefile.Page{pages[1], pages[0]} {
		info, err := tier.Stat(ctx, s.disk, s.pages.Page(p.Key()))
		require.NoError(t, err)
		evictPage(t, s, info)
	}
	pass(time.Hour)
	s = reopen(t, s, o)
	putChain(t, s, tokens)
	require.Equal(t, 3, usesOf(t, s, last))
	began, again := usesIn(t, s)
	require.EqualValues(t, 2*4, began, "each of two pages, and each of its uses")
	require.EqualValues(t, 2*3, again)
	l, err := s.local.book.Read(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, l.Uses().Left[reuse.Twice])

	// a page that people remove begins anew
	root, err := OpenRoot(ctx, RootOptions{Local: TierConfig{Root: o.Local.Root}, FS: o.FS})
	require.NoError(t, err)
	_, err = root.GC(ctx, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }})
	require.NoError(t, err)
	require.NoError(t, root.Close())
	s = reopen(t, s, o)
	putChain(t, s, tokens)
	require.Zero(t, usesOf(t, s, last))
}

// A page that continues another one was never used more often, even where the list of pages that left is lost.
func TestUsesWithoutThoseOfTheParent(t *testing.T) {
	o := testOptions(t)
	pass := virtual(&o)
	s := open(t, o)
	tokens := prompt(1, 2*testTokens)
	pages := putChain(t, s, tokens)
	pass(time.Hour)
	readChain(t, s, tokens, len(tokens))
	info, err := tier.Stat(ctx, s.disk, s.pages.Page(pages[1].Key()))
	require.NoError(t, err)
	evictPage(t, s, info)
	require.NoError(t, s.disk.Touch(ctx, s.pages.Page(pages[0].Key()), recency.Of(o.Now(), 0))) // as a copy does
	putChain(t, s, tokens)
	require.Zero(t, usesOf(t, s, pages[1].Key()))
	requireOrdered(t, s)
}

// Uses that no store can have counted are not believed, and do not cost the ledger.
func TestForgedUses(t *testing.T) {
	l := &ledger.Ledger{Bytes: 5, Counts: 1}
	uses := l.Uses()
	uses.Again[0][3] = -1
	l.Reuse = &uses
	content, err := l.Encode()
	require.NoError(t, err)
	l, err = ledger.Decode(content)
	require.NoError(t, err)
	require.EqualValues(t, 5, l.Bytes)
	require.Nil(t, l.Reuse)
}

// A page that is stored again, in the place of a file or after damage, was used as often as the pages that continue
// it, which are stored.
func TestUsesOfAPageThatIsReplaced(t *testing.T) {
	for name, lose := range map[string]func(s *Store, first *pagefile.Page) (again *pagefile.Page){
		"more sections": func(s *Store, first *pagefile.Page) *pagefile.Page {
			more := append([]pagefile.Section{{Group: 2, Layer: 2, Kind: pagefile.KindK, RowBytes: 16}}, testSections...)
			return withSections(t, first.Parent, 0, first.Tokens, more)
		},
		"damage": func(s *Store, first *pagefile.Page) *pagefile.Page {
			info := mustStat(t, s.disk, s.pages.Page(first.Key()))
			s.local.checked.Condemn(ctx, info, pagefile.Damaged("bits"))
			require.False(t, s.Has(first.Key()))
			return first
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			pass := virtual(&o)
			s := open(t, o)
			tokens := prompt(1, 2*testTokens)
			pages := putChain(t, s, tokens)
			for range 3 {
				pass(time.Hour)
				readChain(t, s, tokens, len(tokens))
			}
			pass(time.Hour)
			require.NoError(t, s.Put(ctx, lose(s, pages[0])))
			require.Equal(t, 3, usesOf(t, s, pages[1].Key()))
			require.Equal(t, 4, usesOf(t, s, pages[0].Key()))
			requireOrdered(t, s)
			began, again := usesIn(t, s)
			require.EqualValues(t, 2+again, began)
			require.EqualValues(t, 2*3+1, again)
		})
	}
}

// A page of which the remote tier has an older copy moves down with its uses.
func TestUsesOfAnOlderCopy(t *testing.T) {
	o := testOptions(t, withRemote(t))
	pass := virtual(&o)
	s := open(t, o)
	tokens := prompt(1, 2*testTokens)
	pages := putChain(t, s, tokens)
	require.NoError(t, s.demote(ctx, mustStat(t, s.disk, s.pages.Page(pages[0].Key()))))
	for range 3 {
		pass(time.Hour)
		readChain(t, s, tokens, len(tokens))
	}
	evictPage(t, s, mustStat(t, s.disk, s.pages.Page(pages[1].Key())))
	evictPage(t, s, mustStat(t, s.disk, s.pages.Page(pages[0].Key())))
	usesBelow := func(i int) int { return recency.Uses(mustStat(t, s.guard, s.pages.Page(pages[i].Key())).Used) }
	require.Equal(t, 3, usesBelow(1))
	require.Equal(t, 3, usesBelow(0))
}

// A page that moves often, each time soon after the last one, is used more often than pages that continue it and stay
// behind.
func TestUsesInShortSteps(t *testing.T) {
	o := testOptions(t)
	pass := virtual(&o)
	s := open(t, o)
	pages := putPrompt(t, s, 1, 2*testTokens)
	first := chainOf(t, s, pages)[0].Key()
	for range 10 {
		pass(300 * time.Millisecond)
		s.chains.MoveUp(ctx, time.Time{}, recency.Place{Parent: first, Start: testTokens})
	}
	require.Equal(t, 3, usesOf(t, s, first), "once a second")
}

// openUsed opens a store with 30 prompts of a page each, of which 10 were used again each hour, and 10 newer ones.
func openUsed(t *testing.T, edit ...func(*Options)) (s *Store, pass func(time.Duration)) {
	o := testOptions(t, edit...)
	pass = virtual(&o)
	s = open(t, o)
	for seed := range 30 {
		putPages(t, s, seed, seed+1)
	}
	for range 20 {
		pass(time.Hour)
		for seed := 0; seed < 30; seed += 3 {
			readChain(t, s, prompt(seed, testTokens), testTokens)
		}
	}
	pass(2 * time.Minute)
	putPages(t, s, 100, 110)
	pass(2 * time.Minute)
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.local.book.Record(ctx))
	return s, pass
}

// A rehearsal tells of the pages that a collection evicts.
func TestRehearsalIsInTheOrderByUse(t *testing.T) {
	s, _ := openUsed(t)
	var order []pagefile.Key
	s.local.room.Left = func(info tier.Info, _ bool) { order = append(order, info.Key) }
	s.local.book.Budget = 15 * physicalPage(t) // without those that were used once
	require.NoError(t, s.local.room.Rehearse(ctx))
	rehearsed := order
	require.NotEmpty(t, rehearsed)
	order = nil
	require.NoError(t, s.local.room.Collect(ctx, room.Demand{}))
	require.Equal(t, order[:len(rehearsed)], rehearsed)
	for seed := 0; seed < 30; seed += 3 {
		readChain(t, s, prompt(seed, testTokens), testTokens)
	}
}

// What pages are worth costs no listing of its own where nothing has to leave, and none for an hour after the last.
func TestWorthsCostNoListing(t *testing.T) {
	s, pass := openUsed(t)
	listed := 0
	s.local.files.Listed = func() { listed++ }
	collect := func() (listings int) {
		listed = 0
		s.local.files.Backdate(time.Hour, 0)
		pages := s.Stats().Local.Pages
		require.NoError(t, s.local.room.Collect(ctx, room.Demand{}))
		return (listed + pages - 1) / pages
	}
	s.local.room = room.NewCollector(s.local.files, s.local.roomOptions(EvictByUse, s.chains, nil))
	require.Equal(t, 1, collect(), "the first of a process")
	pass(30 * time.Minute)
	s.local.book.Budget = 30 * physicalPage(t)
	require.Equal(t, 1, collect())
	require.Less(t, s.Stats().Local.Pages, 40)
	pass(30 * time.Hour)
	s.local.book.Budget = 20 * physicalPage(t)
	require.Equal(t, 2, collect(), "the last listing is too old to tell what pages are worth")
}

// Tools let the same pages leave as servers.
func TestGCFollowsEviction(t *testing.T) {
	for _, eviction := range []Eviction{EvictByUse, EvictLRU} {
		o := testOptions(t)
		const uses, script = 12, 20
		now := time.Now().Add(-(uses + 1) * time.Hour)
		o.Now = func() time.Time { return now }
		s := open(t, o)
		chat := prompt(1, testTokens)
		page := putChain(t, s, chat)[0]
		for range uses {
			now = now.Add(time.Hour)
			readChain(t, s, chat, len(chat))
		}
		now = now.Add(30 * time.Minute)
		putPages(t, s, 1000, 1000+script)
		require.NoError(t, s.Close())

		root, err := OpenRoot(ctx, RootOptions{
			Local: TierConfig{Root: o.Local.Root, BudgetBytes: occupied(t, o.Local.Root) / 2}, FS: o.FS, Eviction: eviction,
		})
		require.NoError(t, err)
		_, err = root.GC(ctx, GCOptions{})
		require.NoError(t, err)
		require.NoError(t, root.Close())
		s = start(t, o)
		_, err = tier.Stat(ctx, s.disk, s.pages.Page(page.Key()))
		require.Equal(t, eviction == EvictByUse, err == nil, "%v: %v", eviction, err)
		require.NoError(t, s.Close())
	}
}

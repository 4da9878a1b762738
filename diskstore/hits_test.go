package diskstore

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// hitsIn returns the hits that tools report for a fingerprint, in both tiers.
func hitsIn(t *testing.T, o Options, fingerprint pagefile.Key) (local, remote ledger.Hits) {
	t.Helper()
	usage, err := openRoot(t, o).Usage(ctx)
	require.NoError(t, err)
	require.NoError(t, usage.RemoteErr)
	of := func(u RootTierUsage) ledger.Hits {
		for _, use := range u.Fingerprints {
			if use.Fingerprint == fingerprint {
				return use.Hits
			}
		}
		return ledger.Hits{}
	}
	return of(usage.Local), of(usage.Remote)
}

func TestHitsAreKept(t *testing.T) {
	o := testOptions(t, withRemote(t))
	began := time.Now()
	s := open(t, o)
	a, b := prompt(1, 2*testTokens+3), prompt(2, testTokens)
	putChain(t, s, a)
	p := putChain(t, s, b)[0]
	evictPage(t, s, mustStat(t, s.disk, s.pages.Page(p.Key())))
	local, remote := hitsIn(t, o, o.Fingerprint)
	require.Equal(t, [2]ledger.Hits{}, [2]ledger.Hits{local, remote})

	readChain(t, s, a, len(a)) // two pages and a tail
	readChain(t, s, b, len(b)) // from the remote tier
	require.NoError(t, s.Flush(ctx))
	local, remote = hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 3, local.Pages)
	require.EqualValues(t, 1, remote.Pages)
	require.False(t, local.Last.Before(began.Truncate(0)))
	require.False(t, local.Last.After(time.Now()))

	// Another process and another model add their hits; no hit is counted twice.
	s2 := open(t, o)
	readChain(t, s2, a, len(a))
	other := o
	other.Fingerprint = testFingerprint(2)
	s3 := open(t, other)
	putChain(t, s3, b)
	readChain(t, s3, b, len(b))
	readChain(t, s, a, len(a))
	for _, store := range []*Store{s, s2, s3} {
		require.NoError(t, store.Flush(ctx))
		require.NoError(t, store.Close())
	}
	local, remote = hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 9, local.Pages)
	require.EqualValues(t, 1, remote.Pages)
	local, _ = hitsIn(t, o, other.Fingerprint)
	require.EqualValues(t, 1, local.Pages)

	// A model whose pages are removed has no hits left.
	root := openRoot(t, o)
	gcWith(t, root, GCOptions{Fingerprints: func(u FingerprintUsage) bool { return u.Fingerprint == o.Fingerprint }})
	require.NoError(t, root.Close())
	l := readLedgerFile(t, o)
	require.Len(t, l.Hits, 1)
	require.Contains(t, l.Hits, other.Fingerprint.String())
	require.Empty(t, l.Claims)
}

func TestHitsFromMemoryAreKept(t *testing.T) {
	s, o := openNew(t, func(o *Options) { o.RAM.BudgetBytes = 1 << 30 })
	tokens := putPrompt(t, s, 1, testTokens)
	for range 3 {
		readChain(t, s, tokens, len(tokens))
	}
	require.EqualValues(t, 3, s.Stats().RAMHits)
	require.NoError(t, s.Close())
	local, _ := hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 3, local.Pages)
}

// TestHitsWaitForADiskThatTakesThem: hits that could not be recorded are recorded later.
func TestHitsWaitForADiskThatTakesThem(t *testing.T) {
	s, o, inj := openInjected(t)
	tokens := putPrompt(t, s, 1, 2*testTokens)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpRename}, Err: syscall.ENOSPC})
	readChain(t, s, tokens, len(tokens))
	require.NoError(t, s.Flush(ctx))
	require.Zero(t, s.Stats().TierErrors)
	inj.Reset()
	local, _ := hitsIn(t, o, o.Fingerprint)
	require.Zero(t, local.Pages)
	readChain(t, s, tokens, len(tokens))
	require.NoError(t, s.Flush(ctx))
	local, _ = hitsIn(t, o, o.Fingerprint)
	require.EqualValues(t, 4, local.Pages)
}

// TestHitsAreRecordedTogether reads many pages at once, and then waits for the clock.
func TestHitsAreRecordedTogether(t *testing.T) {
	s, _, inj := openInjected(t)
	tokens := putPrompt(t, s, 1, 20*testTokens)
	require.NoError(t, s.Flush(ctx))
	inj.Reset()
	readChain(t, s, tokens, len(tokens))
	require.Zero(t, inj.Count(vfs.OpSync), "hits are not recorded during reads")
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 1, inj.Count(vfs.OpSync))
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 1, inj.Count(vfs.OpSync), "without new hits nothing is recorded")
}

// statsSince returns the counters that differ from `before` in a store without other work.
func statsSince(t *testing.T, s *Store, before Stats) Stats {
	t.Helper()
	require.NoError(t, s.Flush(ctx))
	now := s.Stats()
	return Stats{
		Puts: now.Puts - before.Puts, Hits: now.Hits - before.Hits,
		RAMHits: now.RAMHits - before.RAMHits, LocalHits: now.LocalHits - before.LocalHits, RemoteHits: now.RemoteHits - before.RemoteHits,
		Demoted: now.Demoted - before.Demoted, Promoted: now.Promoted - before.Promoted,
		Evicted: now.Evicted - before.Evicted, LocalEvicted: now.LocalEvicted - before.LocalEvicted, RemoteEvicted: now.RemoteEvicted - before.RemoteEvicted,
		LocalQuarantined: now.LocalQuarantined - before.LocalQuarantined, RemoteQuarantined: now.RemoteQuarantined - before.RemoteQuarantined,
		RAMStored: now.RAMStored - before.RAMStored, RAMFromLocal: now.RAMFromLocal - before.RAMFromLocal,
		RAMFromRemote: now.RAMFromRemote - before.RAMFromRemote, RAMEvicted: now.RAMEvicted - before.RAMEvicted,
		AheadPages: now.AheadPages - before.AheadPages, AheadUsed: now.AheadUsed - before.AheadUsed,
		Damaged: now.Damaged - before.Damaged,
	}
}

// TestStatsOfEveryMove moves pages between all tiers, and compares the counts of each step.
func TestStatsOfEveryMove(t *testing.T) {
	tokens := prompt(1, 2*testTokens+3)
	s, o := openNew(t, withRemote(t), withRAM(plenty))

	putChain(t, s, tokens)
	require.Equal(t, Stats{Puts: 3, RAMStored: 3}, statsSince(t, s, Stats{}))
	st := s.Stats()
	require.EqualValues(t, 2*layoutOf(t, testSections, testTokens).Size()+layoutOf(t, testSections, 3).Size(), st.RawBytes)
	var files uint64
	for _, name := range namesOf(s, tokens) {
		info, err := os.Stat(filePath(o.Local.Root, name))
		require.NoError(t, err)
		files += uint64(info.Size())
	}
	require.Equal(t, files, st.WroteBytes)

	readChain(t, s, tokens, len(tokens))
	require.Equal(t, Stats{Hits: 3, RAMHits: 3}, statsSince(t, s, st))
	require.NoError(t, s.Close())

	// A process that has read nothing yet reads from the local tier, and then from memory.
	s = open(t, o)
	readChain(t, s, tokens, len(tokens))
	require.Equal(t, Stats{Hits: 3, LocalHits: 3, RAMFromLocal: 3}, statsSince(t, s, Stats{}))
	st = s.Stats()

	// Pages move down, are read from there, and are copied up again.
	for _, name := range namesOf(s, tokens) {
		info := mustStat(t, s.disk, name)
		evictPage(t, s, info)
	}
	require.Equal(t, Stats{Demoted: 3}, statsSince(t, s, st))
	s = reopen(t, s, o)
	readChain(t, s, tokens, len(tokens))
	require.Equal(t, Stats{Hits: 3, RemoteHits: 3, RAMFromRemote: 3, Promoted: 3}, statsSince(t, s, Stats{}))
	st = s.Stats()

	// The remote tier evicts: pages there are gone.
	info := mustStat(t, s.guard, namesOf(s, tokens)[1])
	removed, err := s.remote.room.Evict(ctx, info, true)
	require.NoError(t, err)
	require.Equal(t, info.Name, removed.Name)
	require.Equal(t, Stats{Evicted: 1, RemoteEvicted: 1}, statsSince(t, s, st))
	st = s.Stats()

	// Less memory: pages leave it.
	s.ram.SetLimit(pageBytes(t, testTokens))
	require.Equal(t, Stats{RAMEvicted: 2}, statsSince(t, s, st))
	require.Equal(t, pageBytes(t, testTokens), s.Stats().RAMLimit)
}

func TestStatsOfEvictionAndDamage(t *testing.T) {
	s, o := openNew(t)
	a, b := prompt(1, testTokens), prompt(2, testTokens)
	putChain(t, s, a)
	putChain(t, s, b)
	st := s.Stats()
	evictPage(t, s, mustStat(t, s.disk, namesOf(s, a)[0]))
	require.Equal(t, Stats{Evicted: 1, LocalEvicted: 1}, statsSince(t, s, st))

	st = s.Stats()
	path := filePath(o.Local.Root, namesOf(s, b)[0])
	flipAt(t, path, -pagefile.FooterBytes-1)
	ref := s.Find(ctx, Prompt{Tokens: b}).Exact[0]
	require.ErrorIs(t, readError(t, s, ref, b), pagefile.ErrDamaged)
	require.Equal(t, Stats{Damaged: 1, LocalQuarantined: 1}, statsSince(t, s, st))
}

// Of pages that were read ahead those count as used that a Read then finds in memory, once each.
func TestStatsOfReadingAhead(t *testing.T) {
	for name, edit := range map[string]func(*Options){"memory": withRAM(plenty), "page cache": func(*Options) {}} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, edit, withAhead(plenty))
			all := conversations(t, o, 2)
			s := open(t, o)
			ahead := aheadOf(t, s)
			require.Equal(t, 6, ahead.Pages)
			require.Zero(t, s.Stats().AheadUsed)
			for range 2 {
				readChain(t, s, all[0], len(all[0]))
				require.EqualValues(t, 3, s.Stats().AheadUsed)
			}
			if s.ram.off() {
				return
			}
			s.ram.SetLimit(0) // pages that memory has lost were read ahead for nothing
			readChain(t, s, all[1], len(all[1]))
			require.EqualValues(t, 3, s.Stats().AheadUsed)
			s.ram.SetLimit(plenty)
			readChain(t, s, all[1], len(all[1]))
			readChain(t, s, all[1], len(all[1]))
			require.EqualValues(t, 3, s.Stats().AheadUsed)
		})
	}
}

func TestInRAM(t *testing.T) {
	s := open(t, testOptions(t, withRAM(plenty)))
	pages := putChain(t, s, prompt(1, 2*testTokens))
	keys := []pagefile.Key{pages[0].Key(), pages[1].Key(), {9}}
	require.Equal(t, 2, s.InRAM(keys))
	s.ram.Drop(s.pages.Page(keys[0]))
	require.Equal(t, 1, s.InRAM(keys))
	require.Zero(t, open(t, testOptions(t)).InRAM(keys), "without memory")
}

package diskstore

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

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
	o := testOptions(t, withRemote(t), withRAM(plenty))
	s := open(t, o)

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
		info, err := tier.Stat(ctx, s.disk, name)
		require.NoError(t, err)
		evictPage(t, s, info)
	}
	require.Equal(t, Stats{Demoted: 3}, statsSince(t, s, st))
	require.NoError(t, s.Close())
	s = open(t, o)
	readChain(t, s, tokens, len(tokens))
	require.Equal(t, Stats{Hits: 3, RemoteHits: 3, RAMFromRemote: 3, Promoted: 3}, statsSince(t, s, Stats{}))
	st = s.Stats()

	// The remote tier evicts: pages there are gone.
	info, err := tier.Stat(ctx, s.guard, namesOf(s, tokens)[1])
	require.NoError(t, err)
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
	o := testOptions(t)
	s := open(t, o)
	a, b := prompt(1, testTokens), prompt(2, testTokens)
	putChain(t, s, a)
	putChain(t, s, b)
	st := s.Stats()
	info, err := tier.Stat(ctx, s.disk, namesOf(s, a)[0])
	require.NoError(t, err)
	evictPage(t, s, info)
	require.Equal(t, Stats{Evicted: 1, LocalEvicted: 1}, statsSince(t, s, st))

	st = s.Stats()
	path := filePath(o.Local.Root, namesOf(s, b)[0])
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[len(data)-pagefile.FooterBytes-1] ^= 4
	require.NoError(t, os.WriteFile(path, data, 0o600))
	ref := s.Find(ctx, Prompt{Tokens: b}).Exact[0]
	l := layoutOf(t, testSections, testTokens)
	require.ErrorIs(t, s.Read(ctx, ref, b, l, Into{Rows: make([]byte, l.Size())}), pagefile.ErrDamaged)
	require.Equal(t, Stats{Damaged: 1, LocalQuarantined: 1}, statsSince(t, s, st))
}

// Of pages that were read ahead those count as used that a Read then finds in memory, once each.
func TestStatsOfReadingAhead(t *testing.T) {
	for name, edit := range map[string]func(*Options){"memory": withRAM(plenty), "page cache": func(*Options) {}} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, edit, withAhead(plenty))
			all := conversations(t, o, 2)
			s := open(t, o)
			ahead, err := s.Recent().ReadAhead(ctx)
			require.NoError(t, err)
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

package diskstore

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/ram"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// withRAM gives a store this much memory.
func withRAM(bytes int64) func(*Options) {
	return func(o *Options) { o.RAM = RAMConfig{BudgetBytes: bytes, Server: "test"} }
}

const plenty = 1 << 30

// fakeClock makes time pass for the pages in memory of s only when a test advances the clock.
func fakeClock(s *Store) (advance func(time.Duration)) {
	var mu sync.Mutex
	now := time.Now()
	s.ram.SetClock(func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	})
	return func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
	}
}

// tiersOf returns the tiers of refs, in order.
func tiersOf(refs []Ref) []string {
	var tiers []string
	for _, ref := range refs {
		tiers = append(tiers, ref.Tier)
	}
	return tiers
}

func repeat(tier string, n int) []string {
	var tiers []string
	for range n {
		tiers = append(tiers, tier)
	}
	return tiers
}

// pageBytes is the memory of a page of n tokens with testSections.
func pageBytes(t testing.TB, n int) int64 {
	return ram.Bytes(&pagefile.Header{Tokens: make([]int32, n), Layout: layoutOf(t, testSections, n)})
}

func TestRAMOffMeansOff(t *testing.T) {
	s, o := openNew(t)
	tokens := putPrompt(t, s, 1, 2*testTokens+3)
	readChain(t, s, tokens, len(tokens))
	require.False(t, s.ram.Holds())
	require.Equal(t, repeat(tier.Local, 3), tiersOf(s.Find(ctx, Prompt{Tokens: tokens}).Exact))
	require.Zero(t, s.Stats().RAM)
	require.Zero(t, s.Stats().RAMHits)
	for _, path := range filesIn(t, o.Local.Root, dir.LockExt) {
		require.NotContains(t, path, "warm")
	}
}

func TestRAMPagesComeFromPutAndRead(t *testing.T) {
	for _, compress := range []bool{false, true} {
		s, o, inj := openInjected(t, withRAM(plenty), func(o *Options) { o.Compress = compress })
		tokens := putPrompt(t, s, 1, 2*testTokens+3)

		check := func(s *Store) {
			t.Helper()
			before := s.Stats()
			inj.Reset()
			refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
			require.Equal(t, repeat(tier.RAM, 3), tiersOf(refs))
			readChain(t, s, tokens, len(tokens))
			require.Zero(t, inj.Count(vfs.OpRead, vfs.OpOpen), "no file was opened")
			require.EqualValues(t, 3, s.Stats().RAMHits-before.RAMHits)
			require.EqualValues(t, 3, s.Stats().Hits-before.Hits)
			require.Equal(t, 2, s.Stats().RAM.Pages)
			require.Equal(t, 1, s.Stats().RAM.Tails)
			require.Equal(t, 2*pageBytes(t, testTokens)+pageBytes(t, 3), s.Stats().RAM.Bytes)
		}
		check(s)

		// Another process's store has no page in memory until it has read one.
		other := open(t, o)
		require.Equal(t, repeat(tier.Local, 3), tiersOf(other.Find(ctx, Prompt{Tokens: tokens}).Exact))
		readChain(t, other, tokens, len(tokens))
		check(other)

		// A prompt that shares two tokens of the tail gets these two.
		part := append(append([]int32{}, tokens[:2*testTokens+2]...), 9)
		readChain(t, s, part, 2*testTokens+2)
	}
}

func TestRAMBudgetIsExact(t *testing.T) {
	one := pageBytes(t, testTokens)
	for _, c := range []struct {
		budget int64
		want   int
	}{{one - 1, 0}, {one, 1}, {3*one - 1, 2}, {3 * one, 3}, {3*one + 1, 3}} {
		s := open(t, testOptions(t, withRAM(c.budget)))
		for i := range 10 {
			putChain(t, s, prompt(i, testTokens))
			require.LessOrEqual(t, s.Stats().RAM.Bytes, c.budget)
			require.Equal(t, one*int64(s.Stats().RAM.Pages), s.Stats().RAM.Bytes)
		}
		require.Equal(t, c.want, s.Stats().RAM.Pages)
		for i := range 10 {
			readChain(t, s, prompt(i, testTokens), testTokens)
			require.LessOrEqual(t, s.Stats().RAM.Bytes, c.budget)
		}
		require.Equal(t, c.want, s.Stats().RAM.Pages)
		require.NoError(t, s.Close())
		require.Zero(t, s.ram.Stats().Bytes, "all memory was freed")
	}
}

func TestRAMLeastRecentlyServedGoesFirst(t *testing.T) {
	s := open(t, testOptions(t, withRAM(3*pageBytes(t, testTokens))))
	held := func() (in []int) {
		for i := range 6 {
			if s.ram.Has(s.pages.Page(pagefile.ChainKey(s.opt.Fingerprint, prompt(i, testTokens), nil))) {
				in = append(in, i)
			}
		}
		return in
	}
	putPages(t, s, 0, 3)
	require.Equal(t, []int{0, 1, 2}, held())
	readChain(t, s, prompt(0, testTokens), testTokens) // served: the oldest is 1 now
	s.Find(ctx, Prompt{Tokens: prompt(1, testTokens)}) // a look-up does not count
	putChain(t, s, prompt(3, testTokens))
	require.Equal(t, []int{0, 2, 3}, held())
	putChain(t, s, prompt(4, testTokens))
	require.Equal(t, []int{0, 3, 4}, held())
	putChain(t, s, prompt(3, testTokens)) // stored already: no change
	putChain(t, s, prompt(5, testTokens))
	require.Equal(t, []int{3, 4, 5}, held())
}

// A page that can never fit evicts none.
func TestRAMPageThatIsTooLarge(t *testing.T) {
	budget := 4 * pageBytes(t, testTokens)
	s := open(t, testOptions(t, withRAM(budget)))
	putPages(t, s, 0, 4)
	before := s.Stats().RAM
	require.Equal(t, 4, before.Pages)
	p, ref := putLarge(t, s)
	require.Greater(t, int64(p.Layout.Size()), budget)
	rowsOf(t, s, ref, p)
	require.Equal(t, before, s.Stats().RAM)
}

// A deleted page is served for Lease at most, and does not stay in memory while no request
// reads it.
func TestRAMPagesFollowTheirFiles(t *testing.T) {
	s, o := openNew(t, withRAM(plenty))
	advance := fakeClock(s)
	tokens, forgotten := prompt(1, 2*testTokens+3), prompt(2, testTokens+2)
	putChain(t, s, tokens)
	putChain(t, s, forgotten)
	advance(ram.Lease)
	require.Equal(t, repeat(tier.RAM, 3), tiersOf(s.Find(ctx, Prompt{Tokens: tokens}).Exact), "the files were checked")

	require.NoError(t, os.RemoveAll(filepath.Join(o.Local.Root, storetest.VersionDir, s.opt.Fingerprint.String())))
	readChain(t, s, tokens, len(tokens)) // exact nevertheless
	advance(ram.Lease - time.Millisecond)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	require.Len(t, refs, 3)
	advance(time.Millisecond)
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	for _, ref := range refs[:2] {
		require.ErrorIs(t, readError(t, s, ref, tokens[ref.Start:ref.Start+testTokens]), tier.ErrNotFound)
	}
	require.Equal(t, 1, s.Stats().RAM.Pages, "pages that were looked up are no longer in memory")

	advance(ram.UnseenAge)
	require.False(t, s.ram.tend())
	require.Zero(t, s.Stats().RAM.Bytes)
	require.Zero(t, s.Stats().TierErrors)
}

func TestRAMPagesOfTheRemoteTier(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t), withRAM(plenty))
	advance := fakeClock(s)
	tokens := putPrompt(t, s, 1, 2*testTokens)
	moveToRemote(t, o, namesOf(s, tokens))
	inj.Reset()
	readChain(t, s, tokens, len(tokens))
	require.Zero(t, inj.Count(vfs.OpRead), "the pages moved, and are in memory")
	advance(ram.Lease)
	require.Equal(t, repeat(tier.RAM, 2), tiersOf(s.Find(ctx, Prompt{Tokens: tokens}).Exact), "the remote tier has them")

	// While no tier can tell whether the files exist, their pages are neither served nor
	// dropped.
	advance(ram.Lease)
	inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)), Err: syscall.ESTALE})
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	require.Equal(t, 2, s.Stats().RAM.Pages)
	inj.Reset()
	s.guard.Breaker.Success()
	readChain(t, s, tokens, len(tokens))
	require.EqualValues(t, 4, s.Stats().RAMHits)
}

func TestRAMTails(t *testing.T) {
	s := open(t, testOptions(t, withRAM(plenty)))
	tokens := prompt(1, testTokens+6)
	putChain(t, s, tokens[:testTokens+3])
	putChain(t, s, tokens[:testTokens+5])
	require.Equal(t, 1, s.Stats().RAM.Tails, "the longer tail replaces the one it extends")

	// A longer tail on the disk alone is preferred to the tail in memory.
	other := open(t, func() Options { o := s.opt; o.RAM = RAMConfig{}; return o }())
	putChain(t, other, append(append([]int32{}, tokens[:testTokens+5]...), 88))
	readChain(t, s, append(append([]int32{}, tokens[:testTokens+5]...), 88, 89), testTokens+6)

	for i := range 2 * ramTails {
		putChain(t, s, append(append([]int32{}, tokens[:testTokens]...), int32(100+i)))
		require.LessOrEqual(t, s.Stats().RAM.Tails, ramTails)
	}
	require.Equal(t, ramTails, s.Stats().RAM.Tails)
	require.Len(t, s.ram.TailsOf(s.opt.Fingerprint, pagefile.ChainKey(s.opt.Fingerprint, tokens[:testTokens], nil)), ramTails)
}

func TestRAMPagesThatCanBePlacedAre(t *testing.T) {
	tokens := prompt(1, testTokens)
	s := open(t, testOptions(t, withRAM(plenty)))
	putChain(t, s, tokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	require.Equal(t, tier.RAM, ref.Tier)
	_, placed, err := readPlaced(t, s, ref, tokens)
	require.NoError(t, err)
	requirePlaced(t, ref, placed)
	require.NoError(t, placed.File.Close())
	require.Zero(t, s.Stats().RAMHits)

	s = open(t, testOptions(t, withRAM(plenty), func(o *Options) { o.Compress = true }))
	putChain(t, s, tokens)
	requireNotPlaced(t, s, s.Find(ctx, Prompt{Tokens: tokens}).Exact[0], tokens, "in memory")
	require.EqualValues(t, 1, s.Stats().RAMHits)
}

func TestRAMServingKeepsPagesRecent(t *testing.T) {
	s, o := openNew(t, withRAM(plenty))
	tokens := prompt(1, testTokens)
	p := putChain(t, s, tokens)[0]
	path := filePath(o.Local.Root, s.pages.Page(p.Key()))
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, past, past))
	fakeClock(s)(ram.Lease) // the file is checked again
	readChain(t, s, tokens, testTokens)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), info.ModTime(), time.Minute)
	require.EqualValues(t, 1, s.Stats().RAMHits)
}

// Many operations at the same time: every page read is right, and memory is freed.
func TestRAMManyAtOnce(t *testing.T) {
	s := open(t, testOptions(t, withRAM(5*pageBytes(t, testTokens))))
	var all sync.WaitGroup
	for worker := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 60 {
				tokens := prompt(rng.IntN(6), testTokens+rng.IntN(3))
				switch rng.IntN(4) {
				case 0:
					putChain(t, s, tokens)
				case 1:
					s.ram.SetLimit(int64(rng.IntN(6)) * pageBytes(t, testTokens))
				case 2:
					s.ram.tend()
				default:
					for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
						l := layoutOf(t, testSections, ref.Stored)
						buf, want := make([]byte, l.Size()), make([]byte, l.Size())
						err := s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Rows: buf})
						if ref.Tail && errors.Is(err, tier.ErrNotFound) {
							continue // a longer tail has replaced this one
						}
						fillRows(l, ref.Key, want)
						if !assert.NoError(t, err) || !assert.Equal(t, want, buf) {
							return
						}
					}
				}
			}
		}()
	}
	all.Wait()
	require.NoError(t, s.Close())
	require.Zero(t, s.ram.Stats().Bytes)
	require.False(t, s.ram.Holds())
}

// Runners of one server divide its budget; runners of another server do not share it.
func TestRAMBudgetIsTheServers(t *testing.T) {
	one := pageBytes(t, testTokens)
	o := testOptions(t, withRAM(8*one))
	first := open(t, o)
	putPages(t, first, 0, 10)
	require.Equal(t, 8, first.Stats().RAM.Pages)

	stranger := o
	stranger.RAM.Server = "another"
	s := open(t, stranger)
	putChain(t, s, prompt(20, testTokens))
	require.True(t, first.ram.tend())
	require.Equal(t, 8, first.Stats().RAM.Pages)

	second := open(t, o)
	for i := range 10 {
		readChain(t, second, prompt(i, testTokens), testTokens)
		require.LessOrEqual(t, second.Stats().RAM.Pages, 4, "a store does not wait for the other runners")
	}
	require.True(t, first.ram.tend())
	require.Equal(t, 4, first.Stats().RAM.Pages)
	readChain(t, first, prompt(9, testTokens), testTokens)
	require.EqualValues(t, 1, first.Stats().RAMHits, "the pages served last have stayed")

	third := open(t, o)
	require.True(t, first.ram.tend())
	require.Equal(t, 2, first.Stats().RAM.Pages) // 8/3
	require.NoError(t, third.Close())
	require.NoError(t, second.Close())
	require.True(t, first.ram.tend())
	require.Equal(t, 8*one, first.ram.Stats().Limit)

	// A runner that was killed has released its lock and left the file.
	left := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir, serverPrefix(o.RAM.Server)+"0123"+dir.LockExt)
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	require.True(t, first.ram.tend())
	require.Equal(t, 8*one, first.ram.Stats().Limit)
	require.NoFileExists(t, left)
	// A new runner is noticed as soon as a page is kept.
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	lock, err := vfs.OS.Lock(left)
	require.NoError(t, err)
	fourth := open(t, o)
	readChain(t, fourth, prompt(0, testTokens), testTokens)
	require.Equal(t, 8*one/3, fourth.ram.Stats().Limit)
	require.NoError(t, lock.Close())
}

func TestRAMNeedsLocks(t *testing.T) {
	inj := vfs.Inject(quickFS)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLock}, Err: syscall.ENOLCK})
	s := open(t, testOptions(t, withFS(inj), withRAM(plenty)))
	tokens := putPrompt(t, s, 1, testTokens)
	readChain(t, s, tokens, testTokens)
	require.Zero(t, s.Stats().RAM.Bytes)
	require.True(t, s.Stats().RAM.Down)

	// Locks fail after the start: a runner that is not counted may have all of the budget.
	o := testOptions(t, withRAM(plenty))
	open(t, o)
	inj = vfs.Inject(quickFS)
	o.FS = inj
	s = open(t, o)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpLock}, Err: syscall.ENOLCK})
	putPrompt(t, s, 1, testTokens)
	require.Zero(t, s.ram.Stats().Limit)
	require.True(t, s.Stats().RAM.Down)
}

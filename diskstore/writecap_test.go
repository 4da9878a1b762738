package diskstore

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestWriteCap: all stores together write at most the day's bytes, promotions included;
// reading and demoting continue.
func TestWriteCap(t *testing.T) {
	page := physicalPage(t)
	var told troubleLog
	o := testOptions(t, withRemote(t), func(o *Options) {
		o.WritePerDay = 5*page + page/2
		o.Trouble = told.note
	})
	day := time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)
	first, second := day.Format(time.DateOnly), day.Add(12*time.Hour).Format(time.DateOnly)
	at := func(s *Store) *Store {
		s.now = func() time.Time { return day }
		return s
	}
	s := at(open(t, o))
	tokens := putPrompt(t, s, 1, 3*testTokens)
	require.NoError(t, s.Close()) // returns the unused part of its claim
	require.Equal(t, []ledger.DayWritten{{Day: first, Bytes: 3 * page}}, readLedgerFile(t, o).Days())

	s = at(open(t, o))
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	info := mustStat(t, s.disk, refs[2].name(s.pages))
	evictPage(t, s, info) // a demotion writes no local file
	putChain(t, s, prompt(2, 2*testTokens))
	require.EqualValues(t, 5*page, s.Stats().LocalWritten)
	require.EqualValues(t, page, s.Stats().RemoteWritten)
	for seed := range 3 {
		require.ErrorIs(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(10+seed, testTokens))), ledger.ErrWriteCap)
	}
	require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(1, testTokens))), "the page is stored already")
	readChain(t, s, tokens, len(tokens))
	require.NoError(t, s.Flush(ctx))
	require.Zero(t, s.Stats().Promoted)
	require.EqualValues(t, 4, s.Stats().WriteCaps)
	require.Zero(t, s.Stats().TierErrors)
	require.False(t, s.Stats().Local.Down)
	require.ErrorIs(t, told.last(), ledger.ErrWriteCap)
	other := at(open(t, o))
	require.ErrorIs(t, other.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(20, testTokens))), ledger.ErrWriteCap)
	require.NoError(t, other.Close())

	day = day.Add(12 * time.Hour) // midnight
	readChain(t, s, tokens, len(tokens))
	require.NoError(t, s.Flush(ctx))
	require.EqualValues(t, 1, s.Stats().Promoted)
	putChain(t, s, prompt(10, testTokens))
	require.NoError(t, told.last())
	require.EqualValues(t, 2*page, s.Stats().LocalWritten)
	require.NoError(t, s.Close())
	require.Equal(t, []ledger.DayWritten{{Day: first, Bytes: 5 * page}, {Day: second, Bytes: 2 * page}}, readLedgerFile(t, o).Days())
}

// countedFS counts the bytes that are written.
type countedFS struct {
	vfs.FS
	written *atomic.Int64
}

func (c countedFS) Create(name string) (vfs.File, error) {
	f, err := c.FS.Create(name)
	return countedFile{f, c.written}, err
}

type countedFile struct {
	vfs.File
	written *atomic.Int64
}

func (f countedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.written.Add(int64(n))
	return n, err
}

// TestWriteCapCountsWhatCameToNothing: pages are written and cannot be renamed, or not be
// synced. Repeated Puts of these pages wear the disk as well, and count.
func TestWriteCapCountsWhatCameToNothing(t *testing.T) {
	page := physicalPage(t)
	for name, fails := range map[string]vfs.Rule{
		"rename": {Ops: []vfs.Op{vfs.OpRename}, Path: regexp.MustCompile(`\.kvp$`), Err: syscall.EACCES},
		"sync":   {Ops: []vfs.Op{vfs.OpSync}, Path: regexp.MustCompile(`-\d+\.tmp$`), Err: syscall.EIO},
	} {
		for _, budget := range []int64{0, 40 * page} {
			t.Run(name, func(t *testing.T) {
				var written atomic.Int64
				inj := vfs.Inject(countedFS{quickFS, &written})
				s, o := openNew(t, withFS(inj), func(o *Options) { o.WritePerDay, o.Local.BudgetBytes = 5*page, budget })
				putChain(t, s, prompt(1, testTokens))
				inj.Add(fails)
				written.Store(0)
				for range 20 {
					require.Error(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(2, testTokens))))
				}
				require.ErrorIs(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(2, testTokens))), ledger.ErrWriteCap)
				require.Less(t, written.Load(), 5*page, "four pages, manifests and ledgers")
				require.Greater(t, written.Load(), 3*page)
				require.NoError(t, s.Close())
				require.EqualValues(t, 5*page, readLedgerFile(t, o).Days()[0].Bytes)
				require.Equal(t, occupied(t, o.Local.Root), readLedgerFile(t, o).Bytes)
			})
		}
	}
}

// TestUnloadedRunnersWriteWhatTheyWrote: a runner is flushed and then killed. The unused part
// of its claim counts neither as written nor as in use, in either tier.
func TestUnloadedRunnersWriteWhatTheyWrote(t *testing.T) {
	page := physicalPage(t)
	machine := storetest.NewShare(0)
	machine.Reach = vfs.ReachDisk
	o := testOptions(t, withFS(machine.From("a")), withRemote(t), func(o *Options) { o.WritePerDay = ledger.ChunkBytes + 10*page })
	const loads = 4
	for load := range loads {
		runner, err := Open(ctx, o)
		require.NoError(t, err)
		putChain(t, runner, prompt(load, testTokens))
		require.NoError(t, runner.Flush(ctx))
		machine.Die("a") // kills the process
	}
	s := open(t, o)
	for _, root := range []string{o.Local.Root, o.Remote.Root} {
		require.Empty(t, readLedgerFile(t, Options{Local: TierConfig{Root: root}}).Claims, root)
	}
	l := readLedgerFile(t, o)
	require.EqualValues(t, loads*page, l.Days()[0].Bytes)
	require.Equal(t, occupied(t, o.Local.Root), l.Bytes)
	require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(loads, testTokens))))
}

// TestClaimsGivenBackBesideWriters: no Put has taken the claim that a Flush returns.
func TestClaimsGivenBackBesideWriters(t *testing.T) {
	s, o := openNew(t, withFS(quickFS), func(o *Options) { o.Local.BudgetBytes = 64 << 20 })
	var group errgroup.Group
	for writer := range 4 {
		group.Go(func() error {
			for n := range 50 {
				if err := s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(writer*1000+n, testTokens))); err != nil {
					return err
				}
				if got, most := occupied(t, o.Local.Root), recorded(t, o.Local.Root); got > most {
					return fmt.Errorf("%d bytes are on the disk, %d in the ledger", got, most)
				}
				if err := s.Flush(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	requireExact(t, s)
}

// TestWriteCapIsForTheLocalTier: WritePerDay does not limit writes to the remote tier, which
// several servers share.
func TestWriteCapIsForTheLocalTier(t *testing.T) {
	page := physicalPage(t)
	o := testOptions(t, withRemote(t), func(o *Options) { o.WritePerDay = page + page/2 })
	for seed := range 3 {
		demoteAnew(t, beside(t, o), prompt(seed, testTokens))
	}
}

// TestTheFirstCountClaimsNothing: a new root's count gives the process that counts no claim, with which
// it would write past the limit of a day.
func TestTheFirstCountClaimsNothing(t *testing.T) {
	o := testOptions(t, func(o *Options) { o.WritePerDay = 1 })
	s, err := Open(ctx, o)
	require.NoError(t, err)
	defer s.Close()
	counted := func() bool {
		_, err := os.Stat(filepath.Join(o.Local.Root, storetest.VersionDir, storetest.LedgerFile))
		return err == nil && readLedgerFile(t, o).Counts > 0
	}
	require.Eventually(t, counted, time.Minute, time.Millisecond)
	require.ErrorIs(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(1, testTokens))), ledger.ErrWriteCap)
	require.Zero(t, s.Stats().LocalWritten)
}

package diskstore

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func ledgerPath(o Options) string {
	return filepath.Join(o.Local.Root, storetest.VersionDir, storetest.LedgerFile)
}

func readLedgerFile(t *testing.T, o Options) *ledger.Ledger {
	t.Helper()
	content := fileOf(t, ledgerPath(o))
	l, err := ledger.Decode(content)
	require.NoError(t, err)
	return l
}

// occupied returns the bytes of a root's files that count against its budget.
func occupied(t testing.TB, root string) int64 {
	var sum int64
	err := filepath.WalkDir(filepath.Join(root, storetest.VersionDir), func(path string, d os.DirEntry, err error) error {
		ext := filepath.Ext(path)
		if err != nil || d.IsDir() || ext != dir.PageExt && ext != dir.TmpExt || strings.Contains(path, "-usage") {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err == nil {
			sum += vfs.OS.PhysicalBytes(info)
		}
		return ignoreGone(err)
	})
	require.NoError(t, err)
	return sum
}

func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// gauge measures a root after each operation that may add to it, while no other operation
// runs.
type gauge struct {
	vfs.FS
	mu      sync.Mutex
	measure func()
}

// then runs op and measures.
func (g *gauge) then(op func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := op()
	g.measure()
	return err
}

func (g *gauge) Create(name string) (vfs.File, error) {
	f, err := g.FS.Create(name)
	if err != nil {
		return nil, err
	}
	return gaugeFile{f, g}, nil
}

func (g *gauge) Rename(from, to string) error {
	return g.then(func() error { return g.FS.Rename(from, to) })
}

type gaugeFile struct {
	vfs.File
	g *gauge
}

func (f gaugeFile) Write(p []byte) (n int, err error) {
	err = f.g.then(func() error {
		n, err = f.File.Write(p)
		return err
	})
	return n, err
}

func (f gaugeFile) Sync() error { return f.g.then(f.File.Sync) }

// TestBudgetIsNeverExceeded stores chains, tails and damaged pages in two stores with small
// budgets for both tiers, and measures after each operation.
func TestBudgetIsNeverExceeded(t *testing.T) {
	page := physicalPage(t)
	g := &gauge{FS: quickFS, measure: func() {}}
	o := testOptions(t, withFS(g), withRemote(t), func(o *Options) {
		o.Local.BudgetBytes, o.Remote.BudgetBytes = 7*page, 5*page
	})
	var most [2]int64
	g.measure = func() {
		most[0] = max(most[0], occupied(t, o.Local.Root))
		most[1] = max(most[1], occupied(t, o.Remote.Root))
	}
	stores := []*Store{open(t, o), open(t, o)}
	for seed := range 30 {
		s := stores[seed%2]
		tokens := putPrompt(t, s, seed%11, 2*testTokens+1+seed%7)
		refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
		require.Len(t, refs, 3)
		if seed%4 == 3 { // a damaged page is kept, and counts
			path := filePath(o.Local.Root, refs[1].name(s.pages))
			data := fileOf(t, path)
			data[len(data)-1] ^= 1
			require.NoError(t, os.WriteFile(path, data, 0o600))
			require.ErrorIs(t, readError(t, s, refs[1], tokens[testTokens:2*testTokens]), pagefile.ErrDamaged)
		}
		for _, ref := range s.Find(ctx, Prompt{Tokens: prompt(seed%5, 3*testTokens)}).Exact { // promotes
			readRef(t, s, ref, prompt(seed%5, 3*testTokens))
		}
		require.NoError(t, s.Flush(ctx))
		for i, root := range []string{o.Local.Root, o.Remote.Root} {
			require.LessOrEqual(t, most[i], []int64{o.Local.BudgetBytes, o.Remote.BudgetBytes}[i])
			require.LessOrEqual(t, occupied(t, root), recorded(t, root))
		}
	}
	require.Greater(t, most[0], 5*page, "the budget is used")
	require.NotZero(t, stores[0].Stats().Demoted)
}

// recorded returns the figure in a root's ledger.
func recorded(t *testing.T, root string) int64 {
	t.Helper()
	return readLedgerFile(t, Options{Local: TierConfig{Root: root}}).Figure()
}

// TestFigureIsNeverTooLow makes each operation of a Put that claims room, and of the
// collection that the Put needs, fail in turn.
func TestFigureIsNeverTooLow(t *testing.T) {
	statesOneByOne(t)
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		s, o, inj := openInjected(t, withPages(t, 5))
		putChain(t, s, prompt(1000, 2*testTokens+1))
		most := 300 // later ones list directories of branches
		if longRun() {
			most = 900
		}
		for nth, ops := 1, 1; nth <= ops; nth++ {
			inj.Reset()
			inj.Add(vfs.Rule{Nth: nth, Err: errno, Short: 100})
			_ = s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(nth, testTokens-nth%2)))
			require.NoError(t, s.Flush(ctx))
			ops = min(max(ops, inj.Count()), most)
			// A collection lists at most 256 directories of pages, 512 of tails and 512 of branches.
			require.Less(t, inj.Count(), 4000, "%v at %d: something is tried over and over", errno, nth)
			inj.Reset()
			require.LessOrEqual(t, occupied(t, o.Local.Root), recorded(t, o.Local.Root), "%v at %d", errno, nth)
			require.LessOrEqual(t, occupied(t, o.Local.Root), o.Local.BudgetBytes, "%v at %d", errno, nth)
		}
		putChain(t, s, prompt(5000, 3*testTokens))
		readChain(t, s, prompt(5000, 3*testTokens), 3*testTokens)
		requireExact(t, s)
		require.Equal(t, occupied(t, o.Local.Root), recorded(t, o.Local.Root)-claimOf(t, o))
	}
}

// claimOf returns the bytes that processes have claimed and not used.
func claimOf(t *testing.T, o Options) int64 {
	t.Helper()
	return readLedgerFile(t, o).Claimed()
}

// TestLedgerOfTheDead: the claim of a killed process is free again after a count, and counts
// as written.
func TestLedgerOfTheDead(t *testing.T) {
	machine := storetest.NewShare(0)
	machine.Reach = vfs.ReachDisk
	o := testOptions(t, withFS(machine.From("a")))
	dead := start(t, o)
	require.NoError(t, dead.Flush(ctx))
	putChain(t, dead, prompt(1, testTokens))
	require.Equal(t, int64(ledger.ChunkBytes), claimOf(t, o)) // the bytes written are not recorded yet
	machine.Die("a")

	s := open(t, o)
	require.Zero(t, claimOf(t, o)-readLedgerFile(t, o).Claims[idOf(t, s.disk)].Bytes)
	l := readLedgerFile(t, o)
	require.Equal(t, occupied(t, o.Local.Root), l.Bytes)
	require.EqualValues(t, ledger.ChunkBytes, l.Days()[0].Bytes)
	require.Empty(t, l.Claims)
	require.NoError(t, s.Close())
	require.Empty(t, readLedgerFile(t, o).Claims)
	require.Equal(t, occupied(t, o.Local.Root), readLedgerFile(t, o).Figure())
}

// TestLostLedger: without a ledger no page is stored below a budget until files are counted,
// and reads continue.
func TestLostLedger(t *testing.T) {
	s, o := openNew(t, withPages(t, 4))
	tokens := putPrompt(t, s, 1, 3*testTokens)
	for name, lose := range map[string]func() error{
		"missing": func() error { return os.Remove(ledgerPath(o)) },
		"damaged": func() error { return os.WriteFile(ledgerPath(o), []byte("{}\ncrc32c 00000000\n"), 0o600) },
		"huge":    func() error { return os.WriteFile(ledgerPath(o), make([]byte, 1<<20+1), 0o600) },
	} {
		require.NoError(t, s.Flush(ctx))
		require.NoError(t, lose(), name)
		inj := vfs.Inject(quickFS)
		o := o
		o.FS = inj
		gate := hold(inj, vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile(o.Fingerprint.String())})
		again, err := Open(ctx, o)
		require.NoError(t, err, name)
		<-gate.Entered() // the count has begun, and hangs
		readChain(t, again, tokens, len(tokens))
		booked := again.Stats().LocalBooked
		require.Zero(t, booked, name)
		waits, cancel := cancelled()
		require.ErrorIs(t, again.Put(waits, pageOf(t, o.Fingerprint, 0, prompt(9, testTokens))), waits.Err(), name)
		cancel()
		gate.Open()
		require.NoError(t, again.Flush(ctx))
		require.GreaterOrEqual(t, again.Stats().LocalBooked, occupied(t, o.Local.Root), name)
		putChain(t, again, prompt(2, testTokens))
		require.LessOrEqual(t, occupied(t, o.Local.Root), o.Local.BudgetBytes)
		require.NoError(t, again.Close())
		putChain(t, s, tokens)
	}
}

// TestOpenDoesNotWaitForACount: with a ledger, pages are read and stored while the listing of
// the root hangs.
func TestOpenDoesNotWaitForACount(t *testing.T) {
	page := physicalPage(t)
	o := testOptions(t, func(o *Options) { o.Local.BudgetBytes = 6 * page })
	first := open(t, o)
	tokens := prompt(1, 2*testTokens)
	putChain(t, first, tokens)
	require.NoError(t, first.Close())

	inj := vfs.Inject(quickFS)
	o.FS = inj
	gate := hold(inj, vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile("v1/" + o.Fingerprint.String() + "$")})
	s := start(t, o)
	<-gate.Entered()
	readChain(t, s, tokens, len(tokens))
	require.Equal(t, 2*page, s.Stats().LocalBooked)
	putChain(t, s, prompt(2, 2*testTokens))
	readChain(t, s, prompt(2, 2*testTokens), 2*testTokens)
	gate.Open()
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 4, s.Stats().Local.Pages, "pages stored during a count count once")
	requireExact(t, s)
	require.NoError(t, s.Close())
}

func TestCountsAreRareWhereTheyTakeLong(t *testing.T) {
	s := open(t, testOptions(t))
	require.False(t, s.local.room.Stale())
	for _, c := range []struct {
		age, took time.Duration
		stale     bool
	}{
		{room.CountEvery / 2, 0, false},
		{2 * room.CountEvery, 0, true},
		{10 * room.CountEvery, 10 * time.Second, false},
		{20 * room.CountEvery, 10 * time.Second, true},
	} {
		s.local.files.Backdate(c.age, c.took)
		require.Equal(t, c.stale, s.local.room.Stale(), c)
	}
}

// TestLedgerThatCannotBeWritten: below a budget no page is stored then, and counts are not
// repeated again and again.
func TestLedgerThatCannotBeWritten(t *testing.T) {
	o, inj := injected(t, withPages(t, 4))
	inj.Add(vfs.Rule{Path: regexp.MustCompile(`-usage|usage\.lock`), Err: syscall.EIO})
	s := open(t, o)
	lists := inj.Count(vfs.OpReadDir)
	for seed := range 3 {
		require.Error(t, s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(seed, testTokens))))
	}
	require.NoError(t, s.Flush(ctx))
	require.LessOrEqual(t, inj.Count(vfs.OpReadDir), 8*lists)
	inj.Reset()
	s.local.files.Backdate(1000*time.Hour, 0)
	putChain(t, s, prompt(1, testTokens))
	readChain(t, s, prompt(1, testTokens), testTokens)
}

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
		runner := start(t, o)
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
	s := start(t, o)
	defer s.Close()
	counted := func() bool {
		_, err := os.Stat(filepath.Join(o.Local.Root, storetest.VersionDir, storetest.LedgerFile))
		return err == nil && readLedgerFile(t, o).Counts > 0
	}
	require.Eventually(t, counted, time.Minute, time.Millisecond)
	require.ErrorIs(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(1, testTokens))), ledger.ErrWriteCap)
	require.Zero(t, s.Stats().LocalWritten)
}

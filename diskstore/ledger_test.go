package diskstore

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	page := physicalPage(t)
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		s, o, inj := openInjected(t, func(o *Options) { o.Local.BudgetBytes = 5 * page })
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
	dead, err := Open(ctx, o)
	require.NoError(t, err)
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
	page := physicalPage(t)
	s, o := openNew(t, func(o *Options) { o.Local.BudgetBytes = 4 * page })
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
		gate := vfs.NewGate()
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile(o.Fingerprint.String()), Gate: gate})
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
	gate := vfs.NewGate()
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile("v1/" + o.Fingerprint.String() + "$"), Gate: gate})
	s, err := Open(ctx, o)
	require.NoError(t, err)
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
	page := physicalPage(t)
	inj := vfs.Inject(quickFS)
	o := testOptions(t, withFS(inj), func(o *Options) { o.Local.BudgetBytes = 4 * page })
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

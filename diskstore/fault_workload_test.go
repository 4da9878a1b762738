package diskstore

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// longRun reports whether tests run in their long form.
func longRun() bool { return os.Getenv("KVTIER_LONG") != "" }

// faults are the ways in which one operation of a filesystem can fail.
var faults = []struct {
	name string
	rule vfs.Rule
}{
	{"ENOSPC", vfs.Rule{Err: syscall.ENOSPC, Short: 100}},
	{"EIO", vfs.Rule{Err: syscall.EIO}},
	{"ESTALE", vfs.Rule{Err: syscall.ESTALE}},
	{"EDQUOT", vfs.Rule{Err: syscall.EDQUOT, Short: 5000}},
	{"EROFS", vfs.Rule{Err: syscall.EROFS}},
	{"EINTR", vfs.Rule{Err: syscall.EINTR}},
	{"short write", vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Err: io.ErrShortWrite, Short: 1000}},
	{"short read", vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: io.ErrUnexpectedEOF, Short: 100}},
	{"failed read", vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: syscall.EIO, Short: 100}},
	{"failed fsync", vfs.Rule{Ops: []vfs.Op{vfs.OpSync, vfs.OpSyncDir}, Err: syscall.EIO}},
	{"failed close", vfs.Rule{Ops: []vfs.Op{vfs.OpClose}, Err: syscall.EIO}},
}

// faultSections make a page small: thousands of them are written.
var faultSections = []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 16}, {Kind: pagefile.KindV, RowBytes: 16}}

// TestFaultAtEveryOperation runs a store's whole life over two tiers and makes each of its
// operations fail in turn, in the ways above. The long run tries every operation in every way,
// the normal run every operation in at least one way.
func TestFaultAtEveryOperation(t *testing.T) {
	statesOneByOne(t)
	t.Run("exact pages", func(t *testing.T) {
		page := physicalFaultPage(t)
		faultAtEveryOperation(t, 1, func(t *testing.T) *faultLife { return newFaultLife(t, page) })
	})
	t.Run("lossy pages", func(t *testing.T) {
		faultAtEveryOperation(t, 2, newLossyFaultLife)
	})
}

// faultAtEveryOperation tries one in share operations of a normal run.
func faultAtEveryOperation(t *testing.T, share int, newLife func(t *testing.T) *faultLife) {
	whole := newLife(t) // without a fault
	whole.live()
	did := whole.s.Stats()
	for what, n := range map[string]uint64{
		"put": did.Puts, "read": did.Hits, "demoted": did.Demoted, "promoted": did.Promoted, "evicted": did.Evicted, "quarantined": did.Damaged,
	} {
		require.NotZero(t, n, "no page was %s", what)
	}
	require.Equal(t, whole.o.Cold.on(), did.LossyPages > 0)
	whole.recover()
	var states atomic.Int64
	general := 0 // faults that can hit any operation
	for _, fault := range faults {
		if len(fault.rule.Ops) == 0 {
			general++
		}
	}
	t.Cleanup(func() { t.Logf("fault states: %d", states.Load()) })
	for i, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			stride := 1
			switch {
			case longRun():
			case len(fault.rule.Ops) == 0:
				stride = general
			default: // the operations between get another fault
				stride = 3
			}
			if !longRun() {
				stride *= share
			}
			for nth := 1 + i%stride; ; nth += stride {
				life := newLife(t)
				rule := fault.rule
				rule.Nth = nth
				life.inj.Add(rule)
				life.live()
				reached := life.inj.Count(rule.Ops...)
				life.inj.Reset()
				life.recover()
				states.Add(1)
				if nth > reached {
					break
				}
			}
		})
	}
}

// faultLife is the life of a store, and of later stores on the same roots.
type faultLife struct {
	t   *testing.T
	mem *vfs.Mem
	inj *vfs.Injector // over mem
	o   Options
	s   *Store // nil when the store could not be opened
	bad map[pagefile.Key]bool
}

func newFaultLife(t *testing.T, page int64) *faultLife {
	const root = string(filepath.Separator)
	mem := vfs.NewMem(1 << 30)
	inj := vfs.Inject(mem)
	o := Options{
		FS: inj, Fingerprint: testFingerprint(1), PageTokens: testTokens,
		ReadAheadBytes: plenty,
		Local:          TierConfig{Root: filepath.Join(root, "local"), BudgetBytes: 3 * page},
		Remote:         TierConfig{Root: filepath.Join(root, "remote"), BudgetBytes: 3 * page},
		RemoteTimeout:  time.Minute, ReadTimeout: time.Minute,
	}
	require.NoError(t, mem.Mkdir(o.Remote.Root))
	return &faultLife{t: t, mem: mem, inj: inj, o: o, bad: make(map[pagefile.Key]bool)}
}

// newLossyFaultLife is the life of a store that makes pages lossy. Its remote tier has room for two
// pages: three move down, and a collection that finds them evicts one whichever was used last.
func newLossyFaultLife(t *testing.T) *faultLife {
	const exact, lossy = 6 * pagefile.PageAlign, 4 * pagefile.PageAlign
	life := newFaultLife(t, exact)
	life.o.Cold = ColdTypes{encoding.Q4_0, encoding.Q4_0}
	life.o.Remote.BudgetBytes = 2 * lossy
	return life
}

// pageAt makes a page of a store's life.
func (f *faultLife) pageAt(parent pagefile.Key, start int, tokens []int32) *pagefile.Page {
	p := faultPage(f.t, parent, start, tokens)
	if f.o.Cold.on() {
		p.Layout = layoutOf(f.t, sectionsFor(f.o, faultSections), len(tokens))
		p.Payload = make([]byte, p.Layout.Size())
		coldFill(p.Layout, p.Key(), p.Payload)
	}
	return p
}

// faultPrompt is the tokens of a page and a tail.
func faultPrompt(seed int) []int32 { return prompt(seed, testTokens+5) }

// live opens a store and uses every function. Any operation may fail; none may panic, hang or
// return wrong rows.
func (f *faultLife) live() {
	s, err := Open(ctx, f.o)
	if err != nil {
		return
	}
	f.s = s
	a, b, c := faultPrompt(1), faultPrompt(2), prompt(3, testTokens)
	_ = f.put(a[:testTokens+3])
	_ = f.put(a) // with a tail that continues the previous one
	f.age()
	_ = f.put(b)
	f.flush() // demotes the pages beyond the budget
	f.read(a) // promotes it again
	f.age()
	_ = f.put(c)
	f.flush() // the remote tier is over its budget
	for _, ref := range s.Find(ctx, Prompt{Tokens: c, Forms: AnyForm}).Mixed {
		touch(s, ref)
	}
	f.damage(c)
	f.read(c) // quarantines
	f.read(c)
	_ = f.put(c)
	f.read(c)
	found, _ := recount(ctx, s)
	_, _ = s.Reclaim(ctx, found, func(FingerprintUsage) bool { return true })
	_, _ = s.Recent().ReadAhead(ctx)
	_ = s.Has(pageKeyOf(c))
	f.flush()
}

// open opens the store, without a fault.
func (f *faultLife) open() *Store {
	f.s = start(f.t, f.o)
	return f.s
}

// recover checks, without the fault, that only pages were lost.
func (f *faultLife) recover() {
	t := f.t
	if f.s == nil {
		f.open() // a failed Open keeps nothing from the next
	}
	f.s.guard.Breaker.Success()
	f.read(faultPrompt(1))
	f.read(faultPrompt(2))
	f.read(prompt(3, testTokens))
	f.flush() // promoted pages are older than the next ones
	fresh := faultPrompt(4)
	require.NoError(t, f.put(fresh), "later Puts work")
	require.Equal(t, len(fresh), f.read(fresh))
	f.flush()
	require.NoError(t, f.s.local.room.Collect(ctx, room.Demand{}))
	require.NoError(t, f.s.remote.room.Collect(ctx, room.Demand{}))
	f.requireExact()
	require.NoError(t, f.s.Close())

	// The next process finds whole pages and no leftover files.
	f.o.FS = f.mem
	s := f.open()
	f.flush()
	_, err := recount(ctx, s) // the ledger knows the bytes, and no count has given the number of files
	require.NoError(t, err)
	f.demoteOne()
	f.requireExact()
	for _, root := range []string{f.o.Local.Root, f.o.Remote.Root} {
		found := f.walk(root)
		require.Empty(t, found.temps, "temporary files are cleaned")
		for path, key := range found.placed {
			if _, err := verifyFile(ctx, f.mem, path); err != nil {
				require.True(t, f.bad[key], "%v", err)
			}
		}
	}
	require.NoError(t, s.Close())
}

// walk reads the files below a root, without faults.
func (f *faultLife) walk(root string) tree {
	found, err := walk(f.mem, root)
	require.NoError(f.t, err)
	return found
}

// put stores a chain of small pages and returns the first error.
func (f *faultLife) put(tokens []int32) error {
	var first error
	parent := f.o.Fingerprint
	for at := 0; at < len(tokens); at += testTokens {
		p := f.pageAt(parent, at, tokens[at:min(at+testTokens, len(tokens))])
		if err := f.s.Put(ctx, p); err != nil && first == nil {
			first = err
		}
		parent = p.Key()
	}
	return first
}

func faultPage(t testing.TB, parent pagefile.Key, start int, tokens []int32) *pagefile.Page {
	return withSections(t, parent, start, tokens, faultSections)
}

// pageKeyOf returns the key of the first page of tokens.
func pageKeyOf(tokens []int32) pagefile.Key {
	return pagefile.ChainKey(testFingerprint(1), tokens[:testTokens], nil)
}

// physicalFaultPage returns the disk space of one page.
func physicalFaultPage(t *testing.T) int64 {
	s := open(t, testOptions(t, withFS(vfs.NewMem(1<<30)), func(o *Options) {
		o.Local.Root = string(filepath.Separator) + "local"
	}))
	require.NoError(t, s.Put(ctx, faultPage(t, s.opt.Fingerprint, 0, prompt(1, testTokens))))
	return s.Stats().Local.Bytes
}

// read reads the pages found of tokens, checks the rows, and returns the number of right
// tokens.
func (f *faultLife) read(tokens []int32) int {
	f.t.Helper()
	n := 0
	for _, ref := range f.s.Find(ctx, Prompt{Tokens: tokens, Forms: AnyForm}).Mixed {
		l := layoutOf(f.t, sectionsFor(f.o, faultSections), ref.Stored)
		buf := make([]byte, l.Size())
		if f.s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Rows: buf}) != nil {
			continue
		}
		require.Equal(f.t, f.rowsOf(ref, l), buf)
		n += ref.Tokens
	}
	return n
}

// rowsOf are the rows of the page of a ref.
func (f *faultLife) rowsOf(ref Ref, l pagefile.Layout) []byte {
	p := &pagefile.Page{Layout: l, Payload: make([]byte, l.Size())}
	switch {
	case ref.Lossy:
		coldFill(l, ref.Key, p.Payload)
		return lossyRows(f.t, p, f.o.Cold)
	case f.o.Cold.on():
		coldFill(l, ref.Key, p.Payload)
	default:
		fillRows(l, ref.Key, p.Payload)
	}
	return p.Payload
}

// age makes every file look unused for an hour, so that later pages are younger and are
// touched by reads.
func (f *faultLife) age() {
	f.flush()
	past := time.Now().Add(-time.Hour)
	for _, root := range []string{f.o.Local.Root, f.o.Remote.Root} {
		for path := range f.walk(root).placed {
			require.NoError(f.t, f.mem.Chtimes(path, past, past))
		}
	}
}

func (f *faultLife) flush() { require.NoError(f.t, f.s.Flush(ctx)) }

// damage flips a bit in the first page of tokens, in any tier.
func (f *faultLife) damage(tokens []int32) {
	key := pageKeyOf(tokens)
	for _, root := range []string{f.o.Local.Root, f.o.Remote.Root} {
		for _, name := range []pagefile.Name{f.s.pages.Page(key), pagefile.ColdName(f.s.pages.Page(key))} {
			err := f.mem.Edit(filePath(root, name), func(data []byte) []byte {
				data[len(data)-pagefile.FooterBytes-1] ^= 1
				return data
			})
			if err != nil {
				continue // that Put failed, or another tier has the page
			}
			f.bad[key] = true
		}
	}
}

// demoteOne moves the youngest page down, so that the remote tier has at least one write.
func (f *faultLife) demoteOne() {
	t := f.t
	p := f.pageAt(f.o.Fingerprint, 0, prompt(5, testTokens))
	require.NoError(t, f.s.Put(ctx, p))
	f.flush()
	info := mustStat(t, f.s.disk, f.s.pages.Page(p.Key()))
	if there, err := f.s.pages.Stat(ctx, f.s.remote.tier, info.Key); err == nil { // an existing copy would not be written again
		dropPage(t, f.s.remote, there)
	}
	evictPage(t, f.s, info)
	there, err := f.s.pages.Stat(ctx, f.s.remote.tier, info.Key)
	require.NoError(t, err)
	require.Equal(t, f.o.Cold.on(), there.Fingerprint != info.Fingerprint)
}

// requireExact fails unless both tiers hold the files that the store has counted.
func (f *faultLife) requireExact() {
	f.t.Helper()
	f.flush()
	before := f.s.Stats().Remote
	requireExact(f.t, f.s)
	if before.Pages+before.Tails > 0 { // counted before
		require.Equal(f.t, f.s.Stats().Remote.Bytes, before.Bytes)
	}
}

// TestFaultyRemoteOpensItsBreaker makes every operation of the remote tier fail for a while,
// and then none.
func TestFaultyRemoteOpensItsBreaker(t *testing.T) {
	page := physicalFaultPage(t)
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ESTALE, syscall.EINTR, syscall.EACCES, syscall.ENOTCONN} {
		t.Run(fmt.Sprint(errno), func(t *testing.T) {
			life := newFaultLife(t, page)
			s := life.open()
			tokens := prompt(1, 3*testTokens)
			require.NoError(t, life.put(tokens))
			life.flush()

			remote := regexp.MustCompile("^" + regexp.QuoteMeta(life.o.Remote.Root))
			life.inj.Reset()
			life.inj.Add(vfs.Rule{Path: remote, Err: errno})
			for seed := range 2 * failuresToOpen {
				s.Find(ctx, Prompt{Tokens: prompt(100+seed, testTokens)}) // calls the remote tier
			}
			require.True(t, s.Stats().Remote.Down)
			asked := life.inj.Count()
			require.NoError(t, life.put(prompt(2, 2*testTokens)), "the local tier goes on")
			life.flush()
			require.Equal(t, 2*testTokens, life.read(prompt(2, 2*testTokens)))
			require.NotZero(t, asked)
			require.NotZero(t, s.Stats().TierErrors)

			// While the breaker is open no operation reaches the tier; a failed probe keeps
			// the breaker open.
			for range 3 {
				askAgain(s)
				s.Find(ctx, Prompt{Tokens: prompt(200, testTokens)})
				require.True(t, s.Stats().Remote.Down)
			}
			life.inj.Reset()
			askAgain(s)
			s.Find(ctx, Prompt{Tokens: prompt(200, testTokens)})
			require.False(t, s.Stats().Remote.Down)
			life.demoteOne()
			life.requireExact()
			require.NoError(t, s.Close())
		})
	}
}

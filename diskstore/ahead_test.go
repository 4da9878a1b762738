package diskstore

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func withAhead(bytes int64) func(*Options) { return func(o *Options) { o.ReadAheadBytes = bytes } }

// setUsed sets the recency of a stored chain to that of a chain last used at used.
func setUsed(t *testing.T, s *Store, lv *level, tokens []int32, used time.Time) {
	t.Helper()
	for _, name := range namesOf(s, tokens) {
		at := uint32(0)
		if name.Class == pagefile.ClassTail {
			at = uint32(len(tokens) / testTokens * testTokens)
		} else {
			for i, page := range namesOf(s, tokens) {
				if page == name {
					at = uint32(i * testTokens)
				}
			}
		}
		require.NoError(t, lv.tier.Touch(ctx, name, recency.Of(used, at)))
	}
}

// namesOf returns the names of the pages and the tail that hold tokens, in order.
func namesOf(s *Store, tokens []int32) []pagefile.Name {
	names := s.lookup.chainNames(Prompt{Parent: s.opt.Fingerprint, Tokens: tokens})
	parent := s.opt.Fingerprint
	if len(names) > 0 {
		parent = names[len(names)-1].Key
	}
	if rest := tokens[len(names)*testTokens:]; len(rest) > 0 {
		names = append(names, s.pages.Tail(pagefile.ChainKey(parent, rest, nil)))
	}
	return names
}

// conversations stores chains of two pages and a tail, the first one used last, and returns
// their tokens.
func conversations(t *testing.T, o Options, n int) [][]int32 {
	t.Helper()
	s := open(t, o)
	var all [][]int32
	for seed := range n {
		all = append(all, prompt(seed, 2*testTokens+3))
	}
	for i, tokens := range all {
		putChain(t, s, tokens)
		setUsed(t, s, s.local, tokens, time.Now().Add(-time.Duration(i+1)*time.Hour))
	}
	require.NoError(t, s.Close())
	return all
}

// readLog records the files that are read, each once, in the order of their first bytes.
type readLog struct {
	mu    sync.Mutex
	paths []string
}

func (l *readLog) watch(op vfs.Op, paths ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if op == vfs.OpRead && strings.HasSuffix(paths[0], dir.PageExt) && (len(l.paths) == 0 || l.paths[len(l.paths)-1] != paths[0]) {
		l.paths = append(l.paths, paths[0])
	}
}

// in returns the paths read below a root, relative to its pages.
func (l *readLog) in(t *testing.T, root string) (rel []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, path := range l.paths {
		r, err := filepath.Rel(filepath.Join(root, storetest.VersionDir), path)
		require.NoError(t, err)
		if !strings.HasPrefix(r, "..") {
			rel = append(rel, r)
		}
	}
	return rel
}

func relsOf(names []pagefile.Name) (rel []string) {
	for _, name := range names {
		path, _ := filepath.Rel(storetest.VersionDir, filePath("", name))
		rel = append(rel, path)
	}
	return rel
}

// The conversation used last comes first, from its first page to its tail, with pages in
// memory or without; pages of other fingerprints are not read.
func TestReadAheadOrder(t *testing.T) {
	for _, ram := range []int64{0, plenty} {
		o, inj := injected(t, withAhead(plenty), withRAM(ram))
		all := conversations(t, o, 3)
		other := o
		other.Fingerprint = testFingerprint(2)
		conversations(t, other, 2)

		var log readLog
		s := start(t, o)
		inj.Watch(log.watch)
		got := aheadOf(t, s)
		var want []string
		for _, tokens := range all {
			want = append(want, relsOf(namesOf(s, tokens))...)
		}
		require.Equal(t, want, log.in(t, o.Local.Root))
		require.Equal(t, 9, got.Pages)
		require.EqualValues(t, 9, s.Stats().AheadPages)
		require.EqualValues(t, got.Bytes, s.Stats().AheadBytes)
		require.Equal(t, ram > 0, got.RAM)
		if ram > 0 {
			require.Equal(t, got.Bytes, s.Stats().RAM.Bytes)
			require.Equal(t, repeat(tier.RAM, 3), tiersOf(s.Find(ctx, Prompt{Tokens: all[2]}).Exact))
		}
		again := aheadOf(t, s)
		require.Zero(t, again.Pages, "once")
		for i, tokens := range all { // no page counts as used
			info := mustStat(t, s.disk, namesOf(s, tokens)[0])
			require.WithinDuration(t, time.Now().Add(-time.Duration(i+1)*time.Hour), info.Used, time.Minute)
			readChain(t, s, tokens, len(tokens))
		}
		require.NoError(t, s.Close())
	}
}

// The bytes read never exceed the budget, and reading ends at the first page that does not
// fit: later pages of the chain are useless without that page.
func TestReadAheadBudgetIsExact(t *testing.T) {
	o := testOptions(t)
	all := conversations(t, o, 2)
	s := open(t, o)
	var sizes []int64
	for _, tokens := range all {
		for _, name := range namesOf(s, tokens) {
			info := mustStat(t, s.disk, name)
			sizes = append(sizes, info.Bytes)
		}
	}
	total := int64(0)
	for i, size := range sizes {
		for _, c := range []struct {
			budget int64
			want   int
		}{{total + size - 1, i}, {total + size, i + 1}} {
			o.ReadAheadBytes = c.budget
			s := open(t, o)
			got := aheadOf(t, s)
			require.Equal(t, c.want, got.Pages, "%d bytes", c.budget)
			require.LessOrEqual(t, got.Bytes, c.budget)
		}
		total += size
	}
	o.ReadAheadBytes = 0
	got, err := open(t, o).Recent().ReadAhead(ctx)
	require.NoError(t, err)
	require.Zero(t, got)
}

// The most recent pages get the free part of a small memory: no page in memory is evicted for
// them, and they are evicted first.
func TestReadAheadIntoMemoryEvictsNothing(t *testing.T) {
	page := pageBytes(t, testTokens)
	o := testOptions(t)
	all := conversations(t, o, 3)
	withRAM(3*page + page/2)(&o)
	o.ReadAheadBytes = plenty
	s := open(t, o)
	asked := prompt(9, testTokens)
	putChain(t, s, asked)
	got := aheadOf(t, s)
	require.Equal(t, 2, got.Pages)
	require.Equal(t, 3*page, s.Stats().RAM.Bytes)
	require.Equal(t, []string{tier.RAM, tier.RAM, tier.Local}, tiersOf(s.Find(ctx, Prompt{Tokens: all[0]}).Exact))
	require.Equal(t, []string{tier.RAM}, tiersOf(s.Find(ctx, Prompt{Tokens: asked}).Exact))

	putChain(t, s, prompt(10, testTokens))
	require.Equal(t, []string{tier.RAM, tier.Local, tier.Local}, tiersOf(s.Find(ctx, Prompt{Tokens: all[0]}).Exact), "the last pages of the chain are evicted")
	require.Equal(t, []string{tier.RAM}, tiersOf(s.Find(ctx, Prompt{Tokens: asked}).Exact))
}

// A file that cannot be used is skipped; damage is found where pages are decoded.
func TestReadAheadPassesOverWhatIsNoGood(t *testing.T) {
	o := testOptions(t, withAhead(plenty), withRAM(plenty))
	all := conversations(t, o, 2)
	s := open(t, o)
	names := namesOf(s, all[0])
	path := filePath(o.Local.Root, names[1])
	data := fileOf(t, path)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
	setUsed(t, s, s.local, all[0], time.Now().Add(-time.Minute))
	require.NoError(t, os.Remove(filePath(o.Local.Root, namesOf(s, all[1])[0])))
	require.NoError(t, s.Close())

	s = open(t, o)
	require.NoError(t, os.Remove(filePath(o.Local.Root, namesOf(s, all[1])[1]))) // after the listing
	got := aheadOf(t, s)
	require.Equal(t, 3, got.Pages)
	require.EqualValues(t, 1, s.Stats().Damaged)
	require.NoFileExists(t, path)
	readChain(t, s, all[0], testTokens)
}

// moveToRemote moves the files of a chain from the local root to the remote one.
func moveToRemote(t *testing.T, o Options, names []pagefile.Name) {
	t.Helper()
	for _, name := range names {
		to := filePath(o.Remote.Root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
		require.NoError(t, os.Rename(filePath(o.Local.Root, name), to))
	}
}

// Pages that only the remote tier holds are copied up after the local pages were read, in the
// order of recency, into free room only.
func TestReadAheadPromotes(t *testing.T) {
	page := physicalPage(t)
	for _, ram := range []int64{0, plenty} {
		o := testOptions(t, withRemote(t), withAhead(plenty), withRAM(ram))
		all := conversations(t, o, 3)
		s := open(t, o)
		moveToRemote(t, o, namesOf(s, all[1]))
		require.NoError(t, s.Close())

		s = open(t, o)
		got := aheadOf(t, s)
		require.Equal(t, 9, got.Pages)
		require.Equal(t, 3, got.Promoted)
		require.EqualValues(t, 3, s.Stats().Promoted)
		for _, name := range namesOf(s, all[1]) {
			info := mustStat(t, s.disk, name)
			require.WithinDuration(t, time.Now().Add(-2*time.Hour), info.Used, time.Minute)
		}
		requireOrdered(t, s)
		readChain(t, s, all[1], len(all[1]))
		require.NoError(t, s.Close())
	}

	// There is room for only one of the three.
	o := testOptions(t, withRemote(t), withAhead(plenty))
	all := conversations(t, o, 3)
	s := open(t, o)
	moveToRemote(t, o, namesOf(s, all[2]))
	require.NoError(t, s.Close())
	o.Local.BudgetBytes = (s.Stats().Local.Bytes - 3*page) + page + page/2
	s = open(t, o)
	before := s.Stats().Local
	require.NotZero(t, before.Pages)
	got := aheadOf(t, s)
	require.LessOrEqual(t, got.Promoted, 1)
	require.NoError(t, s.Flush(ctx))
	require.Zero(t, s.Stats().Evicted+s.Stats().Demoted, "no page is evicted for a page that is read ahead")
	for _, tokens := range all[:2] {
		readChain(t, s, tokens, len(tokens))
	}
}

// A remote tier that hangs costs at most its time limit, and the local pages are read
// nevertheless.
func TestReadAheadWithARemoteThatHangs(t *testing.T) {
	o, inj := injected(t, withRemote(t), withAhead(plenty))
	all := conversations(t, o, 4)
	s := open(t, o)
	for _, tokens := range all[2:] {
		moveToRemote(t, o, namesOf(s, tokens))
	}
	require.NoError(t, s.Close())
	o.RemoteTimeout, o.ReadTimeout = 5*time.Millisecond, 5*time.Millisecond
	for _, ops := range [][]vfs.Op{nil, {vfs.OpOpen}, {vfs.OpRead}} { // every operation, or those after the listing
		gate := vfs.NewGate()
		defer gate.Open()
		s := start(t, o)
		if ops != nil {
			require.NoError(t, s.Flush(ctx))
		}
		inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)), Ops: ops, Gate: gate})
		got := aheadOf(t, s)
		require.Equal(t, 6, got.Pages, "%v", ops)
		require.Zero(t, got.Promoted)
		closeInTime(t, s)
		gate.Open()
		inj.Reset()
	}
}

// Close ends ReadAhead, and so does its context.
func TestReadAheadEnds(t *testing.T) {
	for _, byClose := range []bool{true, false} {
		o := testOptions(t, withAhead(plenty))
		conversations(t, o, 2)
		s := start(t, o)
		require.NoError(t, s.Flush(ctx))
		leave := s.traffic.Enter() // a Read that does not end
		aheadCtx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			_, err := s.Recent().ReadAhead(aheadCtx)
			done <- err
		}()
		require.Eventually(t, func() bool { return s.life.Running() == 1 }, time.Minute, time.Millisecond, "ReadAhead has begun")
		if byClose {
			closeInTime(t, s)
		} else {
			cancel()
		}
		require.ErrorIs(t, <-done, context.Canceled)
		cancel()
		leave()
		require.NoError(t, s.Close())
		_, err := s.Recent().ReadAhead(ctx)
		require.ErrorIs(t, err, tier.ErrClosed)
	}
}

// ReadAhead waits while a Read runs: within its time limit nothing is read.
func TestReadAheadStandsBack(t *testing.T) {
	for _, ram := range []int64{0, plenty} {
		o, inj := injected(t, withAhead(plenty), withRAM(ram))
		all := conversations(t, o, 2)
		s := start(t, o)
		require.NoError(t, s.Flush(ctx))

		gate := vfs.NewGate()
		path := regexp.MustCompile(namesOf(s, all[1])[0].Key.String())
		inj.Add(vfs.Rule{Path: path, Ops: []vfs.Op{vfs.OpRead}, Gate: gate})
		read := make(chan struct{})
		go func() {
			defer close(read)
			readChain(t, s, all[1], len(all[1]))
		}()
		<-gate.Entered()
		limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		got, err := s.Recent().ReadAhead(limited)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, got.Pages)
		gate.Open()
		<-read
		require.NoError(t, s.Close())
	}
}

// A file that is read ahead stands back before each piece.
func TestPiecesStandBack(t *testing.T) {
	var tr work.Traffic
	leave := tr.Enter()
	s := open(t, testOptions(t))
	putChain(t, s, prompt(1, testTokens))
	blob, err := yieldingTier{s.disk, &tr}.Open(ctx, namesOf(s, prompt(1, testTokens))[0], false)
	require.NoError(t, err)
	defer blob.Close()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, blob.ReadAt(ended, make([]byte, 4), 0), context.Canceled)
	done := make(chan error, 1)
	go func() { done <- blob.ReadAt(ctx, make([]byte, 4), 0) }()
	leave()
	require.NoError(t, <-done)
}

// The load of a model lists each root, and each directory of pages, once.
func TestModelStartListsOnce(t *testing.T) {
	o, inj := injected(t, withRemote(t), withAhead(plenty), func(o *Options) {
		o.Local.BudgetBytes, o.LatestPages = 1<<30, 100
	})
	all := conversations(t, o, 3)
	other := o
	other.Fingerprint = testFingerprint(2)
	conversations(t, other, 1)
	before := open(t, o)
	demoteAnew(t, before, prompt(9, testTokens))
	require.NoError(t, before.Close())
	listed := make(map[string]int)
	var mu sync.Mutex
	inj.Watch(func(op vfs.Op, paths ...string) {
		mu.Lock()
		defer mu.Unlock()
		dir := filepath.Base(paths[0])
		if op == vfs.OpReadDir && dir != storetest.TmpDir && dir != storetest.QuarantineDir {
			listed[paths[0]]++
		}
	})
	s := start(t, o)
	use, err := s.Survey(ctx)
	require.NoError(t, err)
	require.Equal(t, 6, use.Local.Pages)
	require.Equal(t, 3, use.Local.Tails)
	require.Len(t, use.Local.Others, 1)
	_, err = s.Reclaim(ctx, use, func(FingerprintUsage) bool { return false })
	require.NoError(t, err)
	aheadOf(t, s)
	latest, err := s.Recent().Pages(ctx)
	require.NoError(t, err)
	require.Len(t, latest, 7, "of both tiers")
	require.NoError(t, s.Flush(ctx))
	mu.Lock()
	for _, root := range []string{o.Local.Root, o.Remote.Root} {
		require.Contains(t, listed, filepath.Join(root, storetest.VersionDir))
	}
	for dir, n := range listed {
		require.Equal(t, 1, n, dir)
	}
	mu.Unlock()

	// Survey does not see later changes; a new count does.
	putChain(t, s, prompt(20, testTokens))
	again, err := s.Survey(ctx)
	require.NoError(t, err)
	require.Equal(t, use.Local, again.Local)
	scanned := scan(t, s)
	require.Equal(t, use.Local.Pages+2, scanned.Local.Pages, "one was read ahead from the remote tier")
	latest, err = s.Recent().Pages(ctx)
	require.NoError(t, err)
	require.Empty(t, latest, "taken already")
	readChain(t, s, all[0], len(all[0]))
	require.NoError(t, s.Close())
}

// TestLocalCountDoesNotWaitForTheRemote: the count of the local tier that Open began has
// failed, and the count of the remote tier hangs. awaitFirst counts the local tier itself.
func TestLocalCountDoesNotWaitForTheRemote(t *testing.T) {
	o, inj := injected(t, withRemote(t))
	before := open(t, o)
	demoteAnew(t, before, prompt(1, testTokens))
	putChain(t, before, prompt(2, testTokens))
	require.NoError(t, before.Close())

	gate := hold(inj, vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root))})
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Local.Root)), Err: syscall.EIO})
	s := start(t, o)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	t.Cleanup(gate.Open)
	<-gate.Entered()
	inj.Reset()
	patience, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	found, err := s.local.files.AwaitFirst(patience, s.local.counting...)
	require.NoError(t, err)
	require.Equal(t, 1, found.Fingerprints[o.Fingerprint].Pages)
}

package diskstore

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// badMachine is a filesystem whose files below a directory are good and are read wrong: one
// bit of every read past the header flips. With cached, reads are wrong only while a file is
// in the machine's cache, from the first read on.
type badMachine struct {
	vfs.FS
	below  string
	cached bool

	mu    *sync.Mutex
	fresh map[string]bool // files that were removed from the cache
}

func newBadMachine(below string, cached bool) badMachine {
	return badMachine{quickFS, below, cached, new(sync.Mutex), make(map[string]bool)}
}

func (m badMachine) Open(name string) (vfs.File, error) {
	f, err := m.FS.Open(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || !strings.HasPrefix(name, m.below) || filepath.Ext(name) != dir.PageExt || m.cached && m.fresh[name] {
		return f, err
	}
	return flippedFile{f}, nil
}

func (m badMachine) Uncache(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fresh[name] = true
	return nil
}

type flippedFile struct{ vfs.File }

func (f flippedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if (off > 0 || n > pagefile.PageAlign) && (err == nil || err == io.EOF) {
		p[n/2] ^= 4
	}
	return n, err
}

// sharedByABadMachine stores prompts in a remote tier and opens a store on a machine that
// reads that tier wrong.
func sharedByABadMachine(t *testing.T, prompts int, edit ...func(*Options)) (good Options, bad *Store) {
	good = testOptions(t)
	s := open(t, good)
	putPages(t, s, 0, prompts)
	require.NoError(t, s.Close())
	o := testOptions(t, append([]func(*Options){withFS(newBadMachine(good.Local.Root, false))}, edit...)...)
	o.RemoteTimeout, o.ReadTimeout = time.Minute, time.Minute
	o.Remote.Root = good.Local.Root
	return good, open(t, o)
}

// readAll reads the pages that a store finds of the first prompts, and returns the number of
// pages read and the number found.
func readAll(t *testing.T, s *Store, prompts int) (read, found int) {
	t.Helper()
	for i := range prompts {
		tokens := prompt(i, testTokens)
		for _, ref := range s.Find(ctx, Prompt{Tokens: tokens}).Exact {
			found++
			if readError(t, s, ref, tokens) == nil {
				read++
			}
		}
	}
	return read, found
}

// TestOneBadReaderDoesNotEmptyASharedTier: a machine with bad memory, or a bad network card,
// reads every page wrong that all other machines read well.
func TestOneBadReaderDoesNotEmptyASharedTier(t *testing.T) {
	const prompts = 40
	good, bad := sharedByABadMachine(t, prompts)
	read, found := readAll(t, bad, prompts)
	require.Zero(t, read)
	require.Equal(t, prompts, found)
	_, found = readAll(t, bad, prompts)
	require.Zero(t, found, "the machine does not return pages that it could not read")
	require.NoError(t, bad.Close())

	aside := filesIn(t, filepath.Join(good.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt)
	require.LessOrEqual(t, len(aside), checked.CondemnedRemote)
	s := open(t, good)
	read, found = readAll(t, s, prompts)
	require.Equal(t, prompts, read+len(aside), "nothing is deleted")
	require.Equal(t, read, found)
}

// TestBadLocalReaderKeepsThePages: a bad machine and its own disk.
func TestBadLocalReaderKeepsThePages(t *testing.T) {
	const prompts = 3 * storetest.MaxQuarantined
	s, o := openNew(t)
	putPages(t, s, 0, prompts)
	require.NoError(t, s.Close())
	bad := o
	bad.FS = newBadMachine(o.Local.Root, false)
	var log strings.Builder
	bad.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s = open(t, bad)
	readAll(t, s, prompts)
	require.EqualValues(t, prompts, s.Stats().Damaged)
	require.NoError(t, s.Close())
	require.Equal(t, 1, strings.Count(log.String(), "too often on this machine"))

	s = open(t, o)
	read, _ := readAll(t, s, prompts)
	require.Equal(t, prompts-storetest.MaxQuarantined, read)
	require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt), storetest.MaxQuarantined)
}

// TestPageReadWrongFromTheCacheIsReadAgain: only this machine's cached copy is bad.
func TestPageReadWrongFromTheCacheIsReadAgain(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	tokens := prompt(1, 2*testTokens+3) // with a tail, whose header Chain reads
	putChain(t, s, tokens)
	require.NoError(t, s.Close())

	var log strings.Builder
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	o.FS = newBadMachine(o.Local.Root, true)
	s = open(t, o)
	readChain(t, s, tokens, len(tokens))
	require.Zero(t, s.Stats().Damaged)
	require.NoDirExists(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir))
	require.Equal(t, 1, strings.Count(log.String(), "read wrong once"))

	// A demotion reads the pages, too.
	o.FS = newBadMachine(o.Local.Root, true)
	s = reopen(t, s, o)
	evictPage(t, s, mustStat(t, s.disk, s.Find(ctx, Prompt{Tokens: tokens}).Exact[1].name(s.pages)))
	require.EqualValues(t, 1, s.Stats().Demoted)
}

// fillQuarantine moves as many files to quarantine as it keeps.
func fillQuarantine(t *testing.T, root string) {
	t.Helper()
	folder := filepath.Join(root, storetest.VersionDir, storetest.QuarantineDir)
	require.NoError(t, os.MkdirAll(folder, 0o700))
	for i := range storetest.MaxQuarantined {
		require.NoError(t, os.WriteFile(filepath.Join(folder, string(rune('a'+i))+dir.PageExt), nil, 0o600))
	}
}

// TestDirectoryInAPagesPlaceMakesWay: in both tiers, even with a full quarantine, a directory
// in a page's place is moved to quarantine with its content: no file is deleted.
func TestDirectoryInAPagesPlaceMakesWay(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	p := pageOf(t, o.Fingerprint, 0, prompt(1, testTokens))
	for _, root := range []string{o.Local.Root, o.Remote.Root} {
		fillQuarantine(t, root)
		path := filePath(root, s.pages.Page(p.Key()))
		require.NoError(t, os.MkdirAll(path, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(path, "somebody's"), nil, 0o600))
	}
	require.NoError(t, s.Put(ctx, p))
	info := mustStat(t, s.disk, s.pages.Page(p.Key()))
	require.NoError(t, s.demote(ctx, info))
	require.False(t, s.Stats().Remote.Down)
	dropPage(t, s.local, info)
	readChain(t, s, p.Tokens, testTokens)
	for _, root := range []string{o.Local.Root, o.Remote.Root} {
		folder := filepath.Join(root, storetest.VersionDir, storetest.QuarantineDir)
		aside, err := filepath.Glob(filepath.Join(folder, "*notregular*", "somebody's"))
		require.NoError(t, err)
		require.Len(t, aside, 1)
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Len(t, entries, storetest.MaxQuarantined+1)
	}
	require.NoError(t, s.Flush(ctx))
}

// TestPutReplacesAFileThatStaysThoughItIsBad: a damaged file that cannot be moved to
// quarantine counts as not stored, so that its page can be stored.
func TestPutReplacesAFileThatStaysThoughItIsBad(t *testing.T) {
	s, o := openNew(t)
	tokens := prompt(0, testTokens)
	p := putChain(t, s, tokens)[0]
	fillQuarantine(t, o.Local.Root)
	path := filePath(o.Local.Root, s.pages.Page(p.Key()))
	flipAt(t, path, -pagefile.FooterBytes-1)
	data := fileOf(t, path)

	other, err := os.Open(path) // a reader has the file open meanwhile
	require.NoError(t, err)
	defer other.Close()
	read, found := readAll(t, s, 1)
	require.Equal(t, []int{0, 1}, []int{read, found})
	require.FileExists(t, path)
	require.False(t, s.Has(p.Key()), "the page is not stored")
	require.Empty(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact)
	require.NoError(t, s.Put(ctx, p))
	require.True(t, s.Has(p.Key()))
	readChain(t, s, tokens, testTokens)
	was := make([]byte, len(data))
	_, err = other.ReadAt(was, 0)
	require.NoError(t, err)
	require.Equal(t, data, was, "an open file stays as it was")
	require.Equal(t, 1, s.Stats().Local.Pages)
	require.NoError(t, s.local.book.Record(ctx))
	l, err := s.local.book.Read(ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, l.Figure(), occupied(t, o.Local.Root))
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), fi.ModTime(), time.Minute)
}

// TestPutOfABadPageIsGoodThoughItLooksTheSame: the new page continues a page used within the
// last minute, so its file has the bad file's time and length.
func TestPutOfABadPageIsGoodThoughItLooksTheSame(t *testing.T) {
	s := open(t, testOptions(t))
	now := time.Now()
	s.now = func() time.Time { return now }
	p := putChain(t, s, prompt(1, 2*testTokens))[1]
	bad := mustStat(t, s.disk, s.pages.Page(p.Key()))
	s.local.checked.Bad.Note(bad, 0)
	require.False(t, s.Has(p.Key()))
	require.NoError(t, s.Put(ctx, p))
	info := mustStat(t, s.disk, bad.Name)
	require.Equal(t, bad.Bytes, info.Bytes)
	require.True(t, bad.Used.Equal(info.Used))
	require.True(t, s.Has(p.Key()))
	readChain(t, s, prompt(1, 2*testTokens), 2*testTokens)
}

// TestBadCopyInTheRemoteTierIsNotWrittenOver: a machine that reads every page wrong, even
// after few reads, replaces no remote copy: its local page is more likely to be bad. A log
// line names the machine at the fifth page that failed.
func TestBadCopyInTheRemoteTierIsNotWrittenOver(t *testing.T) {
	for _, readFirst := range []int{0, checked.CondemnedRemote, 2 * checked.CondemnedRemote} {
		const prompts = 2 * checked.CondemnedRemote
		var log strings.Builder
		good, bad := sharedByABadMachine(t, prompts, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		read, found := readAll(t, bad, readFirst)
		require.Equal(t, []int{0, readFirst}, []int{read, found})
		require.Equal(t, readFirst > checked.CondemnedRemote, strings.Contains(log.String(), "too often on this machine"))
		written := 0
		for i := range prompts {
			name := bad.pages.Page(pageOf(t, bad.opt.Fingerprint, 0, prompt(i, testTokens)).Key())
			was, lerr := os.Lstat(filePath(good.Local.Root, name))
			putChain(t, bad, prompt(i, testTokens))
			local := mustStat(t, bad.disk, name)
			if err := bad.demote(ctx, local); err == nil {
				written++
				continue
			}
			require.NoError(t, lerr)
			fi, err := os.Lstat(filePath(good.Local.Root, name))
			require.NoError(t, err)
			require.True(t, os.SameFile(was, fi))
		}
		require.Equal(t, 1, written, "only the page in quarantine, found before any other failure")
		require.Len(t, filesIn(t, filepath.Join(good.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt), 1)
		require.Equal(t, 1, strings.Count(log.String(), "too often on this machine"), "%s", log.String())
	}
}

// TestBadPageThatStaysMakesRoom: a bad local page, in a process that moves no further page to
// quarantine, is deleted when its room is needed.
func TestBadPageThatStaysMakesRoom(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	p := putChain(t, s, prompt(0, testTokens))[0]
	info := mustStat(t, s.disk, s.pages.Page(p.Key()))
	path := filePath(o.Local.Root, info.Name)
	flipAt(t, path, -pagefile.FooterBytes-1)
	info = mustStat(t, s.disk, info.Name)
	for range checked.CondemnedLocal + 1 {
		s.local.checked.Bad.MayCondemn()
	}

	removed, err := s.local.room.Evict(ctx, info, false)
	require.NoError(t, err)
	require.Zero(t, removed.Bytes)
	require.FileExists(t, path)
	removed, err = s.local.room.Evict(ctx, info, true)
	require.NoError(t, err)
	require.Equal(t, info.Bytes, removed.Bytes)
	require.NoFileExists(t, path)
	require.EqualValues(t, 1, s.Stats().Evicted)
}

// TestDropQuarantined: no page of a removed model stays in quarantine, and pages known to be
// other models' stay.
func TestDropQuarantined(t *testing.T) {
	o := testOptions(t)
	pages := putChain(t, open(t, o), prompt(1, 2*testTokens))
	other := o
	other.Fingerprint = testFingerprint(2)
	s := open(t, other)
	theirs := putChain(t, s, prompt(7, testTokens))[0]
	r := openRoot(t, o)
	at := func(o Options, p *pagefile.Page) string {
		return filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassPage, Key: p.Key()})
	}
	flipAt(t, at(o, pages[0]), 4200)   // ours, by its header
	flipAt(t, at(o, pages[1]), 60)     // its header is damaged
	flipAt(t, at(other, theirs), 4200) // the other model's
	require.NoError(t, repair(r))
	quarantine := filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir)
	require.Len(t, filesIn(t, quarantine, dir.PageExt), 3)
	ours := func(fp pagefile.Key) bool { return fp == o.Fingerprint }

	drops, err := r.DropQuarantined(ctx, ours, true)
	require.NoError(t, err)
	require.Equal(t, 2, drops[0].Files)
	require.Len(t, filesIn(t, quarantine, dir.PageExt), 3)
	drops, err = r.DropQuarantined(ctx, ours, false)
	require.NoError(t, err)
	require.Equal(t, 2, drops[0].Files)
	left := filesIn(t, quarantine, dir.PageExt)
	require.Len(t, left, 1)
	require.Contains(t, left[0], theirs.Key().String())
	drops, err = r.DropQuarantined(ctx, ours, false)
	require.NoError(t, err)
	require.Equal(t, []QuarantineDrop{{Tier: tier.Local}}, drops)
}

// TestDropQuarantinedFreesRoom: when the tool ends, the ledger no longer counts the removed
// files.
func TestDropQuarantinedFreesRoom(t *testing.T) {
	s, o := openNew(t)
	p := putChain(t, s, prompt(1, testTokens))[0]
	require.NoError(t, s.Close())
	flipAt(t, filePath(o.Local.Root, s.pages.Page(p.Key())), 4200)
	r := openRoot(t, o)
	require.NoError(t, repair(r))
	all := func(pagefile.Key) bool { return true }
	gcWith(t, r, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }}) // as kvtier rm does first
	before := readLedgerFile(t, o).Bytes
	drops, err := r.DropQuarantined(ctx, all, false)
	require.NoError(t, err)
	require.Equal(t, physicalPage(t), drops[0].Bytes)
	require.NoError(t, r.Close())
	require.Equal(t, before-drops[0].Bytes, readLedgerFile(t, o).Bytes)
}

// TestBadRemotePageDoesNotWaitForACount: a count holds the commit lock while it lists a shard
// of the remote tier, which may take minutes. A read of a damaged page does not wait for that
// lock.
func TestBadRemotePageDoesNotWaitForACount(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	tokens := prompt(1, testTokens)
	demoteAnew(t, s, tokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	spoil(t, filePath(o.Remote.Root, ref.name(s.pages)))
	defer s.remote.files.Hold()()
	read := make(chan error, 1)
	go func() { read <- readError(t, s, ref, tokens) }()
	select {
	case err := <-read:
		require.ErrorIs(t, err, pagefile.ErrDamaged)
	case <-time.After(time.Minute):
		t.Fatal("the read waits for the count")
	}
	require.NoFileExists(t, filePath(o.Remote.Root, ref.name(s.pages)))
}

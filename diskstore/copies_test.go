package diskstore

import (
	"bytes"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// readCounter counts the bytes read of files below a root.
type readCounter struct {
	vfs.FS
	root  string
	bytes atomic.Int64
}

func (c *readCounter) Open(name string) (vfs.File, error) {
	f, err := c.FS.Open(name)
	if err != nil || !strings.HasPrefix(name, c.root) || !strings.HasSuffix(name, ".kvp") {
		return f, err
	}
	return metered{f, &c.bytes}, nil
}

type metered struct {
	vfs.File
	bytes *atomic.Int64
}

func (f metered) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.bytes.Add(int64(n))
	return n, err
}

// wholePage makes a page whose header is a small part of its file.
func wholePage(t testing.TB, s *Store, seed int) *pagefile.Page {
	sections := []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 16 << 10}, {Kind: pagefile.KindV, RowBytes: 16 << 10}}
	return withSections(t, s.opt.Fingerprint, 0, prompt(seed, testTokens), sections)
}

// moves is a store whose pages move down and up, and the bytes read of the remote tier.
type moves struct {
	*Store
	t       *testing.T
	counter *readCounter
}

func openMoves(t *testing.T, edit ...func(*Options)) *moves {
	o := testOptions(t, append([]func(*Options){withRemote(t)}, edit...)...)
	counter := &readCounter{FS: quickFS, root: o.Remote.Root}
	o.FS = counter
	return &moves{Store: open(t, o), t: t, counter: counter}
}

// down moves a page to the remote tier and returns the bytes read there for that.
func (m *moves) down(p *pagefile.Page) int64 {
	m.t.Helper()
	info, err := tier.Stat(ctx, m.disk, m.pages.Page(p.Key()))
	require.NoError(m.t, err)
	before, demoted := m.counter.bytes.Load(), m.Stats().Demoted
	evictPage(m.t, m.Store, info)
	require.Equal(m.t, demoted+1, m.Stats().Demoted)
	require.False(m.t, m.Has(p.Key()))
	return m.counter.bytes.Load() - before
}

// up reads a page and waits until the page is in the local tier again.
func (m *moves) up(p *pagefile.Page) {
	m.t.Helper()
	refs := m.Find(ctx, Prompt{Tokens: p.Tokens}).Exact
	require.Len(m.t, refs, 1)
	require.Equal(m.t, tier.Remote, refs[0].Tier)
	require.True(m.t, bytes.Equal(p.Payload, rowsOf(m.t, m.Store, refs[0], p)))
	require.NoError(m.t, m.Flush(ctx))
	require.True(m.t, m.Has(p.Key()))
}

// below returns the path of the remote copy.
func (m *moves) below(p *pagefile.Page) string {
	return filePath(m.opt.Remote.Root, m.pages.Page(p.Key()))
}

// maxHeaderRead bounds the bytes read of a copy that is known to be good.
const maxHeaderRead = 8 << 10

// TestACopyOfThisProcessIsReadOnce: this process wrote the copy, or has read and checked every
// byte of it. To move the page down again takes the copy's header.
func TestACopyOfThisProcessIsReadOnce(t *testing.T) {
	m := openMoves(t)
	p := wholePage(t, m.Store, 1)
	require.Greater(t, len(p.Payload), 4*maxHeaderRead)
	require.NoError(t, m.Put(ctx, p))
	require.Zero(t, m.down(p), "written")
	for range 3 {
		m.up(p)
		read := m.down(p)
		require.LessOrEqual(t, read, int64(maxHeaderRead))
		t.Logf("%d bytes read of a page of %d", read, len(p.Payload))
	}
	require.NoError(t, m.Put(ctx, p), "computed again")
	require.LessOrEqual(t, m.down(p), int64(maxHeaderRead))

	// Another process reads the whole copy once, and may read it by moving the page up.
	other := openMoves(t, func(o *Options) { o.Remote.Root = m.opt.Remote.Root })
	require.NoError(t, other.Put(ctx, p))
	require.Greater(t, other.down(p), int64(len(p.Payload)), "written by another process")
	require.NoError(t, other.Put(ctx, p))
	require.LessOrEqual(t, other.down(p), int64(maxHeaderRead))
	third := openMoves(t, func(o *Options) { o.Remote.Root = m.opt.Remote.Root })
	third.up(p)
	require.LessOrEqual(t, third.down(p), int64(maxHeaderRead), "checked on its way up")
}

// TestACopyThatMayHaveChangedIsReadWhole: the copy was written or touched by others since this
// process checked it, or this process checked it long ago.
func TestACopyThatMayHaveChangedIsReadWhole(t *testing.T) {
	for name, change := range map[string]func(m *moves, path string){
		"touched": func(m *moves, path string) {
			later := time.Now().Add(time.Second)
			require.NoError(m.t, os.Chtimes(path, later, later))
		},
		"written again": func(m *moves, path string) {
			content, err := os.ReadFile(path)
			require.NoError(m.t, err)
			require.NoError(m.t, os.Remove(path))
			require.NoError(m.t, os.WriteFile(path, content, 0o600))
		},
		"long ago": func(m *moves, _ string) {
			m.now = func() time.Time { return time.Now().Add(checked.CopyLife) }
		},
		"too many others since": func(m *moves, _ string) {
			for i := range checked.MaxCopies {
				m.remote.checked.Copies.Note(tier.Info{Name: pagefile.Name{Key: pagefile.Key{byte(i), byte(i >> 8), 1}}}, 0)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := openMoves(t)
			p := wholePage(t, m.Store, 1)
			require.NoError(t, m.Put(ctx, p))
			m.down(p)
			require.NoError(t, m.Put(ctx, p))
			change(m, m.below(p))
			require.Greater(t, m.down(p), int64(len(p.Payload)))
			require.NoError(t, m.Put(ctx, p))
			require.LessOrEqual(t, m.down(p), int64(maxHeaderRead), "checked now")
		})
	}
}

// TestAKnownCopyThatIsGoneIsWrittenAgain: the copy was removed, or another process has found
// it damaged, since this process checked it.
func TestAKnownCopyThatIsGoneIsWrittenAgain(t *testing.T) {
	m := openMoves(t)
	p := wholePage(t, m.Store, 1)
	require.NoError(t, m.Put(ctx, p))
	m.down(p)
	require.NoError(t, m.Put(ctx, p))
	require.NoError(t, os.Remove(m.below(p)))
	require.Zero(t, m.down(p))
	requireWhole(t, m.below(p))

	// Damage that left the file's time alone is found by the next read, and remembered.
	info := mustStat(t, m.guard, m.pages.Page(p.Key()))
	flipAt(t, m.below(p), int(info.Bytes/2))
	require.NoError(t, os.Chtimes(m.below(p), info.Used, info.Used))
	refs := m.Find(ctx, Prompt{Tokens: p.Tokens}).Exact
	require.ErrorIs(t, m.Read(ctx, refs[0], p.Tokens, p.Layout, Into{Rows: make([]byte, p.Layout.Size())}), pagefile.ErrDamaged)
	require.NoError(t, m.Flush(ctx))
	require.NoError(t, m.Put(ctx, p))
	m.down(p)
	requireWhole(t, m.below(p))
}

// badSectors fails reads of pages below a root past their headers.
type badSectors struct {
	vfs.FS
	root string
	bad  atomic.Bool
}

func (b *badSectors) Open(name string) (vfs.File, error) {
	f, err := b.FS.Open(name)
	if err != nil || !strings.HasPrefix(name, b.root) || !strings.HasSuffix(name, ".kvp") {
		return f, err
	}
	return badSector{f, b}, nil
}

type badSector struct {
	vfs.File
	fs *badSectors
}

func (f badSector) ReadAt(p []byte, off int64) (int, error) {
	if f.fs.bad.Load() && off+int64(len(p)) > maxHeaderRead {
		return 0, &os.PathError{Op: "read", Path: f.fs.root, Err: syscall.EIO}
	}
	return f.File.ReadAt(p, off)
}

// TestAKnownCopyThatCannotBeReadIsReadWhole before the page leaves the local tier again: a remote
// mount may recover from EIO, so that the copy stays in its place.
func TestAKnownCopyThatCannotBeReadIsReadWhole(t *testing.T) {
	o := testOptions(t, withRemote(t))
	sectors := &badSectors{FS: quickFS, root: o.Remote.Root}
	o.FS = sectors
	s := open(t, o)
	p := wholePage(t, s, 1)
	require.NoError(t, s.Put(ctx, p))
	info := mustStat(t, s.disk, s.pages.Page(p.Key()))
	evictPage(t, s, info)

	sectors.bad.Store(true)
	refs := s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact
	require.Len(t, refs, 1)
	require.ErrorIs(t, s.Read(ctx, refs[0], p.Tokens, p.Layout, Into{Rows: make([]byte, p.Layout.Size())}), syscall.EIO)
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.Put(ctx, p), "computed again")
	info = mustStat(t, s.disk, s.pages.Page(p.Key()))
	require.ErrorIs(t, s.demote(ctx, info), syscall.EIO)
	sectors.bad.Store(false)
	require.NoError(t, s.demote(ctx, info))
}

// TestADamagedCopyDoesNotStandForAPage demotes a page of which the remote tier has a bad copy
// of the same length, or another page's: the local file is removed next, so it must be copied
// again.
func TestADamagedCopyDoesNotStandForAPage(t *testing.T) {
	for name, harm := range map[string]func(file []byte) []byte{
		"zeros":    func(file []byte) []byte { return make([]byte, len(file)) },
		"header":   func(file []byte) []byte { file[60] ^= 1; return file },
		"a row":    func(file []byte) []byte { file[len(file)/2] ^= 4; return file },
		"footer":   func(file []byte) []byte { file[len(file)-1] ^= 1; return file },
		"half":     func(file []byte) []byte { clear(file[len(file)/2:]); return file },
		"one byte": func(file []byte) []byte { file[pagefile.PageAlign] ^= 0x80; return file },
	} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, withRemote(t))
			tokens := prompt(1, testTokens)
			p := putChain(t, s, tokens)[0]
			page := s.pages.Page(p.Key())
			info := mustStat(t, s.disk, page)
			require.NoError(t, s.demote(ctx, info))
			copied := filePath(o.Remote.Root, page)
			file := fileOf(t, copied)
			bad := harm(bytes.Clone(file))
			require.NotEqual(t, file, bad)
			require.Len(t, bad, len(file))
			require.NoError(t, os.WriteFile(copied, bad, 0o600))

			evictPage(t, s, info)
			require.False(t, s.Has(p.Key()))
			require.EqualValues(t, 1, s.Stats().Demoted)
			require.EqualValues(t, 1, s.Stats().Damaged)
			readChain(t, s, tokens, len(tokens))
			require.NoError(t, s.Flush(ctx))
			requireExact(t, s)
		})
	}
}

// TestAnotherLayoutDoesNotStandForAPage demotes a page of which the remote tier has the same
// tokens in a file of the same length with other sections.
func TestAnotherLayoutDoesNotStandForAPage(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	tokens := prompt(1, testTokens)
	old := faultPage(t, s.opt.Fingerprint, 0, tokens)
	sections := old.Layout.Sections()
	sections[0], sections[1] = sections[1], sections[0]
	now := withSections(t, old.Parent, 0, tokens, sections)
	require.Equal(t, old.Key(), now.Key())

	require.NoError(t, s.Put(ctx, old))
	info := mustStat(t, s.disk, s.pages.Page(old.Key()))
	evictPage(t, s, info)
	require.NoError(t, s.Put(ctx, now))
	again := mustStat(t, s.disk, s.pages.Page(old.Key()))
	require.Equal(t, info.Bytes, again.Bytes)
	evictPage(t, s, again)
	h, _, err := inspect.ReadHeader(ctx, vfs.OS, filePath(o.Remote.Root, s.pages.Page(old.Key())), false)
	require.NoError(t, err)
	require.True(t, h.Layout.Equal(now.Layout))
	require.Zero(t, s.Stats().Damaged)
}

// TestACopyIsDurableBeforeThePageGoes finds a copy in the remote tier whose name a process
// made visible, and not durable, before that process died.
func TestACopyIsDurableBeforeThePageGoes(t *testing.T) {
	w := newCrashWorld(t, func(o *Options) { o.Local.BudgetBytes, o.Remote.BudgetBytes = 0, 0 })
	mem, o := w.mem, w.o
	s := start(t, o)
	tokens := prompt(1, testTokens)
	p := putChain(t, s, tokens)[0]
	info := mustStat(t, s.disk, s.pages.Page(p.Key()))
	require.NoError(t, s.demote(ctx, info))
	// The copy's name again, by a rename that no process has synced.
	path := filePath(o.Remote.Root, info.Name)
	require.NoError(t, mem.Rename(path, path+"-away"))
	require.NoError(t, s.guard.SyncRemoved(ctx, []pagefile.Name{info.Name}))
	require.NoError(t, mem.Rename(path+"-away", path))

	evictPage(t, s, info)
	require.NoError(t, s.disk.SyncRemoved(ctx, []pagefile.Name{info.Name}))
	require.NoError(t, s.Close())
	o.FS = mem.Crash(0, 1)
	after := start(t, o)
	readChain(t, after, tokens, len(tokens))
	require.NoError(t, after.Close())
}

// TestAReadPageIsCopiedFromMemory: a page of the remote tier that is read whole comes to the local tier without being
// read again, and one of which some sections are read is read for it. Both become the same file.
func TestAReadPageIsCopiedFromMemory(t *testing.T) {
	for name, c := range map[string]struct {
		sections int
		use      bool
	}{"whole": {2, false}, "section by section": {2, true}, "one section": {1, false}} {
		t.Run(name, func(t *testing.T) {
			m := openMoves(t)
			p := wholePage(t, m.Store, 1)
			require.NoError(t, m.Put(ctx, p))
			m.down(p)
			file, err := os.ReadFile(m.below(p))
			require.NoError(t, err)

			refs := m.Find(ctx, Prompt{Tokens: p.Tokens}).Exact
			layout := layoutOf(t, []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 16 << 10}, {Kind: pagefile.KindV, RowBytes: 16 << 10}}[:c.sections], testTokens)
			into := Into{Rows: make([]byte, layout.Size())}
			if c.use {
				into = Into{Use: func(int, []byte) error { return nil }}
			}
			before := m.counter.bytes.Load()
			require.NoError(t, m.Read(ctx, refs[0], p.Tokens, layout, into))
			require.NoError(t, m.Flush(ctx))
			read := m.counter.bytes.Load() - before
			t.Logf("%d bytes read of a file of %d", read, len(file))
			require.Equal(t, c.sections == 2, read < int64(len(file))+maxHeaderRead)
			copied, err := os.ReadFile(filePath(m.opt.Local.Root, m.pages.Page(p.Key())))
			require.NoError(t, err)
			require.Equal(t, file, copied)
		})
	}
}

package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestConformance runs one suite over every FS: the filesystem in memory, on which the store
// is tested, must behave as a disk.
func TestConformance(t *testing.T) {
	inMem := func(t *testing.T) (*Mem, string) {
		m, dir := NewMem(1<<20), filepath.Join(string(filepath.Separator), "dir")
		require.NoError(t, m.Mkdir(dir))
		return m, dir
	}
	for name, open := range map[string]func(*testing.T) (FS, string){
		"os":    func(t *testing.T) (FS, string) { return OS, t.TempDir() },
		"below": func(t *testing.T) (FS, string) { dir := t.TempDir(); return Below(dir), dir },
		"above": func(t *testing.T) (FS, string) { return Below(t.TempDir()), t.TempDir() },
		"mem":   func(t *testing.T) (FS, string) { m, dir := inMem(t); return m, dir },
		"inject": func(t *testing.T) (FS, string) {
			m, dir := inMem(t)
			return Inject(m), dir
		},
		"bound": func(t *testing.T) (FS, string) { dir := t.TempDir(); return Bound(Below(dir), dir, time.Minute), dir },
	} {
		for test, run := range map[string]func(*testing.T, FS, func(...string) string){
			"files":       conformFiles,
			"open files":  conformOpenFiles,
			"directories": conformDirectories,
			"rename":      conformRename,
			"paths":       conformPaths,
			"lock":        conformLock,
			"space":       conformSpace,
			"concurrency": conformConcurrency,
		} {
			t.Run(name+"/"+test, func(t *testing.T) {
				fsys, dir := open(t)
				run(t, fsys, func(elements ...string) string { return filepath.Join(append([]string{dir}, elements...)...) })
			})
		}
	}
}

// content reads a whole file through an FS.
func content(t *testing.T, fsys FS, name string) string {
	t.Helper()
	f, err := fsys.Open(name)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	p := make([]byte, info.Size())
	if len(p) > 0 {
		_, err = f.ReadAt(p, 0)
		require.NoError(t, err)
	}
	return string(p)
}

func conformFiles(t *testing.T, fsys FS, path func(...string) string) {
	a := path("a")
	_, err := fsys.Open(a)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, a)
	_, err = fsys.Lstat(a)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, a)
	require.ErrorIs(t, fsys.Remove(a), fs.ErrNotExist)
	require.ErrorIs(t, fsys.Chtimes(a, time.Now(), time.Now()), fs.ErrNotExist)
	require.ErrorIs(t, fsys.Uncache(a), fs.ErrNotExist)

	write(t, fsys, a, "hello")
	require.NoError(t, fsys.Uncache(a))
	require.Equal(t, "hello", content(t, fsys, a), "data that is not on the device stays")
	_, err = fsys.Create(a)
	require.ErrorIs(t, err, fs.ErrExist)
	require.ErrorContains(t, err, a)
	info, err := fsys.Lstat(a)
	require.NoError(t, err)
	require.True(t, info.Mode().IsRegular())
	require.Equal(t, "a", info.Name())
	require.EqualValues(t, 5, info.Size())
	require.GreaterOrEqual(t, fsys.PhysicalBytes(info), info.Size())
	require.WithinDuration(t, time.Now(), info.ModTime(), time.Hour)
	if uid, ok := fsys.Owner(info); ok {
		require.Equal(t, os.Geteuid(), uid)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())
	}

	when := time.Unix(1_600_000_000, 123_000_000)
	require.NoError(t, fsys.Chtimes(a, when, when))
	info, err = fsys.Lstat(a)
	require.NoError(t, err)
	require.True(t, when.Equal(info.ModTime()))
	require.NoError(t, fsys.Remove(a))
	require.ErrorIs(t, fsys.Remove(a), fs.ErrNotExist)
}

func conformOpenFiles(t *testing.T, fsys FS, path func(...string) string) {
	a := path("a")
	w, err := fsys.Create(a)
	require.NoError(t, err)
	for _, part := range []string{"hel", "", "lo"} {
		n, err := w.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	r, err := fsys.Open(a) // a reader sees written bytes before they are synced
	require.NoError(t, err)
	_, err = r.Write([]byte("x"))
	require.Error(t, err)
	for _, tc := range []struct {
		off  int64
		room int
		want string
		err  error
	}{{0, 5, "hello", nil}, {2, 3, "llo", nil}, {2, 4, "llo", io.EOF}, {5, 1, "", io.EOF}, {9, 1, "", io.EOF}, {1, 0, "", nil}} {
		p := make([]byte, tc.room)
		n, err := r.ReadAt(p, tc.off)
		require.Equal(t, tc.err, err)
		require.Equal(t, tc.want, string(p[:n]))
	}
	_, err = r.ReadAt(make([]byte, 1), -1)
	require.Error(t, err)
	require.NoError(t, w.Sync())
	require.NoError(t, w.Close())
	for _, err := range []error{w.Close(), w.Sync(), func() error { _, err := w.Write([]byte("x")); return err }()} {
		require.ErrorIs(t, err, fs.ErrClosed)
	}

	// An open file stays readable after its name is removed.
	require.NoError(t, fsys.Remove(a))
	write(t, fsys, a, "another")
	info, err := r.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 5, info.Size())
	p := make([]byte, 5)
	_, err = r.ReadAt(p, 0)
	require.NoError(t, err)
	require.Equal(t, "hello", string(p))
	require.NoError(t, r.Close())
	require.Equal(t, "another", content(t, fsys, a))
}

func conformDirectories(t *testing.T, fsys FS, path func(...string) string) {
	require.ErrorIs(t, fsys.Mkdir(path("d", "e")), fs.ErrNotExist)
	require.NoError(t, fsys.Mkdir(path("d")))
	require.ErrorIs(t, fsys.Mkdir(path("d")), fs.ErrExist)
	require.ErrorIs(t, fsys.Mkdir(path()), fs.ErrExist)
	require.NoError(t, fsys.Mkdir(path("d", "e")))
	write(t, fsys, path("d", "f"), "x")
	require.ErrorIs(t, fsys.Mkdir(path("d", "f")), fs.ErrExist)
	info, err := fsys.Lstat(path("d"))
	require.NoError(t, err)
	require.True(t, info.IsDir())
	if _, ok := fsys.Owner(info); ok {
		require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
	}

	entries, err := fsys.ReadDir(path("d"))
	require.NoError(t, err)
	found := map[string]bool{}
	for _, e := range entries {
		found[e.Name()] = e.IsDir()
	}
	require.Equal(t, map[string]bool{"e": true, "f": false}, found)
	_, err = fsys.ReadDir(path("none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, path("none"))
	_, err = fsys.ReadDir(path("d", "f"))
	require.Error(t, err)
	require.NoError(t, fsys.SyncDir(path("d")))
	require.ErrorIs(t, fsys.SyncDir(path("none")), fs.ErrNotExist)

	_, err = fsys.Open(path("d"))
	require.ErrorIs(t, err, ErrNotRegular)
	_, err = fsys.Create(path("d"))
	require.ErrorIs(t, err, fs.ErrExist)
	require.Error(t, fsys.Remove(path("d")), "not empty")
	_, err = fsys.Lstat(path("d", "e"))
	require.NoError(t, err)
	require.NoError(t, fsys.Remove(path("d", "e")))
	require.NoError(t, fsys.Remove(path("d", "f")))
	require.NoError(t, fsys.Remove(path("d")))
	require.ErrorIs(t, fsys.Remove(path("d")), fs.ErrNotExist)
}

func conformRename(t *testing.T, fsys FS, path func(...string) string) {
	require.NoError(t, fsys.Mkdir(path("d")))
	require.NoError(t, fsys.Mkdir(path("empty")))
	write(t, fsys, path("a"), "a")
	write(t, fsys, path("b"), "b")
	err := fsys.Rename(path("none"), path("b"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, path("none"))
	require.ErrorIs(t, fsys.Rename(path("a"), path("none", "a")), fs.ErrNotExist)
	require.ErrorIs(t, fsys.Rename(path("a"), path("d")), fs.ErrExist)
	require.ErrorIs(t, fsys.Rename(path("d"), path("empty")), fs.ErrExist)
	require.Error(t, fsys.Rename(path("d"), path("a")))
	require.Error(t, fsys.Rename(path("d"), path("d", "in itself")))
	require.NoError(t, fsys.Rename(path("a"), path("a")))
	require.Equal(t, "a", content(t, fsys, path("a")))

	require.NoError(t, fsys.Rename(path("a"), path("b")), "over a file")
	require.Equal(t, "a", content(t, fsys, path("b")))
	require.NoError(t, fsys.Rename(path("b"), path("d", "c")), "to another directory")
	require.NoError(t, fsys.SyncDir(path("d")))
	require.NoError(t, fsys.Rename(path("d"), path("moved")), "a directory with all it holds")
	require.Equal(t, "a", content(t, fsys, path("moved", "c")))
	for _, gone := range []string{path("a"), path("b"), path("d")} {
		_, err := fsys.Lstat(gone)
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
}

func conformPaths(t *testing.T, fsys FS, path func(...string) string) {
	write(t, fsys, path("f"), "x")
	for _, under := range []string{path("f", "x"), path("f", "x", "y")} { // a file is not a directory
		_, err := fsys.Lstat(under)
		require.ErrorIs(t, err, syscall.ENOTDIR)
		_, err = fsys.Open(under)
		require.Error(t, err)
		_, err = fsys.Create(under)
		require.Error(t, err)
		require.Error(t, fsys.Mkdir(under))
		require.Error(t, fsys.Remove(under))
	}
	require.NoError(t, fsys.Mkdir(path("d")))
	require.Equal(t, "x", content(t, fsys, path("d")+"/../f"), "paths are cleaned by name")
}

func conformLock(t *testing.T, fsys FS, path func(...string) string) {
	held, err := fsys.Lock(path("lock"))
	require.NoError(t, err)
	_, err = fsys.Lock(path("lock"))
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorContains(t, err, path("lock"))
	other, err := fsys.Lock(path("other"))
	require.NoError(t, err)
	require.NoError(t, other.Close())

	// A lock belongs to the file, not to the name.
	require.NoError(t, fsys.Remove(path("lock")))
	second, err := fsys.Lock(path("lock"))
	require.NoError(t, err)
	require.NoError(t, held.Close())
	require.Error(t, held.Close())
	_, err = fsys.Lock(path("lock"))
	require.ErrorIs(t, err, ErrLocked)
	_, err = fsys.LockThere(path("lock"))
	require.ErrorIs(t, err, ErrLocked)
	for range 2 { // the file was not made
		_, err = fsys.LockThere(path("absent"))
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	third, err := fsys.LockThere(path("other"))
	require.NoError(t, err)
	_, err = fsys.Lock(path("other"))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, third.Close())
	require.NoError(t, second.Close())
	_, err = fsys.Lock(path("none", "lock"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func conformSpace(t *testing.T, fsys FS, path func(...string) string) {
	s, err := fsys.Space(path())
	require.NoError(t, err)
	require.Positive(t, s.Total)
	require.LessOrEqual(t, s.Free, s.Total)
	_, err = fsys.Space(path("none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = fsys.IsRAM(path())
	require.NoError(t, err)
}

// conformConcurrency tests concurrent use for the race detector, with names that come and go.
func conformConcurrency(t *testing.T, fsys FS, path func(...string) string) {
	var all errgroup.Group
	for _, mine := range []string{"a", "b", "c", "d"} {
		all.Go(func() error {
			for range 20 {
				f, err := fsys.Create(path(mine))
				if err != nil {
					return err
				}
				_, werr := f.Write(bytes.Repeat([]byte(mine), 5000))
				serr := f.Sync()
				cerr := f.Close()
				rerr := fsys.Remove(path(mine))
				_, lerr := fsys.ReadDir(path())
				if err := errors.Join(werr, serr, cerr, rerr, lerr, fsys.SyncDir(path())); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

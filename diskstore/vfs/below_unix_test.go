//go:build unix

package vfs

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBelowFollowsNoLink puts a link in the place of a directory.
func TestBelowFollowsNoLink(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	write(t, OS, filepath.Join(outside, "f"), "secret")
	require.NoError(t, OS.Mkdir(filepath.Join(outside, "d")))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "link")))
	write(t, OS, filepath.Join(root, "mine"), "mine")
	eachBelow(t, root, func(t *testing.T, b FS) {
		through := filepath.Join(root, "link", "f")
		deeper := filepath.Join(root, "link", "d", "f")
		_, openErr := b.Open(through)
		_, createErr := b.Create(deeper)
		_, lockErr := b.Lock(deeper)
		_, listErr := b.ReadDir(filepath.Join(root, "link"))
		_, listDeepErr := b.ReadDir(filepath.Join(root, "link", "d"))
		for i, err := range []error{
			openErr, createErr, lockErr, listErr, listDeepErr,
			b.Mkdir(deeper), b.Remove(through), b.Chtimes(through, time.Now(), time.Now()),
			b.SyncDir(filepath.Join(root, "link")), b.SyncDir(filepath.Join(root, "link", "d")),
			b.Rename(filepath.Join(root, "mine"), deeper), b.Rename(through, filepath.Join(root, "stolen")),
		} {
			require.ErrorIs(t, err, ErrNotRegular, i)
			require.ErrorContains(t, err, filepath.Join(root, "link"), i)
		}
		_, err := b.Open(filepath.Join(root, "link"))
		require.ErrorIs(t, err, ErrNotRegular)
		info, err := b.Lstat(filepath.Join(root, "link"))
		require.NoError(t, err)
		require.NotZero(t, info.Mode()&fs.ModeSymlink)
		require.Equal(t, "secret", content(t, OS, filepath.Join(outside, "f")))
		entries, err := os.ReadDir(filepath.Join(outside, "d"))
		require.NoError(t, err)
		require.Empty(t, entries)
	})
}

// eachBelow runs a test with both ways of resolving paths.
func eachBelow(t *testing.T, root string, run func(t *testing.T, b FS)) {
	t.Run("", func(t *testing.T) { run(t, Below(root)) })
	t.Run("walk", func(t *testing.T) {
		defer onlyWalk()()
		run(t, Below(root))
	})
}

// TestBelowWalk runs the conformance of Below on systems without openat2.
func TestBelowWalk(t *testing.T) {
	defer onlyWalk()()
	dir := t.TempDir()
	path := func(elements ...string) string { return filepath.Join(append([]string{dir}, elements...)...) }
	conformDirectories(t, Below(dir), path)
	conformPaths(t, Below(dir), path)
}

// TestBelowLinksAboveTheRoot: the path of the root may have links.
func TestBelowLinksAboveTheRoot(t *testing.T) {
	one, two, at := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "at")
	for _, dir := range []string{one, two} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "root"), 0o700))
	}
	require.NoError(t, os.Symlink(one, at))
	b := Below(filepath.Join(at, "root"))
	write(t, b, filepath.Join(at, "root", "f"), "one")
	require.Equal(t, "one", content(t, OS, filepath.Join(one, "root", "f")))
	require.NoError(t, os.Remove(at))
	_, err := b.Lstat(filepath.Join(at, "root", "f"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Symlink(two, at))
	_, err = b.Lstat(filepath.Join(at, "root", "f"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	write(t, b, filepath.Join(at, "root", "f"), "two")

	// The root itself may not be a link.
	require.NoError(t, os.Symlink(filepath.Join(one, "root"), filepath.Join(two, "link")))
	_, err = Below(filepath.Join(two, "link")).Open(filepath.Join(two, "link", "f"))
	require.Error(t, err)
}

// TestBelowWhileDirectoriesAreSwapped repeatedly replaces a directory with a link to the outside.
func TestBelowWhileDirectoriesAreSwapped(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "d"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(outside, "e"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(root, "d", "e"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "l")))
	eachBelow(t, root, func(t *testing.T, b FS) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				for _, names := range [][2]string{{"d", "x"}, {"l", "d"}, {"d", "l"}, {"x", "d"}} {
					if err := os.Rename(filepath.Join(root, names[0]), filepath.Join(root, names[1])); err != nil {
						t.Error(err)
						return
					}
				}
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		}()
		path := filepath.Join(root, "d", "e", "f")
		for range 2000 {
			if f, err := b.Create(path); err == nil {
				f.Close()
			}
			_ = b.Remove(path)
		}
		close(stop)
		wg.Wait()
		entries, err := os.ReadDir(filepath.Join(outside, "e"))
		require.NoError(t, err)
		require.Empty(t, entries, "nothing was ever made outside")
	})
}

func TestBelowRefusesToRenameOut(t *testing.T) {
	root := t.TempDir()
	write(t, OS, filepath.Join(root, "f"), "x")
	require.ErrorIs(t, Below(root).Rename(filepath.Join(root, "f"), filepath.Join(t.TempDir(), "f")), syscall.EXDEV)
	require.ErrorIs(t, Below(root).Rename(filepath.Join(root, "f"), root), syscall.EXDEV)
}

// TestBelowRefusesARootOfOthers: each use checks the owner and mode of the directory that is opened.
func TestBelowRefusesARootOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.Mkdir(dir, 0o700))
	fsys := Below(dir)
	path := func(name string) string { return filepath.Join(dir, name) }
	write(t, fsys, path("a"), "a")
	for _, mode := range []os.FileMode{0o720, 0o702, 0o777} {
		require.NoError(t, os.Chmod(dir, mode))
		_, err := fsys.Open(path("a"))
		require.ErrorIs(t, err, ErrUnsafe)
		_, err = fsys.Create(path("b"))
		require.ErrorIs(t, err, ErrUnsafe)
		_, err = fsys.Lock(path("l"))
		require.ErrorIs(t, err, ErrUnsafe)
		require.ErrorIs(t, fsys.Mkdir(path("d")), ErrUnsafe)
		require.ErrorIs(t, fsys.Rename(path("a"), path("b")), ErrUnsafe)
		require.ErrorIs(t, fsys.Remove(path("a")), ErrUnsafe)
		require.ErrorIs(t, fsys.SyncDir(path("d")), ErrUnsafe)
	}
	require.NoError(t, os.Chmod(dir, 0o755))
	require.Equal(t, "a", content(t, fsys, path("a")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// eachOS runs a test with and without a root.
func eachOS(t *testing.T, run func(t *testing.T, fsys FS, dir string)) {
	t.Run("os", func(t *testing.T) { run(t, OS, t.TempDir()) })
	t.Run("below", func(t *testing.T) { dir := t.TempDir(); run(t, Below(dir), dir) })
}

func TestModesIgnoreTheUmask(t *testing.T) {
	for _, umask := range []int{0, 0o277, 0o777} {
		eachOS(t, func(t *testing.T, fsys FS, dir string) {
			old := syscall.Umask(umask)
			err := fsys.Mkdir(filepath.Join(dir, "d"))
			f, ferr := fsys.Create(filepath.Join(dir, "f"))
			lock, lerr := fsys.Lock(filepath.Join(dir, "l"))
			syscall.Umask(old)
			require.NoError(t, err)
			require.NoError(t, ferr)
			require.NoError(t, f.Close())
			require.NoError(t, lerr)
			require.NoError(t, lock.Close())
			for name, want := range map[string]os.FileMode{"d": 0o700, "f": 0o600, "l": 0o600} {
				info, err := os.Lstat(filepath.Join(dir, name))
				require.NoError(t, err)
				require.Equal(t, want, info.Mode().Perm())
			}
		})
	}
}

func TestOpenRefusesWhatIsNotAFile(t *testing.T) { eachOS(t, refusesWhatIsNotAFile) }

func refusesWhatIsNotAFile(t *testing.T, fsys FS, dir string) {
	target := filepath.Join(dir, "target")
	write(t, fsys, target, "secret")
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, path := range []string{dir, link, fifo} { // and does not wait for a writer
		_, err := fsys.Open(path)
		require.ErrorIs(t, err, ErrNotRegular, path)
	}
	_, err := fsys.Create(link)
	require.ErrorIs(t, err, fs.ErrExist)
	_, err = fsys.Lock(link)
	require.Error(t, err)

	dirLink := filepath.Join(dir, "dirlink")
	require.NoError(t, os.Symlink(t.TempDir(), dirLink))
	_, err = fsys.ReadDir(dirLink)
	require.Error(t, err)
	require.Error(t, fsys.SyncDir(dirLink))

	when := time.Unix(1_600_000_000, 0)
	require.NoError(t, fsys.Chtimes(link, when, when))
	info, err := os.Lstat(target)
	require.NoError(t, err)
	require.False(t, when.Equal(info.ModTime()), "a link's target is left alone")
}

func TestErrorKinds(t *testing.T) {
	wrapped := &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	require.True(t, IsNoSpace(wrapped))
	require.True(t, IsNoSpace(syscall.EDQUOT))
	require.False(t, IsNoSpace(syscall.EIO))
	require.True(t, IsNoLocks(syscall.ENOLCK) && IsNoLocks(syscall.ENOTSUP))
	require.False(t, IsNoLocks(syscall.EACCES))
	require.True(t, IsReadOnly(syscall.EROFS))
	require.False(t, IsReadOnly(wrapped))
}

// counted is a file of 7 bytes for which its filesystem counts a number of blocks.
type counted struct {
	fs.FileInfo
	blocks int64
}

func (counted) Size() int64 { return 7 }

func (c counted) Sys() any { return &syscall.Stat_t{Blocks: c.blocks} }

// TestBlocksThatCannotBe: none yet, or more than a number of bytes can tell.
func TestBlocksThatCannotBe(t *testing.T) {
	for blocks, want := range map[int64]int64{-1: 7, 0: 7, 8: 4096, math.MaxInt64/512 + 1: 7, math.MaxInt64: 7} {
		require.Equal(t, want, physicalBytes(counted{blocks: blocks}))
	}
}

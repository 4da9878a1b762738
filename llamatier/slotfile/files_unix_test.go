//go:build unix

package slotfile

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// save opens a file as llama-server does to save a slot, and writes into it.
func save(t *testing.T, f *Files, name, rows string) {
	file, err := os.OpenFile(filepath.Join(f.Dir(), name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	require.NoError(t, err)
	_, err = file.WriteString(rows)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// newFiles returns Files with some bytes of memory, and on the disk.
func newFiles(folder *Folder, available uint64, free int64) *Files {
	return New(folder, Options{
		Available: func() (uint64, error) { return available, nil },
		Free:      func(string) (int64, error) { return free, nil },
		Log:       slog.New(slog.DiscardHandler),
	})
}

// TestFiles: the engine's bytes are in the file, wherever it is, and nothing is left behind.
func TestFiles(t *testing.T) {
	const available = 4 << 20
	tmp, local := t.TempDir(), t.TempDir()
	folder := newFolder(t, tmp)
	defer folder.Remove()
	files := newFiles(folder, available, 100<<20)
	check := func(size int64, disk bool, plain string) {
		t.Helper()
		f, err := files.New(size)
		require.NoError(t, err)
		require.Equal(t, disk, f.OnDisk())
		save(t, files, f.Name, "some rows")
		rows := make([]byte, 9)
		_, err = f.ReadAt(rows, 0)
		require.NoError(t, err)
		require.Equal(t, "some rows", string(rows))
		if disk {
			info, err := os.Lstat(filepath.Join(plain, f.Name))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode())
		}
		require.NoError(t, f.Close())
		for _, dir := range []string{folder.Path, plain} {
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left)
		}
	}
	check(available/memoryPart, !files.memory, folder.Path)
	check(available/memoryPart+1, true, folder.Path)

	disk := newFolder(t, local)
	defer disk.Remove()
	files.UseDisk(disk)
	check(available/memoryPart, !files.memory, disk.Path)
	check(available/memoryPart+1, true, disk.Path)
}

// TestRoomComesBack: the files that exist count, and those that are closed do not.
func TestRoomComesBack(t *testing.T) {
	folder := newFolder(t, t.TempDir())
	defer folder.Remove()
	files := newFiles(folder, 0, 20)
	require.NoError(t, files.Room(10))
	require.ErrorIs(t, files.Room(11), ErrNoRoom)
	f, err := files.New(6)
	require.NoError(t, err)
	require.NoError(t, files.Room(4))
	_, err = files.New(5)
	require.ErrorIs(t, err, ErrNoRoom)
	require.NoError(t, f.Close())
	require.NoError(t, files.Room(10))
}

// TestASmallFileNeedsNoDisk, which may hang.
func TestASmallFileNeedsNoDisk(t *testing.T) {
	folder := newFolder(t, t.TempDir())
	defer folder.Remove()
	files := newFiles(folder, 8<<30, 0)
	if !files.memory {
		t.Skip("this system has no files in memory")
	}
	files.opt.Free = func(string) (int64, error) { panic("the disk hangs") }
	require.NoError(t, files.Room(1<<20))
}

// TestAFileThatCannotBeMade claims nothing, and leaves nothing behind.
func TestAFileThatCannotBeMade(t *testing.T) {
	folder, disk := newFolder(t, t.TempDir()), newFolder(t, t.TempDir())
	defer disk.Remove()
	files := newFiles(folder, 8<<30, 8<<30)
	files.UseDisk(disk)
	require.NoError(t, folder.Remove())
	for _, size := range []int64{1, memoryMax + 1} {
		_, err := files.New(size)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	require.Zero(t, files.claimed)
	left, err := os.ReadDir(disk.Path)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestAFolderThatIsRemoved, as the directory of pages may be at any time, is made again.
func TestAFolderThatIsRemoved(t *testing.T) {
	tmp, local := t.TempDir(), filepath.Join(t.TempDir(), "pages", "llama-server")
	require.NoError(t, os.MkdirAll(local, 0o700))
	folder, disk := newFolder(t, tmp), newFolder(t, local)
	defer folder.Remove()
	files := New(folder, Options{Available: func() (uint64, error) { return 0, nil }, Log: slog.New(slog.DiscardHandler)})
	files.UseDisk(disk)
	require.NoError(t, os.RemoveAll(filepath.Dir(local)))
	f, err := files.New(100)
	require.NoError(t, err)
	require.True(t, f.OnDisk())
	save(t, files, f.Name, "some rows")
	require.NoError(t, f.Close())
	info, err := os.Stat(disk.Path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	other := newFolder(t, local)
	other.Sweep(slog.New(slog.DiscardHandler))
	require.DirExists(t, disk.Path, "it is locked again")
	require.NoError(t, other.Remove())
	require.NoError(t, disk.Remove())
	require.NoDirExists(t, disk.Path)
}

// TestFilesMadeAtOnce take no more memory than may be taken.
func TestFilesMadeAtOnce(t *testing.T) {
	folder := newFolder(t, t.TempDir())
	defer folder.Remove()
	files := newFiles(folder, 100<<30, 100<<30)
	if !files.memory {
		t.Skip("this system has no files in memory")
	}
	made := make([]*File, 8)
	var all sync.WaitGroup
	for i := range made {
		all.Add(1)
		go func() {
			defer all.Done()
			made[i], _ = files.New(300 << 20)
		}()
	}
	all.Wait()
	inMemory := 0
	for _, f := range made {
		require.NotNil(t, f)
		if !f.OnDisk() {
			inMemory++
		}
		require.NoError(t, f.Close())
	}
	require.Equal(t, 1, inMemory)
	require.Equal(t, [kinds]int64{}, files.claimed)
}

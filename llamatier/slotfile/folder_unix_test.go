//go:build unix

package slotfile

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// makerVariable names the directory in which this program makes folders and files until somebody
// kills it.
const makerVariable = "KVTIER_TEST_SLOTFILES"

func TestMain(m *testing.M) {
	if dir := os.Getenv(makerVariable); dir != "" {
		makeForEver(dir)
	}
	os.Exit(m.Run())
}

// makeForEver does all that a process does with files, and prints a line after each step.
func makeForEver(dir string) {
	step := func(err error) {
		if fmt.Println(err); err != nil {
			os.Exit(1)
		}
	}
	for {
		folder, err := NewFolder(dir)
		step(err)
		disk, err := NewFolder(dir)
		step(err)
		files := New(folder, Options{Log: slog.New(slog.DiscardHandler), Available: func() (uint64, error) { return 8 << 20, nil }})
		files.UseDisk(disk)
		for _, size := range []int64{1, 3 << 20} {
			f, err := files.New(size)
			step(err)
			_, err = f.WriteAt([]byte("row"), 0)
			step(err)
			if size > 1 {
				step(f.Close())
			}
		}
		step(folder.Remove())
		step(disk.Remove())
	}
}

func newFolder(t *testing.T, parent string) *Folder {
	f, err := NewFolder(parent)
	require.NoError(t, err)
	return f
}

// die ends a folder's lock, as the end of a process does.
func (f *Folder) die(t *testing.T) *Folder {
	require.NoError(t, f.lock.Close())
	return f
}

// startSelf starts this program with a directory in a variable, and returns the lines that it prints.
func startSelf(t *testing.T, variable, dir string) (*exec.Cmd, *bufio.Scanner) {
	maker := exec.Command(os.Args[0])
	maker.Env = append(os.Environ(), variable+"="+dir)
	out, err := maker.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, maker.Start())
	return maker, bufio.NewScanner(out)
}

// requireSwept requires that the next process leaves no folder but its own.
func requireSwept(t *testing.T, parent, why string) {
	t.Helper()
	next := newFolder(t, parent)
	next.Sweep(slog.New(slog.DiscardHandler))
	left, err := os.ReadDir(parent)
	require.NoError(t, err)
	require.Len(t, left, 1, why)
	require.NoError(t, next.Remove())
}

// TestFoldersOfProcessesThatWereKilled are removed, and nothing else.
func TestFoldersOfProcessesThatWereKilled(t *testing.T) {
	parent, outside := t.TempDir(), t.TempDir()
	folder := func() *Folder { return newFolder(t, parent) }
	listen := func(f *Folder) net.Listener {
		l, err := net.Listen("unix", f.Socket())
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return l
	}
	file := func(elements ...string) {
		require.NoError(t, os.WriteFile(filepath.Join(elements...), []byte("rows"), 0o600))
	}
	killed := folder().die(t)
	require.NoError(t, listen(killed).Close())
	file(killed.Path, "slot-1")
	file(outside, "rows")
	require.NoError(t, os.Symlink(filepath.Join(outside, "rows"), filepath.Join(killed.Path, "slot-2")))
	early := folder().die(t) // killed before it had a socket

	running, own := folder(), folder()
	orphan := folder().die(t) // an engine without its daemon
	defer listen(orphan).Close()
	full := folder().die(t)
	file(full.Path, "another")
	file(full.Path, "slot-1")
	open := folder().die(t)
	require.NoError(t, os.Chmod(open.Path, 0o755))
	require.NoError(t, os.Chmod(outside, 0o700))
	file(outside, SocketName)
	link := filepath.Join(parent, "kvtier-llama-link")
	require.NoError(t, os.Symlink(outside, link))
	file(parent, "kvtier-llama-file")

	elsewhere := newFolder(t, t.TempDir()).die(t)
	own.Sweep(slog.New(slog.DiscardHandler), filepath.Dir(elsewhere.Path), filepath.Join(parent, "missing"))
	require.NoDirExists(t, killed.Path)
	require.NoDirExists(t, early.Path)
	require.NoDirExists(t, elsewhere.Path)
	for _, path := range []string{
		running.Path, own.Path, orphan.Path, filepath.Join(full.Path, "slot-1"), open.Path, filepath.Join(outside, "rows"),
		filepath.Join(outside, SocketName), link, filepath.Join(parent, "kvtier-llama-file"),
	} {
		_, err := os.Lstat(path)
		require.NoError(t, err)
	}
	require.NoError(t, own.Remove())
	require.NoDirExists(t, own.Path)
}

// TestAFolderIsNotSweptWhileItIsMade: processes begin and sweep at the same time.
func TestAFolderIsNotSweptWhileItIsMade(t *testing.T) {
	parent := t.TempDir()
	sweeper := newFolder(t, parent)
	var makers, sweepers sync.WaitGroup
	ended := make(chan struct{})
	for range 2 {
		sweepers.Add(1)
		go func() {
			defer sweepers.Done()
			for {
				select {
				case <-ended:
					return
				default:
					sweeper.Sweep(slog.New(slog.DiscardHandler))
				}
			}
		}()
	}
	for range 4 {
		makers.Add(1)
		go func() {
			defer makers.Done()
			for range 50 {
				f, err := NewFolder(parent)
				if err != nil {
					t.Error(err)
					return
				}
				err = os.WriteFile(filepath.Join(f.Path, "slot-1"), nil, 0o600)
				if err = errors.Join(err, f.Remove()); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	makers.Wait()
	close(ended)
	sweepers.Wait()
}

// TestAProcessKilledAtAnyPoint leaves nothing that the next one does not remove.
func TestAProcessKilledAtAnyPoint(t *testing.T) {
	parent := t.TempDir()
	for steps := range 25 {
		maker, lines := startSelf(t, makerVariable, parent)
		for range steps {
			require.True(t, lines.Scan())
			require.Equal(t, "<nil>", lines.Text())
		}
		require.NoError(t, maker.Process.Kill())
		_ = maker.Wait() // it was killed
		requireSwept(t, parent, fmt.Sprintf("after %d steps", steps))
	}
}

// TestNamesOfParents: a relative one, and ones that are patterns.
func TestNamesOfParents(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, parent := range []string{"relative", "a[b]c", `back\slash`, "*", "a[b"} {
		require.NoError(t, os.Mkdir(parent, 0o700))
		dead := newFolder(t, parent)
		require.True(t, filepath.IsAbs(dead.Path))
		require.NoError(t, dead.lock.Close())
		own := newFolder(t, parent)
		own.Sweep(slog.New(slog.DiscardHandler))
		require.NoDirExists(t, dead.Path)
		require.NoError(t, own.Remove())
	}
}

package collect

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/telemetry"
)

func requireMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, want, info.Mode())
}

func TestReportsReachReaders(t *testing.T) {
	root := newRoot(t)
	collector(t, root)
	source := testSource(1)
	source.Meter.Add(promptsTotal, 3)
	startPush(t, root, source)
	awaitTotal(t, root, promptsTotal, 3)
	s := readState(t, root)
	require.True(t, s.Live)
	require.Equal(t, root, s.Root)
	require.Equal(t, telemetry.Version, s.Version)
	require.Len(t, s.Processes, 1)
	source.Meter.Add(promptsTotal, 1)
	awaitTotal(t, root, promptsTotal, 4)

	requireMode(t, filepath.Join(root, directoryName), fs.ModeDir|0o700)
	for name, mode := range map[string]fs.FileMode{lockName: 0o600, fileName: 0o600, socketName: fs.ModeSocket | 0o600} {
		requireMode(t, newPath(root, name), mode)
	}
}

// The state outlives the collector and the processes.
func TestStateWithoutACollector(t *testing.T) {
	root := newRoot(t)
	_, err := Read(t.Context(), root)
	require.ErrorIs(t, err, ErrNothing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, root)
	_, err = ReadWords(t.Context(), root, "")
	require.ErrorIs(t, err, ErrNoCollector)

	c := collector(t, root)
	source := testSource(1)
	source.Meter.Add(promptsTotal, 3)
	startPush(t, root, source).stop()
	require.Equal(t, 3.0, total(readState(t, root), promptsTotal), "the last report is there")
	require.NoError(t, c.stop())
	s := readState(t, root)
	require.False(t, s.Live)
	require.Equal(t, root, s.Root)
	require.Equal(t, 3.0, total(s, promptsTotal))
	require.Empty(t, s.Processes)
	_, err = os.Lstat(newPath(root, socketName))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = ReadWords(t.Context(), root, "")
	require.ErrorIs(t, err, ErrNoCollector)

	collector(t, root)
	again := readState(t, root)
	require.True(t, again.Live)
	require.Equal(t, s.Since, again.Since)
	require.Equal(t, 3.0, total(again, promptsTotal))
}

// Of many processes one collects, and each of the others takes over when its turn comes.
func TestOneCollectsAtATime(t *testing.T) {
	root := newRoot(t)
	var collecting atomic.Int32
	serves := make(chan int, 8)
	var all []*serving
	for i := range 5 {
		all = append(all, startServe(t, root, func(o *Options) {
			o.OnServe = func() { collecting.Add(1); serves <- i }
		}))
	}
	source := testSource(1)
	startPush(t, root, source, func(o *Options) { o.Intervals.Last = time.Millisecond }) // in the end nobody collects
	for n := range len(all) {
		i := <-serves
		require.Equal(t, int32(n+1), collecting.Load(), "no second one")
		source.Meter.Add(promptsTotal, 1)
		await(t, "a report to the new collector", func() bool {
			s := readState(t, root)
			return s.Live && len(s.Processes) == 1 && total(s, promptsTotal) == float64(n+1)
		})
		require.NoError(t, all[i].stop())
	}
}

// A root that is made later is waited for; nobody but the page store makes it.
func TestRootThatIsMadeLater(t *testing.T) {
	root := filepath.Join(t.TempDir(), "local")
	serves := make(chan struct{}, 1)
	startServe(t, root, func(o *Options) { o.OnServe = func() { serves <- struct{}{} } })
	startPush(t, root, testSource(1))
	_, err := os.Lstat(root)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Mkdir(root, 0o700))
	<-serves
	await(t, "a report", func() bool { return len(readState(t, root).Processes) == 1 })
}

// The socket and the temporary file of a collector that was killed are in nobody's way.
func TestFilesOfAKilledCollector(t *testing.T) {
	root := newRoot(t)
	require.NoError(t, os.Mkdir(filepath.Join(root, directoryName), 0o700))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: shortPath(t, newPath(root, socketName)), Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(newPath(root, fileName)+".tmp", []byte("{"), 0o600))
	collector(t, root)
	require.True(t, readState(t, root).Live)
	entries, err := os.ReadDir(filepath.Join(root, directoryName))
	require.NoError(t, err)
	require.Len(t, entries, 3)
}

// shortPath leads to a file through a link, because the test's directory is too long for a
// socket.
func shortPath(t *testing.T, path string) string {
	private, err := os.MkdirTemp("", "k")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(private) })
	require.NoError(t, os.Symlink(filepath.Dir(path), filepath.Join(private, "d")))
	return filepath.Join(private, "d", filepath.Base(path))
}

// The path of a root may be longer than that of a socket.
func TestLongRoot(t *testing.T) {
	root := filepath.Join(t.TempDir(), strings.Repeat("x", 120), strings.Repeat("y", 120))
	require.NoError(t, os.MkdirAll(root, 0o700))
	collector(t, root)
	require.True(t, readState(t, root).Live)

	// Systems without /proc go through a link, which they remove.
	t.Setenv("TMPDIR", t.TempDir())
	dir := filepath.Join(root, directoryName)
	err := withShortPath(dir, func(path string) error {
		conn, err := net.Dial("unix", path)
		return errors.Join(err, conn.Close())
	})
	if !errors.Is(err, fs.ErrNotExist) && len(os.Getenv("TMPDIR")) < 70 {
		require.NoError(t, err)
	}
	entries, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, entries)
}

// A directory that others may change is refused by all.
func TestUnsafeDirectory(t *testing.T) {
	for name, prepare := range map[string]func(root, dir string) error{
		"link": func(root, dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(root, "other"), 0o700), os.Symlink(filepath.Join(root, "other"), dir))
		},
		"writable by others": func(_, dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)) },
		"file":               func(_, dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"root":               func(root, dir string) error { return os.Chmod(root, 0o770) },
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			require.NoError(t, prepare(root, filepath.Join(root, directoryName)))
			err := Serve(t.Context(), root, Options{Intervals: quick})
			require.True(t, tier.UnsafeRoot(err), "%v", err)
			require.ErrorContains(t, err, root)
			_, err = Read(t.Context(), root)
			require.Error(t, err)
			if name != "root" {
				_, err = dial(t.Context(), filepath.Join(root, directoryName), true)
				require.Error(t, err)
			}
		})
	}
}

// A person removes the directory while a collector runs: the collector begins anew there, and
// never writes over another's file.
func TestDirectoryThatIsRemoved(t *testing.T) {
	for _, name := range []string{lockName, socketName, ""} {
		root := newRoot(t)
		serves := make(chan struct{}, 16)
		startServe(t, root, func(o *Options) { o.OnServe = func() { serves <- struct{}{} } })
		<-serves
		require.NoError(t, os.RemoveAll(newPath(root, name)))
		<-serves
		require.True(t, readState(t, root).Live)
	}
}

// The collector that has lost its lock leaves the file alone.
func TestACollectorThatLostItsLock(t *testing.T) {
	root := newRoot(t)
	serves := make(chan struct{}, 16)
	startServe(t, root, func(o *Options) { o.OnServe = func() { serves <- struct{}{} } })
	<-serves
	require.True(t, readState(t, root).Live)
	require.NoError(t, os.RemoveAll(filepath.Join(root, directoryName)))
	require.NoError(t, os.Mkdir(filepath.Join(root, directoryName), 0o700))
	p, err := newPlace(root, Options{Intervals: quick}.withDefaults())
	require.NoError(t, err)
	lock, err := p.lock()
	require.NoError(t, err)
	await(t, "it gives up", func() bool {
		conn, err := dial(context.Background(), p.dir, false)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	_, err = os.Lstat(newPath(root, fileName))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, lock.Close())
	<-serves
}

// A file that cannot be used is set aside, and the totals begin anew.
func TestFilesThatCannotBeUsed(t *testing.T) {
	hole := func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) }
	text := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for name, make := range map[string]func(path string) error{
		"empty": text(""), "cut off": text(`{"version":1,`), "zeros": text(string(make([]byte, 4096))), "future": text(`{"version":2}`),
		"a hole": hole, "a directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":            func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a process of none": text(`{"version":1,"processes":[{"model":0}]}`),
		"too many totals":   text(`{"version":1,"models":[{"series":[],"totals":[1]}]}`),
		"a negative total":  text(`{"version":1,"models":[{"series":["x"],"totals":[-1]}]}`),
		"twice":             text(`{"version":1,"models":[{},{}]}`),
		"too many models":   text(`{"version":1,"models":[` + strings.Repeat("{},", telemetry.ModelsMax) + `{}]}`),
	} {
		t.Run(name, func(t *testing.T) {
			root := newRoot(t)
			require.NoError(t, os.Mkdir(filepath.Join(root, directoryName), 0o700))
			for range 2 { // also where there is a file that was set aside
				require.NoError(t, make(newPath(root, fileName)))
				c := collector(t, root)
				s := readState(t, root)
				require.True(t, s.Live)
				require.Empty(t, s.Models)
				require.NoError(t, c.stop())
				_, err := os.Lstat(newPath(root, asideName))
				require.NoError(t, err)
				require.Equal(t, s.Since, readState(t, root).Since)
				require.NoError(t, os.Remove(newPath(root, fileName)))
			}
		})
	}
}

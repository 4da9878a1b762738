package slotfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// helperName is the name under which this program is fusermount3.
const helperName = "fusermount3"

// help does as fusermount3: it mounts a filesystem, and sends the descriptor of /dev/fuse to its
// parent, or it unmounts one.
func help() error {
	if os.Args[1] == "-u" {
		return unix.Unmount(os.Args[len(os.Args)-1], unix.MNT_DETACH)
	}
	device, err := attach(os.Args[1])
	if err != nil {
		return err
	}
	to, err := strconv.Atoi(os.Getenv("_FUSE_COMMFD"))
	if err != nil {
		return err
	}
	return unix.Sendmsg(to, []byte{0}, unix.UnixRights(device), nil, 0)
}

// attach mounts a filesystem in a directory, and returns the descriptor of /dev/fuse.
func attach(point string) (int, error) {
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	return device, unix.Mount("kvtier", point, "fuse.kvtier", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device))
}

// streaming returns Files that can make streams.
func streaming(t *testing.T) *Files {
	folder := newFolder(t, t.TempDir())
	t.Cleanup(func() { require.NoError(t, folder.Remove()) })
	files := New(folder, Options{Log: slog.New(slog.DiscardHandler)})
	needFuse(t)
	files.Mount()
	t.Cleanup(files.Unmount)
	require.True(t, files.Streams())
	return files
}

func needFuse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("FUSE cannot be used: %v", err)
	}
	device.Close()
}

// content is the content of a stream, which fails from some byte on.
type content struct {
	*bytes.Reader
	until  atomic.Int64
	closed int
}

func newContent(n int) *content {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>9)
	}
	c := &content{Reader: bytes.NewReader(b)}
	c.until.Store(int64(n))
	return c
}

// ReadAt implements io.ReaderAt.
func (c *content) ReadAt(p []byte, off int64) (int, error) {
	if until := c.until.Load(); off+int64(len(p)) > until && until < c.Size() {
		return 0, errors.New("a page is damaged")
	}
	return c.Reader.ReadAt(p, off)
}

func (c *content) Close() error {
	c.closed++
	return nil
}

// read reads a file as another process does.
func read(path string) (got []byte, problem string) {
	var out, errs bytes.Buffer
	cat := exec.Command("cat", path)
	cat.Env = append(os.Environ(), "LC_ALL=C")
	cat.Stdout, cat.Stderr = &out, &errs
	_ = cat.Run() // errs says why
	return out.Bytes(), errs.String()
}

// TestAStream: another process reads it, and it is in no directory.
func TestAStream(t *testing.T) {
	files := streaming(t)
	c := newContent(5<<20 + 123)
	f, err := files.Stream(c)
	require.NoError(t, err)
	require.True(t, f.Streamed())
	path := filepath.Join(files.Dir(), f.Name)
	for range 2 {
		got, problem := read(path)
		require.Empty(t, problem)
		want, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	}
	table, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	require.NotContains(t, string(table), " fuse.kvtier ") // mounts of other packages' tests have another type
	err = exec.Command("sh", "-c", "echo > "+path).Run()
	require.Error(t, err, "llama-server only reads it")

	c.until.Store(3 << 20)
	got, problem := read(path)
	require.Contains(t, problem, "Input/output error")
	require.Less(t, len(got), 3<<20+1)

	target, err := os.Readlink(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, 1, c.closed)
	for _, path := range []string{path, target} {
		_, problem = read(path)
		require.Contains(t, problem, "No such file")
	}
}

// TestStreamsThatNobodyCanOpen are made no more.
func TestStreamsThatNobodyCanOpen(t *testing.T) {
	files := streaming(t)
	f, err := files.Stream(newContent(10))
	require.NoError(t, err)
	other, err := files.New(1)
	require.NoError(t, err)
	files.Refused(other)
	require.True(t, files.Streams())
	_, problem := read(filepath.Join(files.Dir(), f.Name))
	require.Empty(t, problem)
	files.Refused(f)
	require.True(t, files.Streams(), "it was opened")
	require.NoError(t, f.Close())

	files.mount.files.opened = 0
	f, err = files.Stream(newContent(10))
	require.NoError(t, err)
	files.Refused(f)
	require.False(t, files.Streams())
	require.NoError(t, errors.Join(f.Close(), other.Close()))
}

// bytesWritten is a sink in memory, with room for some bytes.
type bytesWritten struct {
	content
	room int

	mu    sync.Mutex
	bytes []byte
}

// ReadAt hides that of content, so that this is no source.
func (b *bytesWritten) ReadAt() {}

func (b *bytesWritten) Size() int64 { return int64(len(b.written())) }

func (b *bytesWritten) written() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

func (b *bytesWritten) Empty() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes = nil
	return nil
}

func (b *bytesWritten) WriteAt(p []byte, off int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if off != int64(len(b.bytes)) || len(b.bytes)+len(p) > b.room {
		return 0, errors.New("no room")
	}
	b.bytes = append(b.bytes, p...)
	return len(p), nil
}

// TestASink: another process writes it, from the beginning each time.
func TestASink(t *testing.T) {
	files := streaming(t)
	s := &bytesWritten{room: 4 << 20}
	f, err := files.Stream(s)
	require.NoError(t, err)
	path := filepath.Join(files.Dir(), f.Name)
	for range 2 {
		require.NoError(t, exec.Command("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x > "+path).Run())
		require.Equal(t, strings.Repeat("x", 3000000), string(s.written()))
	}
	_, problem := read(path)
	require.Contains(t, problem, "Permission denied")
	require.Error(t, exec.Command("sh", "-c", "head -c 5000000 /dev/zero > "+path).Run())
	require.NoError(t, f.Close())
	require.Equal(t, 1, s.closed)
}

// TestStreamsThatCannotBeMade close their content.
func TestStreamsThatCannotBeMade(t *testing.T) {
	folder := newFolder(t, t.TempDir())
	files := New(folder, Options{Log: slog.New(slog.DiscardHandler)})
	c := newContent(10)
	_, err := files.Stream(c)
	require.ErrorIs(t, err, errNoStreams)
	require.Equal(t, 1, c.closed)
	needFuse(t)
	files.Mount()
	defer files.Unmount()
	require.NoError(t, folder.Remove())
	_, err = files.Stream(c)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 2, c.closed)
	require.Empty(t, files.mount.files.names)
}

// TestWithTheHelpOfFusermount: a filesystem that root did not mount.
func TestWithTheHelpOfFusermount(t *testing.T) {
	needFuse(t)
	bin := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(bin, helperName)))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	folder := newFolder(t, t.TempDir())
	m := &mount{files: newFuseFiles()}
	require.NoError(t, m.helped(filepath.Join(folder.Path, mountName)))
	defer m.close()
	left, err := os.ReadDir(folder.Path)
	require.NoError(t, err)
	require.Empty(t, left)
	got, problem := read(m.add("slot-1", newContent(1000)))
	require.Empty(t, problem)
	require.Len(t, got, 1000)
	require.NoError(t, folder.Remove())
}

// TestAMountThatWasLeft: its process was killed before it took the filesystem out of the folder.
// The filesystem answers nothing.
func TestAMountThatWasLeft(t *testing.T) {
	needFuse(t)
	parent := filepath.Join(t.TempDir(), "a b")
	require.NoError(t, os.Mkdir(parent, 0o700))
	killed, own := newFolder(t, parent).die(t), newFolder(t, parent)
	point := filepath.Join(killed.Path, mountName)
	require.NoError(t, os.Mkdir(point, 0o700))
	device, err := attach(point)
	require.NoError(t, err)
	require.NoError(t, unix.Close(device))
	_, err = os.Stat(point)
	require.ErrorIs(t, err, unix.ENOTCONN)
	own.Sweep(slog.New(slog.DiscardHandler))
	require.NoDirExists(t, killed.Path)

	killed = newFolder(t, parent).die(t)
	require.NoError(t, os.Mkdir(filepath.Join(killed.Path, mountName), 0o700)) // nothing is mounted yet
	own.Sweep(slog.New(slog.DiscardHandler))
	require.NoDirExists(t, killed.Path)
	require.NoError(t, own.Remove())
}

// TestNothingIsLeftOfStreams of a process that was killed, not even for llama-server.
func TestNothingIsLeftOfStreams(t *testing.T) {
	needFuse(t)
	parent := t.TempDir()
	maker, lines := startSelf(t, streamerVariable, parent)
	require.True(t, lines.Scan())
	path := lines.Text()
	got, problem := read(path)
	require.Empty(t, problem)
	require.Len(t, got, 1000)
	reader := exec.Command("sh", "-c", "exec 3<"+path+"; echo open; read line; cat <&3 >&2")
	reader.Env = append(os.Environ(), "LC_ALL=C")
	var errs strings.Builder
	reader.Stderr = &errs
	in, err := reader.StdinPipe()
	require.NoError(t, err)
	opened, err := reader.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, reader.Start())
	_, err = opened.Read(make([]byte, 10))
	if err != nil {
		_ = reader.Wait()
	}
	require.NoError(t, err, errs.String())

	require.NoError(t, maker.Process.Kill())
	_ = maker.Wait() // it was killed
	_, err = io.WriteString(in, "go on\n")
	require.NoError(t, err)
	require.Error(t, reader.Wait())
	require.Contains(t, errs.String(), "not connected")
	requireSwept(t, parent, "its process was killed")
}

// streamerVariable names the directory in which this program makes a stream, and waits.
const streamerVariable = "KVTIER_TEST_STREAMS"

func streamForEver(dir string) error {
	folder, err := NewFolder(dir)
	if err != nil {
		return err
	}
	files := New(folder, Options{Log: slog.Default()})
	files.Mount()
	f, err := files.Stream(newContent(1000))
	if err != nil {
		return err
	}
	fmt.Println(filepath.Join(folder.Path, f.Name))
	<-make(chan struct{})
	runtime.KeepAlive(files)
	return nil
}

func init() {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if filepath.Base(os.Args[0]) == helperName {
		if err := help(); err != nil {
			fail(err)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(streamerVariable); dir != "" {
		fail(streamForEver(dir))
	}
}

// TestAFilesystemThatSomebodyEnds: files are made in other ways from then on.
func TestAFilesystemThatSomebodyEnds(t *testing.T) {
	files := streaming(t)
	var st unix.Stat_t
	files.mu.Lock()
	m := files.mount
	err := unix.Fstat(int(m.root.Fd()), &st)
	files.mu.Unlock()
	require.NoError(t, err)
	control := t.TempDir()
	if err := unix.Mount("none", control, "fusectl", 0, ""); err != nil {
		t.Skipf("the filesystem that controls others cannot be mounted: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(control, unix.MNT_DETACH)) }()
	abort := filepath.Join(control, strconv.Itoa(int(unix.Minor(st.Dev))), "abort")
	require.NoError(t, os.WriteFile(abort, []byte("1"), 0o200))
	<-m.ended
	for files.Streams() {
		runtime.Gosched()
	}
}

// TestOpenedFiles: whoever opens a file is noticed, and nobody waits once the file is closed.
func TestOpenedFiles(t *testing.T) {
	files := streaming(t)
	stream, err := files.Stream(newContent(1000))
	require.NoError(t, err)
	memory, err := files.New(1000)
	require.NoError(t, err)
	files.opt.Available = func() (uint64, error) { return 0, nil }
	disk, err := files.New(1000)
	require.NoError(t, err)
	require.True(t, disk.OnDisk())
	for _, f := range []*File{stream, memory, disk} {
		opened := f.Opened()
		select {
		case <-opened:
			t.Fatal("nobody has opened it")
		default:
		}
		fd, err := unix.Open(filepath.Join(files.Dir(), f.Name), unix.O_RDONLY|unix.O_CLOEXEC, 0) // os.Open would poll what this process serves
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		<-opened
		require.NotNil(t, f.Opened())
		require.NoError(t, f.Close())
		require.Nil(t, f.Opened(), "it is gone")
	}
}

// TestFilesInMemoryAreNotExecutable: a system may refuse others.
func TestFilesInMemoryAreNotExecutable(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_NOEXEC_SEAL)
	if err != nil {
		t.Skip("this kernel does not know such files")
	}
	require.NoError(t, unix.Close(fd))
	f, _, err := newMemory()
	require.NoError(t, err)
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	require.NotZero(t, seals&sealExec)
	require.NoError(t, f.Truncate(1<<20), "it can still grow")
}

const sealExec = 0x20 // F_SEAL_EXEC

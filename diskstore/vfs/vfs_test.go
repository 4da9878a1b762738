package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write makes a file of the given content.
func write(t *testing.T, fsys FS, name, content string) {
	t.Helper()
	f, err := fsys.Create(name)
	require.NoError(t, err)
	_, err = f.Write([]byte(content))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

func TestOSIsRAM(t *testing.T) {
	_, err := OS.IsRAM(filepath.Join(t.TempDir(), "none"))
	if runtime.GOOS == "linux" {
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	if info, err := os.Stat("/dev/shm"); runtime.GOOS == "linux" && err == nil && info.IsDir() {
		ram, err := OS.IsRAM("/dev/shm")
		require.NoError(t, err)
		require.True(t, ram)
	}
}

func TestInjectorRules(t *testing.T) {
	dir := t.TempDir()
	inj := Inject(OS)
	boom := errors.New("boom")
	path := func(name string) string { return filepath.Join(dir, name) }

	// Without rules all operations are carried out and counted.
	write(t, inj, path("a"), "content")
	require.Equal(t, 4, inj.Count())
	require.Equal(t, 2, inj.Count(OpWrite, OpSync))
	inj.Reset()
	require.Zero(t, inj.Count())

	// Only the n-th operation of a kind on a path fails.
	inj.Add(Rule{Ops: []Op{OpLstat}, Path: regexp.MustCompile("a$"), Nth: 2, Err: boom})
	for i, want := range []error{nil, boom, nil} {
		_, err := inj.Lstat(path("a"))
		require.ErrorIs(t, err, want, i)
		_, err = inj.Lstat(dir)
		require.NoError(t, err)
	}

	// Either path of a rename matches, and a failed one does nothing.
	inj.Reset()
	inj.Add(Rule{Path: regexp.MustCompile("b$"), Err: boom})
	require.ErrorIs(t, inj.Rename(path("a"), path("b")), boom)
	require.FileExists(t, path("a"))

	// A short write leaves the bytes that it wrote.
	inj.Reset()
	inj.Add(Rule{Ops: []Op{OpWrite}, Nth: 2, Err: boom, Short: 2})
	f, err := inj.Create(path("c"))
	require.NoError(t, err)
	_, err = f.Write([]byte("abc"))
	require.NoError(t, err)
	n, err := f.Write([]byte("def"))
	require.ErrorIs(t, err, boom)
	require.Equal(t, 2, n)
	require.NoError(t, f.Close())
	require.Equal(t, "abcde", content(t, OS, path("c")))

	// A short read fills in the bytes that it read.
	inj.Reset()
	inj.Add(Rule{Ops: []Op{OpRead}, Err: boom, Short: 3})
	f, err = inj.Open(path("c"))
	require.NoError(t, err)
	p := make([]byte, 4)
	n, err = f.ReadAt(p, 1)
	require.ErrorIs(t, err, boom)
	require.Equal(t, 3, n)
	require.Equal(t, "bcd\x00", string(p))
	require.NoError(t, f.Close())
}

// operands are an FS, a file that is there, the file when it is open, and memory for what is read.
type operands struct {
	FS
	File
	name string
	buf  []byte
}

// operations are those of an FS and of an open file.
var operations = map[Op]func(o operands) error{
	OpCreate:  func(o operands) error { return ignore(o.FS.Create(o.name + "2")) },
	OpOpen:    func(o operands) error { return ignore(o.FS.Open(o.name)) },
	OpUncache: func(o operands) error { return o.FS.Uncache(o.name) },
	OpMkdir:   func(o operands) error { return o.FS.Mkdir(o.name + "2") },
	OpReadDir: func(o operands) error { return ignore(o.FS.ReadDir(filepath.Dir(o.name))) },
	OpRename:  func(o operands) error { return o.FS.Rename(o.name, o.name+"2") },
	OpRemove:  func(o operands) error { return o.FS.Remove(o.name) },
	OpLstat:   func(o operands) error { return ignore(o.FS.Lstat(o.name)) },
	OpChtimes: func(o operands) error { return o.FS.Chtimes(o.name, time.Now(), time.Now()) },
	OpLocking: func(o operands) error { return ignore(o.FS.Locking(o.name)) },
	OpSyncDir: func(o operands) error { return o.FS.SyncDir(filepath.Dir(o.name)) },
	OpLock:    func(o operands) error { return ignore(o.FS.Lock(o.name + ".lock")) },
	OpSpace:   func(o operands) error { return ignore(o.FS.Space(filepath.Dir(o.name))) },
	OpIsRAM:   func(o operands) error { return ignore(o.FS.IsRAM(filepath.Dir(o.name))) },
	OpRead:    func(o operands) error { return ignore(o.File.ReadAt(o.buf, 0)) },
	OpWrite:   func(o operands) error { return ignore(o.File.Write(o.buf)) },
	OpSync:    func(o operands) error { return o.File.Sync() },
	OpStat:    func(o operands) error { return ignore(o.File.Stat()) },
	OpClose:   func(o operands) error { return o.File.Close() },
}

func ignore(_ any, err error) error { return err }

// TestInjectorSeesEveryOperation fails each operation in turn.
func TestInjectorSeesEveryOperation(t *testing.T) {
	dir := t.TempDir()
	boom := errors.New("boom")
	name := filepath.Join(dir, "x")
	write(t, OS, name, "x")
	inj := Inject(OS)
	f, err := inj.Open(name)
	require.NoError(t, err)
	for op, run := range operations {
		if op == OpClose {
			continue // OpClose comes last
		}
		inj.Reset()
		inj.Add(Rule{Err: boom})
		require.ErrorIs(t, run(operands{inj, f, name, make([]byte, 1)}), boom, op)
		require.Equal(t, 1, inj.Count(op))
	}
	require.ErrorIs(t, f.Close(), boom)
	inj.Reset()
	require.ErrorIs(t, f.Close(), fs.ErrClosed, "a failed close has closed")
	require.Equal(t, "x", content(t, OS, name))
}

func TestGateHoldsOperationsBack(t *testing.T) {
	dir := t.TempDir()
	inj := Inject(OS)
	gate := NewGate()
	inj.Add(Rule{Ops: []Op{OpMkdir}, Gate: gate})
	var made errgroup.Group
	for _, name := range []string{"a", "b"} {
		made.Go(func() error { return inj.Mkdir(filepath.Join(dir, name)) })
	}
	<-gate.Entered()
	<-gate.Entered()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	gate.Open()
	require.NoError(t, made.Wait())
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

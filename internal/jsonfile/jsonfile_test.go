package jsonfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// record is the content of a caller's file.
type record struct {
	Version int
	Names   map[string]string
}

func write(t *testing.T, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "rates.json")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestReadWhatWasReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	for _, content := range []string{`{"Version":1}`, `{"Version":2,"Names":{"a":"b"}}`, `{"Version":3}`} {
		require.NoError(t, Replace(path, []byte(content)))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, content, string(data))
	}
	var got record
	require.NoError(t, Read(path, 100, &got))
	require.Equal(t, record{Version: 3}, got)
	requireOnly(t, path)

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "other users may not read the file")
}

// requireOnly checks that a file's directory has no other file.
func requireOnly(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, filepath.Base(path), entries[0].Name())
}

// Content that is no record is an error.
func TestHostileContent(t *testing.T) {
	for name, content := range map[string]string{
		"empty":              "",
		"cut off":            `{"Version":1,"Names":{"a":`,
		"not JSON":           "\x00\xff\xfe",
		"another type":       `[1,2,3]`,
		"another field type": `{"Version":"one"}`,
		"too large a number": `{"Version":1e400}`,
		"two values":         `{"Version":1}{"Version":2}`,
		"not a number":       `{"Version":NaN}`,
		"deep":               strings.Repeat("[", 100_000),
	} {
		var got record
		require.Error(t, Read(write(t, content), 1<<20, &got), name)
	}
	var got record
	require.NoError(t, Read(write(t, ` {"Version":1,"Unknown":{"a":[null]},"Version":2} `), 100, &got))
	require.Equal(t, record{Version: 2}, got)
}

func TestTooLargeFile(t *testing.T) {
	content := `{"Version":1}`
	path := write(t, content)
	var got record
	require.NoError(t, Read(path, len(content), &got))
	err := Read(path, len(content)-1, &got)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "larger than 12 bytes")

	// no more than the limit is read of a file that has a huge hole
	require.NoError(t, os.Truncate(path, 1<<40))
	require.ErrorContains(t, Read(path, 100, &got), "larger than 100 bytes")
}

func TestReadOfNoFile(t *testing.T) {
	dir := t.TempDir()
	var got record
	require.ErrorIs(t, Read(filepath.Join(dir, "none.json"), 100, &got), fs.ErrNotExist)
	require.ErrorIs(t, Read(dir, 100, &got), vfs.ErrNotRegular)
	link := filepath.Join(dir, "link.json")
	require.NoError(t, os.Symlink(write(t, `{"Version":1}`), link))
	require.Error(t, Read(link, 100, &got), "a link")
	require.Zero(t, got)
}

// A link in the place of a file is replaced, and its target stays.
func TestReplaceOfALink(t *testing.T) {
	target := write(t, `{"Version":1}`)
	path := filepath.Join(t.TempDir(), "rates.json")
	require.NoError(t, os.Symlink(target, path))
	require.NoError(t, Replace(path, []byte(`{"Version":2}`)))
	data, err := os.ReadFile(target)
	require.NoError(t, err)
	require.Equal(t, `{"Version":1}`, string(data))
	var got record
	require.NoError(t, Read(path, 100, &got))
	require.Equal(t, 2, got.Version)
	requireOnly(t, path)
}

func TestReplaceWhereNothingCanBeWritten(t *testing.T) {
	require.ErrorIs(t, Replace(filepath.Join(t.TempDir(), "none", "rates.json"), nil), fs.ErrNotExist)

	taken := filepath.Join(t.TempDir(), "rates.json")
	require.NoError(t, os.Mkdir(taken, 0o700))
	require.Error(t, Replace(taken, []byte("{}")), "a directory has the name")
	requireOnly(t, taken)

	if os.Geteuid() == 0 {
		return // root may write everywhere
	}
	path := write(t, `{"Version":1}`)
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o500))
	t.Cleanup(func() { _ = os.Chmod(filepath.Dir(path), 0o700) })
	require.ErrorIs(t, Replace(path, []byte(`{"Version":2}`)), fs.ErrPermission)
	var got record
	require.NoError(t, Read(path, 100, &got))
	require.Equal(t, 1, got.Version)
	requireOnly(t, path)
}

// onMem returns a filesystem with the file /rates.json.
func onMem(t *testing.T, content string) (*vfs.Mem, *vfs.Injector) {
	t.Helper()
	mem := vfs.NewMem(1 << 20)
	require.NoError(t, replace(mem, "/rates.json", []byte(content), false))
	return mem, vfs.Inject(mem)
}

func contentOf(t *testing.T, mem *vfs.Mem, path string) string {
	t.Helper()
	f, err := mem.Open(path)
	require.NoError(t, err)
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
	require.NoError(t, err)
	return string(data)
}

// A process that ends at any moment of a replacement leaves the old content or the new.
func TestProcessEndsDuringReplace(t *testing.T) {
	const before, after = `{"Version":1}`, `{"Version":2,"Names":{"a":"b"}}`
	mem, injected := onMem(t, before)
	var left []string
	injected.Watch(func(vfs.Op, ...string) { left = append(left, contentOf(t, mem.Clone(), "/rates.json")) })
	require.NoError(t, replace(injected, "/rates.json", []byte(after), false))
	require.GreaterOrEqual(t, len(left), 4, "create, write, close, rename")
	for _, content := range left[:4] {
		require.Equal(t, before, content)
	}
	for _, content := range left[4:] {
		require.Equal(t, after, content)
	}
	require.Equal(t, after, contentOf(t, mem, "/rates.json"))
}

// A replacement that fails leaves the old content, and no other file.
func TestReplaceThatFails(t *testing.T) {
	full := errors.New("no space left on device")
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpClose, vfs.OpRename} {
		mem, injected := onMem(t, `{"Version":1}`)
		injected.Add(vfs.Rule{Ops: []vfs.Op{op}, Err: full, Short: 5})
		require.ErrorIs(t, replace(injected, "/rates.json", []byte(`{"Version":2}`), false), full, op)
		require.Equal(t, `{"Version":1}`, contentOf(t, mem, "/rates.json"), op)
		entries, err := mem.ReadDir("/")
		require.NoError(t, err)
		require.Len(t, entries, 1, op)
	}
}

// Two processes may replace a file at the same time.
func TestReplacementsAtTheSameTime(t *testing.T) {
	mem, injected := onMem(t, `{"Version":1}`)
	gate := vfs.NewGate()
	injected.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Gate: gate})
	slow := make(chan error)
	go func() { slow <- replace(injected, "/rates.json", []byte(`{"Version":2}`), false) }()
	<-gate.Entered()
	require.NoError(t, replace(mem, "/rates.json", []byte(`{"Version":3}`), false))
	require.Equal(t, `{"Version":3}`, contentOf(t, mem, "/rates.json"))
	gate.Open()
	require.NoError(t, <-slow)
	require.Equal(t, `{"Version":2}`, contentOf(t, mem, "/rates.json"))
}

// A power cut after Keep leaves the new content.
func TestKeepSurvivesAPowerCut(t *testing.T) {
	mem, _ := onMem(t, `{"Version":1}`)
	require.NoError(t, replace(mem, "/rates.json", []byte(`{"Version":2}`), true))
	for seed := range uint64(8) {
		require.Equal(t, `{"Version":2}`, contentOf(t, mem.Crash(0, seed), "/rates.json"))
	}
}

package digests

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hashed is a settled file whose digest is remembered.
type hashed struct {
	path, memory string
	then         time.Time // its modification time
	digest       string
}

// later opens the digests as a runner that starts in an hour.
func (h hashed) later() *Files {
	d := Open(h.memory)
	d.now = func() time.Time { return time.Now().Add(time.Hour) }
	return d
}

func hashedFile(t *testing.T) hashed {
	t.Helper()
	dir := t.TempDir()
	h := hashed{path: filepath.Join(dir, "model.gguf"), memory: filepath.Join(dir, "digests.json"), then: time.Now().Add(-time.Hour)}
	require.NoError(t, os.WriteFile(h.path, []byte("weights"), 0o600))
	require.NoError(t, os.Chtimes(h.path, h.then, h.then))
	files := h.later()
	var err error
	h.digest, err = files.Weights(h.path)
	require.NoError(t, err)
	require.NoError(t, files.Save())
	return h
}

// remembered is the content of the digest file.
func (h hashed) remembered(t *testing.T) (content digestFile) {
	require.NoError(t, json.Unmarshal([]byte(mustRead(t, h.memory)), &content))
	return content
}

// poison remembers a wrong digest for the file, which shows whether a remembered digest is
// used.
func (h hashed) poison(t *testing.T) (digest string) {
	t.Helper()
	content := h.remembered(t)
	digest = strings.Repeat("0", 64)
	for path, r := range content.Files {
		r.SHA256 = digest
		content.Files[path] = r
	}
	data, err := json.Marshal(content)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(h.memory, data, 0o600))
	return digest
}

func TestFilesAreHashedOnce(t *testing.T) {
	h := hashedFile(t)
	poison := h.poison(t)
	remembered, err := Open(h.memory).Weights(h.path)
	require.NoError(t, err)
	require.Equal(t, poison, remembered)

	for name, content := range map[string]string{
		"damaged":          "not json",
		"of another build": `{"` + h.path + ` 7 1":"` + poison + `"}`,
		"too large":        strings.Repeat(" ", digestFileBytesMax) + "{}",
		"no digest":        strings.ReplaceAll(mustRead(t, h.memory), poison, "?"),
	} {
		require.NoError(t, os.WriteFile(h.memory, []byte(content), 0o600))
		again, err := Open(h.memory).Weights(h.path)
		require.NoError(t, err, name)
		require.Equal(t, h.digest, again, name)
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// A file of the same path, size and modification time may be another file, from an archive
// or a copy that kept the time.
func TestReplacedFileHasAnotherDigest(t *testing.T) {
	h := hashedFile(t)
	other := h.path + ".new"
	require.NoError(t, os.WriteFile(other, []byte("WEIGHTS"), 0o600))
	require.NoError(t, os.Chtimes(other, h.then, h.then))
	require.NoError(t, os.Rename(other, h.path))
	replaced, err := h.later().Weights(h.path)
	require.NoError(t, err)
	require.NotEqual(t, h.digest, replaced)
}

// No program can set the time at which an inode changed.
func TestRewrittenFileHasAnotherDigest(t *testing.T) {
	h := hashedFile(t)
	f, err := os.OpenFile(h.path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	before, err := stateOf(f)
	require.NoError(t, err)
	for after := before; after.Changed == before.Changed; { // until the filesystem's clock ticks
		_, err = f.WriteAt([]byte("WEIGHTS"), 0)
		require.NoError(t, err)
		require.NoError(t, os.Chtimes(h.path, h.then, h.then))
		after, err = stateOf(f)
		require.NoError(t, err)
		require.Equal(t, []int64{before.Size, before.Modified}, []int64{after.Size, after.Modified})
	}
	rewritten, err := h.later().Weights(h.path)
	require.NoError(t, err)
	require.NotEqual(t, h.digest, rewritten)
}

// A file may change again within the clock tick of its last change, and keep all its times.
// So no digest is remembered of a file that has just changed or has times in the future.
func TestFileThatHasJustChangedIsHashedAgain(t *testing.T) {
	for name, at := range map[string]time.Time{
		"now":                      {},
		"modified in the future":   time.Now().Add(10 * time.Hour),
		"modification time is old": time.Now().Add(-time.Hour), // but the inode's time is not old
	} {
		dir := t.TempDir()
		path, memory := filepath.Join(dir, "library.so"), filepath.Join(dir, "digests.json")
		var all []string
		for _, content := range []string{"one", "two"} {
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			if !at.IsZero() {
				require.NoError(t, os.Chtimes(path, at, at))
			}
			files := Open(memory)
			digest, err := files.File(path)
			require.NoError(t, err)
			require.NoError(t, files.Save())
			require.Empty(t, files.known, name)
			all = append(all, digest)
		}
		require.NotEqual(t, all[0], all[1], name)
		require.NoFileExists(t, memory, name)
	}
}

func TestRememberedDigestsAreBounded(t *testing.T) {
	h := hashedFile(t)
	dir := filepath.Dir(h.path)
	files := h.later()
	for i := range digestsMax + 10 {
		path := filepath.Join(dir, fmt.Sprint(i))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := files.File(path)
		require.NoError(t, err)
	}
	gone := filepath.Join(dir, "0")
	require.NoError(t, os.Remove(gone))
	long := filepath.Join(dir, strings.Repeat(string(os.PathSeparator)+strings.Repeat("x", 200), 6))
	require.NoError(t, os.MkdirAll(filepath.Dir(long), 0o700))
	require.NoError(t, os.WriteFile(long, nil, 0o600))
	_, err := files.File(long)
	require.NoError(t, err)
	require.NoError(t, files.Save())

	content := h.remembered(t)
	require.Len(t, content.Files, digestsMax)
	require.NotContains(t, content.Files, gone)
	require.NotContains(t, content.Files, long)
	require.LessOrEqual(t, len(mustRead(t, h.memory)), digestFileBytesMax)
	leftovers, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
	require.NoError(t, err)
	require.Empty(t, leftovers)
}

func TestMappedLibrariesThatCompute(t *testing.T) {
	const maps = `5581a000-5581b000 r-xp 00000000 08:01 100 /opt/my tools/bin/ollama
7f00a000-7f00b000 r--p 00000000 08:01 101 /opt/my tools/lib/ollama/libggml-base.so.0.0.0
7f00b000-7f00c000 r-xp 00001000 08:01 101 /opt/my tools/lib/ollama/libggml-base.so.0.0.0
7f00d000-7f00e000 r-xp 00000000 08:01 102 /opt/my tools/lib/ollama/cuda_v12/libggml-cuda.so
7f00f000-7f010000 r-xp 00000000 08:01 103 /opt/my tools/lib/ollama/cuda_v12/libcublasLt.so.12.8.4.1
7f00f000-7f010000 r-xp 00000000 08:01 104 /opt/my tools/lib/ollama/cuda_v12/libhelper.so
7f011000-7f012000 r-xp 00000000 08:01 105 /usr/local/cuda/lib64/libcublas.so.12
7f013000-7f014000 r-xp 00000000 08:01 106 /usr/lib/x86_64-linux-gnu/libc.so.6
7f015000-7f016000 rw-p 00000000 00:00 0   [heap]
7f017000-7f018000 rw-s 00000000 00:05 107 /dev/zero (deleted)
7f019000-7f01a000 r-xp 00000000 08:01 108 /usr/lib/libfoo.so (deleted)
7f01b000-7f01c000 r-xp 00000000 08:01 110 /usr/lib/x86_64-linux-gnu/libllama.so.0.0.10488
7f01b000-7f01c000 r--p 00000000 08:01 109 /home/user/ggml-model.gguf
7f01d000-7f01e000 r-xp 00000000 08:01 111 /usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblasp-r0.3.21.so
`
	dirs := []string{"/opt/my tools/lib/ollama", "/opt/my tools/lib/ollama/cuda_v12"}
	paths, err := Mapped(maps, dirs)
	require.NoError(t, err)
	require.Equal(t, []string{
		"/opt/my tools/lib/ollama/cuda_v12/libcublasLt.so.12.8.4.1",
		"/opt/my tools/lib/ollama/cuda_v12/libggml-cuda.so",
		"/opt/my tools/lib/ollama/cuda_v12/libhelper.so",
		"/opt/my tools/lib/ollama/libggml-base.so.0.0.0",
		"/usr/lib/x86_64-linux-gnu/libllama.so.0.0.10488",
		"/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblasp-r0.3.21.so",
		"/usr/local/cuda/lib64/libcublas.so.12",
	}, paths)
	_, err = Mapped("7f00a000-7f00b000 r-xp 0 08:01 1 /opt/lib/libggml-cpu.so (deleted)\n", nil)
	require.ErrorContains(t, err, "/opt/lib/libggml-cpu.so was replaced")
}

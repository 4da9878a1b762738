package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFioRate(t *testing.T) {
	rate, err := fioRate([]byte("note: something\n{\"jobs\":[{\"read\":{\"bw_bytes\":1500},\"write\":{\"bw_bytes\":0}}]}"), "read")
	require.NoError(t, err)
	require.Equal(t, 1500.0, rate)
	for want, out := range map[string]string{
		"no JSON":          "fio: bad option",
		"no rate of write": `{"jobs":[{"write":{"bw_bytes":0}}]}`,
		"no rate of read":  `{"jobs":[{}]}`,
		"2 jobs":           `{"jobs":[{},{}]}`,
		"invalid":          `{"jobs"]`,
	} {
		side := "read"
		if want == "no rate of write" {
			side = "write"
		}
		_, err := fioRate([]byte(out), side)
		require.ErrorContains(t, err, want)
	}
}

// TestDisk reads and writes the same with fio and without. The files' names together are
// longer than fio's limit of a list, and contain fio's separator.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i := range 24 {
		path := filepath.Join(dir, fmt.Sprintf("%s:%d", strings.Repeat("n", 200), i))
		require.NoError(t, os.WriteFile(path, make([]byte, 2<<20+32), 0o600))
		paths = append(paths, path)
	}
	disks := []disk{{dir: dir}}
	if d := newDisk(dir); d.fio != "" {
		require.NotEmpty(t, d.version)
		disks = append(disks, d)
	}
	for _, d := range disks {
		rate, err := d.readCached(t.Context(), paths, 2, fioReadBytes)
		require.NoError(t, err)
		require.Positive(t, rate)
		rate, err = d.write(t.Context(), 2, 3<<20+4096)
		require.NoError(t, err)
		require.Positive(t, rate)
		require.NoDirExists(t, filepath.Join(dir, "written"))
	}
}

// TestStoreQuick runs the part that needs no built Ollama, and leaves no file behind.
func TestStoreQuick(t *testing.T) {
	folders := filepath.Join("..", "..", "build", "bench-*")
	before, err := filepath.Glob(folders)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "quick.json")
	var stdout, stderr bytes.Buffer
	require.NoError(t, run(context.Background(), []string{"-quick", "-only", "store", "-o", path}, &stdout, &stderr), &stderr)
	r, err := load(path)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(r.Store.Compared), 4)
	for _, c := range r.Store.Compared {
		require.Positive(t, c.Rate.Ratio.Median, c.Name)
	}
	require.Less(t, r.Store.Compressed, 1.0)
	require.Len(t, r.Store.Lookups, 2)
	require.Len(t, r.Store.Opened, 2)
	require.Positive(t, r.Store.Opened[1].Counted)
	require.Contains(t, stdout.String(), "restore, full page cache")
	require.NotContains(t, stdout.String(), "ollama ")

	var again bytes.Buffer
	require.NoError(t, run(context.Background(), []string{"-show", path}, &again, io.Discard))
	require.Equal(t, stdout.String(), again.String())
	after, err := filepath.Glob(folders)
	require.NoError(t, err)
	require.Equal(t, before, after)
}

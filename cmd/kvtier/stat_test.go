package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// storeTotals lets a process report three prompts, of which two were restored, and end.
func storeTotals(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: totals DIR")
	}
	root := ts.MkAbs(args[0])
	source := &telemetry.Source{
		Process: telemetry.Process{PID: os.Getpid(), Engine: telemetry.EngineOllama},
		Started: time.Now(),
		Model:   telemetry.Model{Weights: strings.Repeat("ab12", 16), Fingerprint: strings.Repeat("0", 64), PageTokens: pageTokens},
		Meter:   new(telemetry.Meter),
	}
	for _, restored := range []int{100, 200, 0} {
		source.Meter.Prompt(telemetry.Prompt{At: time.Now(), Tokens: 300, Local: restored, Computed: 300 - restored, Restore: time.Millisecond})
	}
	push(ts, root, source)
	labOf(ts).end()
}

// TestMetricsFileRevealsNoMore: a file that its owner has closed stays closed, and a link is
// replaced and not followed.
func TestMetricsFileRevealsNoMore(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no modes")
	}
	dir := t.TempDir()
	path, other := filepath.Join(dir, "kvtier.prom"), filepath.Join(dir, "other")
	mode := func() os.FileMode {
		info, err := os.Lstat(path)
		require.NoError(t, err)
		return info.Mode()
	}
	require.NoError(t, replaceFile(path, []byte("1")))
	require.Equal(t, os.FileMode(0o644), mode())
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, replaceFile(path, []byte("2")))
	require.Equal(t, os.FileMode(0o600), mode())

	require.NoError(t, os.WriteFile(other, []byte("keep"), 0o600))
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(other, path))
	require.NoError(t, replaceFile(path, []byte("3")))
	require.Equal(t, os.FileMode(0o644), mode())
	text, err := os.ReadFile(other)
	require.NoError(t, err)
	require.Equal(t, "keep", string(text))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2)
}

package machine

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

func TestReadsNothingUnusual(t *testing.T) {
	dir := t.TempDir()
	e := Here{}
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("0123456789"), 0o600))
	require.NoError(t, os.Symlink("file", filepath.Join(dir, "link")))
	_, err := e.Read(fifo, 10)
	require.Error(t, err)
	_, err = e.List(fifo, 10)
	require.Error(t, err)
	_, err = e.Read(filepath.Join(dir, "link"), 10)
	require.ErrorIs(t, err, vfs.ErrNotRegular)
	text, err := e.Read(filepath.Join(dir, "file"), 4)
	require.NoError(t, err)
	require.Equal(t, "0123", string(text))
	names, err := e.List(dir, 2)
	require.NoError(t, err)
	require.Len(t, names, 2)
}

// TestRunIsBounded: output of a program has a bound, and so has its time.
func TestRunIsBounded(t *testing.T) {
	e := Here{}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := e.Run(ctx, nil, "sleep", "1000")
	require.Error(t, err)
	out, err := e.Run(t.Context(), nil, "head", "-c", "9000000", "/dev/zero")
	require.NoError(t, err)
	require.Len(t, out, 4<<20)
	_, err = e.Run(t.Context(), []string{"KVTIER_A=b"}, "sh", "-c", "echo first >&2; echo $KVTIER_A >&2; exit 3")
	require.ErrorContains(t, err, "exit status 3: b", "the last line says why")
}

// TestRootRunsNoOthersProgram: PATH may lead to a folder of the user who ran sudo.
func TestRootRunsNoOthersProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\necho ran\n"), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	out, err := Here{}.Run(t.Context(), nil, "docker")
	require.NoError(t, err)
	require.Equal(t, "ran\n", out)
	require.NoError(t, os.Chown(dir, 65534, 65534))
	out, err = Here{}.Run(t.Context(), nil, "docker")
	require.ErrorContains(t, err, "other users can change "+filepath.Join(dir, "docker"))
	require.Empty(t, out)
}

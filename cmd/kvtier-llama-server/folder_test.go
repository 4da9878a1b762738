//go:build unix

package main

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFoldersOfDaemonsThatWereKilled are removed, and nothing else.
func TestFoldersOfDaemonsThatWereKilled(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	folder := func() *folder {
		f, err := newFolder()
		require.NoError(t, err)
		return f
	}
	listen := func(f string) net.Listener {
		l, err := net.Listen("unix", filepath.Join(f, socketName))
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return l
	}
	killed := folder()
	require.NoError(t, listen(killed.path).Close())
	require.NoError(t, killed.lock.Close()) // as the end of a process does
	early := folder()                       // killed before it had a socket
	require.NoError(t, early.lock.Close())

	running, own := folder(), folder()
	orphan := folder() // without its daemon
	require.NoError(t, orphan.lock.Close())
	defer listen(orphan.path).Close()
	full := folder()
	require.NoError(t, full.lock.Close())
	require.NoError(t, os.WriteFile(filepath.Join(full.path, "another"), nil, 0o600))
	open := folder()
	require.NoError(t, open.lock.Close())
	require.NoError(t, os.Chmod(open.path, 0o755))
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(outside, socketName), nil, 0o600))
	link, file := filepath.Join(os.TempDir(), "kvtier-llama-link"), filepath.Join(os.TempDir(), "kvtier-llama-file")
	require.NoError(t, os.Symlink(outside, link))
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	log := slog.New(slog.DiscardHandler)
	own.sweep(log, time.Now())
	require.DirExists(t, killed.path, "it may be a new one")
	own.sweep(log, time.Now().Add(-time.Hour))
	require.DirExists(t, killed.path, "a time from the future")
	own.sweep(log, time.Now().Add(2*folderAge))
	require.NoDirExists(t, killed.path)
	require.NoDirExists(t, early.path)
	for _, path := range []string{running.path, own.path, orphan.path, full.path, open.path, outside, filepath.Join(outside, socketName), link, file} {
		_, err := os.Lstat(path)
		require.NoError(t, err)
	}
	require.NoError(t, own.remove())
	require.NoDirExists(t, own.path)
}

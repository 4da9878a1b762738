package vfs

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHeld: a lock is seen while it is held, and looking takes nothing.
func TestHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	_, err := Held(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for range 2 {
		lock, err := OS.Lock(path)
		require.NoError(t, err)
		held, err := Held(path)
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, lock.Close())
		held, err = Held(path)
		require.NoError(t, err)
		require.False(t, held)
	}
	_, err = Held(filepath.Dir(path))
	require.ErrorIs(t, err, ErrNotRegular)
}

package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	s, err := parse([]string{"-only", "hot,ttft", "-sizes", "256,512"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{256, 512}, s.sizes)
	require.Equal(t, []string{"hot", "ttft"}, s.only)
	for _, args := range [][]string{
		{"-only", "none"}, {"-sizes", "x"}, {"-sizes", "255"}, {"-sizes", "1000000"}, {"-n", "0"},
		{"-conversations", "0"}, {"-length", "255"}, {"-length", "1000000"}, {"-unknown"},
	} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
}

func TestNewFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, n int) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), make([]byte, n), 0o600))
	}
	n := newFiles{dirs: []string{dir, filepath.Join(dir, "none")}, seen: make(map[string]bool)}
	write("a", 10)
	require.NoError(t, n.look(false))
	write("b", 5)
	require.NoError(t, n.look(false))
	require.EqualValues(t, 15, n.bytes)
	require.NoError(t, n.look(true))
	require.EqualValues(t, 30, n.bytes)
}

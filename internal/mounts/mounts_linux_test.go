package mounts

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mounted reports whether something is mounted on dir.
func mounted(t *testing.T, dir string) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	return strings.Contains(string(table), " "+dir+" ")
}

func TestPassthrough(t *testing.T) {
	source := t.TempDir()
	p := NewPassthrough(t, source)
	inside, outside := filepath.Join(p.Dir, "a"), filepath.Join(source, "a")
	require.NoError(t, os.WriteFile(inside, []byte("one"), 0o600))
	data, err := os.ReadFile(outside)
	require.NoError(t, err)
	require.Equal(t, "one", string(data))

	// The chosen operations fail with the given error, and no others.
	p.Fail(syscall.ESTALE, OpRead)
	_, err = os.ReadFile(inside)
	require.ErrorIs(t, err, syscall.ESTALE)
	_, err = os.Stat(inside)
	require.NoError(t, err)
	p.Heal()
	p.FailOnce(syscall.EIO, OpRead)
	_, err = os.ReadFile(inside)
	require.ErrorIs(t, err, syscall.EIO)
	_, err = os.ReadFile(inside)
	require.NoError(t, err)

	// Stalled operations go on when the server is healed.
	entered := p.Stall(OpRead)
	read := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(inside)
		read <- err
	}()
	<-entered
	p.Heal()
	require.NoError(t, <-read)

	// The server's death fails waiting and later operations.
	entered = p.Stall(OpRead)
	go func() {
		_, err := os.ReadFile(inside)
		read <- err
	}()
	<-entered
	p.Kill()
	require.Error(t, <-read)
	_, err = os.ReadFile(inside)
	require.ErrorIs(t, err, syscall.ENOTCONN)
	require.True(t, mounted(t, p.Dir))
	p.Unmount()
	require.False(t, mounted(t, p.Dir))
	entries, err := os.ReadDir(p.Dir)
	require.NoError(t, err)
	require.Empty(t, entries)

	// The filesystem can be mounted again, and vanish with a file open.
	p.Mount()
	f, err := os.Open(inside)
	require.NoError(t, err)
	p.Vanish()
	require.False(t, mounted(t, p.Dir))
	require.NoFileExists(t, inside)
	_, err = f.Read(make([]byte, 3))
	require.NoError(t, err)
	p.Unmount()
	_, err = f.Read(make([]byte, 3))
	require.Error(t, err)
	require.Error(t, f.Close())
	p.Mount()
	require.FileExists(t, inside)
}

func TestThrottled(t *testing.T) {
	source, dir := t.TempDir(), t.TempDir()
	m, err := NewThrottled(source, dir)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, m.Limit(100e6))
	want := bytes.Repeat([]byte("page"), 1<<18)
	require.NoError(t, os.WriteFile(filepath.Join(m.Dir, "a"), want, 0o600))
	got, err := os.ReadFile(filepath.Join(m.Dir, "a"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	require.NoError(t, m.Limit(0))
	require.FileExists(t, filepath.Join(source, "a"))
	require.True(t, mounted(t, dir))
	require.NoError(t, m.Close())
	require.False(t, mounted(t, dir))
}

func TestLinkCarriesAllRequestsTogetherAtItsSpeed(t *testing.T) {
	var l link
	now := time.Unix(1e9, 0)
	require.Equal(t, now, l.through(1e9, now), "without a limit")
	l.limit(1e6)
	require.Equal(t, now.Add(time.Second), l.through(1e6, now))
	require.Equal(t, now.Add(1500*time.Millisecond), l.through(5e5, now), "after the first")
	now = now.Add(time.Minute)
	require.Equal(t, now.Add(time.Second), l.through(1e6, now), "unused capacity is not saved up")
}

package station

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/modelnames"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/listen"
)

// longest is the most time that a test waits for something that must happen.
const longest = time.Minute

func await(t *testing.T, event <-chan struct{}, name string) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(longest):
		t.Fatal("it is waited for in vain: ", name)
	}
}

// newRoot makes a private root.
func newRoot(t *testing.T) string {
	root := filepath.Join(t.TempDir(), "local")
	require.NoError(t, os.Mkdir(root, 0o700))
	return root
}

// TestNamesThatHang: a disk with models that does not answer holds up neither collecting nor the
// end.
func TestNamesThatHang(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	ctx, end := context.WithCancel(t.Context())
	serves, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = Serve(ctx, newRoot(t), Options{
			Names:   func() modelnames.Names { close(asked); <-answer; return nil },
			OnServe: func() { close(serves) },
		})
	}()
	defer close(answer)
	await(t, asked, "names")
	await(t, serves, "a collector")
	end()
	await(t, done, "the end")
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestKeepWaitsForAPerson: a directory that others can write to is not used, and is once a person
// has put it right.
func TestKeepWaitsForAPerson(t *testing.T) {
	root := newRoot(t)
	require.NoError(t, os.Chmod(root, 0o777))
	require.Error(t, Serve(t.Context(), root, Options{}))
	ctx, end := context.WithCancel(t.Context())
	serves, done, tried := make(chan struct{}), make(chan struct{}), make(lines, 64)
	go func() {
		defer close(done)
		Keep(ctx, root, Options{OnServe: func() { close(serves) }, Logger: slog.New(slog.NewTextHandler(tried, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	}()
	require.Contains(t, <-tried, "reports of runners are not collected")
	require.NoError(t, os.Chmod(root, 0o700))
	await(t, serves, "a collector")
	s, err := collect.Read(t.Context(), root)
	require.NoError(t, err)
	require.True(t, s.Live)
	end()
	await(t, done, "the end")
}

// TestKeepCollectsWithoutAListener: a slip in the address costs the listener alone.
func TestKeepCollectsWithoutAListener(t *testing.T) {
	t.Setenv(listen.Variable, "no address")
	root := newRoot(t)
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	warned := make(lines, 64)
	go func() {
		defer close(done)
		Keep(ctx, root, Options{Logger: slog.New(slog.NewTextHandler(warned, nil))})
	}()
	require.Contains(t, <-warned, "nobody listens for metrics")
	s, err := collect.Read(t.Context(), root)
	require.NoError(t, err)
	require.True(t, s.Live)
	end()
	await(t, done, "the end")
}

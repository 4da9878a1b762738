package station

import (
	"context"
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

// TestKeepWaitsForAPerson: a directory that others can write to is not used, and is once a person
// has put it right.
func TestKeepWaitsForAPerson(t *testing.T) {
	root := newRoot(t)
	require.NoError(t, os.Chmod(root, 0o777))
	require.Error(t, Serve(t.Context(), root, Options{}))
	ctx, end := context.WithCancel(t.Context())
	serves, done, again := make(chan struct{}), make(chan struct{}), make(chan time.Time)
	go func() {
		defer close(done)
		Keep(ctx, root, Options{OnServe: func() { close(serves) }, again: again})
	}()
	again <- time.Time{}
	require.NoError(t, os.Chmod(root, 0o700))
	select {
	case again <- time.Time{}:
	case <-serves: // the try before may have come after the change
	}
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
	serves := make(chan struct{}, 8)
	go func() {
		defer close(done)
		Keep(ctx, root, Options{OnServe: func() { serves <- struct{}{} }})
	}()
	for range 2 { // the first one ends with the error
		<-serves
	}
	s, err := collect.Read(t.Context(), root)
	require.NoError(t, err)
	require.True(t, s.Live)
	end()
	await(t, done, "the end")
}

package screen

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDrawn(t *testing.T) {
	const first, next = "\x1b[H\x1b[K", "\r\n\x1b[K"
	require.Equal(t, first+"a"+next+"b\r\n\x1b[J", drawn("a\nb\n", 3))
	require.Equal(t, first+"a"+next+"b", drawn("a\nb\n", 2), "a line feed in the last line would scroll")
	require.Equal(t, first+"a", drawn("a\nb\nc", 1))
	require.Equal(t, first+"\r\n\x1b[J", drawn("", 24))
}

func TestKeysThatQuit(t *testing.T) {
	for _, keys := range []string{"q", "Q", "\x03", "xy\x1b[Aq"} {
		quit := make(chan struct{})
		waitForQuit(strings.NewReader(keys), quit)
		select {
		case <-quit:
		default:
			t.Errorf("%q does not quit", keys)
		}
	}
	waitForQuit(strings.NewReader("x\x1b[B"), nil) // closing nil would panic
}

// Without a terminal no key is read, and the end of the context ends Run, also while a frame
// hangs.
func TestRunEndsWithItsContext(t *testing.T) {
	in, none, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer none.Close()
	screen, out, err := os.Pipe()
	require.NoError(t, err)
	defer screen.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hang := make(chan struct{})
	defer close(hang)
	calls := 0
	err = Run(ctx, in, out, time.Nanosecond, func(context.Context) string {
		if calls++; calls == 3 {
			cancel()
			<-hang
		}
		return "frame"
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, out.Close())
	got, err := io.ReadAll(screen)
	require.NoError(t, err)
	frame := drawn("frame", unknownHeight)
	require.Equal(t, enter+frame+frame+leave, string(got))
}

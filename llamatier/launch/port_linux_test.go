package launch

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeServer is a llama-server that runs a script.
func fakeServer(t *testing.T, script string) string {
	path := filepath.Join(t.TempDir(), "llama-server")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700))
	return path
}

// endless is a text without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestTheDefaultPort is what the help of the real llama-server says.
func TestTheDefaultPort(t *testing.T) {
	const help = "--host HOST   ip address (default: 127.0.0.1)\n--port PORT   port to listen %s\n              (env: LLAMA_ARG_PORT)\n\n--threads-http N   (default: 7)\n"
	for text, want := range map[string]int{"(default: 9931)": 9931, "(default:\n              8081)": 8081, "": 8080, "(default: none)": 8080} {
		real := fakeServer(t, "[ \"$*\" = --help ] && cat <<'END'\n"+fmt.Sprintf(help, text)+"END\n")
		name, number, err := command("-m x").Address(real)
		require.NoError(t, err)
		require.Equal(t, "127.0.0.1", name)
		require.Equal(t, want, number, text)
	}
	_, number, err := command("-m x").Address(filepath.Join(t.TempDir(), "none"))
	require.NoError(t, err)
	require.Equal(t, 8080, number)
}

// TestAHelpWithoutAnEnd and one that does not come hold up nothing.
func TestAHelpWithoutAnEnd(t *testing.T) {
	_, number, err := command("-m x").Address(fakeServer(t, "exec yes -- '--port PORT  (default: 9931)'\n"))
	require.NoError(t, err)
	require.Equal(t, 9931, number)
	var help limited
	_, err = io.Copy(&help, endless{})
	require.ErrorIs(t, err, io.ErrShortWrite)
	require.LessOrEqual(t, help.text.Len(), helpBytes)

	fifo := filepath.Join(t.TempDir(), "started")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	real := fakeServer(t, "echo >"+fifo+"\nexec tail -f /dev/null\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = os.ReadFile(fifo)
		cancel()
	}()
	require.Equal(t, 8080, defaultPort(ctx, real, os.Environ()))
}

package llamatier

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestAnEngineThatManyWaitFor is waited for: a Unix socket refuses connections that a TCP port
// would let wait.
func TestAnEngineThatManyWaitFor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: socket}))
	require.NoError(t, unix.Listen(fd, 0))
	for err = error(nil); err == nil; {
		var c net.Conn
		if c, err = net.Dial("unix", socket); err == nil {
			defer c.Close()
		}
	}
	require.True(t, errors.Is(err, unix.EAGAIN), "%v", err)

	dialed := make(chan error, 1)
	e := Dial(socket)
	go func() {
		_, err := e.ask(t.Context(), http.MethodGet, "/", nil, http.Header{})
		dialed <- err
	}()
	l, err := net.FileListener(f)
	require.NoError(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "{}") })}
	go func() { _ = s.Serve(l) }()
	require.NoError(t, <-dialed)
	require.NoError(t, s.Close())
}

package engines

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Valkey starts a Valkey or Redis that keeps nothing on the disk, and returns the path of its socket. The
// configuration is arguments such as "--maxmemory", "64mb".
func Valkey(t testing.TB, configuration ...string) (*Server, string) {
	t.Helper()
	return Host{}.Valkey(t, configuration...)
}

// Valkey starts a Valkey or Redis on a host. It listens on TCP where the configuration says so.
func (h Host) Valkey(t testing.TB, configuration ...string) (*Server, string) {
	t.Helper()
	path := Find(t, "KVTIER_VALKEY_SERVER", "valkey-server")
	dir, err := os.MkdirTemp("", "valkey") // a socket's path has 100 bytes at most, and t.TempDir names the test
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	args := append([]string{"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--appendonly", "no"}, configuration...)
	return h.start(t, path, args, func() error { return answers(socket) }), socket
}

// answers reports a server that gives no answer, which may be an error, to a ping.
func answers(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

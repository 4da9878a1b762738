package engines

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Valkey starts a Valkey that keeps nothing on the disk, and returns the path of its socket. The configuration is
// arguments such as "--maxmemory", "64mb".
func Valkey(t testing.TB, configuration ...string) (*Server, string) {
	t.Helper()
	return Host{}.Valkey(t, configuration...)
}

// Valkey starts a Valkey on a host. It listens on TCP where the configuration says so.
func (h Host) Valkey(t testing.TB, configuration ...string) (*Server, string) {
	t.Helper()
	return h.keyed(t, Find(t, "KVTIER_VALKEY_SERVER", "team/bin/valkey-server"), nil, configuration)
}

// RedisTLS starts a Redis, which also speaks TLS at the returned address, with a certificate's and a key's file.
func RedisTLS(t testing.TB, certificate, key string) (server *Server, socket, address string) {
	t.Helper()
	path := Find(t, "KVTIER_REDIS_SERVER", "redis/usr/bin/redis-server")
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(path), "..", "lib", "*")) // of Debian's package, which is not installed
	require.NoError(t, err)
	port := freePorts(t, 1)[0]
	server, socket = Host{}.keyed(t, "env", []string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":"), path}, []string{
		"--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no",
	})
	return server, socket, net.JoinHostPort("127.0.0.1", port)
}

// keyed starts a server of Valkey's and Redis's family, whose program begins with some arguments.
func (h Host) keyed(t testing.TB, path string, begin, configuration []string) (*Server, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "valkey") // a socket's path has 100 bytes at most, and t.TempDir names the test
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	args := slices.Concat(begin, []string{"--port", "0", "--unixsocket", socket, "--dir", dir, "--save", "", "--appendonly", "no"}, configuration)
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

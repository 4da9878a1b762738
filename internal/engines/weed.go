package engines

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Credentials of a server of [Weed].
const (
	WeedAccess = "access"
	WeedSecret = "secret"
)

// grpcAbove is the distance of weed's ports for gRPC from the others.
const grpcAbove = 10_000

// Weed starts SeaweedFS, all of its parts in one process, and returns the address at which it speaks S3.
func Weed(t testing.TB) (*Server, string) {
	t.Helper()
	server, endpoint, _ := Host{Address: "127.0.0.1"}.Weed(t)
	return server, endpoint
}

// Weed starts SeaweedFS on a host, and returns also the folder with what it stores.
func (h Host) Weed(t testing.TB) (server *Server, endpoint, dir string) {
	t.Helper()
	path := Find(t, "KVTIER_WEED", "weed")
	dir = t.TempDir()
	config := filepath.Join(t.TempDir(), "s3.json")
	identities := fmt.Sprintf(`{"identities": [{"name": "test", "credentials": [{"accessKey": %q, "secretKey": %q}], "actions": ["Admin"]}]}`, WeedAccess, WeedSecret)
	require.NoError(t, os.WriteFile(config, []byte(identities), 0o600))
	ports := freePorts(t, 4)
	endpoint = "http://" + net.JoinHostPort(h.Address, ports[3])
	t.Cleanup(func() { // no option moves these
		for _, port := range ports {
			n, _ := strconv.Atoi(port)
			left, _ := filepath.Glob(fmt.Sprintf("/tmp/seaweedfs-*-grpc-%d.sock", n+grpcAbove))
			for _, path := range left {
				os.Remove(path)
			}
		}
	})
	server = h.start(t, path, []string{
		"-logdir", dir, "server", "-dir", dir, "-ip", h.Address, "-ip.bind", h.Address,
		"-master.port", ports[0], "-volume.port", ports[1], "-filer", "-filer.port", ports[2], "-s3", "-s3.port", ports[3],
		"-filer.localSocket", filepath.Join(dir, "filer"), "-s3.localSocket", filepath.Join(dir, "s3"),
		"-s3.config", config, "-s3.port.iceberg", "0", "-s3.port.lance", "0", "-master.telemetry=false", "-volume.max", "20", "-master.volumeSizeLimitMB", "64",
	}, func() error {
		answer, err := http.Get(endpoint)
		if err == nil {
			err = answer.Body.Close()
		}
		return err
	})
	return server, endpoint, dir
}

// freePorts finds ports at which, and at those for gRPC, nobody listens.
func freePorts(t testing.TB, n int) (ports []string) {
	for len(ports) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if g, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+grpcAbove)); err == nil {
			g.Close()
			ports = append(ports, strconv.Itoa(port))
		}
	}
	return ports
}

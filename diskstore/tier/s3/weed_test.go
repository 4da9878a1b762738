package s3

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
)

const (
	// startMost bounds the start of a server.
	startMost = time.Minute
	// grpcAbove is the distance of weed's ports for gRPC.
	grpcAbove = 10_000

	bucketName = "pages"
	identities = `{"identities": [{"name": "test", "credentials": [{"accessKey": "access", "secretKey": "secret"}], "actions": ["Admin", "Read", "Write", "List"]}]}`
)

// weed is SeaweedFS with all its parts in one process, which all tests share. Each test has a prefix.
var weed struct {
	sync.Once
	endpoint string
	skip     string // why there is none
	err      error
	stop     func()
}

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull} {
		os.Setenv(name, value)
	}
	weed.stop = func() {}
	code := m.Run()
	weed.stop()
	os.Exit(code)
}

// server returns the address of a real server, in which there is a bucket.
func server(t testing.TB) string {
	t.Helper()
	weed.Do(startWeed)
	if weed.skip != "" {
		t.Skip(weed.skip)
	}
	require.NoError(t, weed.err)
	return weed.endpoint
}

func startWeed() {
	program, err := filepath.Abs("../../../build/team/bin/weed")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		weed.skip = "scripts/team-servers installs weed, the server that this test runs: " + err.Error()
		return
	}
	dir, err := os.MkdirTemp("", "weed")
	if weed.err = err; err != nil {
		return
	}
	config := filepath.Join(dir, "s3.json")
	weed.err = os.WriteFile(config, []byte(identities), 0o600)
	ports := freePorts(4)
	cmd := exec.Command(program, "-logdir", dir, "server", "-dir", dir, "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1",
		"-master.port", ports[0], "-volume.port", ports[1], "-filer", "-filer.port", ports[2], "-s3", "-s3.port", ports[3],
		"-filer.localSocket", filepath.Join(dir, "filer.sock"), "-s3.localSocket", filepath.Join(dir, "s3.sock"),
		"-s3.config", config, "-s3.port.iceberg", "0", "-master.telemetry=false", "-volume.max", "20", "-master.volumeSizeLimitMB", "64")
	cmd.Dir = dir
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		weed.err = err
		return
	}
	cmd.Stdout, cmd.Stderr = log, log
	if weed.err = cmd.Start(); weed.err != nil {
		return
	}
	weed.stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		os.RemoveAll(dir)
		for _, port := range ports {
			n, _ := strconv.Atoi(port)
			left, _ := filepath.Glob(fmt.Sprintf("/tmp/seaweedfs-*-grpc-%d.sock", n+grpcAbove)) // no option moves them
			for _, path := range left {
				os.Remove(path)
			}
		}
	}
	weed.endpoint = "http://127.0.0.1:" + ports[3]
	weed.err = makeBucket()
}

// freePorts finds ports at which, and at those for gRPC, nobody listens.
func freePorts(n int) (ports []string) {
	for len(ports) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if port+grpcAbove > 65535 {
			continue
		}
		if g, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+grpcAbove)); err == nil {
			g.Close()
			ports = append(ports, strconv.Itoa(port))
		}
	}
	return ports
}

// makeBucket makes the bucket as soon as the server is up.
func makeBucket() error {
	ctx, cancel := context.WithTimeout(context.Background(), startMost)
	defer cancel()
	tr, err := Place{Bucket: bucketName, Endpoint: weed.endpoint}.Open(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		bucket := bucketName
		_, err := tr.client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &bucket})
		if err == nil {
			_, err = tr.put(ctx, "ready", nil, always)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// openAt opens a tier of one test at a server.
func openAt(t testing.TB, endpoint string) *Tier {
	t.Helper()
	p, err := ParseAddress(fmt.Sprintf("s3://%s/%s?endpoint=%s", bucketName, t.Name(), endpoint))
	require.NoError(t, err)
	tr, err := p.Open(t.Context())
	require.NoError(t, err)
	return tr
}

package s3

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

var endpoint string

func TestMain(m *testing.M) { os.Exit(m.Run()) }

var buckets int

func open(t *testing.T) tier.Tier {
	if endpoint == "" {
		endpoint = os.Getenv("EP")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "k")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	buckets++
	p, err := ParseAddress(fmt.Sprintf("s3://pages/%d-%d/x?endpoint=%s", time.Now().UnixNano(), buckets, endpoint))
	require.NoError(t, err)
	tr, err := p.Open(context.Background())
	require.NoError(t, err)
	_, err = tr.client.CreateBucket(context.Background(), &s3.CreateBucketInput{Bucket: &p.Bucket})
	if buckets == 1 {
		t.Log(err)
	}
	return tr
}

func TestContract(t *testing.T) { tiertest.Contract(t, open) }

func TestGuarded(t *testing.T) {
	tiertest.Contract(t, func(t *testing.T) tier.Tier {
		return guard.New(open(t), time.Minute, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() {})
	})
}

var _, _, _, _ = exec.Command, filepath.Join, strings.Join, freePort

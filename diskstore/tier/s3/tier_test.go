package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/engines"
)

const bucketName = "pages"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWeed runs the tests that need a server on SeaweedFS.
func TestWeed(t *testing.T) {
	onServer(t, func(t *testing.T) string {
		_, endpoint := engines.Weed(t)
		return endpoint
	})
}

// TestVersityGW runs them on another server.
func TestVersityGW(t *testing.T) {
	path := os.Getenv("KVTIER_VERSITYGW")
	if path == "" {
		t.Skip("to build the server takes minutes: run make test-long PARTS=team")
	}
	onServer(t, func(t *testing.T) string { return engines.VersityGW(t, path) })
}

// onServer runs the tests that need a server on one, each below a prefix of its own.
func onServer(t *testing.T, start func(*testing.T) (endpoint string)) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": engines.WeedAccess, "AWS_SECRET_ACCESS_KEY": engines.WeedSecret, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	endpoint := start(t)
	makeBucket(t, endpoint)
	for name, run := range map[string]func(t *testing.T, endpoint string){
		"conditions": testConditions, "long chain": testALongChain, "hole": testAHole, "parts": testPartsOfAnUpload, "replaced": testAPageThatIsReplaced, "faults": testFaults, "advice": testAdvice,
		"contract": func(t *testing.T, endpoint string) {
			tiertest.Contract(t, func(t *testing.T) tier.Tier { return openAt(t, endpoint) })
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, endpoint) })
	}
}

// makeBucket makes the bucket of all tests, as soon as the server can: its parts start one after another.
func makeBucket(t *testing.T, endpoint string) {
	tr := openAt(t, endpoint)
	require.Eventually(t, func() bool {
		_, err := tr.client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &tr.bucket})
		if err == nil {
			_, err = tr.put(t.Context(), "ready", nil, always)
		}
		return err == nil
	}, time.Minute, 50*time.Millisecond)
}

// openAt opens the tier of one test.
func openAt(t *testing.T, endpoint string) *Tier {
	t.Helper()
	p, err := ParseAddress(fmt.Sprintf("s3://%s/%s?endpoint=%s", bucketName, t.Name(), endpoint))
	require.NoError(t, err)
	tr, err := p.Open(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// testAdvice: errors tell what was attempted, on what, and what their reader can do.
func testAdvice(t *testing.T, endpoint string) {
	says := func(endpoint, want string) {
		t.Helper()
		tr := openAt(t, endpoint)
		_, err := tr.list(t.Context(), usesFolder, 1)
		require.ErrorContains(t, err, "list s3://pages/"+t.Name()+"/v1/uses/: "+want)
		require.NotContains(t, err.Error(), engines.WeedSecret)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html><link></html>") }))
	says(other.URL, "no S3 answers there, look at the endpoint: ")
	other.Close()
	says(other.URL, "no connection, look at the endpoint and whether it runs: ")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	says(endpoint, "the store refuses the credentials, or what they are to do: ")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	says(endpoint, "there are no credentials, give the server AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: ")
}

// testALongChain: its end is found in few requests, wherever it is, and holes in it show when they are read.
func testALongChain(t *testing.T, endpoint string) {
	p := newProxy(t, endpoint)
	tr := openAt(t, p.URL)
	const pages = 60
	names := make([]pagefile.Name, 512)
	for i := range names {
		names[i] = tiertest.Page(byte(i))
		names[i].Key[1] = byte(i >> 8)
	}
	for i := range pages {
		tiertest.Upload(t, tr, names[i], []byte("page"), time.Unix(int64(i), 0))
	}
	for _, end := range []int{pages, 40, 10, 1, 0} {
		for _, name := range names[end:pages] {
			_, err := tr.Remove(t.Context(), tier.Info{Name: name})
			require.NoError(t, err)
		}
		before := p.requests.Load()
		infos, err := tier.Leading(t.Context(), tr, names)
		require.NoError(t, err)
		require.Len(t, infos, end)
		require.LessOrEqual(t, p.requests.Load()-before, int64(32))
		for i, info := range infos {
			require.Equal(t, names[i], info.Name)
			require.EqualValues(t, 4, info.Bytes)
		}
	}
}

// testConditions: a store that ignores one of the conditions, or does not know it, is used, and nobody collects it.
func testConditions(t *testing.T, endpoint string) {
	for _, header := range []string{"If-None-Match", "If-Match"} {
		for _, unknown := range []bool{false, true} {
			p := newProxy(t, endpoint)
			p.set(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method == http.MethodPut && r.Header.Get(header) != "" {
					if unknown {
						refuse(http.StatusNotImplemented, "NotImplemented")(w, r, next)
						return
					}
					w.Header().Set("ETag", `"ignored"`)
					return
				}
				next.ServeHTTP(w, r)
			})
			var said bytes.Buffer
			tr := openAt(t, p.URL)
			tr.Log = slog.New(slog.NewTextHandler(&said, nil))
			_, err := tr.Account(t.Context(), func([]byte, string) ([]byte, error) { return []byte("content"), nil })
			require.NoError(t, err)
			_, err = tr.Lock(t.Context())
			require.ErrorIs(t, err, tier.ErrUncollected)
			require.Equal(t, 1, strings.Count(said.String(), "ignores conditional requests"))
			tiertest.Upload(t, tr, tiertest.Page(1), []byte("page"), time.Now())
			content, err := openAt(t, endpoint).Account(t.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, "content", string(content))
			requireNothing(t, tr, probe)
		}
	}
}

func requireNothing(t *testing.T, tr *Tier, beginning string) {
	found, err := tr.list(t.Context(), beginning, listMost)
	require.NoError(t, err)
	require.Empty(t, found)
}

// testAHole is taken for granted between two pages, and missing when it is opened.
func testAHole(t *testing.T, endpoint string) {
	tr := openAt(t, endpoint)
	names := make([]pagefile.Name, 30)
	for i := range names {
		names[i] = tiertest.Page(byte(i))
		if i != 14 {
			tiertest.Upload(t, tr, names[i], []byte("page"), time.Now())
		}
	}
	infos, err := tier.Leading(t.Context(), tr, names)
	require.NoError(t, err)
	require.Contains(t, []int{14, 30}, len(infos))
	_, err = tr.Open(t.Context(), names[14], false)
	require.ErrorIs(t, err, tier.ErrNotFound)
}

// testPartsOfAnUpload: a page of several parts is whole when it is there, also while others write it.
func testPartsOfAnUpload(t *testing.T, endpoint string) {
	tr := openAt(t, endpoint)
	content := make([]byte, 2*partBytes+12345)
	for i := range content {
		content[i] = byte(i * i >> 7)
	}
	name := tiertest.Page(1)
	write := func(ctx context.Context) (tier.Committed, error) {
		up, err := tr.Create(ctx, name)
		if err != nil {
			return tier.Committed{}, err
		}
		defer up.Abort()
		for part := range slices.Chunk(content, 1<<20) {
			if err := up.Write(ctx, part); err != nil {
				return tier.Committed{}, err
			}
		}
		return up.Commit(ctx, time.Now())
	}
	g, ctx := errgroup.WithContext(t.Context())
	for range 3 {
		g.Go(func() error {
			_, err := write(ctx) // SeaweedFS may take two of these for the first
			return err
		})
	}
	require.NoError(t, g.Wait())
	last, err := write(t.Context())
	require.NoError(t, err)
	require.True(t, last.Replaced)
	blob, err := tr.Open(t.Context(), name, false)
	require.NoError(t, err)
	got := make([]byte, len(content))
	require.NoError(t, blob.ReadAt(t.Context(), got, 0))
	require.Equal(t, content, got)
	require.Error(t, blob.ReadAt(t.Context(), got[:2], int64(len(content))-1))

	up, err := tr.Create(t.Context(), tiertest.Page(2))
	require.NoError(t, err)
	for part := range slices.Chunk(content, 1<<20) {
		require.NoError(t, up.Write(t.Context(), part))
	}
	up.Abort()
	left, err := tr.client.ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &tr.bucket, Prefix: &tr.prefix})
	require.NoError(t, err)
	require.Empty(t, left.Uploads)
}

// testAPageThatIsReplaced: its reader gets no bytes of the other one.
func testAPageThatIsReplaced(t *testing.T, endpoint string) {
	tr := openAt(t, endpoint)
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("first"), time.Now())
	blob, err := tr.Open(t.Context(), tiertest.Page(1), false)
	require.NoError(t, err)
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("other"), time.Now())
	require.ErrorIs(t, blob.ReadAt(t.Context(), make([]byte, 5), 0), tier.ErrStale)
	_, err = tr.Remove(t.Context(), tier.Info{Name: tiertest.Page(1)})
	require.NoError(t, err)
	require.ErrorIs(t, blob.ReadAt(t.Context(), make([]byte, 5), 0), tier.ErrStale)
}

func TestParseAddress(t *testing.T) {
	p, err := ParseAddress("s3://bucket/a/b/?endpoint=https://host:9000&region=eu")
	require.NoError(t, err)
	require.Equal(t, Place{Bucket: "bucket", Prefix: "a/b/", Endpoint: "https://host:9000", Region: "eu"}, p)
	require.True(t, p.Encrypted())
	p, err = ParseAddress("s3://bucket")
	require.NoError(t, err)
	require.Equal(t, Place{Bucket: "bucket"}, p)
	for _, bad := range []string{
		"", "bucket", "http://host/bucket", "s3://", "s3:///prefix", "s3://key:secret@bucket", "s3://bucket:9000/x", "s3://bucket?endpoint=host",
		"s3://bucket?endpoint=https://key:secret@host", "s3://bucket?secret=x", "s3://bucket?region=a&region=b", "s3://bucket/%zz",
	} {
		_, err := ParseAddress(bad)
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "secret@", bad)
	}
}

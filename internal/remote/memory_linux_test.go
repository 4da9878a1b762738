package remote

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/engines"
	"github.com/kvtier/kvtier/internal/tierenv"
)

const (
	pageBytes = 32 << 20
	pageCount = 8
	// memoryMost bounds the memory that an engine takes beyond that of a directory.
	memoryMost = 256 << 20
)

// addresses are those of real servers, which end with the test.
func addresses(t *testing.T) map[string]string {
	_, endpoint := engines.Weed(t)
	_, socket := engines.Valkey(t)
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": engines.WeedAccess, "AWS_SECRET_ACCESS_KEY": engines.WeedSecret, "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
	makeBucket(t, endpoint)
	return map[string]string{"s3": "s3://pages/PREFIX?endpoint=" + endpoint, "valkey": "unix://" + socket + "?prefix=PREFIX"}
}

// makeBucket makes a bucket as soon as the server can: its parts start one after another.
func makeBucket(t *testing.T, endpoint string) {
	client := s3.New(s3.Options{BaseEndpoint: &endpoint, UsePathStyle: true, Region: "any", Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: engines.WeedAccess, SecretAccessKey: engines.WeedSecret}, nil
	})})
	require.Eventually(t, func() bool {
		if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("pages")}); err != nil {
			return false
		}
		_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("pages"), Key: aws.String("ready")})
		return err == nil
	}, time.Minute, 50*time.Millisecond)
}

// peak is the most memory that this process has had since it wrote to clear_refs, in bytes.
func peak(t *testing.T) (n int64) {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, after, _ := bytes.Cut(status, []byte("VmHWM:"))
	_, err = fmt.Sscan(string(after), &n)
	require.NoError(t, err)
	return n << 10
}

// during is the memory that something takes at its peak, in bytes.
func during(t *testing.T, do func()) int64 {
	debug.FreeOSMemory()
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	before := peak(t)
	do()
	return peak(t) - before
}

// TestMemoryOfLargePages: pages of 32 MB are written through an engine and read from it, sealed and not, in little
// more memory than a directory takes. What one host has stored another one reads.
func TestMemoryOfLargePages(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, bytes.Repeat([]byte("0123456789abcdef"), 4), 0o600))
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: pageBytes / 32}}, 32)
	require.NoError(t, err)
	directory := host{t, layout, tierenv.Config{}, t.TempDir()}
	written, read := during(t, directory.write), during(t, directory.read)
	t.Logf("a directory: written with %d MiB, read with %d MiB", written>>20, read>>20)
	for name, address := range addresses(t) {
		for _, keyFile := range []string{"", keys} {
			t.Run(fmt.Sprintf("%s sealed %t", name, keyFile != ""), func(t *testing.T) {
				address := strings.Replace(address, "PREFIX", strconv.Itoa(len(keyFile)), 1)
				if keyFile == "" {
					address += "&plain=1"
				}
				h := host{t, layout, tierenv.Config{Address: address, KeyFile: keyFile}, ""}
				more, moreRead := during(t, h.write)-written, during(t, h.read)-read
				t.Logf("written with %d MiB more, read with %d MiB more", more>>20, moreRead>>20)
				require.Less(t, more, int64(memoryMost))
				require.Less(t, moreRead, int64(memoryMost))
			})
		}
	}
}

// host is one of a team.
type host struct {
	t      *testing.T
	layout pagefile.Layout
	config tierenv.Config
	shared string // a directory in place of an engine
}

// fingerprint is that of all pages.
var fingerprint = pagefile.Key{1}

// open opens the host's store, without any local pages.
func (h host) open() *diskstore.Store {
	log := slog.New(slog.DiscardHandler)
	shared, err := Open(context.Background(), h.config, log)
	require.NoError(h.t, err)
	s, err := diskstore.Open(context.Background(), diskstore.Options{
		Fingerprint: fingerprint, PageTokens: 32, RemoteTier: shared, ThroughPerDay: 1 << 40, Logger: log,
		Remote: diskstore.TierConfig{Root: h.shared},
		Local:  diskstore.TierConfig{Root: filepath.Join(h.t.TempDir(), "root"), BudgetBytes: 1 << 40},
	})
	require.NoError(h.t, err)
	return s
}

// chain are the tokens of all pages.
func chain() (tokens []int32) {
	for i := range int32(pageCount * 32) {
		tokens = append(tokens, i)
	}
	return tokens
}

func (h host) write() {
	s, rows, parent := h.open(), make([]byte, pageBytes), fingerprint
	defer func() { require.NoError(h.t, s.Close()) }()
	for i := range pageCount {
		for at := range rows {
			rows[at] = byte(i + at>>8)
		}
		p := &pagefile.Page{Parent: parent, Start: uint32(32 * i), Tokens: chain()[32*i : 32*i+32], Layout: h.layout, Payload: rows}
		require.NoError(h.t, s.Put(context.Background(), p))
		parent = p.Key()
	}
	require.NoError(h.t, s.Flush(context.Background()))
	require.Equal(h.t, uint64(pageCount), s.Stats().ThroughPages)
}

func (h host) read() {
	s := h.open()
	defer func() { require.NoError(h.t, s.Close()) }()
	refs := s.Find(context.Background(), diskstore.Prompt{Tokens: chain()}).Exact
	require.Len(h.t, refs, pageCount)
	free := make(chan []byte, engine.PagesAtOnce)
	for range engine.PagesAtOnce {
		free <- make([]byte, pageBytes)
	}
	var all errgroup.Group
	all.SetLimit(engine.PagesAtOnce)
	for i, ref := range refs {
		all.Go(func() error {
			rows := <-free
			defer func() { free <- rows }()
			require.Equal(h.t, tier.Remote, ref.Tier)
			err := s.Read(context.Background(), ref, chain()[ref.Start:ref.End()], h.layout, diskstore.Into{Rows: rows})
			require.Equal(h.t, byte(i+1), rows[1<<8], "of page %d", i)
			return err
		})
	}
	require.NoError(h.t, all.Wait())
}

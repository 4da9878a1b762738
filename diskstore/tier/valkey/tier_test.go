package valkey

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/engines"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// start starts a server and opens a tier in it.
func start(t *testing.T, configuration ...string) (*engines.Server, *Tier) {
	t.Helper()
	server, socket := engines.Valkey(t, configuration...)
	return server, openAt(t, "unix://"+socket)
}

func openAt(t *testing.T, address string) *Tier {
	t.Helper()
	tr, err := Open(address, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// another opens another tier in the same server.
func another(t *testing.T, tr *Tier) *Tier { return openAt(t, tr.where) }

// ask runs any command.
func ask(t *testing.T, tr *Tier, words ...string) valkey.ValkeyResult {
	t.Helper()
	answers, err := tr.do(ctx, "ask", tr.client.B().Arbitrary(words...).Build())
	require.NoError(t, err)
	return answers[0]
}

// askKeys returns the keys that match a pattern.
func askKeys(t *testing.T, tr *Tier, pattern string) []string {
	t.Helper()
	keys, err := ask(t, tr, "KEYS", tr.prefix+pattern).AsStrSlice()
	require.NoError(t, err)
	return keys
}

// content follows from a name: all uploads of a name hold the same page. It repeats itself after a prime
// number of bytes, so that no two parts are equal.
func content(name pagefile.Name, size int) []byte {
	block := make([]byte, 10007)
	_, _ = rand.NewChaCha8(name.Key).Read(block)
	return bytes.Repeat(block, size/len(block)+1)[:size]
}

// readAll reads a page, 1 MiB at a time, as the guard does.
func readAll(blob tier.Blob) ([]byte, error) {
	got := make([]byte, blob.Size())
	for at := 0; at < len(got); at += pagefile.StepBytes {
		if err := blob.ReadAt(ctx, got[at:min(at+pagefile.StepBytes, len(got))], int64(at)); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// put stores a page.
func put(tr *Tier, name pagefile.Name, p []byte, used time.Time) (tier.Committed, error) {
	up, err := tr.Create(ctx, name)
	if err != nil {
		return tier.Committed{}, err
	}
	defer up.Abort()
	for len(p) > 0 {
		n := min(len(p), pagefile.StepBytes)
		if err := up.Write(ctx, p[:n]); err != nil {
			return tier.Committed{}, err
		}
		p = p[n:]
	}
	return up.Commit(ctx, used)
}

// listAll lists all pages.
func listAll(t *testing.T, tr *Tier) (infos []tier.Info) {
	t.Helper()
	_, shards, err := tr.Survey(ctx)
	require.NoError(t, err)
	for _, shard := range shards {
		some, err := tr.ListShard(ctx, shard)
		require.NoError(t, err)
		infos = append(infos, some...)
	}
	return infos
}

// notDisk hides that a guard has the methods of a Disk, whatever is below.
type notDisk struct{ tier.Tier }

func TestContract(t *testing.T) {
	_, socket := engines.Valkey(t)
	open := func(t *testing.T) tier.Tier { return openAt(t, "unix://"+socket+"?prefix="+newID()) }
	t.Run("bare", func(t *testing.T) { tiertest.Contract(t, open) })
	t.Run("guarded", func(t *testing.T) {
		tiertest.Contract(t, func(t *testing.T) tier.Tier {
			return notDisk{guard.New(open(t), time.Minute, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() {})}
		})
	})
}

// TestContractAsDocumentedUser: the rights that doc.go names are enough, and the keys stay below the prefix.
func TestContractAsDocumentedUser(t *testing.T) {
	_, socket := engines.Valkey(t)
	contractAsUser(t, socket, func(t *testing.T) tier.Tier { return openAt(t, "unix://kvtier:secret@"+socket+"?prefix=mine:") })
}

// contractAsUser runs the contract as the user of doc.go.
func contractAsUser(t *testing.T, socket string, open func(*testing.T) tier.Tier) {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	rule := regexp.MustCompile(`(?s)ACL SETUSER.*?\+time\n`).FindString(string(text))
	rule = strings.NewReplacer("PASSWORD", "secret", "PREFIX", "mine:").Replace(rule)
	ask(t, openAt(t, "unix://"+socket), strings.Fields(rule)...)
	tiertest.Contract(t, func(t *testing.T) tier.Tier {
		ask(t, openAt(t, "unix://"+socket), "FLUSHALL")
		return open(t)
	})
}

// counted counts what is sent: a flush of the client's buffer, which holds a round trip.
type counted struct {
	net.Conn
	sent *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(p)
}

// startCounted opens a tier that counts its round trips.
func startCounted(t *testing.T) (*engines.Server, *Tier, *atomic.Int64) {
	server, socket := engines.Valkey(t)
	sent := new(atomic.Int64)
	tr, err := open(address{network: "unix", host: socket, prefix: "kvtier:"}, func(ctx context.Context, network, host string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, host)
		return counted{conn, sent}, err
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	require.Zero(t, sent.Load(), "Open connects to nothing")
	return server, tr, sent
}

func TestFindOfAChainTakesOneRoundTrip(t *testing.T) {
	_, tr, sent := startCounted(t)
	var names []pagefile.Name
	for i := range 512 {
		names = append(names, pagefile.Name{Fingerprint: tiertest.Fingerprint, Key: pagefile.Key{byte(i), byte(i >> 8), 1}})
		if i != 300 {
			_, err := put(tr, names[i], []byte{byte(i)}, time.Unix(0, int64(i)))
			require.NoError(t, err)
		}
	}
	before := sent.Load()
	infos, err := tr.Find(ctx, names, false)
	require.NoError(t, err)
	require.EqualValues(t, 1, sent.Load()-before)
	for i, info := range infos {
		require.Equal(t, i != 300, info.Found(), i)
		if info.Found() {
			require.Equal(t, names[i], info.Name)
			require.True(t, info.Used.Equal(time.Unix(0, int64(i))))
		}
	}
}

// TestEveryRange reads ranges around the ends of parts and of windows.
func TestEveryRange(t *testing.T) {
	_, tr, sent := startCounted(t)
	name := tiertest.Page(1)
	page := content(name, 2*windowParts*partBytes+5)
	done, err := put(tr, name, page, time.Now())
	require.NoError(t, err)
	blob, err := tr.Open(ctx, name, false)
	require.NoError(t, err)
	require.Equal(t, done.Info.Bytes, blob.Size())
	for _, end := range []int{1, partBytes, partBytes + 1, windowParts * partBytes, windowParts*partBytes + 1, len(page)} {
		for _, n := range []int{1, 2, partBytes, windowParts*partBytes + 1} {
			if off := end - n; off >= 0 {
				got := make([]byte, n)
				require.NoError(t, blob.ReadAt(ctx, got, int64(off)))
				require.Equal(t, page[off:end], got)
			}
		}
	}
	before := sent.Load()
	require.NoError(t, blob.ReadAt(ctx, make([]byte, len(page)), 0))
	require.EqualValues(t, 3, sent.Load()-before, "one for each window")
	require.ErrorIs(t, blob.ReadAt(ctx, make([]byte, 2), int64(len(page)-1)), io.ErrUnexpectedEOF)
	require.ErrorIs(t, blob.ReadAt(ctx, make([]byte, 2), -1), io.ErrUnexpectedEOF)
}

func TestHoles(t *testing.T) {
	_, tr := start(t)
	whole, holed, replaced := tiertest.Page(1), tiertest.Page(2), tiertest.Page(3)
	for _, name := range []pagefile.Name{whole, holed, replaced} {
		_, err := put(tr, name, content(name, 3*partBytes), time.Now())
		require.NoError(t, err)
	}
	open := func(name pagefile.Name) *blob {
		b, err := tr.Open(ctx, name, false)
		require.NoError(t, err)
		return b.(*blob)
	}
	h, r, w := open(holed), open(replaced), open(whole)
	part := func(b *blob, i int64) string { return tr.partKey(b.id, i) }

	ask(t, tr, "UNLINK", part(h, 1))
	_, err := readAll(h)
	require.ErrorIs(t, err, tier.ErrStale)
	_, err = tr.Open(ctx, holed, true)
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.ErrorIs(t, tr.Touch(ctx, holed, time.Now()), tier.ErrNotFound)
	require.Len(t, listAll(t, tr), 2)
	require.Empty(t, askKeys(t, tr, "part:"+h.id+":*"), "a list removes what is left")
	require.Empty(t, askKeys(t, tr, "shard:*:02"))

	p := content(replaced, partBytes+1)
	done, err := put(tr, replaced, p, time.Now())
	require.NoError(t, err)
	require.True(t, done.Replaced)
	got, err := readAll(r)
	require.NoError(t, err, "a reader has some time")
	require.Equal(t, content(replaced, 3*partBytes), got)
	for i := range int64(3) {
		ms, err := ask(t, tr, "PTTL", part(r, i)).AsInt64()
		require.NoError(t, err)
		require.Positive(t, ms)
		ask(t, tr, "UNLINK", part(r, i))
	}
	_, err = readAll(r)
	require.ErrorIs(t, err, tier.ErrStale, "not bytes of the page that is there now")

	ask(t, tr, "SET", part(w, 2), "")
	_, err = readAll(w)
	require.ErrorIs(t, err, tier.ErrStale)
	_, err = tr.Remove(ctx, tier.Info{Name: whole})
	require.NoError(t, err)
	_, err = readAll(w)
	require.ErrorIs(t, err, tier.ErrStale)
	require.Len(t, listAll(t, tr), 1)
}

// TestListsAreEvicted: a page whose shard is gone is found, and listed again when it is used.
func TestListsAreEvicted(t *testing.T) {
	_, tr := start(t)
	name := tiertest.Tail(1)
	_, err := put(tr, name, []byte("tail"), time.Now())
	require.NoError(t, err)
	ask(t, tr, "UNLINK", askKeys(t, tr, "shard:*")[0])
	require.Empty(t, listAll(t, tr))
	require.Empty(t, askKeys(t, tr, "shards"))
	_, err = tier.Stat(ctx, tr, name)
	require.NoError(t, err)
	require.NoError(t, tr.Touch(ctx, name, time.Now()))
	require.Len(t, listAll(t, tr), 1)

	// Another process has stored the page since a list missed it.
	_, err = tr.do(ctx, "drop", tr.run(drop, []string{tr.key(name)}),
		tr.run(forget, []string{tr.prefix + "shard", tr.prefix + "shards"}, shardName(tier.ShardOf(name))))
	require.NoError(t, err)
	require.Len(t, listAll(t, tr), 1)
}

// TestUse: a look-up makes parts used, by which the server chooses what it evicts, and a list does not.
func TestUse(t *testing.T) {
	_, tr := start(t, "--maxmemory-policy", "allkeys-lfu", "--lfu-log-factor", "0")
	_, err := put(tr, tiertest.Page(1), []byte("page"), time.Now())
	require.NoError(t, err)
	uses := func() int64 {
		n, err := ask(t, tr, "OBJECT", "FREQ", askKeys(t, tr, "part:*")[0]).AsInt64()
		require.NoError(t, err)
		return n
	}
	before := uses()
	require.Len(t, listAll(t, tr), 1)
	require.Equal(t, before, uses())
	_, err = tier.Stat(ctx, tr, tiertest.Page(1))
	require.NoError(t, err)
	require.Greater(t, uses(), before)
}

func TestUploadsThatEndLeaveNothing(t *testing.T) {
	_, tr, sent := startCounted(t)
	name := tiertest.Page(1)
	empty, err := tr.Create(ctx, name)
	require.NoError(t, err)
	empty.Abort()
	require.Zero(t, sent.Load())
	create := func() *upload {
		up, err := tr.Create(ctx, name)
		require.NoError(t, err)
		require.NoError(t, up.Write(ctx, content(name, windowParts*partBytes+1)))
		return up.(*upload)
	}
	dead := create()
	keys := askKeys(t, tr, "*")
	require.Len(t, keys, windowParts)
	for _, key := range keys {
		ms, err := ask(t, tr, "PTTL", key).AsInt64()
		require.NoError(t, err)
		require.Positive(t, ms, "parts expire when nobody commits")
	}
	dead.Abort()
	require.Empty(t, askKeys(t, tr, "*"))
	dead.ended = false
	_, err = dead.Commit(ctx, time.Now())
	require.ErrorIs(t, err, tier.ErrNoSpace, "a late Commit")
	dead.Abort()
	require.Empty(t, askKeys(t, tr, "*"))

	lost := create()
	_, err = lost.Commit(ctx, time.Now())
	require.NoError(t, err)
	_, err = lost.Commit(ctx, time.Now()) // as if there had been no answer
	require.NoError(t, err)
	lost.ended = false
	lost.Abort()
	for _, key := range askKeys(t, tr, "part:*") {
		ms, err := ask(t, tr, "PTTL", key).AsInt64()
		require.NoError(t, err)
		require.Negative(t, ms, "a page lasts")
	}
	blob, err := tr.Open(ctx, name, false)
	require.NoError(t, err)
	got, err := readAll(blob)
	require.NoError(t, err)
	require.Equal(t, content(name, windowParts*partBytes+1), got)
}

func TestQuarantineIsBounded(t *testing.T) {
	_, tr := start(t)
	for n := range byte(quarantineFiles + 1) {
		_, err := put(tr, tiertest.Page(n), []byte("bad"), time.Now())
		require.NoError(t, err)
		moved, err := tr.Quarantine(ctx, tier.Info{Name: tiertest.Page(n)}, "crc")
		require.Equal(t, n < quarantineFiles, moved)
		if !moved {
			require.ErrorIs(t, err, tier.ErrQuarantineFull)
		}
	}
	require.Len(t, listAll(t, tr), 1, "it stays in its place")
	require.Len(t, askKeys(t, tr, "quarantine:*"), quarantineFiles)
	for _, key := range append(askKeys(t, tr, "quarantine:*"), askKeys(t, tr, "part:*")...) {
		ms, err := ask(t, tr, "PTTL", key).AsInt64()
		require.NoError(t, err)
		if strings.Contains(key, "quarantine") {
			require.Positive(t, ms)
			reason, err := ask(t, tr, "HGET", key, "reason").ToString()
			require.NoError(t, err)
			require.Equal(t, "crc", reason)
		}
	}
	ids, err := ask(t, tr, "ZRANGE", tr.prefix+"quarantine", "0", "-1").AsStrSlice()
	require.NoError(t, err)
	ask(t, tr, "ZADD", tr.prefix+"quarantine", "1", ids[0]) // its time is over
	moved, err := tr.Quarantine(ctx, tier.Info{Name: tiertest.Page(quarantineFiles)}, "crc")
	require.NoError(t, err)
	require.True(t, moved)
}

func TestManyBranches(t *testing.T) {
	_, tr := start(t)
	add := func(prefix pagefile.Key, n int) {
		for i := range n {
			require.NoError(t, tr.AddBranch(ctx, tier.Branch{
				Fingerprint: tiertest.Fingerprint, Prefix: prefix, Class: pagefile.ClassTail, Tokens: i + 1, Key: pagefile.Key{1},
			}, false))
		}
	}
	all := pagefile.Key{0: 0xff, 1: 0xff, 31: 0xff}
	add(all, 2*listAtOnce+1)
	add(pagefile.Key{0xff, 0xfe}, 2)
	add(pagefile.Key{0xfe}, 1)
	for n, prefix := range map[int][]byte{2*listAtOnce + 3: {0xff}, 2*listAtOnce + 1: {0xff, 0xff}, 2: {0xff, 0xfe}, 1: {0xfe}} {
		branches, err := tr.Branches(ctx, tiertest.Fingerprint, prefix)
		require.NoError(t, err)
		seen := make(map[tier.Branch]bool)
		for _, b := range branches {
			seen[b] = true
		}
		require.Equal(t, n, len(seen), "%x", prefix)
		require.Equal(t, n, len(branches), "%x", prefix)
	}
	branches, err := tr.Branches(ctx, tiertest.Fingerprint, all[:])
	require.NoError(t, err)
	require.Equal(t, 2*listAtOnce+1, len(branches))
}

func TestAccountLosesNoChange(t *testing.T) {
	_, tr := start(t)
	tiers := []*Tier{tr, another(t, tr)}
	ids := make(map[string]bool)
	var mu sync.Mutex
	var g errgroup.Group
	for i := range 8 {
		g.Go(func() error {
			for range 20 {
				if _, err := tiers[i%2].Account(ctx, func(content []byte, id string) ([]byte, error) {
					mu.Lock()
					defer mu.Unlock()
					ids[id] = true
					return append(content, byte(i)), nil
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	content, err := tr.Account(ctx, nil)
	require.NoError(t, err)
	require.Len(t, content, 160)
	require.Len(t, ids, 2)
}

// TestRedisWithTLS: the other server of that protocol, over TLS, as the documented user. A certificate that nobody
// vouches for is refused.
func TestRedisWithTLS(t *testing.T) {
	web := httptest.NewTLSServer(nil) // for its certificate
	web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	key, err := x509.MarshalPKCS8PrivateKey(web.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	file := func(kind string, bytes []byte) string {
		path := filepath.Join(t.TempDir(), "pem")
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return path
	}
	_, socket, at := engines.RedisTLS(t, file("CERTIFICATE", web.Certificate().Raw), file("PRIVATE KEY", key))
	open := func(t *testing.T) tier.Tier {
		tr, err := Open("rediss://kvtier:secret@"+at+"/?prefix=mine:", Options{TLS: &tls.Config{RootCAs: roots}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		return tr
	}
	contractAsUser(t, socket, open)

	trusting, err := Open("valkeys://"+at+"/3", Options{TLS: &tls.Config{RootCAs: roots}})
	require.NoError(t, err)
	defer func() { require.NoError(t, trusting.Close()) }()
	_, err = put(trusting, tiertest.Page(1), []byte("page"), time.Now())
	require.NoError(t, err)
	_, err = openAt(t, "valkeys://"+at+"/3").Find(ctx, []pagefile.Name{tiertest.Page(1)}, false)
	require.ErrorContains(t, err, "certificate")
	_, err = tier.Stat(ctx, openAt(t, "unix://"+socket+"?db=3"), tiertest.Page(1))
	require.NoError(t, err)
	_, err = tier.Stat(ctx, openAt(t, "unix://"+socket), tiertest.Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
}

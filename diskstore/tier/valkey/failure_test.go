package valkey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/internal/engines"
)

// pageOf makes a page that the tests know from its name alone.
func pageOf(name pagefile.Name) []byte {
	return content(name, 1+int(name.Key[0])*partBytes/20)
}

// readRight opens and reads a page. A page that is not there is fine; other bytes are an error.
func readRight(tr *Tier, name pagefile.Name) (found bool, err error) {
	blob, err := tr.Open(ctx, name, false)
	if err != nil {
		return false, err
	}
	got, err := readAll(blob)
	if err == nil && !bytes.Equal(got, pageOf(name)) {
		err = fmt.Errorf("page %v is not what was written", name.Key)
	}
	return err == nil, err
}

func gone(err error) bool { return errors.Is(err, tier.ErrNotFound) || errors.Is(err, tier.ErrStale) }

// TestEviction: the server evicts parts, pages, shards and ledgers while two write and two read.
func TestEviction(t *testing.T) {
	_, tr := start(t, "--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru")
	const pages = 40
	var g errgroup.Group
	for worker := range 4 {
		g.Go(func() error {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for i := range pages {
				name := tiertest.Page(byte(random.IntN(pages)))
				if worker < 2 {
					name = tiertest.Page(byte((i + worker*pages/2) % pages))
					if _, err := put(tr, name, pageOf(name), time.Now()); err != nil && !errors.Is(err, tier.ErrNoSpace) {
						return err
					}
				}
				if _, err := readRight(tr, name); err != nil && !gone(err) {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	stats, err := ask(t, tr, "INFO", "stats").ToString()
	require.NoError(t, err)
	require.NotContains(t, stats, "evicted_keys:0\r")
	ask(t, tr, "CONFIG", "SET", "maxmemory", "0")
	var found, listed []pagefile.Name
	for n := range byte(pages) {
		name := tiertest.Page(n)
		is, err := readRight(tr, name)
		require.True(t, is || gone(err), "%v", err)
		if is {
			require.NoError(t, tr.Touch(ctx, name, time.Now()), "lists may have been evicted")
			found = append(found, name)
		}
	}
	for _, info := range listAll(t, tr) {
		listed = append(listed, info.Name)
	}
	require.ElementsMatch(t, found, listed)
	require.Less(t, len(found), pages)
}

// TestServerRestarts: a server without files comes back empty in the middle of writes and reads. Connections
// that it has closed fail no look-up.
func TestServerRestarts(t *testing.T) {
	server, tr := start(t)
	restart := func() { server.Kill(); server.Start(t) }
	for what, lose := range map[string]func(){"restart": restart, "flush": func() { ask(t, tr, "FLUSHALL") }} {
		read, written, sealed := tiertest.Page(200), tiertest.Page(201), tiertest.Page(202)
		_, err := put(tr, read, pageOf(read), time.Now())
		require.NoError(t, err)
		blob, err := tr.Open(ctx, read, false)
		require.NoError(t, err)
		require.NoError(t, blob.ReadAt(ctx, make([]byte, 10), 0))
		var ups []tier.Upload
		for _, name := range []pagefile.Name{written, sealed} {
			up, err := tr.Create(ctx, name)
			require.NoError(t, err)
			require.NoError(t, up.Write(ctx, pageOf(name)))
			ups = append(ups, up)
		}
		require.NoError(t, ups[1].Seal(ctx))
		var g errgroup.Group // many connections
		for range maxConns {
			g.Go(func() error { _, _, err := tr.Survey(ctx); return err })
		}
		require.NoError(t, g.Wait())

		lose()
		require.ErrorIs(t, blob.ReadAt(ctx, make([]byte, 10), 10), tier.ErrStale, what)
		for i, up := range ups {
			require.NoError(t, up.Seal(ctx))
			_, err = up.Commit(ctx, time.Now())
			require.ErrorIs(t, err, tier.ErrNoSpace, what)
			up.Abort()
			infos, err := tr.Find(ctx, []pagefile.Name{written, sealed}, false)
			require.NoError(t, err)
			require.False(t, infos[i].Found())
		}
		require.Empty(t, listAll(t, tr))
		require.Empty(t, askKeys(t, tr, "part:*"))
	}
	server.Kill()
	_, err := tr.Find(ctx, []pagefile.Name{tiertest.Page(1)}, false)
	require.Error(t, err)
	require.NotErrorIs(t, err, tier.ErrNotFound)
	server.Start(t)
	_, err = tr.Find(ctx, []pagefile.Name{tiertest.Page(1)}, false)
	require.NoError(t, err)
}

// TestMemoryIsFull: with noeviction an upload fails with tier.ErrNoSpace and leaves the page that was there,
// and all works that makes room.
func TestMemoryIsFull(t *testing.T) {
	_, tr := start(t, "--maxmemory-policy", "noeviction")
	used := time.Unix(1_700_000_000, 5)
	for n := range byte(3) {
		_, err := put(tr, tiertest.Page(n), []byte("before"), used)
		require.NoError(t, err)
	}
	up, err := tr.Create(ctx, tiertest.Page(0))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, []byte("new")))
	require.NoError(t, up.Seal(ctx))
	ask(t, tr, "CONFIG", "SET", "maxmemory", "100kb")
	_, err = up.Commit(ctx, time.Now())
	require.ErrorIs(t, err, tier.ErrNoSpace)
	info, err := tier.Stat(ctx, tr, tiertest.Page(0))
	require.NoError(t, err)
	require.True(t, info.Used.Equal(used))
	require.EqualValues(t, len("before"), info.Bytes)
	_, err = put(tr, tiertest.Page(9), []byte("page"), used)
	require.ErrorIs(t, err, tier.ErrNoSpace)

	require.NoError(t, tr.Touch(ctx, tiertest.Page(0), used.Add(1)))
	_, err = tr.Account(ctx, func([]byte, string) ([]byte, error) { return []byte("ledger"), nil })
	require.NoError(t, err)
	moved, err := tr.Quarantine(ctx, tier.Info{Name: tiertest.Page(1)}, "crc")
	require.NoError(t, err)
	require.True(t, moved)
	removed, err := tr.Remove(ctx, tier.Info{Name: tiertest.Page(2)})
	require.NoError(t, err)
	require.True(t, removed)
	up.Abort()
	require.Len(t, askKeys(t, tr, "part:*"), 2, "of page 0 and the page in quarantine")
}

// calls are all that a tier does with the server.
func calls(tr *Tier) map[string]func(context.Context) error {
	name := tiertest.Page(1)
	branch := tier.Branch{Fingerprint: tiertest.Fingerprint, Prefix: pagefile.Key{1}, Longer: true}
	return map[string]func(ctx context.Context) error{
		"Find": func(ctx context.Context) error { _, err := tr.Find(ctx, []pagefile.Name{name}, false); return err },
		"Open": func(ctx context.Context) error { _, err := tr.Open(ctx, name, false); return err },
		"ReadAt": func(ctx context.Context) error {
			return (&blob{tr, page{info(name, 9, time.Now()), "id"}}).ReadAt(ctx, make([]byte, 9), 0)
		},
		"Touch":     func(ctx context.Context) error { return tr.Touch(ctx, name, time.Now()) },
		"Remove":    func(ctx context.Context) error { _, err := tr.Remove(ctx, tier.Info{Name: name}); return err },
		"ListShard": func(ctx context.Context) error { _, err := tr.ListShard(ctx, tier.ShardOf(name)); return err },
		"Survey":    func(ctx context.Context) error { _, _, err := tr.Survey(ctx); return err },
		"Quarantine": func(ctx context.Context) error {
			_, err := tr.Quarantine(ctx, tier.Info{Name: name}, "crc")
			return err
		},
		"AddBranch":    func(ctx context.Context) error { return tr.AddBranch(ctx, branch, false) },
		"RemoveBranch": func(ctx context.Context) error { return tr.RemoveBranch(ctx, branch) },
		"Branches":     func(ctx context.Context) error { _, err := tr.Branches(ctx, branch.Fingerprint, []byte{1}); return err },
		"Account":      func(ctx context.Context) error { _, err := tr.Account(ctx, nil); return err },
		"Write": func(ctx context.Context) error {
			up, err := tr.Create(ctx, name)
			if err != nil {
				return err
			}
			return up.Write(ctx, make([]byte, windowParts*partBytes))
		},
		"Commit": func(ctx context.Context) error {
			_, err := (&upload{t: tr, name: name, id: "id", sealed: true}).Commit(ctx, time.Now())
			return err
		},
	}
}

// TestPasswords: errors tell what the server said, and never the password.
func TestPasswords(t *testing.T) {
	const right, wrong = "OpenSesame1", "OpenSezame2"
	_, socket := engines.Valkey(t, "--requirepass", right)
	admin := openAt(t, "unix://:"+right+"@"+socket)
	ask(t, admin, "ACL", "SETUSER", "reader", "on", ">"+right, "~*", "-@all", "+eval_ro", "+@read", "+touch")
	ask(t, admin, "ACL", "SETUSER", "nobody", "on", ">"+right, "-@all")
	_, err := put(admin, tiertest.Page(1), []byte("page"), time.Now())
	require.NoError(t, err)
	for user, says := range map[string]string{
		"":                "it refuses the user or the password of the address: NOAUTH",
		":" + wrong:       "it refuses the user or the password of the address: WRONGPASS",
		"who:" + right:    "it refuses the user or the password of the address: WRONGPASS",
		"nobody:" + right: "NOPERM",
	} {
		tr := openAt(t, "unix://"+user+"@"+socket)
		for call, do := range calls(tr) {
			err := do(ctx)
			require.ErrorContains(t, err, says, call)
			require.NotContains(t, err.Error(), right)
			require.NotContains(t, err.Error(), wrong)
			require.Equal(t, says == "NOPERM", errors.Is(err, fs.ErrPermission), call)
		}
	}
	reader := openAt(t, "unix://reader:"+right+"@"+socket)
	for call, do := range calls(reader) {
		err := do(ctx)
		if strings.Contains("Find Open Survey ListShard Branches Account", call) {
			require.NoError(t, err, call)
		} else if call != "ReadAt" { // of a page that is not there
			require.ErrorIs(t, err, fs.ErrPermission, call)
		}
	}
}

// TestRefusedWrites: a server that refuses writes, or one command of a script, is read.
func TestRefusedWrites(t *testing.T) {
	_, admin := start(t)
	_, err := put(admin, tiertest.Page(1), []byte("page"), time.Now())
	require.NoError(t, err)
	writes := func(tr *Tier) {
		t.Helper()
		up, err := tr.Create(ctx, tiertest.Page(1))
		require.NoError(t, err)
		require.NoError(t, up.Write(ctx, []byte("page")))
		if err = up.Seal(ctx); err == nil {
			_, err = up.Commit(ctx, time.Now())
		}
		require.ErrorIs(t, err, fs.ErrPermission)
		up.Abort()
		_, err = tr.Open(ctx, tiertest.Page(1), false)
		require.NoError(t, err)
	}
	for _, command := range []string{"hset", "sadd", "persist", "set", "eval"} {
		ask(t, admin, "ACL", "SETUSER", command, "on", ">word", "~*", "+@all", "-"+command)
		writes(openAt(t, strings.Replace(admin.where, "//", "//"+command+":word@", 1)))
	}
	ask(t, admin, "CONFIG", "SET", "min-replicas-to-write", "1")
	writes(admin)
}

// TestNoServerThere: errors tell whether nobody listens, or something else does.
func TestNoServerThere(t *testing.T) {
	says := func(address, want string) {
		t.Helper()
		_, err := openAt(t, address).Account(ctx, nil)
		require.ErrorContains(t, err, "read the ledger in "+address)
		require.ErrorContains(t, err, want)
	}
	for answer, want := range map[string]string{"HTTP/1.1 400 Bad Request\r\n\r\n": errProtocol.Error(), "": ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var served errgroup.Group
		served.Go(func() error {
			for {
				conn, err := l.Accept()
				if err != nil {
					return nil // the test has closed it
				}
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = conn.Write([]byte(answer))
				conn.Close()
			}
		})
		address := "valkey://" + l.Addr().String() + "/0"
		says(address, "no Valkey or Redis answers there, look at the port and at TLS: "+want)
		says("valkeys"+strings.TrimPrefix(address, "valkey"), "no Valkey or Redis answers there")
		require.NoError(t, l.Close())
		require.NoError(t, served.Wait())
		says(address, "no connection, look at host and port and whether it runs: dial tcp")
	}
}

// TestClusterIsRefused: a node of a Cluster answers for no keys, or names another node.
func TestClusterIsRefused(t *testing.T) {
	_, tr := start(t, "--cluster-enabled", "yes")
	_, err := put(tr, tiertest.Page(1), []byte("page"), time.Now())
	require.ErrorContains(t, err, "part of a Cluster")
	_, tr = start(t)
	for says, want := range map[string]string{"MOVED 1 host:1": "part of a Cluster", "READONLY": "permission denied", "MISCONF no": "permission denied"} {
		_, err = tr.do(ctx, "ask", tr.client.B().Eval().Script("return redis.error_reply('"+says+"')").Numkeys(0).Build())
		require.ErrorContains(t, err, want)
	}
}

// TestTwoTiersAndOneName: whatever two processes do with one name at the same time, the answers add up,
// and in the end the page is whole or absent, and nothing else stays for good.
func TestTwoTiersAndOneName(t *testing.T) {
	_, tr := start(t)
	tiers := []*Tier{tr, another(t, tr)}
	name := tiertest.Page(25)
	for round := range 3 {
		made := make([]int, 6)
		var g errgroup.Group
		for worker := range made {
			g.Go(func() (err error) {
				made[worker], err = disturb(tiers[worker%2], name, rand.New(rand.NewPCG(uint64(round), uint64(worker))))
				return err
			})
		}
		require.NoError(t, g.Wait())
		sum := 0
		for _, n := range made {
			sum += n
		}
		found, err := readRight(tr, name)
		require.True(t, err == nil || errors.Is(err, tier.ErrNotFound), "%v", err)
		require.Equal(t, found, sum == 1, "%d pages made and not removed", sum)
		require.Equal(t, found, len(listAll(t, tr)) == 1)
		lasting := 0
		for _, key := range askKeys(t, tr, "part:*") {
			ms, err := ask(t, tr, "PTTL", key).AsInt64()
			require.NoError(t, err)
			if ms < 0 {
				lasting++
			}
		}
		require.Equal(t, found, lasting == int(parts(int64(len(pageOf(name))))), "%d parts", lasting)
		require.Equal(t, !found, lasting == 0)
		ask(t, tr, "FLUSHALL")
	}
}

// disturb does 25 things with a page and returns how many more pages it has made than removed.
func disturb(tr *Tier, name pagefile.Name, random *rand.Rand) (made int, _ error) {
	for range 25 {
		judged, _ := tier.Stat(ctx, tr, name)
		var gone bool
		var err error
		switch random.IntN(6) {
		case 0, 1:
			var done tier.Committed
			done, err = put(tr, name, pageOf(name), time.Unix(0, random.Int64()))
			if err == nil && !done.Replaced {
				made++
			}
			if want := memory(int64(len(pageOf(name)))); done.Replaced && done.Freed != want {
				err = fmt.Errorf("freed %d, want %d", done.Freed, want)
			}
		case 2:
			err = tr.Touch(ctx, name, time.Unix(0, random.Int64()))
		case 3:
			if judged.Found() {
				gone, err = tr.Remove(ctx, judged)
			}
		case 4:
			if judged.Found() {
				gone, err = tr.Quarantine(ctx, judged, "crc")
			}
		case 5:
			_, err = readRight(tr, name)
		}
		if err != nil && !errors.Is(err, tier.ErrNotFound) && !errors.Is(err, tier.ErrStale) && !errors.Is(err, tier.ErrReplaced) && !errors.Is(err, tier.ErrQuarantineFull) {
			return made, err
		}
		if gone {
			made--
		}
	}
	return made, nil
}

package nfstest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/nfstest/wire"
)

// behind is the time by which the server's clock is behind. Machines set their clocks to whole
// seconds, and the suite wants no time of the server that is yet to come.
const behind = -3 * time.Second

// TestNFS runs all cases on one cluster. KVTIER_NFS=1 go test -run TestNFS/Silly runs one of
// them.
func TestNFS(t *testing.T) {
	c := startCluster(t)
	for _, each := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"Contract", testContract},
		{"LookUps", testLookUps},
		{"TwoWriters", testTwoWriters},
		{"OneWriterWithoutLocks", testOneWriterWithoutLocks},
		{"ClientCutOff", testClientCutOff},
		{"ServerRestarts", testServerRestarts},
		{"RefusedWrites", testRefusedWrites},
		{"SillyRenames", testSillyRenames}, // the last: it ends a client
	} {
		t.Run(each.name, func(t *testing.T) { each.run(t, c.of(t)) })
	}
}

// testContract runs the conformance suite of tiers on every kind of mount.
func testContract(t *testing.T, c *cluster) {
	for _, kind := range []string{"vers=4.2", "vers=4.0", "vers=3", "vers=3,nolock"} {
		t.Run(kind, func(t *testing.T) {
			c.of(t).mountWith(c.a, kind)
			defer c.of(t).run(c.a, "/init", "unmount", mounted)
			t.Log(c.of(t).sh(c.a, "grep "+mounted+" /proc/mounts"))
			out, err := c.of(t).try(c.a, wire.Request{
				Args: []string{"/inside.test", "-test.run=TestContract", "-test.v"}, Env: []string{"KVTIER_NFS_DIR=" + mounted},
			})
			if err != nil {
				t.Error(err)
			}
			t.Log(out)
		})
	}
}

// testLookUps looks up prompts behind a parent with many pages: on the server's disk, then on a mount.
// The output is that of the benchmark of the store.
func testLookUps(t *testing.T, c *cluster) {
	c.mountWith(c.a, "vers=4.2")
	defer c.run(c.a, "/init", "unmount", mounted)
	for _, of := range []string{"shared=0/children=1000", "shared=200/children=1000", "shared=0/children=100000", "shared=200/children=100000"} {
		for at, m := range map[string]*machine{exports: c.server, mounted: c.a} {
			out, err := c.try(m, wire.Request{
				Args: []string{"/store.test", "-test.run=NONE", "-test.bench=LookUpAmong/" + of + "$", "-test.benchtime=64x"},
				Env:  []string{"KVTIER_CHILDREN=" + at + children, "KVTIER_LONG=1"},
			})
			require.NoError(t, err, out)
			t.Log(m.name, out)
		}
	}
}

// pageBytes is the disk space of a page of the load.
const pageBytes = 72 << 10

// root is the remote directory of the load's stores.
const root = mounted + "/root"

// mountBoth mounts the export in both clients with a fresh remote directory, until the test
// ends.
func (c *cluster) mountBoth(kind string) {
	c.t.Helper()
	c.sh(c.server, "rm -rf "+exports+"/root && mkdir -m 700 "+exports+"/root")
	for _, m := range []*machine{c.a, c.b} {
		c.mountWith(m, kind)
		c.t.Cleanup(func() {
			if m.lives() {
				c.run(m, "/init", "unmount", mounted)
			}
		})
	}
}

// writer starts a writer on a machine, which ends when the file /tmp/stop exists there.
func (c *cluster) writer(m *machine, number int, args ...string) *process {
	c.t.Helper()
	c.sh(m, "rm -rf /tmp/stop /tmp/local")
	return c.begin(m, append([]string{"/init", "write", "-remote", root, "-stop", "/tmp/stop", "-writer", fmt.Sprint(number)}, args...)...)
}

// stopBoth ends two writers and returns their numbers. Neither continues long without the other.
func (c *cluster) stopBoth(a, b *process) (wire.WriteReport, wire.WriteReport) {
	c.t.Helper()
	c.sh(a.m, "touch /tmp/stop")
	c.sh(b.m, "touch /tmp/stop")
	return c.stop(a), c.stop(b)
}

// stop ends a writer and returns its numbers.
func (c *cluster) stop(p *process) wire.WriteReport {
	c.t.Helper()
	c.sh(p.m, "touch /tmp/stop")
	r := result[wire.WriteReport](c, p)
	c.t.Logf("writer on %s: %+v", p.m.name, r)
	require.Zero(c.t, r.Damaged)
	return r
}

// read reads all pages of a writer on a machine that has none of them in its local directory.
func (c *cluster) read(m *machine, number int, wrote wire.WriteReport) wire.ReadReport {
	c.t.Helper()
	c.sh(m, "rm -rf /tmp/local")
	p := c.begin(m, "/init", "read", "-remote", root, "-local-bytes", fmt.Sprint(64<<20), "-writer", fmt.Sprint(number), "-pages", fmt.Sprint(wrote.Puts+wrote.PutErrors))
	r := result[wire.ReadReport](c, p)
	c.t.Logf("pages of writer %d, read by %s: %+v", number, m.name, r)
	require.Zero(c.t, r.Damaged)
	require.Zero(c.t, r.Failed)
	return r
}

// readEachOther stops writers 1 and 2, and reads the pages of each on the machine of the other.
// No page is missing that was reported as moved.
func (c *cluster) readEachOther(a, b *process) {
	c.t.Helper()
	wroteA, wroteB := c.stopBoth(a, b)
	require.GreaterOrEqual(c.t, c.read(b.m, 1, wroteA).Found, int(wroteA.Demoted))
	require.GreaterOrEqual(c.t, c.read(a.m, 2, wroteB).Found, int(wroteB.Demoted))
}

// check runs kvtier check on the remote directory, which must find nothing wrong and no file
// of a stranger.
func (c *cluster) check(m *machine) {
	c.t.Helper()
	out := c.sh(m, "rm -rf /tmp/none && mkdir -m 700 /tmp/none && /bin/kvtier check --root /tmp/none --remote "+root)
	c.t.Log(out)
	require.NotContains(c.t, out, "foreign") // check succeeds with these
}

// testTwoWriters: two machines write into one directory, with clocks that are two hours apart.
// With room for all pages, each reads those of the other.
func testTwoWriters(t *testing.T, c *cluster) {
	c.setClocks(-time.Hour, time.Hour)
	defer c.setClocks(0, 0)
	for _, kind := range []string{"vers=4.2", "vers=3"} {
		t.Run(kind, func(t *testing.T) {
			c := c.of(t)
			c.mountBoth(kind)
			a, b := c.writer(c.a, 1), c.writer(c.b, 2)
			c.moved(a, 3)
			c.moved(b, 3)
			c.readEachOther(a, b)
			c.check(c.a)
		})
		t.Run(kind+" full", func(t *testing.T) { c.of(t).fillTogether(kind) })
	}
}

// fillTogether makes two machines write more pages than their budget holds, which is never
// exceeded.
func (c *cluster) fillTogether(kind string) {
	const budget, pages = 12 * pageBytes, 10
	c.mountBoth(kind)
	c.sh(c.server, "rm -f /tmp/stop")
	watcher := c.begin(c.server, "/init", "usage", exports+"/root", "/tmp/stop")
	a := c.writer(c.a, 1, "-remote-bytes", fmt.Sprint(budget))
	b := c.writer(c.b, 2, "-remote-bytes", fmt.Sprint(budget))
	c.moved(a, pages)
	c.moved(b, pages)
	wroteA, wroteB := c.stopBoth(a, b)
	c.sh(c.server, "touch /tmp/stop")
	most := result[wire.UsageReport](c, watcher)
	c.t.Logf("at most %d KiB of %d KiB", most.Most>>10, budget>>10)
	require.LessOrEqual(c.t, most.Most, int64(budget), "%v", most.Files)
	// The pages of the machine whose clock is behind are the first to go.
	require.Positive(c.t, c.read(c.b, 1, wroteA).Found+c.read(c.a, 2, wroteB).Found)
	c.check(c.a)
	c.check(c.b)
}

// testServerRestarts: the server loses power while two machines write. Pages that were moved
// before and after are there, and whole.
func testServerRestarts(t *testing.T, c *cluster) {
	for _, kind := range []string{"vers=4.2", "vers=3"} {
		t.Run(kind, func(t *testing.T) {
			c := c.of(t)
			c.mountBoth(kind)
			a, b := c.writer(c.a, 1), c.writer(c.b, 2)
			c.moved(a, 4)
			c.moved(b, 4)
			c.restartServer()
			c.moved(a, 4)
			c.moved(b, 4)
			c.readEachOther(a, b)
			c.check(c.a)
		})
	}
}

// testClientCutOff: a machine loses its network while two machines write. The other one
// continues, and the first one too when its network is back.
func testClientCutOff(t *testing.T, c *cluster) {
	for _, kind := range []string{"vers=4.2", "vers=3"} {
		t.Run(kind, func(t *testing.T) {
			c := c.of(t)
			c.mountBoth(kind)
			a, b := c.writer(c.a, 1, "-lookup-timeout", "250ms", "-transfer-timeout", "5s"), c.writer(c.b, 2)
			c.moved(a, 3)
			c.moved(b, 3)
			c.hub.cut("a", true)
			c.moved(b, 5)
			c.waitForLast(a, "kv tier is not usable", "kv tier is back") // an emulated look-up may have been too slow before
			c.hub.cut("a", false)
			c.moved(a, 4)
			c.readEachOther(a, b)
			c.check(c.b)
		})
	}
}

// testOneWriterWithoutLocks: where locks stay on each machine, the second machine only reads,
// also with clocks that are two hours apart.
func testOneWriterWithoutLocks(t *testing.T, c *cluster) {
	c.setClocks(-time.Hour, time.Hour)
	defer c.setClocks(0, 0)
	for _, kind := range []string{"vers=3,nolock", "vers=3,local_lock=flock"} {
		t.Run(kind, func(t *testing.T) {
			c := c.of(t)
			c.mountBoth(kind)
			a := c.writer(c.a, 1)
			c.moved(a, 3)
			b := c.writer(c.b, 2)
			c.waitFor(b, "kv tier is only read")
			c.moved(a, 3)
			wroteB, wroteA := c.stopBoth(b, a)
			require.Zero(t, wroteB.Demoted)
			require.GreaterOrEqual(t, c.read(c.b, 1, wroteA).Found, int(wroteA.Demoted))
			c.check(c.a)
		})
	}
}

// testRefusedWrites: the server begins to refuse writes of a client, and stops again. The
// client says so once, and continues.
func testRefusedWrites(t *testing.T, c *cluster) {
	const writable, refused = "rw,no_root_squash", "kv tier refuses writes"
	for _, kind := range []string{"vers=4.2", "vers=3"} {
		for _, options := range []string{"ro,no_root_squash", "rw,root_squash"} {
			t.Run(kind+" "+options, func(t *testing.T) {
				c := c.of(t)
				c.mountBoth(kind)
				a := c.writer(c.a, 1)
				c.moved(a, 3)
				c.export(options)
				defer c.export(writable)
				c.waitFor(a, refused)
				if options == "ro,no_root_squash" {
					known := c.read(c.b, 1, wire.WriteReport{Puts: 3})
					require.Positive(t, known.Found, "it can be read")
				}
				c.export(writable)
				c.moved(a, 3)
				wrote := c.stop(a)
				require.LessOrEqual(t, strings.Count(a.text(), refused), 2, "one line, and one more if a page was stored between")
				require.GreaterOrEqual(t, c.read(c.b, 1, wrote).Found, int(wrote.Demoted))
				c.check(c.b)
			})
		}
	}
}

// testSillyRenames: a client keeps a removed file while the file is open, under a name that no
// tool takes for a stranger's. After the client's death the next repair removes the file.
func testSillyRenames(t *testing.T, c *cluster) {
	c.mountBoth("vers=4.2")
	a := c.writer(c.a, 1)
	c.moved(a, 3)
	c.stop(a)
	silly := func() string { return strings.TrimSpace(c.sh(c.server, "find "+exports+" -name '.nfs*'")) }
	removeOpen := func() *process {
		page := strings.TrimSpace(c.sh(c.a, "find "+root+" -name '*.kvp' | head -n 1"))
		holder := c.begin(c.a, "/init", "hold", page)
		c.waitFor(holder, "open")
		c.run(c.a, "rm", page)
		require.NotEmpty(t, silly())
		c.check(c.a)
		c.check(c.b)
		return holder
	}
	holder := removeOpen()
	require.NoError(t, holder.kill())
	<-holder.done
	require.Empty(t, silly(), "the client removes the file when it is closed")

	removeOpen()
	c.a.kill()
	require.NotEmpty(t, silly(), "the client is dead")
	c.sh(c.server, "touch -d '2001-01-01 00:00:00' "+silly())
	t.Log(c.sh(c.b, "/bin/kvtier repair --root /tmp/none --remote "+root+"; true"))
	require.Empty(t, silly())
}

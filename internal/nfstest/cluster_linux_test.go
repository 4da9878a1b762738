package nfstest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/nfstest/wire"
)

// caseLimit bounds one command inside a machine.
const caseLimit = 30 * time.Minute

// diskBytes is the size of the server's disk, most of which is never written.
const diskBytes = 8 << 30

// cluster is a server and two clients, as a test or a part of a test sees them.
type cluster struct {
	t *testing.T
	*fleet
}

// fleet is a server and two clients.
type fleet struct {
	dir    string
	hub    *hub
	server *machine
	a, b   *machine
	config map[string]machineConfig

	daemons []*process
}

// build builds the machines' programs and files into dir.
func build(t *testing.T, dir string) (kernel, initrd string) {
	root, err := filepath.Abs("../../build/nfs/root")
	require.NoError(t, err)
	p, err := openPackages(root)
	require.NoError(t, err)
	kernel, err = p.kernel()
	require.NoError(t, err)
	ours := make(map[string]string)
	for name, args := range map[string][]string{
		"init":        {"build", "-o", filepath.Join(dir, "init"), "./guest"},
		"inside.test": {"test", "-c", "-o", filepath.Join(dir, "inside.test"), "./inside"},
		"store.test":  {"test", "-c", "-o", filepath.Join(dir, "store.test"), "../../diskstore"},
		"bin/kvtier":  {"build", "-o", filepath.Join(dir, "kvtier"), "../../cmd/kvtier"},
	} {
		args = append(args[:1:1], append([]string{"-trimpath", "-ldflags=-s -w"}, args[1:]...)...)
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		ours[name] = filepath.Join(dir, filepath.Base(name))
	}
	initrd = filepath.Join(dir, "initramfs")
	f, err := os.Create(initrd)
	require.NoError(t, err)
	hosts := "127.0.0.1 localhost\n10.77.0.1 server\n10.77.0.2 a\n10.77.0.3 b\n"
	require.NoError(t, writeInitramfs(f, p, hosts, ours))
	require.NoError(t, f.Close())
	return kernel, initrd
}

// children is where the export keeps roots with many pages behind one parent.
const children = "/children"

// formatted returns the image of the server's disk, on which the export has children already: a
// machine without hardware virtualization needs hours for as many files.
func formatted(t *testing.T, dir string) string {
	top := filepath.Join(dir, "srv")
	made := filepath.Join(top, filepath.Base(exports), children)
	require.NoError(t, os.MkdirAll(made, 0o700))
	look := exec.Command(filepath.Join(dir, "store.test"), "-test.run=NONE", "-test.benchtime=1x", "-test.bench=LookUpAmong/shared/children=(1000|100000)$")
	look.Env = append(os.Environ(), "KVTIER_CHILDREN="+made, "KVTIER_LONG=1")
	out, err := look.CombinedOutput()
	require.NoError(t, err, "%s", out)

	disk := filepath.Join(dir, "disk")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, os.Truncate(disk, diskBytes))
	out, err = exec.Command("mkfs.ext4", "-q", "-F", "-i", "8192", "-d", top, disk).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.RemoveAll(top))
	return disk
}

// startCluster boots a server and two clients.
func startCluster(t *testing.T) *cluster {
	if os.Getenv("KVTIER_NFS") == "" {
		t.Skip("set KVTIER_NFS=1, or run make test-nfs")
	}
	dir, err := os.MkdirTemp("", "nfs") // the names of sockets are short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	kernel, initrd := build(t, dir)
	disk := formatted(t, dir)

	c := &cluster{t, &fleet{dir: dir, hub: newHub(), config: make(map[string]machineConfig)}}
	t.Cleanup(c.close)
	for i, m := range []struct {
		name, disk string
		clock      time.Duration
		at         **machine
	}{{"server", disk, behind, &c.server}, {"a", "", 0, &c.a}, {"b", "", 0, &c.b}} {
		config := machineConfig{
			name: m.name, dir: dir, kernel: kernel, initrd: initrd, disk: m.disk, number: i + 1, clock: m.clock,
			network: filepath.Join(dir, m.name+".net"),
		}
		require.NoError(t, c.hub.listen(m.name, config.network))
		c.config[m.name] = config
		began := time.Now()
		*m.at, err = start(t.Context(), config)
		require.NoError(t, err)
		t.Logf("%s booted in %v", m.name, time.Since(began).Round(time.Second))
	}
	c.serve()
	c.monitor(c.a)
	c.monitor(c.b)
	return c
}

// close ends all machines and the network between them, and shows their logs after a failure.
func (c *cluster) close() {
	for _, m := range []*machine{c.server, c.a, c.b} {
		if m != nil {
			m.kill()
		}
	}
	c.hub.close()
	for _, p := range c.daemons {
		if out := p.text(); c.t.Failed() {
			c.t.Logf("%s on %s: %v: %s", p.what, p.m.name, p.err, out)
		}
	}
	for name := range c.config {
		for _, kind := range []string{"qemu", "log"} {
			if log, err := os.ReadFile(filepath.Join(c.dir, name+"."+kind)); err == nil && c.t.Failed() {
				c.t.Logf("%s of %s:\n%s", kind, name, log)
			}
		}
	}
}

// of returns the cluster for a part of its test.
func (c *cluster) of(t *testing.T) *cluster { return &cluster{t, c.fleet} }

// run runs a command in a machine and returns its output.
func (c *cluster) run(m *machine, args ...string) string {
	c.t.Helper()
	out, err := c.try(m, wire.Request{Args: args})
	require.NoError(c.t, err)
	return out
}

// sh runs a line of shell in a machine.
func (c *cluster) sh(m *machine, line string) string {
	c.t.Helper()
	return c.run(m, "sh", "-c", line)
}

// try does as run, and returns the error.
func (c *cluster) try(m *machine, r wire.Request) (string, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), caseLimit) // also for clean-ups
	defer cancel()
	p, err := m.begin(r)
	require.NoError(c.t, err)
	return p.wait(ctx)
}

// daemon starts a program that runs until its machine ends.
func (c *cluster) daemon(m *machine, args ...string) {
	c.t.Helper()
	p, err := m.begin(wire.Request{Args: args})
	require.NoError(c.t, err)
	c.daemons = append(c.daemons, p)
}

// begin starts a command that ends by itself.
func (c *cluster) begin(m *machine, args ...string) *process {
	c.t.Helper()
	p, err := m.begin(wire.Request{Args: args})
	require.NoError(c.t, err)
	return p
}

// result waits for a command of the guest and decodes the result that it prints.
func result[T any](c *cluster, p *process) (r T) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), caseLimit)
	defer cancel()
	out, err := p.wait(ctx)
	require.NoError(c.t, err)
	_, line, found := strings.Cut(out, "RESULT ")
	require.True(c.t, found, "%s", out)
	line, _, _ = strings.Cut(line, "\n")
	require.NoError(c.t, json.Unmarshal([]byte(line), &r))
	return r
}

// moved waits until a writer has moved more pages than before to the remote tier.
func (c *cluster) moved(p *process, more int) {
	c.t.Helper()
	want := lastMoved(p.text()) + more
	c.waitUntil(p, fmt.Sprintf("%d pages moved", want), func(text string) bool { return lastMoved(text) >= want })
}

// setClocks sets the clients' clocks ahead of this machine's.
func (c *cluster) setClocks(a, b time.Duration) {
	c.t.Helper()
	for m, ahead := range map[*machine]time.Duration{c.a: a, c.b: b} {
		c.run(m, "/init", "clock", fmt.Sprint(time.Now().Add(ahead).Unix()))
	}
}

// waitFor waits for output of a command.
func (c *cluster) waitFor(p *process, want string) {
	c.t.Helper()
	c.waitUntil(p, want, func(text string) bool { return strings.Contains(text, want) })
}

// waitForLast waits until the last of two lines that a command prints in turns is want.
func (c *cluster) waitForLast(p *process, want, other string) {
	c.t.Helper()
	c.waitUntil(p, want, func(text string) bool { return strings.LastIndex(text, want) > strings.LastIndex(text, other) })
}

// waitUntil waits for output of which a condition holds.
func (c *cluster) waitUntil(p *process, what string, holds func(text string) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), caseLimit)
	defer cancel()
	require.NoError(c.t, p.until(ctx, holds), "wait for: %s", what)
}

// restartServer cuts the server's power and boots it again.
func (c *cluster) restartServer() {
	c.t.Helper()
	c.server.kill()
	var err error
	c.server, err = start(c.t.Context(), c.config["server"])
	require.NoError(c.t, err)
	c.serve()
}

// lastMoved returns the number of pages that a writer last said it had moved.
func lastMoved(text string) int {
	at := strings.LastIndex(text, "demoted ")
	if at < 0 {
		return 0
	}
	var n int
	_, _ = fmt.Sscanf(text[at:], "demoted %d", &n)
	return n
}

// exports is where the server keeps exported directories.
const exports = "/srv/export"

// serve mounts the server's disk and starts the NFS server.
func (c *cluster) serve() {
	c.t.Helper()
	s := c.server
	c.sh(s, `mount -t ext4 /dev/vda /srv && mkdir -p `+exports+` /srv/state/sm /srv/state/sm.bak /srv/state/nfsdcld /srv/state/v4recovery &&
		ln -s /srv/state /var/lib/nfs && touch /var/lib/nfs/etab /var/lib/nfs/rmtab && mount -t nfsd nfsd /proc/fs/nfsd &&
		chmod 1777 `+exports)
	c.monitor(s)
	c.daemon(s, "nfsdcld", "-F", "-p", "/run/rpc_pipefs", "-s", "/var/lib/nfs/nfsdcld")
	c.export("rw,no_root_squash")
	c.daemon(s, "rpc.mountd", "-F")
	c.sh(s, "echo 10 > /proc/sys/fs/nfs/nlm_grace_period && rpc.nfsd --lease-time 10 --grace-time 10 4 && (sm-notify -f || true)")
}

// monitor starts the programs of NFS 3's locks. Without rpc.statd a client waits for a minute
// before its first lock, and gets none back after a restart of the server.
func (c *cluster) monitor(m *machine) {
	c.t.Helper()
	c.sh(m, "mkdir -p /var/lib/nfs/sm /var/lib/nfs/sm.bak")
	c.daemon(m, "rpcbind", "-f")
	c.sh(m, awaited("-S /run/rpcbind.sock"))
	c.daemon(m, "rpc.statd", "-F", "--no-notify")
	c.sh(m, awaited("-s /run/rpc.statd.pid"))
}

// awaited returns a line of shell that waits until a test holds, 30 s at most.
func awaited(test string) string {
	return "for i in $(seq 300); do [ " + test + " ] && exit 0; usleep 100000; done; exit 1"
}

// export exports the directory to all clients with options.
func (c *cluster) export(options string) {
	c.t.Helper()
	c.sh(c.server, fmt.Sprintf("echo '%s 10.77.0.0/24(sync,no_subtree_check,fsid=0,insecure,%s)' > /etc/exports && exportfs -ra", exports, options))
}

// mounted is where clients mount the export.
const mounted = "/mnt/kv"

// Options of the mounts, those of docs/operations.md: a client gives up after 15 s.
const softly = ",soft,timeo=50,retrans=2,lookupcache=positive,nconnect=4"

// mountWith mounts the export in a client. kind is a version of NFS with further options.
func (c *cluster) mountWith(m *machine, kind string) {
	c.t.Helper()
	fsType, source := "nfs4", "server:/"
	if strings.HasPrefix(kind, "vers=3") {
		fsType, source = "nfs", "server:"+exports
	}
	options := fmt.Sprintf("%s,proto=tcp,addr=%s,clientaddr=%s%s", kind, c.config["server"].address(), m.address(), softly)
	if fsType == "nfs" {
		options = fmt.Sprintf("%s,proto=tcp,addr=%s,mountproto=tcp%s", kind, c.config["server"].address(), softly)
	}
	c.run(m, "/init", "mount", fsType, source, mounted, options)
}

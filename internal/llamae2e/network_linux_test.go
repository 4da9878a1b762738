package llamae2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// networkEnv marks the process of a test that has a network of its own.
const networkEnv = "KVTIER_TEST_NETWORK"

// inOwnNetwork runs a test once more, in a process that has a network of its own, and reports whether this is
// that process. It skips the test where nobody may make networks.
func inOwnNetwork(t *testing.T) bool {
	if os.Getenv(networkEnv) != "" {
		return true
	}
	for _, program := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("networks of boxes need iproute2 and util-linux: ", err)
		}
	}
	pattern := "^" + t.Name() + "$" // and the subtests that were asked for
	if _, sub, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok {
		pattern += "/" + sub
	}
	runtime.LockOSThread() // the process ends with this thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.v", "-test.count=1", "-test.timeout="+flag.Lookup("test.timeout").Value.String())
	cmd.Env = append(os.Environ(), networkEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // as it comes: what a test that hangs has said
	err := cmd.Run()
	if errors.Is(err, unix.EPERM) {
		t.Skip("networks of boxes need root: ", err)
	}
	require.NoError(t, err)
	return false
}

// subnet is that of the bridge, which is at .1.
const subnet = "10.77.0."

// run runs a program.
func run(t testing.TB, command ...string) {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	require.NoErrorf(t, err, "%v: %s", command, out)
}

// newBridge makes the bridge that joins boxes, and skips the test where the kernel has none.
func newBridge(t testing.TB) {
	run(t, "ip", "link", "set", "lo", "up")
	if out, err := exec.Command("ip", "link", "add", "bridge", "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("networks of boxes need bridges, which this kernel has not: %v: %s", err, out)
	}
	run(t, "ip", "address", "add", subnet+"1/24", "dev", "bridge")
	run(t, "ip", "link", "set", "bridge", "up")
}

// box is a machine of its own, as far as its network goes.
type box struct {
	t       testing.TB
	address string
	enter   []string // a command that starts another in the box
	link    string   // its end at the bridge
	dir     string   // of its server's pages
	page    int      // tokens of a page
}

// newBox makes a box with the n-th address, and joins it with the bridge.
func newBox(t testing.TB, n int) *box {
	t.Helper()
	net := emptyNetwork(t)
	b := &box{t: t, address: fmt.Sprint(subnet, n), enter: []string{"nsenter", "--net=" + net}, link: fmt.Sprint("box", n)}
	run(t, "ip", "link", "add", b.link, "type", "veth", "peer", "name", "eth0", "netns", net)
	t.Cleanup(func() { run(t, "ip", "link", "delete", b.link) })
	run(t, "ip", "link", "set", b.link, "master", "bridge", "up")
	for _, args := range []string{"link set lo up", "address add " + b.address + "/24 dev eth0", "link set eth0 up"} {
		run(t, append(append(b.enter, "ip"), strings.Fields(args)...)...)
	}
	return b
}

// emptyNetwork makes a network namespace, and returns its path. It ends with the test and all that is in it.
func emptyNetwork(t testing.TB) string {
	t.Helper()
	runtime.LockOSThread() // a thread that ended would take the processes with it that it has started
	defer runtime.UnlockOSThread()
	const own = "/proc/thread-self/ns/net"
	before, err := os.Open(own)
	require.NoError(t, err)
	defer before.Close()
	require.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	made, err := os.Open(own)
	require.NoError(t, errors.Join(err, unix.Setns(int(before.Fd()), unix.CLONE_NEWNET)))
	t.Cleanup(func() { made.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), made.Fd())
}

// cut takes the box off the bridge.
func (b *box) cut() { run(b.t, "ip", "link", "set", b.link, "down") }

// join undoes cut.
func (b *box) join() { run(b.t, "ip", "link", "set", b.link, "up") }

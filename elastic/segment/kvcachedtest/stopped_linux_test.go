//go:build cgo

package kvcachedtest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/elastic"
	"github.com/kvtier/kvtier/elastic/segment"
)

// A stopped is a kvctl that has a segment's lock and does not run.
type stopped struct {
	*exec.Cmd
	t   *testing.T
	out *os.File // its standard output, which nobody has read
}

// stopKvctl starts `kvctl limit` and stops it while it has the lock. It has the lock while it prints:
// its standard output is a pipe that is full.
func stopKvctl(t *testing.T, name string, size int64) stopped {
	t.Helper()
	out, in, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { out.Close() })
	room, err := unix.FcntlInt(in.Fd(), unix.F_GETPIPE_SZ, 0)
	require.NoError(t, err)
	_, err = in.Write(make([]byte, room))
	require.NoError(t, err)

	cmd := python(t, "-m", kvctl, "limit", name, fmt.Sprint(size))
	cmd.Stdout = in
	start(t, cmd)
	require.NoError(t, in.Close())
	require.Eventually(t, func() bool {
		s, err := segment.Get(name)
		return err == nil && s.State == segment.Locked
	}, timeout, time.Millisecond, "kvctl takes the lock")
	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WSTOPPED, nil))
	return stopped{cmd, t, out}
}

// goOn lets it run to its end.
func (s stopped) goOn() {
	s.t.Helper()
	require.NoError(s.t, s.Process.Signal(syscall.SIGCONT))
	_, err := io.Copy(io.Discard, s.out)
	require.NoError(s.t, err)
	require.NoError(s.t, s.Wait())
}

// TestAStoppedKvctlHoldsUpNobody: neither the process of the segment nor another tool waits for it. When
// it is killed or goes on, the limit that it has written is in force with the next round.
func TestAStoppedKvctlHoldsUpNobody(t *testing.T) {
	// kvctl prints before it writes, where the limit is below the memory in use.
	for _, size := range []int64{20 * mib, 4 * mib} {
		for _, end := range []string{"killed", "goes on"} {
			t.Run(fmt.Sprintf("%d %s", size, end), func(t *testing.T) {
				p := newPool(t)
				tool := stopKvctl(t, p.name, size)
				written := va
				if size > used {
					written = size
				}
				s, err := segment.Get(p.name)
				require.NoError(t, err)
				require.Equal(t, segment.Segment{
					Name: p.name, Limit: written, InForce: va, Used: used, Kept: kept, State: segment.Locked, PID: os.Getpid(),
				}, s)
				all, err := segment.List()
				require.NoError(t, err)
				require.Contains(t, all, s)
				require.ErrorIs(t, segment.SetLimit(p.name, 30*mib), segment.ErrBusy)
				for range 100 {
					require.ErrorIs(t, p.Poll(), elastic.ErrBusy)
				}
				require.NoError(t, p.buffer.Commit(uint64(used), uint64(30*mib)), "the limit of before is in force")
				require.NoError(t, p.buffer.Uncommit(uint64(used), uint64(30*mib)))

				if end == "killed" {
					require.NoError(t, tool.Process.Kill())
					require.Error(t, tool.Wait())
					require.NoError(t, p.poll())
					p.require(written)
					return
				}
				tool.goOn()
				require.NoError(t, p.poll())
				p.require(size)
			})
		}
	}
}

// TestAStoppedKvctlGivesNoMemoryAway: the limit that it has written is not in force, so that the memory
// that others divide is as small as before.
func TestAStoppedKvctlGivesNoMemoryAway(t *testing.T) {
	p, c := newPool(t), startChild(t)
	require.NoError(t, segment.SetLimit(p.name, 32*mib))
	require.NoError(t, segment.SetLimit(c.name, 32*mib))
	require.NoError(t, p.poll())
	c.obeys(32 * mib)
	tool := stopKvctl(t, p.name, 13*mib)
	require.ErrorIs(t, p.Poll(), elastic.ErrBusy)
	p.balance(c)
	c.obeys(32 * mib)
	require.NoError(t, p.buffer.Commit(0, uint64(32*mib)), "its limit is that of before")
	tool.goOn()
}

// TestAPoolEndsBesideAStoppedKvctl, and another takes the name. The limit of the former is not the
// latter's.
func TestAPoolEndsBesideAStoppedKvctl(t *testing.T) {
	c := startChild(t)
	tool := stopKvctl(t, c.name, 20*mib)
	c.end()

	p, b, err := open(c.name)
	require.NoError(t, err)
	tool.goOn()
	require.NoError(t, pool{p, t, b, c.name}.poll())
	stats, err := p.Stats()
	require.NoError(t, err)
	require.EqualValues(t, va, stats.Limit)
	require.NoError(t, shut(p, b))
}

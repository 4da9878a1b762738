//go:build cgo

package kvcachedtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic"
	"github.com/kvtier/kvtier/elastic/balance"
	"github.com/kvtier/kvtier/elastic/segment"
)

const (
	kib     = int64(1) << 10
	mib     = int64(1) << 20
	granule = 64 * kib // of host memory
	va      = 64 * mib // of a pool
	used    = 10 * mib // by a pool, after open
	kept    = 2 * mib
)

// childEnv has the name of the segment that this program holds in place of running tests.
const childEnv = "KVTIER_TEST_HOLD_SEGMENT"

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := hold(name); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// open makes a pool with a segment and with some memory.
func open(name string) (*elastic.Pool, *elastic.Buffer, error) {
	p, err := elastic.New(uint64(va), elastic.Host, elastic.Options{Granule: uint64(granule), Reserve: uint64(kept)})
	if err != nil {
		return nil, nil, err
	}
	b, err := p.Alloc(uint64(va))
	if err != nil {
		return nil, nil, err
	}
	if err := b.Commit(0, uint64(used+kept)); err != nil {
		return nil, nil, err
	}
	if err := b.Uncommit(uint64(used), uint64(kept)); err != nil {
		return nil, nil, err
	}
	if err := p.Attach(name); err != nil {
		return nil, nil, err
	}
	return p, b, nil
}

func shut(p *elastic.Pool, b *elastic.Buffer) error {
	if err := b.Free(); err != nil {
		return err
	}
	return p.Close()
}

// hold has a pool until its standard input ends, as a server has. Lines on standard output have errors
// of the pool's rounds.
func hold(name string) error {
	p, b, err := open(name)
	if err != nil {
		return err
	}
	stop := p.Watch(time.Millisecond, func(err error) { fmt.Println(err) })
	fmt.Println("ready")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	stop()
	return shut(p, b)
}

// A pool is that of this process. Its rounds are those that a test asks for.
type pool struct {
	*elastic.Pool
	t      *testing.T
	buffer *elastic.Buffer
	name   string
}

func newPool(t *testing.T) pool {
	t.Helper()
	toolsDir(t)
	name := fmt.Sprintf("kvtier-test-kvcached-%d", os.Getpid())
	p, b, err := open(name)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, shut(p, b))
		noneLeft(t, name)
	})
	held := pool{p, t, b, name}
	require.NoError(t, held.poll())
	return held
}

// poll does one round when no reader has the lock: other tests list all segments.
func (p pool) poll() (err error) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		err = p.Poll()
		return !errors.Is(err, elastic.ErrBusy)
	}, timeout, time.Millisecond, "polling beside readers")
	return err
}

// noneLeft fails where a segment's files are left.
func noneLeft(t *testing.T, name string) {
	t.Helper()
	require.NoFileExists(t, filepath.Join(segment.Dir, name))
	require.NoFileExists(t, filepath.Join(segment.Dir, name+".lock"))
}

// require fails unless the pool and package segment agree on a limit that is in force.
func (p pool) require(limit int64) {
	p.t.Helper()
	stats, err := p.Stats()
	require.NoError(p.t, err)
	require.Equal(p.t, limit, int64(stats.Limit), "the pool's limit")
	s, err := segment.Get(p.name)
	require.NoError(p.t, err)
	require.Equal(p.t, segment.Segment{
		Name: p.name, Limit: limit, InForce: limit, Used: int64(stats.Committed), Kept: int64(stats.Prealloc),
		State: segment.Live, PID: os.Getpid(),
	}, s)
}

// balance divides the address space of one pool between this pool and another, once.
func (p pool) balance(c *child) {
	p.t.Helper()
	b := balance.Balancer{
		Budget:  va,
		Of:      func(s segment.Segment) bool { return s.Name == p.name || s.Name == c.name },
		Changed: func(c balance.Change, err error) { require.NoError(p.t, err, c.Name) },
	}
	require.NoError(p.t, b.Look())
}

// A child is another process with a pool.
type child struct {
	t       *testing.T
	name    string
	cmd     *exec.Cmd
	in      io.Closer
	reports *bufio.Reader
	once    sync.Once
}

func startChild(t *testing.T) *child {
	t.Helper()
	toolsDir(t)
	c := &child{t: t, name: fmt.Sprintf("kvtier-test-kvcached-%d-child", os.Getpid())}
	program, err := os.Executable()
	require.NoError(t, err)
	c.cmd = exec.Command(program)
	c.cmd.Env = append(os.Environ(), childEnv+"="+c.name)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.cmd.Stderr = os.Stderr
	c.reports = bufio.NewReader(out)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(c.end)
	require.Equal(t, "ready", c.report())
	return c
}

// report is the next error of a round.
func (c *child) report() string {
	c.t.Helper()
	text, err := c.reports.ReadString('\n')
	require.NoError(c.t, err)
	return strings.TrimSpace(text)
}

// end ends the process, which may not have reported anything that the test did not read.
func (c *child) end() {
	c.once.Do(func() {
		require.NoError(c.t, c.in.Close())
		rest, err := io.ReadAll(c.reports)
		require.NoError(c.t, err)
		require.Empty(c.t, string(rest), "unexpected reports")
		require.NoError(c.t, c.cmd.Wait())
		noneLeft(c.t, c.name)
	})
}

// obeys waits until a limit is in force and the segment is as its process writes it.
func (c *child) obeys(limit int64) {
	c.t.Helper()
	var s segment.Segment
	require.Eventually(c.t, func() bool {
		var err error
		s, err = segment.Get(c.name)
		return err == nil && s == segment.Segment{
			Name: c.name, Limit: limit, InForce: limit, Used: used, Kept: s.Kept, State: segment.Live, PID: c.cmd.Process.Pid,
		} && s.Kept <= min(kept, max(0, limit-used))
	}, timeout, time.Millisecond, "a limit of %d bytes: %+v", limit, &s)
}

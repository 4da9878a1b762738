package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/elastic"
)

// write makes a file as kvcached does.
func write(t *testing.T, dir, name string, numbers ...int64) string {
	t.Helper()
	var b []byte
	for _, n := range numbers {
		b = binary.NativeEndian.AppendUint64(b, uint64(n))
	}
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// hold takes a file's lock, as a process that is stopped in the middle of its work.
func hold(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
}

// TestList: segments are told from everything else that a folder may have.
func TestList(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "kvcached_vllm_7", 3<<30, 1<<30, 5)
	live := write(t, dir, "kvcached_8_cpu", 100, 200, 0)
	hold(t, write(t, dir, "kvcached_8_cpu.lock", 1, 90, 20, 30, 40))
	write(t, dir, "kvcached_9_cpu", 100, 50, 0)
	write(t, dir, "kvcached_9_cpu.lock")
	write(t, dir, "kvcached_7_cpu", 0, 50, 5) // a tool has just written its limit
	hold(t, write(t, dir, "kvcached_7_cpu.lock", 1, 90, 20, 30, 40))
	hold(t, write(t, dir, "kvcached_6_cpu", 0, 50, 5)) // that tool is stopped
	hold(t, write(t, dir, "kvcached_6_cpu.lock", 1, 90, 20, 30, 40))
	hold(t, write(t, dir, "kvcached_5_cpu.lock", 1, 90, 20, 30, 40)) // a tool deleted it
	write(t, dir, "kvcached_4_cpu", 1, 2)
	hold(t, write(t, dir, "kvcached_4_cpu.lock", 1, 90, 20, 30, 40)) // and damaged this one
	write(t, dir, "kvcached_3_cpu.lock", 1, 90, 20, 30, 40)          // dead, without a segment
	hold(t, write(t, dir, "kvcached_2_cpu.lock"))                    // of a process that has not told yet
	write(t, dir, "zero", 0, 1, 2)
	write(t, dir, "negative", -1, 1, 2)
	write(t, dir, "long", 1, 2, 3, 4)
	write(t, dir, "short", 1, 2)
	write(t, dir, "a name", 1, 2, 3)
	require.NoError(t, os.Symlink(live, filepath.Join(dir, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	hold(t, write(t, dir, "stopped", 1, 2, 3)) // nobody waits for it long
	write(t, dir, "hostile", math.MaxInt64, math.MaxInt64, math.MinInt64)
	if os.Getuid() == 0 { // a stranger can neither end nor take over a segment
		write(t, dir, "kvcached_sglang_6", 100, 50, 0)
		require.NoError(t, os.Chown(write(t, dir, "kvcached_sglang_6.lock", 1, 1, 1, 1, 1), 12345, -1))
	}

	got, err := list(dir)
	require.NoError(t, err)
	if os.Getuid() == 0 {
		require.Equal(t, Segment{Name: "kvcached_sglang_6", Limit: 100, InForce: 100, Used: 50, State: Foreign}, got[7])
		got = slices.Delete(got, 7, 8)
	}
	require.Equal(t, []Segment{
		{Name: "hostile", Limit: LimitMax, InForce: LimitMax, Used: LimitMax, State: Foreign},
		{Name: "kvcached_4_cpu", Limit: 90, InForce: 90, Promised: 20, Lacking: 30, Spare: 40, State: Deleted, PID: os.Getpid()},
		{Name: "kvcached_5_cpu", Limit: 90, InForce: 90, Promised: 20, Lacking: 30, Spare: 40, State: Deleted, PID: os.Getpid()},
		{Name: "kvcached_6_cpu", InForce: 90, Used: 50, Kept: 5, Promised: 20, Lacking: 30, Spare: 40, State: Locked, PID: os.Getpid()},
		{Name: "kvcached_7_cpu", InForce: 90, Used: 50, Kept: 5, Promised: 20, Lacking: 30, Spare: 40, State: Live, PID: os.Getpid()},
		{Name: "kvcached_8_cpu", Limit: 100, InForce: 90, Used: 200, Promised: 20, Lacking: 30, Spare: 40, State: Live, PID: os.Getpid()},
		{Name: "kvcached_9_cpu", Limit: 100, InForce: 100, Used: 50, State: Dead},
		{Name: "kvcached_vllm_7", Limit: 3 << 30, InForce: 3 << 30, Used: 1 << 30, Kept: 5, State: Foreign},
		{Name: "stopped", Limit: 1, InForce: 1, Used: 2, Kept: 3, State: Foreign},
	}, got)
}

// TestSetLimit: only the first number changes, and names, limits and segments that cannot be meant
// are refused.
func TestSetLimit(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "a", 100, 200, 300)
	require.NoError(t, setLimit(dir, "a", 4711))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, []int64{4711, 200, 300}, []int64{
		int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:])), int64(binary.NativeEndian.Uint64(b[16:])),
	})

	for _, limit := range []int64{0, -1, LimitMax + 1} {
		require.ErrorContains(t, setLimit(dir, "a", limit), "between 1 byte and 1 PiB")
	}
	for _, name := range []string{"", "../a", ".a", "a/b", strings.Repeat("a", 201), "a\n"} {
		require.ErrorContains(t, setLimit(dir, name, 1), "not the name of a segment", name)
	}
	require.ErrorIs(t, setLimit(dir, "missing", 1), ErrNoSegment)
	write(t, dir, "dead", 1, 2, 3)
	write(t, dir, "dead.lock")
	require.ErrorIs(t, setLimit(dir, "dead", 1), ErrDead)
	hold(t, write(t, dir, "stopped", 1, 2, 3))
	require.ErrorIs(t, setLimit(dir, "stopped", 1), ErrBusy)
}

// TestPool: a pool obeys.
func TestPool(t *testing.T) {
	pool, err := elastic.New(1<<30, elastic.Host, elastic.Options{})
	if errors.Is(err, elastic.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, pool.Close()) }()
	name := fmt.Sprintf("kvtier-test-segment-%d", os.Getpid())
	require.NoError(t, pool.Attach(name))
	require.NoError(t, pool.Tell(5, 10, 20))
	require.NoError(t, pool.Poll())
	s, err := Get(name)
	require.NoError(t, err)
	require.Equal(t, Segment{Name: name, Limit: 1 << 30, InForce: 1 << 30, Promised: 5, Lacking: 10, Spare: 20, State: Live, PID: os.Getpid()}, s)
	require.NoError(t, SetLimit(name, 1<<20))
	require.NoError(t, pool.Poll())
	stats, err := pool.Stats()
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, stats.Limit)
	_, err = Get("kvtier-test-missing")
	require.ErrorIs(t, err, ErrNoSegment)
}

// stranger gives files to another user; only root can.
func stranger(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		require.NoError(t, os.Chown(path, 12345, -1))
		require.NoError(t, os.Chmod(path, 0o666))
	}
}

// TestSegmentsOfAUser: segments of another user are left out, also where everyone may write to them,
// and hide none.
func TestSegmentsOfAUser(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "mine", 100, 50, 0)
	me := uint32(os.Getuid())
	got, err := list(dir, me+1)
	require.NoError(t, err)
	require.Empty(t, got)
	if os.Getuid() != 0 {
		t.Skip("only root makes files of another user")
	}
	for i := range segmentsMax {
		stranger(t, write(t, dir, fmt.Sprintf("kvcached_evil%d_cpu", i), 1<<50, 1<<50, 0))
	}
	// of ours a tool has deleted the segment, and a stranger has taken its name
	stranger(t, write(t, dir, "taken", 1<<50, 1<<50, 0))
	hold(t, write(t, dir, "taken.lock", 1, 90, 20, 30, 40))
	// a lock of ours does not make a stranger's segment ours
	got, err = list(dir, me)
	require.NoError(t, err)
	require.Equal(t, []Segment{
		{Name: "mine", Limit: 100, InForce: 100, Used: 50, State: Foreign},
		{Name: "taken", Limit: 90, InForce: 90, Promised: 20, Lacking: 30, Spare: 40, State: Deleted, PID: os.Getpid()},
	}, got)

	third := write(t, dir, "third", 100, 50, 0)
	require.NoError(t, os.Chown(third, 12346, -1))
	got, err = list(dir)
	require.NoError(t, err)
	require.Len(t, got, segmentsMax)
	for _, name := range []string{"mine", "third"} {
		require.True(t, slices.ContainsFunc(got, func(s Segment) bool { return s.Name == name }), name)
	}
}

// TestFilesThatAreNoSegments: any number of them hides no segment.
func TestFilesThatAreNoSegments(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 * namesAtOnce {
		require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprint("folder", i)), 0o700))
	}
	write(t, dir, "mine", 100, 50, 0)
	got, err := list(dir)
	require.NoError(t, err)
	require.Len(t, got, 1)
}

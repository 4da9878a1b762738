//go:build cgo

package kvcachedtest

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic"
	"github.com/kvtier/kvtier/elastic/segment"
)

// TestKvctlListsOurSegments: the numbers are those that each process has, and the files beside the
// segments are not taken for segments.
func TestKvctlListsOurSegments(t *testing.T) {
	p, c := newPool(t), startChild(t)
	p.require(va)
	c.obeys(va)

	all := list(t)
	require.Equal(t, listed{p.name, va, used}, all[p.name])
	require.Equal(t, listed{c.name, va, used}, all[c.name])
	require.NotContains(t, all, p.name+".lock")

	table, code := run(t, "list", c.name, p.name)
	require.Zero(t, code)
	lines := strings.Split(table, "\n")
	require.Equal(t, []string{"IPC", "Limit", "Used", "%"}, strings.Fields(lines[0]))
	require.Equal(t, []string{line(c.name, va, used), line(p.name, va, used), ""}, lines[1:])

	require.NoError(t, p.buffer.Commit(0, uint64(24*mib)))
	require.NoError(t, p.poll())
	require.Equal(t, map[string]listed{p.name: {p.name, va, 24 * mib}}, list(t, p.name))
	require.NoError(t, p.buffer.Uncommit(0, uint64(va)))
	require.NoError(t, p.poll())
	require.Equal(t, map[string]listed{p.name: {p.name, va, 0}}, list(t, p.name))
}

// TestKvctlSetsOurLimits: each size that kvctl writes is in force after a round. One below the memory in
// use takes none of it, and one above the addresses is all of the addresses.
func TestKvctlSetsOurLimits(t *testing.T) {
	p, c := newPool(t), startChild(t)
	sh := startShell(t)
	for _, l := range []struct {
		size         string
		bytes, limit int64 // written, and in force
		warns, room  bool  // whether kvctl warns, and whether 16 MiB more have room
	}{
		{"32M", 32 * mib, 32 * mib, false, true},
		{"11mb", 11 * mib, 11 * mib, false, false}, // half of the kept memory goes
		{"4m", 4 * mib, 4 * mib, true, false},
		{"64k", granule, granule, true, false},
		{"100_000", 100_000, 100_000, false, false}, // it was lower
		{"20.5M", 41 * mib / 2, 41 * mib / 2, false, false},
		{"8G", 8 << 30, va, false, true},
		{"1048576G", 1 << 50, va, false, true}, // the largest that can be meant
		{"33,554,432B", 32 * mib, 32 * mib, false, true},
	} {
		out := sh.do("limit %s %s", p.name, l.size)
		require.Contains(t, out, fmt.Sprintf("Updated kv cache limit for %s to %s (%d bytes)", p.name, human(l.bytes), l.bytes))
		require.Equal(t, l.warns, strings.Contains(out, "No enough free space"), out)
		require.Contains(t, sh.do("list %s", p.name), line(p.name, l.bytes, used))

		require.NoError(t, p.poll(), l.size)
		p.require(l.limit)
		require.Contains(t, sh.do("list %s", p.name), line(p.name, l.limit, used))
		err := p.buffer.Commit(uint64(used), uint64(16*mib))
		if l.room {
			require.NoError(t, err)
			require.NoError(t, p.buffer.Uncommit(uint64(used), uint64(16*mib)))
			require.NoError(t, p.poll())
		} else {
			require.ErrorIs(t, err, elastic.ErrLimit)
		}
	}
	p.require(32 * mib)
	out, code := run(t, "limit", p.name, "24M")
	require.Zero(t, code, out)
	require.NoError(t, p.poll())
	p.require(24 * mib)

	for _, limit := range []int64{32, 11, 4, 20, 64} {
		require.Contains(t, sh.do("limit %s %dM", c.name, limit), "Updated kv cache limit")
		c.obeys(limit * mib)
		require.Contains(t, sh.do("list %s", c.name), line(c.name, limit*mib, used))
	}
	p.require(24 * mib)
}

// TestKvctlSetsOurLimitsByPercent of the memory of a GPU, which has 64 MiB here.
func TestKvctlSetsOurLimitsByPercent(t *testing.T) {
	p := newPool(t)
	sh := startShell(t)
	for percent, limit := range map[string]int64{"50": 32 * mib, "12.5": 8 * mib, "300": va} {
		require.Contains(t, sh.do("limit-percent %s %s", p.name, percent), "Updated kv cache limit")
		require.NoError(t, p.poll())
		p.require(limit)
	}
	require.NoError(t, p.Resize(uint64(16*mib)))
	require.NoError(t, p.poll())
	p.require(16 * mib)
	for percent, written := range map[string]bool{"0": true, "-10": true, "0.01": true, "1e12": true, "nan": false, "inf": false, "1e300": false} {
		out := sh.do("limit-percent %s %s", p.name, percent)
		if written {
			require.ErrorIs(t, p.poll(), elastic.ErrInvalid, "%s: %s", percent, out)
		}
		require.NoError(t, p.poll(), percent)
		p.require(16 * mib)
	}
}

// hostile are sizes that kvctl writes although no limit can be meant by them.
var hostile = []struct {
	size  string
	bytes int64
}{
	{"0", 0}, {"G", 0}, {"-1", -1}, {"-5M", -5 * mib}, {"1", 1}, {"65535", granule - 1}, {"0.9k", 921},
	{"1048577G", 1<<50 + 1<<30}, {"9e18", 9e18}, {"-9e18", -9e18},
}

// TestKvctlSetsNoHostileLimit: a limit that cannot be meant is refused by the process with a sentence,
// and the one before is put in its place.
func TestKvctlSetsNoHostileLimit(t *testing.T) {
	p, c := newPool(t), startChild(t)
	sh := startShell(t)
	const good = int64(16 * mib)
	for _, name := range []string{p.name, c.name} {
		require.Contains(t, sh.do("limit %s 16M", name), "Updated kv cache limit")
	}
	require.NoError(t, p.poll())
	p.require(good)
	c.obeys(good)

	for _, h := range hostile {
		t.Run(h.size, func(t *testing.T) {
			p.t, c.t, sh.t = t, t, t
			require.Contains(t, sh.do("limit %s %s", p.name, h.size), fmt.Sprintf("(%d bytes)", h.bytes))
			before, err := segment.Get(p.name)
			require.NoError(t, err)
			require.Equal(t, min(max(0, h.bytes), segment.LimitMax), before.Limit)
			require.Equal(t, good, before.InForce)
			all, err := segment.List()
			require.NoError(t, err)
			require.Contains(t, all, before)
			err = p.poll()
			require.ErrorIs(t, err, elastic.ErrInvalid)
			require.ErrorContains(t, err, fmt.Sprintf("%s: %d bytes are not between", p.name, h.bytes))
			require.ErrorContains(t, err, fmt.Sprintf("the limit stays %d bytes", good))
			p.require(good)
			require.NoError(t, p.poll())
			require.Contains(t, sh.do("list %s", p.name), line(p.name, good, used))

			sh.do("limit %s %s", c.name, h.size)
			require.Contains(t, c.report(), fmt.Sprintf("%s: %d bytes are not between", c.name, h.bytes))
			c.obeys(good)
			require.Contains(t, sh.do("list %s", c.name), line(c.name, good, used))
		})
	}
	p.t, c.t = t, t

	// From the command line, too.
	for _, args := range [][]string{{"limit", p.name, "0"}, {"limit", p.name, "-1"}, {"limit", "--", p.name, "-5M"}} {
		out, code := run(t, args...)
		require.Zero(t, code, out)
		require.ErrorIs(t, p.poll(), elastic.ErrInvalid)
		p.require(good)
	}
}

// TestKvctlSetsNoLimitOfGarbage: kvctl refuses sizes that are none. Its errors leave no lock behind.
func TestKvctlSetsNoLimitOfGarbage(t *testing.T) {
	p := newPool(t)
	sh := startShell(t)
	for _, size := range []string{"abc", "12X", "1T", "1.2.3M", "0x10", "''", "'1 0 G 2'", "nan", "nanM", "inf", "-inf", "1e30", "9223372036854775807", "1e18G"} {
		require.Contains(t, sh.do("limit %s %s", p.name, size), "Error: ", size)
		require.NoError(t, p.poll(), size)
		p.require(va)
	}
	out, code := run(t, "limit", p.name, "abc")
	require.NotZero(t, code)
	require.Contains(t, out, "Invalid size string 'abc'")
	out, code = run(t, "limit", p.name, "1e30")
	require.NotZero(t, code)
	require.Contains(t, out, "OverflowError")
	require.NoError(t, p.poll())
	p.require(va)
}

// TestManyLimitsOfKvctl: a shell of kvctl sets limits, good and hostile ones, and deletes the segment
// while the process works and polls. No number is lost.
func TestManyLimitsOfKvctl(t *testing.T) {
	p := newPool(t)
	sh := startShell(t)
	reports := make(chan error, 1000)
	stop := p.Watch(time.Millisecond, func(err error) { reports <- err })
	defer stop()
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := uint64(0); ; i++ {
			select {
			case <-end:
				return
			default:
			}
			at := uint64(used) + i%100*uint64(granule)
			_ = p.buffer.Commit(at, uint64(4*mib)) // refused where the limit is lower
			if err := p.buffer.Uncommit(at, uint64(4*mib)); err != nil {
				t.Errorf("uncommitting: %v", err)
			}
		}
	}()
	for i := range 400 {
		switch {
		case i%20 == 19:
			sh.do("delete %s", p.name)
		case i%4 == 3:
			sh.do("limit %s %s", p.name, hostile[i/4%len(hostile)].size)
		default:
			sh.do("limit %s %dk", p.name, 64+i*97%65000)
		}
	}
	close(end)
	<-ended
	stop()
	close(reports)
	for err := range reports {
		require.ErrorIs(t, err, elastic.ErrInvalid)
	}
	require.NoError(t, p.buffer.Uncommit(uint64(used), uint64(va-used)))
	_ = p.poll() // the last limit may be a hostile one
	require.Contains(t, sh.do("limit %s 20M", p.name), "Updated kv cache limit")
	require.NoError(t, p.poll())
	p.require(20 * mib)
	require.Equal(t, listed{p.name, 20 * mib, used}, list(t, p.name)[p.name])
}

// TestKvctlDeletesALiveSegment: its process makes it again, with the limit that was in force. Until
// then nobody else gets the name.
func TestKvctlDeletesALiveSegment(t *testing.T) {
	p, c := newPool(t), startChild(t)
	sh := startShell(t)
	sh.do("limit %s 16M", p.name)
	sh.do("limit %s 16M", c.name)
	require.NoError(t, p.poll())
	p.require(16 * mib)
	c.obeys(16 * mib)

	out, code := run(t, "delete", p.name)
	require.Zero(t, code, out)
	require.Contains(t, out, "Deleted IPC '"+p.name+"'")
	_, err := segment.Get(p.name)
	require.ErrorIs(t, err, segment.ErrNoSegment)
	require.ErrorIs(t, segment.SetLimit(p.name, mib), segment.ErrNoSegment)
	require.Contains(t, sh.do("limit %s 1M", p.name), "IPC '"+p.name+"' not found")
	require.Contains(t, sh.do("list %s", p.name), "No active KVCached segments found")
	require.NoFileExists(t, filepath.Join(segment.Dir, p.name))
	_, _, err = open(p.name)
	require.ErrorIs(t, err, elastic.ErrBusy, "its process lives")

	require.NoError(t, p.poll())
	p.require(16 * mib)
	require.Equal(t, listed{p.name, 16 * mib, used}, list(t, p.name)[p.name])

	// The lock beside it, too.
	for _, name := range []string{p.name, p.name + ".lock"} {
		require.Contains(t, sh.do("delete %s", name), "Deleted IPC")
	}
	require.NoError(t, p.poll())
	p.require(16 * mib)
	sh.do("limit %s 12M", p.name)
	require.NoError(t, p.poll())
	p.require(12 * mib)

	for range 20 {
		require.Contains(t, sh.do("delete %s", c.name), "Deleted IPC")
		c.obeys(16 * mib)
	}
	require.Contains(t, sh.do("list %s", c.name), line(c.name, 16*mib, used))
	require.Contains(t, sh.do("delete %s", p.name+"-none"), "not found")
}

// TestKvctlWatchesOurSegments until it is ended, which leaves no lock.
func TestKvctlWatchesOurSegments(t *testing.T) {
	p, c := newPool(t), startChild(t)
	cmd := python(t, "-m", kvctl, "watch", "-n", "0.01", p.name, c.name)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	start(t, cmd)
	screen := bufio.NewReader(out)
	// A screen that began before a change may show the numbers of before.
	show := func(lines ...string) {
		t.Helper()
		text, err := readUntil(screen, func(text []byte) bool { return strings.HasSuffix(string(text), strings.Join(lines, "\n")+"\n") })
		require.NoError(t, err, text)
	}
	show(line(p.name, va, used), line(c.name, va, used))
	require.NoError(t, segment.SetLimit(p.name, 20*mib))
	require.NoError(t, segment.SetLimit(c.name, 8*mib))
	require.NoError(t, p.poll())
	show(line(p.name, 20*mib, used), line(c.name, 8*mib, used))
	require.NoError(t, p.buffer.Commit(0, uint64(15*mib)))
	require.NoError(t, p.poll())
	show(line(p.name, 20*mib, 15*mib), line(c.name, 8*mib, used))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.Error(t, cmd.Wait())
	require.NoError(t, p.poll())
	p.require(20 * mib)
	c.obeys(8 * mib)
}

// startHalves has a pool of this process and one of a child, which have half of the budget each.
func startHalves(t *testing.T) (pool, *child, *shell) {
	t.Helper()
	p, c := newPool(t), startChild(t)
	sh := startShell(t)
	sh.do("limit %s 32M", p.name)
	sh.do("limit %s 32M", c.name)
	require.NoError(t, p.poll())
	c.obeys(32 * mib)
	return p, c, sh
}

// TestALimitOfNothingGivesNoMemoryAway: between a hostile limit and the round that puts it right, the
// memory of its process still counts when others divide a budget.
func TestALimitOfNothingGivesNoMemoryAway(t *testing.T) {
	p, c, sh := startHalves(t)
	for _, size := range []string{"0", "-1"} {
		sh.do("limit %s %s", p.name, size)
		p.balance(c)
		c.obeys(32 * mib)
		require.NoError(t, p.poll())
		p.require(32 * mib)
	}
}

// TestADeletedSegmentGivesNoMemoryAway: until its process has made it again, its memory still counts.
func TestADeletedSegmentGivesNoMemoryAway(t *testing.T) {
	p, c, sh := startHalves(t)
	require.Contains(t, sh.do("delete %s", p.name), "Deleted IPC")
	all, err := segment.List()
	require.NoError(t, err)
	require.Contains(t, all, segment.Segment{
		Name: p.name, Limit: 32 * mib, InForce: 32 * mib, State: segment.Deleted, PID: os.Getpid(),
	})
	p.balance(c)
	c.obeys(32 * mib)
	require.NoError(t, p.poll())
	p.require(32 * mib)
	p.balance(c)
	c.obeys(32 * mib)
}

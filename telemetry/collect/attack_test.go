package collect

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// handOver returns books with the content of others, in a collector of another boot or machine.
func handOver(t *testing.T, from *books, opt Options, boot string) *books {
	f, _ := from.file()
	data, err := json.Marshal(f)
	require.NoError(t, err)
	to := newBooks(opt)
	require.NoError(t, to.fill(data, boot))
	return to
}

// TestMachinesThatShareALock: a collector on another machine knows only that the processes are not
// its own. When the lock comes back, they go on and are not counted again.
func TestMachinesThatShareALock(t *testing.T) {
	now := testStart.Add(time.Hour)
	opt := Options{now: func() time.Time { return now }}.withDefaults()
	nobody := func(telemetry.Process) bool { return false }
	here := newBooks(opt)
	require.NoError(t, here.add(testReport(1, prompts(5)), 0, false))
	there := handOver(t, here, opt, "another")
	now = now.Add(lateMax + time.Second)
	there.look(nobody)
	require.NoError(t, there.add(testReport(2, prompts(1)), 0, false))
	again := handOver(t, there, opt, "b")
	require.NoError(t, again.add(testReport(1, prompts(5)), 0, false))
	require.Equal(t, 6.0, total(again.state("", func(string) string { return "" }), promptsTotal))
	require.NoError(t, again.add(testReport(1, prompts(7)), 0, false))
	require.Equal(t, 8.0, total(again.state("", func(string) string { return "" }), promptsTotal))
}

// TestErrorsOfListenAreAlike: a reason is logged once, so its text is the same each time.
func TestErrorsOfListenAreAlike(t *testing.T) {
	dir := t.TempDir()
	l, err := listen(dir)
	require.NoError(t, err)
	defer l.Close()
	_, first := listen(dir)
	require.Error(t, first)
	f, err := os.Open(dir) // takes the number of a descriptor
	require.NoError(t, err)
	defer f.Close()
	_, second := listen(dir)
	require.EqualError(t, second, first.Error())
}

// TestCollectorThatIsStopped: of a collector that accepts nothing the system keeps a bounded number
// of connections.
func TestCollectorThatIsStopped(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	l, err := listen(dir)
	require.NoError(t, err)
	defer l.Close()
	const tries = 512
	waiting := 0
	for range tries {
		conn, err := dial(context.Background(), dir, false)
		if err == nil {
			waiting++
			conn.Close()
		}
	}
	require.Less(t, waiting, tries/2)
	require.Positive(t, waiting)
}

// TestFileOfManyObjects takes no more than some times its own length in memory.
func TestFileOfManyObjects(t *testing.T) {
	const bytes = 4 << 20
	for _, list := range []string{"models", "processes"} {
		data := []byte(`{"version":1,"` + list + `":[` + strings.Repeat("{},", bytes/3) + `{}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		require.ErrorIs(t, newBooks(Options{}.withDefaults()).fill(data, ""), errContent)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*bytes))
	}
}

// TestLossesBecomeRare: two collectors that take the socket from each other do so ever less.
func TestLossesBecomeRare(t *testing.T) {
	now, poll := testStart, 500*time.Millisecond
	var l losses
	require.Equal(t, poll, l.pause(poll, now))
	for range 20 {
		now = now.Add(l.pause(poll, now))
	}
	require.Equal(t, pauseMax, l.pause(poll, now))
	require.Equal(t, poll, l.pause(poll, now.Add(time.Hour)))
}

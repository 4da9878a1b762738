//go:build unix

package front

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// machine are daemons of one local root.
type machine struct {
	t     *testing.T
	dir   string
	now   time.Time
	alive map[string]bool
	next  int
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, dir: t.TempDir(), now: time.Unix(1e9, 0), alive: map[string]bool{}}
}

// start starts a daemon.
func (m *machine) start(model string) (*runs, error) {
	m.next++
	r := newRuns(m.dir)
	r.id = fmt.Sprint("process ", m.next)
	r.now = func() time.Time { return m.now }
	r.alive = func(id string) (bool, bool) { return m.alive[id], !strings.HasPrefix(id, "elsewhere") }
	err := r.begin(model)
	if err == nil {
		m.alive[r.id] = true
	}
	return r, err
}

// kill ends a daemon without its knowledge, after some time.
func (m *machine) kill(r *runs, after time.Duration) {
	delete(m.alive, r.id)
	m.now = m.now.Add(after)
}

// crash starts daemons and kills them.
func (m *machine) crash(model string, n int, after time.Duration) {
	m.t.Helper()
	for range n {
		r, err := m.start(model)
		require.NoError(m.t, err)
		m.kill(r, after)
	}
}

// TestDaemonsThatDieAgainAndAgain let the real server run alone for a while.
func TestDaemonsThatDieAgainAndAgain(t *testing.T) {
	m := newMachine(t)
	m.crash("a", crashesMax, time.Minute)
	for range 5 {
		_, err := m.start("a")
		require.ErrorIs(t, err, errPlain)
		m.now = m.now.Add(10 * time.Minute)
	}
	r, err := m.start("b")
	require.NoError(t, err, "another model")
	require.NoError(t, r.inOrder("b"))
	m.now = m.now.Add(plainFor)
	m.crash("a", crashesMax, time.Minute)
	_, err = m.start("a")
	require.ErrorIs(t, err, errPlain)
}

// TestDaemonsThatDieNowAndThen go on.
func TestDaemonsThatDieNowAndThen(t *testing.T) {
	m := newMachine(t)
	m.crash("a", 10, crashWindow/crashesMax+time.Second)
	for range 10 { // an end in order between the others
		m.crash("b", crashesMax-1, time.Second)
		r, err := m.start("b")
		require.NoError(t, err)
		require.NoError(t, r.inOrder("b"))
		m.kill(r, time.Second)
	}
	for range 10 { // many at once
		_, err := m.start("c")
		require.NoError(t, err)
	}
	for i := range 10 { // in containers that have ended, or before a boot
		r, err := m.start("d")
		require.NoError(t, err)
		r.id = fmt.Sprint("elsewhere ", i)
		require.NoError(t, r.begin("d"))
	}
}

// TestTheFileOfRunsIsHostile: bytes that cannot be used are as no file.
func TestTheFileOfRunsIsHostile(t *testing.T) {
	m := newMachine(t)
	path := newRuns(m.dir).path
	key, at := modelKey("a"), m.now.Unix()
	dead := fmt.Sprintf(`{"model":%q,"began":%d,"id":"dead"}`, key, at)
	list := func(entry string, n int) string {
		return `{"version":1,"runs":[` + strings.TrimSuffix(strings.Repeat(entry+",", n), ",") + `]}`
	}
	for _, content := range []string{
		"", "\x00\xff", "[]", `{"version":2,"runs":[` + dead + `]}`, list(dead, runsMax+1), list("null", 3), list("5", 3),
		list(dead, 9999), strings.Repeat("[", 1<<16), list(strings.ReplaceAll(dead, fmt.Sprint(at), fmt.Sprint(at+1e6)), 9),
		list(strings.ReplaceAll(dead, fmt.Sprint(at), "-9e18"), 9), list(strings.ReplaceAll(dead, fmt.Sprint(at), "9223372036854775807"), 9),
		list(fmt.Sprintf(`{"model":%q,"began":%d,"plain":true}`, key, at+int64(plainFor/time.Second)), 1),
		list(strings.ReplaceAll(dead, "dead", strings.Repeat("d", runIDBytesMax+1)), 9),
	} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		r, err := m.start("a")
		require.NoError(t, err, content[:min(len(content), 200)])
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(runsBytesMax))
		require.NoError(t, r.inOrder("a"))
	}
	require.NoError(t, os.WriteFile(path, []byte(list(dead, crashesMax)), 0o600))
	_, err := m.start("a")
	require.ErrorIs(t, err, errPlain, "a good one")

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(filepath.Join(m.dir, "outside"), path))
	_, err = m.start("a")
	require.NoError(t, err)
	require.NoFileExists(t, filepath.Join(m.dir, "outside"))
}

// TestProcessIDs: this process runs, and no process of another number, start, boot or namespace.
func TestProcessIDs(t *testing.T) {
	id := processID(os.Getpid())
	if id == "" {
		t.Skip("processes have no start on this system")
	}
	alive, known := processAlive(id)
	require.True(t, alive && known)
	alive, known = processAlive(id + "0")
	require.True(t, !alive && known, "another process had the number")
	for _, id := range []string{"", "a b c d", "boot " + id, strings.Replace(id, "pid:", "pid:1", 1)} {
		_, known = processAlive(id)
		require.False(t, known, id)
	}
	require.LessOrEqual(t, len(id), runIDBytesMax)
}

//go:build unix

package collect

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCollectorThatGoesOn: while a collector is stopped, readers have the file and processes go on.
// Once it goes on, all is counted, and once.
func TestCollectorThatGoesOn(t *testing.T) {
	if Self("").Start == 0 {
		t.Skip("this system does not tell the start of a process")
	}
	p := processes{t, newRoot(t)}
	c := p.start(roleCollector)
	_, err := c.lines.ReadString('\n') // it serves
	require.NoError(t, err)
	waits := p.start(roleCollector)
	pushers := []*running{p.start(rolePusher), p.start(rolePusher)}
	m := &monotonic{t: t, root: p.root}
	await(t, "a report", func() bool { return total(readState(t, p.root), promptsTotal) > 0 })
	counted := 0
	for range 2 {
		m.read()
		require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
		require.False(t, m.read().Live)
		require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
		for i := range pushers {
			counted += pushers[i].end(t)
			pushers[i] = p.start(rolePusher)
		}
		require.True(t, m.read().Live)
	}
	c.kill()
	for _, pusher := range pushers {
		counted += pusher.end(t)
	}
	require.Equal(t, float64(counted), total(m.read(), promptsTotal))
	waits.kill()
}

package ram

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClock(t *testing.T) {
	ticks := 0
	c := clock{tick: func() bool { ticks++; return ticks < 3 }}
	require.False(t, c.going())
	c.start()
	c.start()
	require.True(t, c.going())
	for c.going() { // done here in place of the timer
		c.mu.Lock()
		fired := c.timer.Stop()
		c.mu.Unlock()
		require.True(t, fired)
		c.run()
	}
	require.Equal(t, 3, ticks)
	c.start()
	require.True(t, c.going())
	before := runtime.NumGoroutine()
	c.stop()
	require.False(t, c.going())
	c.start()
	require.False(t, c.going(), "stopped for good")
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

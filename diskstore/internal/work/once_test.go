package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOnceClock(t *testing.T) {
	var c Once
	fired := make(chan int, 10)
	for i := range 5 {
		c.Start(time.Millisecond, func() { fired <- i })
	}
	require.Equal(t, 0, <-fired, "the first Start counts")
	c.Start(time.Millisecond, func() { fired <- 9 })
	require.Equal(t, 9, <-fired)
	c.Start(time.Hour, func() { fired <- 10 })
	c.Stop()
	c.Start(0, func() { fired <- 11 })
	require.Empty(t, fired)
}

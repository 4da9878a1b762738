package priority

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestLowerIsForOneGoroutine(t *testing.T) {
	of := func() int {
		n, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid())
		require.NoError(t, err)
		return 20 - n // as the system call returns it
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mine := of()
	lowered := make(chan int)
	go func() {
		Lower()
		lowered <- of()
	}()
	require.Equal(t, min(mine+nice, niceMax), <-lowered, "also in a process that is nice already")
	require.Equal(t, mine, of())
	for range 100 { // threads of ended goroutines are not reused
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			lowered <- of()
		}()
		require.Equal(t, mine, <-lowered)
	}
}

package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOutputsAreAwaited(t *testing.T) {
	waits := make(chan struct{})
	o := NewOutputs(func() { close(waits) })
	o.Await(-1) // nothing was built
	o.Read(0)
	o.Await(0)
	read := make(chan struct{})
	go func() {
		defer close(read)
		o.Await(2)
	}()
	select {
	case <-waits:
	case <-read:
		require.FailNow(t, "Await did not wait for unread outputs")
	}
	o.Read(1)
	select {
	case <-read:
		require.Fail(t, "the outputs of batch 2 are not read")
	default:
	}
	o.Read(2)
	<-read
	o.Await(1)
}

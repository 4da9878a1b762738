package tiering

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQueuedBytes(t *testing.T) {
	for available, want := range map[uint64]int64{
		0:         64 << 20,
		4 << 30:   512 << 20,
		8 << 30:   1 << 30,
		512 << 30: 1 << 30,
	} {
		require.Equal(t, want, queuedBytes(available, nil), available)
	}
	require.EqualValues(t, 1<<30, queuedBytes(0, errors.New("not Linux")))
}

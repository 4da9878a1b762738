package slotfile

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFilesInMemoryAreNotExecutable: a system may refuse others.
func TestFilesInMemoryAreNotExecutable(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_NOEXEC_SEAL)
	if err != nil {
		t.Skip("this kernel does not know such files")
	}
	require.NoError(t, unix.Close(fd))
	f, _, err := newMemory()
	require.NoError(t, err)
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	require.NotZero(t, seals&sealExec)
	require.NoError(t, f.Truncate(1<<20), "it can still grow")
}

const sealExec = 0x20 // F_SEAL_EXEC

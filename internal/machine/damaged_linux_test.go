package machine

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModelWhoseHeadIsDamaged: a length that no memory has is an error, and not the end of doctor.
func TestModelWhoseHeadIsDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blob")
	head := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
	for _, n := range []uint64{0, 1, 1 << 62} { // tensors, values, bytes of the first one's name
		head = binary.LittleEndian.AppendUint64(head, n)
	}
	require.NoError(t, os.WriteFile(path, head, 0o600))
	_, err := Here{}.Model(path)
	require.Error(t, err)
}

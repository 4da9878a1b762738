package balance

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/elastic/segment"
)

// shared makes a segment among those of this machine.
func shared(t *testing.T, name string, limit, used int64) (path string) {
	t.Helper()
	b := binary.NativeEndian.AppendUint64(nil, uint64(limit))
	b = binary.NativeEndian.AppendUint64(b, uint64(used))
	b = binary.NativeEndian.AppendUint64(b, 0)
	path = filepath.Join(segment.Dir, name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	t.Cleanup(func() { _ = os.Remove(path) })
	return path
}

// TestStrangersTakeNoPart: a segment of another user, which everyone may write, takes nothing of the
// budget, unless that user is named.
func TestStrangersTakeNoPart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root makes files of another user")
	}
	const budget, stranger = 8 << 30, 12345
	prefix := fmt.Sprintf("kvtier-test-balance-%d-", os.Getpid())
	mine, theirs := prefix+"mine", prefix+"theirs"
	shared(t, mine, budget, 1<<20)
	evil := shared(t, theirs, segment.LimitMax/2, segment.LimitMax/2)
	require.NoError(t, os.Chown(evil, stranger, -1))
	require.NoError(t, os.Chmod(evil, 0o666))

	look := func(users ...uint32) (changed []string) {
		b := Balancer{
			Budget: budget, Users: users,
			Of: func(s segment.Segment) bool { return strings.HasPrefix(s.Name, prefix) },
			Changed: func(c Change, err error) {
				require.NoError(t, err)
				changed = append(changed, c.Name)
			},
		}
		require.NoError(t, b.Look())
		return changed
	}
	require.Empty(t, look(), "a process alone has the whole budget")
	require.Equal(t, []string{theirs}, look(stranger))
}

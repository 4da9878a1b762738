package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// On a full disk requests succeed, the log has one line, and pages are stored again when
// there is room.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("kvtier-test", disk, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("mounting a small filesystem needs privileges this process does not have: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	filler := filepath.Join(disk, "filler")
	require.NoError(t, os.WriteFile(filler, make([]byte, 900<<10), 0o600))

	s := startIn(t, filepath.Join(disk, "pages"))
	s.ask(prompt(t, 1500, 1), 4)
	s.ask(prompt(t, 1500, 2), 4)
	s.unload()
	require.Equal(t, 1, strings.Count(s.Logs(), "conversations are not stored"), "one clear line")
	require.Contains(t, s.Logs(), "no space left on device")

	require.NoError(t, os.Remove(filler))
	text := prompt(t, 300, 3)
	s.ask(text, 4)
	s.unload()
	require.Equal(t, 299, s.ask(text, 4).restored)
	require.NoError(t, s.Stop())
}

//go:build unix

package inspect

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

func TestCheckRights(t *testing.T) {
	o, pages := stored(t)
	r := rootsOf(t, o)
	page := storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Key: pages[0].Key()})
	wide := []string{page, filepath.Dir(page), filepath.Join(o.Local.Root, storetest.VersionDir, o.Fingerprint.String(), dir.ManifestFile)}
	for _, path := range wide {
		require.NoError(t, os.Chmod(path, 0o755))
	}
	c, found := check(t, r, CheckOptions{})
	require.Len(t, found, len(wide))
	require.Zero(t, c.Damage)
	c, _ = check(t, r, CheckOptions{Repair: true})
	require.Equal(t, len(wide), c.Problems[ProblemMode])
	require.Equal(t, len(wide), c.Repaired)
	requireClean(t, r, 3, 2)
}

// TestCheckOfWhatIsNoFile: a check neither follows nor opens links, directories and FIFOs, and
// does not wait for them.
func TestCheckOfWhatIsNoFile(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"symbolic link": func(path string) error { return os.Symlink("/dev/zero", path) },
		"FIFO":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		o, pages := stored(t)
		r := rootsOf(t, o)
		path := storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Key: pages[0].Key()})
		require.NoError(t, os.Remove(path))
		require.NoError(t, make(path))
		_, found := check(t, r, CheckOptions{})
		require.Len(t, found, 1)
		require.Equal(t, ProblemNotRegular, found[0].Problem)
		require.Contains(t, found[0].Why, name)
		check(t, r, CheckOptions{Repair: true})
		requireClean(t, r, 2, 2)
	}
}

// TestCheckOfASwappedDirectory: a link in a directory's place is not followed.
func TestCheckOfASwappedDirectory(t *testing.T) {
	o, pages := stored(t)
	r := rootsOf(t, o)
	folder := filepath.Dir(storetest.Path(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Key: pages[0].Key()}))
	away := filepath.Join(t.TempDir(), "away")
	require.NoError(t, os.Rename(folder, away))
	require.NoError(t, os.Symlink(away, folder))
	_, found := check(t, r, CheckOptions{Repair: true})
	require.Equal(t, ProblemForeign, found[0].Problem)
	require.Empty(t, found[0].Done)
	require.NotEmpty(t, storetest.FilesIn(t, away, dir.PageExt), "files elsewhere stay")
}

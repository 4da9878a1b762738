package storetest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Names below a root, as the stores of every release have written them.
const (
	VersionDir    = "v1"
	TailsDir      = "tails"
	QuarantineDir = "quarantine"
	TmpDir        = "tmp"
	CollectLock   = "collect.lock"
	LedgerFile    = "usage.json"
)

// Path returns where a tier's root keeps a name.
func Path(root string, name pagefile.Name) string {
	folder, key := filepath.Join(root, VersionDir, name.Fingerprint.String()), name.Key.String()
	switch name.Class {
	case pagefile.ClassManifest:
		return filepath.Join(folder, "manifest.json")
	case pagefile.ClassTail:
		return filepath.Join(TailDir(root, name.Fingerprint, name.Parent), key+".kvp")
	}
	return filepath.Join(folder, key[:2], key+".kvp")
}

// TailDir returns where a tier's root keeps the tails of a parent.
func TailDir(root string, fingerprint, parent pagefile.Key) string {
	p := parent.String()
	return filepath.Join(root, VersionDir, fingerprint.String(), TailsDir, p[:2], p)
}

// FilesIn returns the paths below root that end in ext.
func FilesIn(t testing.TB, root, ext string) []string {
	t.Helper()
	var paths []string
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ext {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// Place copies a file, making its directory.
func Place(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// FlipAt changes one bit of a file, counted from its end where at is negative.
func FlipAt(t testing.TB, path string, at int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[(at+len(data))%len(data)] ^= 4
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

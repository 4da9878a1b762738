package storetest

import (
	"os"
	"path/filepath"
	"strings"
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

// MaxQuarantined is how many files a tier keeps aside, as docs/configuration.md says.
const MaxQuarantined = 16

// Path returns where a tier's root keeps a name.
func Path(root string, name pagefile.Name) string {
	folder, key := filepath.Join(root, VersionDir, name.Fingerprint.String()), name.Key.String()
	switch name.Class {
	case pagefile.ClassManifest:
		return filepath.Join(folder, "manifest.json")
	case pagefile.ClassTail:
		return filepath.Join(root, VersionDir, TailDir(name.Fingerprint, name.Parent), key+".kvp")
	}
	return filepath.Join(folder, key[:2], key+".kvp")
}

// TailDir returns the path below <root>/v1 of the directory of parent's tails.
func TailDir(fingerprint, parent pagefile.Key) string {
	p := parent.String()
	return filepath.Join(fingerprint.String(), TailsDir, p[:2], p)
}

// PageKey returns the key in the name of a page's file, false for any other file.
func PageKey(base string) (pagefile.Key, bool) {
	digits, ok := strings.CutSuffix(base, ".kvp")
	if !ok {
		return pagefile.Key{}, false
	}
	key, err := pagefile.ParseKey(digits)
	return key, err == nil
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

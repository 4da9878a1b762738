package storetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Names below a root.
const (
	VersionDir    = "v1"
	TailsDir      = "tails"
	PrefixesDir   = "prefixes"
	QuarantineDir = "quarantine"
	TmpDir        = "tmp"
	CollectLock   = "collect.lock"
	LedgerFile    = "usage.json"
)

// MaxQuarantined is the number of files that quarantine keeps, as in docs/configuration.md.
const MaxQuarantined = 16

// Path returns the path of a name's file below a tier's root.
func Path(root string, name pagefile.Name) string {
	folder, key := filepath.Join(root, VersionDir, name.Fingerprint.String()), name.Key.String()
	switch name.Class {
	case pagefile.ClassManifest:
		return filepath.Join(folder, "manifest.json")
	case pagefile.ClassTail:
		return filepath.Join(root, VersionDir, TailDir(name.Fingerprint, pagefile.Key{name.Key[0]}), key+".kvp")
	}
	return filepath.Join(folder, key[:2], key+".kvp")
}

// TailDir returns the path below <root>/v1 of a directory of tails.
func TailDir(fingerprint, folder pagefile.Key) string {
	p := folder.String()
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

// Place copies a file and makes the directory of the copy.
func Place(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o700))
	require.NoError(t, os.WriteFile(to, data, 0o600))
}

// FlipAt changes one bit of the byte at offset at of a file; a negative at counts from the end.
func FlipAt(t testing.TB, path string, at int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[(at+len(data))%len(data)] ^= 4
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

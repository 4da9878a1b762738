package diskstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// TestPagesAfterARemovalHaveAManifest: pages of a model that is loaded are removed, and its
// conversations are stored again when it is unloaded. Without a manifest nobody could tell
// which model these pages are of.
func TestPagesAfterARemovalHaveAManifest(t *testing.T) {
	o := testOptions(t)
	s := open(t, o)
	require.NoError(t, os.RemoveAll(filepath.Join(o.Local.Root, storetest.VersionDir, o.Fingerprint.String())))
	putChain(t, s, prompt(1, testTokens))
	require.NoError(t, s.Close())
	require.FileExists(t, filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest}))
}

// TestRemovedDirectoryStaysRemoved: a store that has stored no page makes no directory when it
// closes.
func TestRemovedDirectoryStaysRemoved(t *testing.T) {
	o := testOptions(t)
	s := open(t, o)
	require.NoError(t, os.RemoveAll(o.Local.Root))
	require.NoError(t, s.Close())
	require.NoDirExists(t, o.Local.Root)
}

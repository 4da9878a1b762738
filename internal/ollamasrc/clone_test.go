package ollamasrc

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func archive(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range entries {
		h.Size = 0
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte("text"))
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return &buf
}

func TestUntar(t *testing.T) {
	dst := t.TempDir()
	require.NoError(t, untar(dst, archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o775},
		tar.Header{Typeflag: tar.TypeReg, Name: "a/file", Mode: 0o664},
		tar.Header{Typeflag: tar.TypeReg, Name: "b/script", Mode: 0o775},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "b/link", Linkname: "../a/file"},
	)))
	for name, mode := range map[string]os.FileMode{"a/file": 0o644, "b/script": 0o755} {
		info, err := os.Stat(filepath.Join(dst, name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), name)
	}
	data, err := os.ReadFile(filepath.Join(dst, "b", "link"))
	require.NoError(t, err)
	require.Equal(t, "text", string(data))
}

func TestUntarRefusesEscapes(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"parent":        {Typeflag: tar.TypeReg, Name: "../file"},
		"absolute":      {Typeflag: tar.TypeReg, Name: "/tmp/file"},
		"hidden parent": {Typeflag: tar.TypeReg, Name: "a/../../file"},
		"link out":      {Typeflag: tar.TypeSymlink, Name: "a/link", Linkname: "../../x"},
		"absolute link": {Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc"},
		"hard link":     {Typeflag: tar.TypeLink, Name: "link", Linkname: "file"},
		"device":        {Typeflag: tar.TypeChar, Name: "null"},
	} {
		dst := filepath.Join(t.TempDir(), "dst")
		require.NoError(t, os.Mkdir(dst, 0o755))
		require.ErrorContains(t, untar(dst, archive(t, h)), "the archive holds", name)
		entries, err := os.ReadDir(dst)
		require.NoError(t, err)
		require.Empty(t, entries, name)
	}
}

func TestUntarTruncated(t *testing.T) {
	whole := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644})
	whole.Truncate(514)
	require.Error(t, untar(t.TempDir(), whole))
}

package diskstore

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/vfs"
)

// encodeFile returns a page's file.
func encodeFile(t testing.TB, p *pagefile.Page) []byte {
	t.Helper()
	e, err := pagefile.Encode(testFingerprint(1), testTokens, p, nil)
	require.NoError(t, err)
	var file bytes.Buffer
	require.NoError(t, e.WriteTo(func(b []byte) error { file.Write(b); return nil }))
	return file.Bytes()
}

func TestVerifyAndInspectFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.kvp")
	p := pageOf(t, testFingerprint(1), 0, prompt(1, testTokens))
	file := encodeFile(t, p)
	require.NoError(t, os.WriteFile(path, file, 0o600))
	h, err := verifyFile(ctx, vfs.OS, path)
	require.NoError(t, err)
	require.Equal(t, p.Key(), h.Key)
	require.True(t, h.Layout.Equal(p.Layout))

	file[len(file)-pagefile.FooterBytes-1] ^= 1
	require.NoError(t, os.WriteFile(path, file, 0o600))
	_, err = verifyFile(ctx, vfs.OS, path)
	require.ErrorIs(t, err, pagefile.ErrDamaged)
	_, err = inspect.Header(vfs.OS, path)
	require.NoError(t, err, "the header is good")
	_, err = inspect.Header(vfs.OS, path+"x")
	require.ErrorIs(t, err, tier.ErrNotFound)
}
